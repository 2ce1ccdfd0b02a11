"""`slackwater protect`, `release` and `protections`: history that is kept from being collected."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from slackwater.client import aconnect
from slackwater.client.url import SCHEME
from slackwater.clock.timestamp import MIN, Timestamp, parse, parse_seconds, seconds_between, show
from slackwater.errors import UsageError
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments, addresses_of, joined

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from slackwater.client.database import AsyncDatabase
    from slackwater.protocol.client.protections import Protection

TEXT = """\
Overwritten and deleted rows are collected when they are older than the gc ttl of their table (`slackwater zone show TABLE`). A
protection keeps some of them: --at keeps what was live at that time and can be read there; --after keeps that and everything
since, so that changes can be followed from there. What it takes to read the tables then (their descriptors) is kept too.
It is protected when the command returns, or it is too late and nothing was changed. A time is ISO-8601, or such as -10m.

examples:
  slackwater protect orders --at -5m --reason "audit of the third quarter"
  slackwater protect orders customers --after 2026-11-18T04:00:00Z --expires 2d
  slackwater protections
  slackwater release 8c1f…                       the id that `protect` and `protections` print
"""


ID_DIGITS_MIN = 4


def protect_main(argv: list[str]) -> int:
    """`slackwater protect`."""
    parser = _parser("protect", "Keep history of tables from being collected, at a time or after it.")
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="as they were named at that time")
    times = parser.add_mutually_exclusive_group(required=True)
    times.add_argument("--at", metavar="T", help="keep what was live at this time")
    times.add_argument("--after", metavar="T", help="keep what was live at this time, and everything since")
    parser.add_argument(
        "--expires", metavar="TIME", help="release it by itself after this long, such as 2d; default never"
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="for people who wonder why it is there")
    options = parser.parse_args(joined(argv, "--at", "--after"))

    async def work() -> Protection:
        async with _session(options) as db:
            now = db.now()
            at, after = (None if given is None else parse(given, now=now) for given in (options.at, options.after))
            expires = None if options.expires is None else parse_seconds(options.expires)
            return await db.protect(options.tables, expires=expires, reason=options.reason, at=at, after=after)

    made = run(work())
    told = f"{', '.join(made.tables)} protected {made.mode.value} {show(made.timestamp)}, id {made.id}"
    print(msgspec.json.encode(made).decode() if options.json else told)
    return 0


def release_main(argv: list[str]) -> int:
    """`slackwater release`."""
    parser = _parser("release", "Let a protection go: what only it keeps is collected soon after.")
    parser.add_argument("id", metavar="ID", help="as `slackwater protections` prints it, or enough of its beginning")
    options = parser.parse_args(argv)

    async def work() -> str:
        async with _session(options) as db:
            whole = await _completed(db, options.id)
            await db.release(whole)
            return whole

    gone = run(work())
    print(msgspec.json.encode({"released": gone}).decode() if options.json else f"released {gone}")
    return 0


def list_main(argv: list[str]) -> int:
    """`slackwater protections`."""
    parser = _parser(
        "protections", "List what is kept from being collected: for whom, how old, how much history it pins."
    )
    options = parser.parse_args(argv)

    async def work() -> tuple[list[Protection], Timestamp]:
        async with _session(options) as db:
            return await db.protections(), db.now()

    found, now = run(work())
    if options.json:
        print(msgspec.json.encode(found).decode())
        return 0
    if not found:
        print("nothing is protected; history is kept for the gc ttl of each table")
    for one in found:
        ends = f"  expires in {age(seconds_between(now, one.expires))}" if one.expires != MIN else ""
        owner = " ".join(part for part in (one.kind, one.user, f"({one.about})" if one.about else "") if part)
        print(
            f"{one.id}  {one.mode.value} {show(one.timestamp)}  {age(seconds_between(one.timestamp, now))} old"
            f"  {', '.join(one.tables) or 'no table'}  {size(one.pinned_bytes)} pinned  {owner}{ends}"
        )
    return 0


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"slackwater {name}",
        description=description,
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_arguments(parser)
    return parser


def _session(options: argparse.Namespace) -> AbstractAsyncContextManager[AsyncDatabase]:
    return aconnect(f"{SCHEME}://{','.join(addresses_of(options.host))}", certs=options.certs, user=options.user)


async def _completed(db: AsyncDatabase, given: str) -> str:
    """A whole id from its beginning."""
    bare = given.replace("-", "").lower()
    if len(bare) >= 32:
        return bare
    if (
        len(bare) < ID_DIGITS_MIN
    ):  # such as a variable of a script that is not set: it would be the beginning of every id
        raise UsageError(
            f"write at least {ID_DIGITS_MIN} digits of the id, not {given!r}; `slackwater protections` lists them"
        )
    found = [one.id for one in await db.protections() if one.id.startswith(bare)]
    if not found:
        raise UsageError(f"no protection has an id that begins with {given!r}; `slackwater protections` lists them")
    if len(found) > 1:
        raise UsageError(f"{len(found)} protections begin with {given!r}; write more of the id")
    return found[0]


def age(seconds: float) -> str:
    """A length of time in one unit, for people."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def size(count: int) -> str:
    """A number of bytes in one unit, for people."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
