"""`slackwater tables`, `describe`, `leases`, `alter` and `index`: what tables look like, and changing them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from slackwater.cli.jobs import Bar
from slackwater.cli.status import aligned, print_table
from slackwater.client import aconnect
from slackwater.client.url import SCHEME
from slackwater.clock.timestamp import MIN, show
from slackwater.model.indexes import columns_of
from slackwater.model.jobs import Status
from slackwater.runtime.clock import RealClock
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments, addresses_of, verb_first

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from slackwater.client.database import AsyncDatabase
    from slackwater.client.schema_changes import TableChange
    from slackwater.model.jobs import Job
    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.client.schema import LeasesReply, PlanReply

T = TypeVar("T")
LOOK_S = 0.25
TEXT = """\
Each change is a durable job (`slackwater jobs`): it goes on when its node or this command ends, can be paused and cancelled, and
is undone when it fails. Rows can be read and written all the time. --dry-run changes nothing and says what would be done.

examples:
  slackwater tables
  slackwater describe orders
  slackwater leases orders                  what a change of orders waits for, and since when
  slackwater alter orders add-column note "text"
  slackwater alter orders add-column paid "bool not null default false"
  slackwater alter orders add-check positive "price >= 0" --dry-run
  slackwater alter orders rename-to purchases
  slackwater alter purchases drop --dry-run
  slackwater index create orders by_customer customer "placed desc" --storing price
  slackwater index drop orders by_customer
