"""`slackwater zone`: how long history is kept, which timestamps are closed and how many replicas there are, by table or span."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from slackwater.cli.calling import CALL_TIMEOUT_S, calling
from slackwater.cli.frontier import table_id_of
from slackwater.clock.timestamp import parse_seconds
from slackwater.codec.layout import KV, kv, show_key, table_of, table_span
from slackwater.config.zones import SYSTEM_SPAN, PolicyKind, Sourced
from slackwater.errors import UsageError
from slackwater.model.spans import Span
from slackwater.protocol.client.calls import LIST_TABLES, ListTables
from slackwater.protocol.node.config import (
    CHANGE_ZONE,
    READ_ZONES,
    UNSET_ZONE,
    ChangeZone,
    UnsetZone,
    ZonesReply,
    ZonesRequest,
)
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments, verb_first

if TYPE_CHECKING:
    from slackwater.config.zones import ZoneConfig
    from slackwater.runtime.rpc.dialer import Dialer

CHANGE_TIMEOUT_S = 30.0
NAMES = {"gc_ttl_s": "gc ttl", "policy": "policy", "duration_ms": "lag", "replicas": "replicas"}
TEXT = """\
values
  gc ttl     for how long overwritten and deleted rows can be read (default 4h); then they are collected, unless something
             protects them (`slackwater protect`, change feeds, Spark). A longer ttl brings nothing back that is gone
  policy     lag    followers serve what is older than a duration (default: closed_timestamp.target_duration)
             lead   every replica serves reads at present time; a write is acknowledged only when its time has come, a
                    little later than the clocks' largest offset (about 0.8 s). For small tables read everywhere
             off    nothing is closed: no follower reads, and change feeds are refused
  replicas   of each range
  What a zone leaves open, the rest decides (--rest), and then settings and defaults do. The system's own keys (--system) always
  lag by closed_timestamp.target_duration, and keep history for at least as long as every other zone: catalog included.

Under TLS this takes an operator's certificate (`slackwater cert create-operator`).
Nodes learn of a change by feed, or within `span_config.poll_interval`. Ranges are split at the bounds of zones by themselves.

examples:
  slackwater zone show                                      every zone
  slackwater zone show orders                               what holds for a table, and where each value comes from
  slackwater zone set orders --gc-ttl 10m                   ten minutes of history instead of four hours
  slackwater zone set rates --policy lead                   the table is read everywhere at present time
  slackwater zone set orders --policy lag --duration-ms 200 followers are 0.2 s behind instead of 3 s
  slackwater zone set --from rates/ --to rates0 --replicas 5    plain keys, as `slackwater kv` names them
  slackwater zone set --rest --gc-ttl 1h                    everything that has no zone of its own
  slackwater zone unset rates                               as the rest again
"""


class ZoneRow(msgspec.Struct, frozen=True):
    """One record for people and programs."""

    start: str
    end: str
    policy: str | None
    duration_ms: int | None
    replicas: int | None
    gc_ttl_s: float | None
    table: str | None = None
    """Whose span it is, where it is a table's."""


