"""`slackwater kv`: look at and change plain keys of a running cluster, one operation per call. For trying and debugging."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, parse, show
from slackwater.codec.keys import unescape
from slackwater.codec.layout import KV, kv, prefix_end
from slackwater.errors import UsageError
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments, joined, verb_first
from slackwater.server.remote import connect

if TYPE_CHECKING:
    from slackwater.server.remote import Remote

EXAMPLES = """\
examples:
  slackwater kv put greeting hello
  slackwater kv get greeting
  slackwater kv get greeting --at -5s              as it was five seconds ago
  slackwater kv get greeting --nearest             as it is, from the nearest replica of a span whose policy is lead
  slackwater kv scan --from a --to b --limit 10 --json
  slackwater kv delete greeting
"""
SCAN_ROWS = 100


class Pair(msgspec.Struct, frozen=True):
    """One key and its value; bytes that are no text are shown escaped."""

    key: str
    value: str | None


def main(argv: list[str]) -> int:
    """Do one operation. `get` of a key that is not there exits with status 1."""
    options = _parser().parse_args(joined(verb_first(argv), "--at"))
    pairs = run(_do(options))
    for pair in pairs:
        if options.json:
            print(msgspec.json.encode(pair).decode())
        elif pair.value is not None:
            print(pair.value if options.verb == "get" else f"{pair.key}\t{pair.value}")
    if options.verb == "get" and pairs[0].value is None:
        print(f"slackwater kv: there is no key {options.key!r}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slackwater kv",
        description="Read and write plain keys of a running cluster. Under TLS this takes an operator's certificate.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    get = verbs.add_parser("get", help="print the value of a key")
    put = verbs.add_parser("put", help="set a key")
    delete = verbs.add_parser("delete", help="remove a key")
    scan = verbs.add_parser("scan", help="print keys and values in order")
    for verb in (get, put, delete):
        verb.add_argument("key")
    put.add_argument("value")
    scan.add_argument(
        "--from", dest="start", default="", metavar="KEY", help="the first key (default: the first of all)"
    )
    scan.add_argument("--to", dest="end", default=None, metavar="KEY", help="end before this key")
    scan.add_argument("--limit", type=int, default=SCAN_ROWS, metavar="N", help=f"rows at most (default {SCAN_ROWS})")
    for verb in (get, scan):
        verb.add_argument("--at", default="", metavar="TIME", help="as of a timestamp or an interval such as -5s")
        verb.add_argument(
            "--nearest",
            action="store_true",
            help="the present, from the nearest replica that can tell it: see `slackwater zone --help`, policy lead",
        )
    for verb in (get, put, delete, scan):
        add_client_arguments(verb)
        verb.add_argument("--json", action="store_true", help="one JSON object per row")
    return parser


async def _do(options: argparse.Namespace) -> list[Pair]:
    async with connect([options.host], certs=options.certs, user=options.user) as remote:
        return await _OPERATIONS[options.verb](remote, options)


async def _get(remote: Remote, options: argparse.Namespace) -> list[Pair]:
    ts = _time(remote, options.at)
    value = await remote.kv.get(kv(options.key.encode()), ts=ts, nearest=options.nearest)
    return [Pair(options.key, None if value is None else _text(value))]


async def _put(remote: Remote, options: argparse.Namespace) -> list[Pair]:
    await remote.kv.put(kv(options.key.encode()), options.value.encode())
    return [Pair(options.key, options.value)]


async def _delete(remote: Remote, options: argparse.Namespace) -> list[Pair]:
    await remote.kv.delete(kv(options.key.encode()))
    return [Pair(options.key, None)]


async def _scan(remote: Remote, options: argparse.Namespace) -> list[Pair]:
    ts = _time(remote, options.at)
    if options.limit < 1:
        raise UsageError("--limit is a number of rows, at least 1", limit=options.limit)
    if options.end is not None and options.start >= options.end:
        raise UsageError("--from comes before --to")
    end = prefix_end(KV) if options.end is None else kv(options.end.encode())
    rows = await remote.kv.scan(kv(options.start.encode()), end, max_keys=options.limit, ts=ts, nearest=options.nearest)
    return [Pair(_text(unescape(k, 1)[0]), _text(v)) for k, v in zip(rows.keys, rows.values, strict=True)]


def _time(remote: Remote, text: str) -> Timestamp:
    """The time to read at; `MIN` for the present."""
    if not text:
        return MIN
    now = remote.clock.now()
    found = parse(text, now=now)
    if found > now:
        raise UsageError(f"the future cannot be read: {show(found)} has not come yet; leave --at out for the present")
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


_OPERATIONS = {"get": _get, "put": _put, "delete": _delete, "scan": _scan}