"""
_VERBS: dict[str, tuple[tuple[str, ...], str, Callable[[list[str]], dict[str, Any]]]] = {
    "add-column": (
        ("NAME", "TYPE"),
        "add a column; TYPE may say `not null` and a default",
        lambda a: {"add_column": {a[0]: a[1]}},
    ),
    "drop-column": (("NAME",), "remove a column that no key, index or check uses", lambda a: {"drop_column": a[0]}),
    "rename-column": (("OLD", "NEW"), "give a column another name", lambda a: {"rename_column": {a[0]: a[1]}}),
    "set-type": (("NAME", "TYPE"), "widen the type of a column", lambda a: {"set_type": {a[0]: a[1]}}),
    "set-not-null": (("NAME",), "refuse NULL in a column, once no row has one", lambda a: {"set_not_null": a[0]}),
    "drop-not-null": (("NAME",), "allow NULL in a column", lambda a: {"drop_not_null": a[0]}),
    "add-check": (("NAME", "CONDITION"), "require a condition of every row", lambda a: {"add_check": {a[0]: a[1]}}),
    "drop-check": (("NAME",), "require a condition no longer", lambda a: {"drop_check": a[0]}),
    "rename-to": (("NAME",), "give the table another name", lambda a: {"rename_to": a[0]}),
    "truncate": ((), "delete all rows; they stay readable as of before", lambda _: {}),
    "drop": ((), "drop the table; its rows stay readable as of before", lambda _: {}),
}


def tables_main(argv: list[str]) -> int:
    """`slackwater tables`."""
    options = _parser("tables", "List the tables of a cluster.").parse_args(argv)

    async def work(db: AsyncDatabase) -> list[TableDescriptor]:
        return [(await db.history(schema.name)).latest for schema in await db.tables()]

    found = run(_with(options, work))
    if options.json:
        print("\n".join(msgspec.json.encode(table).decode() for table in found))
        return 0
    if not found:
        print("no tables")
        return 0
    rows = [["table", "version", "columns", "indexes", "owner", "changes"]]
    for table in found:
        under_way = "; ".join(f"job {m.job}: {m.description}" for m in table.mutations)
        numbers = [str(table.version), str(len(table.columns)), str(len(table.indexes))]
        rows.append([table.name, *numbers, table.owner or "-", under_way or "-"])
    print_table(rows)
    return 0


def describe_main(argv: list[str]) -> int:
    """`slackwater describe`."""
    parser = _parser("describe", "Show a table: columns, keys, indexes, checks, changes under way.")
    parser.add_argument("table", metavar="TABLE")
    options = parser.parse_args(argv)

    async def work(db: AsyncDatabase) -> TableDescriptor:
        return (await db.history(options.table)).latest

    found = run(_with(options, work))
    print(msgspec.json.encode(found).decode() if options.json else "\n".join(described(found)))
    return 0


def described(table: TableDescriptor) -> list[str]:
    """A table in some lines for people."""
    keys = ", ".join(c.name + (" desc" if descending else "") for c, descending in table.schema.key_columns())
    lines = [f"table {table.name}, id {table.table_id}, version {table.version} since {show(table.modified)}"]
    for column in table.columns:
        null = "" if column.nullable else " not null"
        default = f" default {column.shown_default}" if column.has_default else ""
        lines.append(f"  {column.name} {column.type}{null}{default}")
    lines.append(f"  primary key ({keys})")
    for index in table.indexes:
        columns = ", ".join(c.name + (" desc" if d else "") for c, d in columns_of(table.schema, index))
        stored = [c.name for c in table.columns if c.id in index.storing]
        storing = f" storing ({', '.join(stored)})" if stored else ""
        unique = "unique " if index.unique else ""
        lines.append(f"  {unique}index {index.name} ({columns}){storing}, {index.state.value}")
    lines += [f"  check {check.name} ({check.text}), {check.state.value}" for check in table.checks]
    lines += [f"  under way: job {m.job}, {m.description}" for m in table.mutations]
    return lines


def leases_main(argv: list[str]) -> int:
    """`slackwater leases`."""
    parser = _parser("leases", "Show which nodes write by which versions of tables, and what schema changes wait for.")
    parser.add_argument("table", nargs="?", metavar="TABLE", help="one table; without it all")
    options = parser.parse_args(argv)
    found = run(_with(options, lambda db: db.leases(options.table)))
    print(msgspec.json.encode(found).decode() if options.json else "\n".join(shown_leases(found)))
    return 0


def shown_leases(found: LeasesReply) -> list[str]:
    """Leases and waiting changes in some lines for people."""
    rows = [["table", "version", "newest", "node", "epoch", "age", "until", ""]]
    for lease in found.leases:
        numbers = [str(lease.version), str(lease.newest), f"n{lease.node}", str(lease.epoch)]
        until = "-" if lease.until == MIN else show(lease.until)
        rows.append([lease.table or f"id {lease.table_id}", *numbers, f"{lease.age_s:.1f} s", until, lease.says])
    lines = aligned(rows) if found.leases else ["no node holds a lease"]
    for change in found.waiting:
        job = f"job {change.job}, " if change.job else ""
        lines.append(f"{job}{change.description}: {'waits' if change.waits_for else 'waits for nothing'}")
        lines += [f"  for {what}" for what in change.waits_for]
    return lines


def alter_main(argv: list[str]) -> int:
    """`slackwater alter`."""
    parser = _parser("alter", "Change columns, checks or the name of a table, beside all reads and writes.")
    parser.add_argument("table", metavar="TABLE")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="CHANGE")
    for name, (words, says, _) in _VERBS.items():
        verb = verbs.add_parser(name, help=says, description=says)
        for number, word in enumerate(words):
            verb.add_argument(f"word{number}", metavar=word)
        _add_common(verb)
    options = parser.parse_args(verb_first(argv))
    words, _, arguments = _VERBS[options.verb]
    given = arguments([getattr(options, f"word{number}") for number in range(len(words))])

    async def change(db: AsyncDatabase) -> TableChange:
        if options.verb == "truncate":
            return await db.truncate_table(options.table, wait=False, dry_run=options.dry_run)
        if options.verb == "drop":
            return await db.drop_table(options.table, wait=False, dry_run=options.dry_run)
        return await db.alter_table(options.table, **given, wait=False, dry_run=options.dry_run)

    return run(_with(options, lambda db: _followed(db, options, change)))


def index_main(argv: list[str]) -> int:
    """`slackwater index`."""
    parser = _parser("index", "Build or drop a secondary index of a table, beside all reads and writes.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = verbs.add_parser("create", help="build an index")
    drop = verbs.add_parser("drop", help="remove an index")
    for verb in (create, drop):
        verb.add_argument("table", metavar="TABLE")
        verb.add_argument("name", metavar="INDEX")
        _add_common(verb)
    create.add_argument("columns", nargs="+", metavar="COLUMN", help='in order; "placed desc" for a descending one')
    create.add_argument("--unique", action="store_true", help="no two rows have the same values")
    create.add_argument("--storing", default="", metavar="COLUMN,…", help="columns that the index carries too")
    options = parser.parse_args(verb_first(argv))

    async def change(db: AsyncDatabase) -> TableChange:
        common: dict[str, Any] = {"wait": False, "dry_run": options.dry_run}
        if options.verb == "drop":
            return await db.drop_index(options.table, options.name, **common)
        storing = tuple(name.strip() for name in options.storing.split(",") if name.strip())
        return await db.create_index(
            options.table, options.name, options.columns, unique=options.unique, storing=storing, **common
        )

    return run(_with(options, lambda db: _followed(db, options, change)))


async def _followed(
    db: AsyncDatabase, options: argparse.Namespace, change: Callable[[AsyncDatabase], Awaitable[TableChange]]
) -> int:
    """Begin a change and follow its jobs to the end, unless that is not wanted; 1 unless all succeeded."""
    made = await change(db)
    if made.plan is not None:
        plan = made.plan
        print(msgspec.json.encode(plan).decode() if options.json else "\n".join(planned(plan)))
        return 0
    jobs = made.jobs if options.no_wait else [await _waited(db, job, quiet=options.json) for job in made.jobs]
    for job in jobs:
        if options.json:
            print(msgspec.json.encode(job).decode())
        else:
            why = f": {job.error}" if job.error and job.status is not Status.SUCCEEDED else ""
            print(f"job {job.id}, {job.description}: {job.status.value}{why}")
    return 0 if options.no_wait or all(job.status is Status.SUCCEEDED for job in jobs) else 1


async def _waited(db: AsyncDatabase, job: Job, *, quiet: bool) -> Job:
    clock, bar = RealClock(), Bar()
    shown = sys.stderr.isatty() and not quiet
    while not job.status.ended:
        if shown:
            print(f"\r\x1b[K{bar.line(job, clock.monotonic_ns() / 1e9)}", end="", file=sys.stderr, flush=True)
        await clock.sleep(LOOK_S)
        job = await db.jobs.get(job.id)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return job


def planned(plan: PlanReply) -> list[str]:
    """A dry run in some lines for people."""
    lines = [f"nothing was changed; table {plan.table} is at version {plan.version}"]
    for change in plan.changes:
        lines.append(change.description)
        lines += [f"  {step.says}{f', then {step.work}' if step.work else ''}" for step in change.steps]
        lines.append(f"  reads about {change.rows_to_read} rows, writes about {change.rows_to_write} entries")
    lines += [f"n{holder.node} uses version {holder.version}" for holder in plan.holders]
    lines += [f"waits for {blocker}" for blocker in plan.blocked_by]
    return lines


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"slackwater {name}",
        description=description,
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if name in ("tables", "describe", "leases"):
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_client_arguments(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="change nothing, say what would be done")
    parser.add_argument("--no-wait", action="store_true", help="return when the job is made")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_arguments(parser)


async def _with(options: argparse.Namespace, work: Callable[[AsyncDatabase], Awaitable[T]]) -> T:
    session: AbstractAsyncContextManager[AsyncDatabase] = aconnect(
        f"{SCHEME}://{','.join(addresses_of(options.host))}", certs=options.certs, user=options.user
    )
    async with session as db:
        return await work(db)