def main(argv: list[str]) -> int:
    """Show or change. `unset` of what was not set exits with status 1."""
    options = _parser().parse_args(verb_first(argv))
    reply, names = run(_do(options))
    rows = [_row(config, names) for config in reply.configs]
    if options.verb == "show" and _named(options):
        _explain(reply.values, as_json=options.json)
        return 0
    if options.json:
        print(msgspec.json.encode(rows).decode())
    elif options.verb == "unset":
        for row in rows:
            print(f"{_shown(row)} has no configuration of its own any more")
    else:
        _print(rows)
    if options.verb == "unset" and not rows:
        print("slackwater zone: that span has no configuration of its own", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slackwater zone",
        description="Say how long history is kept, which timestamps are closed and how many replicas there are, online.",
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    show = verbs.add_parser("show", help="print every zone, or what holds for one and why")
    change = verbs.add_parser("set", help="change some of a zone's configuration, keep the rest of it")
    unset = verbs.add_parser("unset", help="remove a zone: its keys are as the rest again")
    for verb in (show, change, unset):
        verb.add_argument(
            "table", nargs="?", metavar="TABLE", help="all rows and indexes of a table, by name or number"
        )
        verb.add_argument("--from", dest="start", metavar="KEY", help="the first plain key of the span")
        verb.add_argument("--to", dest="end", metavar="KEY", help="the span ends before this plain key")
        verb.add_argument("--rest", action="store_true", help="everything that has no zone of its own")
        verb.add_argument("--system", action="store_true", help="the system's own keys")
    change.add_argument(
        "--gc-ttl", metavar="TIME", help="how long history is kept, such as 10m or 4h; 0s: as elsewhere"
    )
    change.add_argument("--policy", choices=[kind.value for kind in PolicyKind], help="which timestamps are closed")
    change.add_argument("--duration-ms", type=int, metavar="MS", help="of the policy lag; 0: the cluster's setting")
    change.add_argument("--replicas", type=int, metavar="N", help="replicas of each range; 0: as many as elsewhere")
    for verb in (show, change, unset):
        add_client_arguments(verb)
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _named(options: argparse.Namespace) -> bool:
    return bool(options.table is not None or options.start or options.end or options.rest or options.system)


async def span_of(dialer: Dialer, options: argparse.Namespace) -> tuple[bytes, bytes]:
    """The span that the options name: exactly one way of naming it."""
    plain = options.start is not None or options.end is not None
    if sum([options.table is not None, plain, options.rest, options.system]) != 1:
        raise UsageError("name one zone: TABLE, or --from KEY --to KEY, or --rest, or --system")
    if options.rest:
        return b"", b""
    if options.system:
        return SYSTEM_SPAN.start, SYSTEM_SPAN.end
    if options.table is not None:
        span = table_span(await table_id_of(options.table, options.host, dialer))
        return span.start, span.end
    if options.start is None or options.end is None:
        raise UsageError("a span of plain keys needs both --from and --to")
    if options.start >= options.end:
        raise UsageError("--from comes before --to")
    return kv(options.start.encode()), kv(options.end.encode())


async def _do(options: argparse.Namespace) -> tuple[ZonesReply, dict[tuple[bytes, bytes], str]]:
    async with calling(options) as dialer:
        reply = await _OPERATIONS[options.verb](dialer, options)
        return reply, await _names(dialer, options.host, reply.configs)


async def _names(dialer: Dialer, host: str, configs: list[ZoneConfig]) -> dict[tuple[bytes, bytes], str]:
    """The tables whose spans have a zone, by span; one that is gone is named by its number."""
    spans = [Span(config.start, config.end) for config in configs if not config.is_rest]
    ids = {(span.start, span.end): table_id for span in spans if (table_id := table_of(span))}
    if not ids:
        return {}
    reply = await dialer.call(host, LIST_TABLES, ListTables(), timeout=CALL_TIMEOUT_S)
    names = {table.latest.schema.table_id: table.latest.schema.name for table in reply.tables}
    return {span: names.get(table_id, f"{table_id} (dropped)") for span, table_id in ids.items()}


async def _show(dialer: Dialer, options: argparse.Namespace) -> ZonesReply:
    key = b""
    if _named(options):
        key = (await span_of(dialer, options))[0] or KV  # a key of the rest: no zone begins before plain keys do
    return await dialer.call(options.host, READ_ZONES, ZonesRequest(key), timeout=CALL_TIMEOUT_S)


async def _set(dialer: Dialer, options: argparse.Namespace) -> ZonesReply:
    if all(value is None for value in (options.policy, options.duration_ms, options.replicas, options.gc_ttl)):
        raise UsageError("say what to set: --gc-ttl, --policy, --duration-ms or --replicas")
    change = ChangeZone(
        *await span_of(dialer, options),
        replication_factor=options.replicas,
        policy=PolicyKind(options.policy) if options.policy else None,
        duration_ms=options.duration_ms,
        gc_ttl_s=None if options.gc_ttl is None else parse_seconds(options.gc_ttl),
    )
    return await dialer.call(options.host, CHANGE_ZONE, change, timeout=CHANGE_TIMEOUT_S)


async def _unset(dialer: Dialer, options: argparse.Namespace) -> ZonesReply:
    remove = UnsetZone(*await span_of(dialer, options))
    return await dialer.call(options.host, UNSET_ZONE, remove, timeout=CHANGE_TIMEOUT_S)


def _row(config: ZoneConfig, names: dict[tuple[bytes, bytes], str]) -> ZoneRow:
    start, end = ("rest", "") if config.is_rest else (show_key(config.start), show_key(config.end))
    if config.is_system:
        start, end = "system", ""
    policy = config.policy.value if config.policy else None
    return ZoneRow(
        start,
        end,
        policy,
        config.duration_ms or None,
        config.replication_factor or None,
        config.gc_ttl_s or None,
        names.get((config.start, config.end)),
    )


def _shown(row: ZoneRow) -> str:
    if row.table is not None:
        return f"table {row.table}"
    return {"rest": "the rest", "system": "the system's keys"}.get(row.start) or f"[{row.start}, {row.end})"


def _print(rows: list[ZoneRow]) -> None:
    if not rows:
        print("no span has a configuration of its own")
    for row in rows:
        policy = row.policy or "as elsewhere"
        lag = f" of {row.duration_ms} ms" if row.duration_ms else ""
        ttl = f"{row.gc_ttl_s:g} s" if row.gc_ttl_s else "as elsewhere"
        note = "  (the system's own ranges lag as ever)" if row.start == "rest" and row.policy else ""
        print(f"{_shown(row)}  gc ttl: {ttl}  policy: {policy}{lag}  replicas: {row.replicas or 'as elsewhere'}{note}")


def _explain(values: dict[str, Sourced], *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(values).decode())
        return
    units = {"gc_ttl_s": " s", "duration_ms": " ms"}
    for name, title in NAMES.items():
        if (found := values.get(name)) is not None:
            value = f"{found.value:g}" if isinstance(found.value, float) else str(found.value)
            print(f"{title:<9} {value + units.get(name, ''):<12} from {found.source}")


_OPERATIONS = {"show": _show, "set": _set, "unset": _unset}
