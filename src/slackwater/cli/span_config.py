"""`slackwater span-config`: which spans of keys are replicated and closed in a way of their own."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from slackwater.cli.calling import CALL_TIMEOUT_S, calling
from slackwater.cli.frontier import table_id_of
from slackwater.codec.layout import kv, show_key, table_span
from slackwater.config.zones import PolicyKind
from slackwater.errors import UsageError
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments
from slackwater.server.config_service import (
    CHANGE_SPAN_CONFIG,
    READ_SPAN_CONFIGS,
    REMOVE_SPAN_CONFIG,
    ChangeSpanConfig,
    RemoveSpanConfig,
    SpanConfigsReply,
    SpanConfigsRequest,
)

if TYPE_CHECKING:
    from slackwater.config.zones import ZoneConfig
    from slackwater.runtime.rpc.dialer import Dialer

CHANGE_TIMEOUT_S = 30.0
TEXT = """\
policies
  lag    followers serve what is older than a duration (default: closed_timestamp.target_duration); writers feel nothing
  lead   every replica serves reads at present time; a write is acknowledged only when its time has come, a little later
         than the clocks' largest offset (about 0.8 s with default settings). For small tables read everywhere
  off    nothing is closed: no follower reads, and change feeds are refused, because nothing would ever be resolved
  The system's own ranges always lag by closed_timestamp.target_duration, whatever --rest says.

Under TLS this takes an operator's certificate (`slackwater cert create-operator`).
Nodes learn of a change by feed, or within `span_config.poll_interval`. Ranges are split at the bounds of spans by themselves.

examples:
  slackwater span-config show
  slackwater span-config set --table rates --policy lead                the table is read everywhere at present time
  slackwater span-config set --from rates/ --to rates0 --policy lead    plain keys, as `slackwater kv` names them
  slackwater span-config set --table orders --policy lag --duration-ms 200   followers are 0.2 s behind instead of 3 s
  slackwater span-config set --rest --policy off                        all other tables and keys close nothing
  slackwater span-config set --table rates --replicas 5
  slackwater span-config unset --table rates                            as the rest again
"""


class SpanConfigRow(msgspec.Struct, frozen=True):
    """One record for people and programs."""

    start: str
    end: str
    policy: str | None
    duration_ms: int | None
    replicas: int | None


def main(argv: list[str]) -> int:
    """Show or change. `unset` of what was not set exits with status 1."""
    options = _parser().parse_args(argv)
    configs = run(_do(options))
    rows = [_row(config) for config in configs]
    if options.json:
        print(msgspec.json.encode(rows).decode())
    elif options.verb == "unset":
        for row in rows:
            print(f"{_shown(row)} has no configuration of its own any more")
    else:
        _print(rows)
    if options.verb == "unset" and not configs:
        print("slackwater span-config: that span has no configuration of its own", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slackwater span-config",
        description="Give a span of keys its own closed-timestamp policy or number of replicas, online.",
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    show = verbs.add_parser("show", help="print every record")
    change = verbs.add_parser("set", help="change some of a span's configuration, keep the rest of it")
    unset = verbs.add_parser("unset", help="remove a span's configuration: it is as the rest again")
    for verb in (change, unset):
        verb.add_argument("--table", metavar="NAME|ID", help="all rows and indexes of a table")
        verb.add_argument("--from", dest="start", metavar="KEY", help="the first plain key of the span")
        verb.add_argument("--to", dest="end", metavar="KEY", help="the span ends before this plain key")
        verb.add_argument("--rest", action="store_true", help="everything that has no record of its own")
    change.add_argument("--policy", choices=[kind.value for kind in PolicyKind], help="which timestamps are closed")
    change.add_argument("--duration-ms", type=int, metavar="MS", help="of the policy lag; 0: the cluster's setting")
    change.add_argument("--replicas", type=int, metavar="N", help="replicas of each range; 0: as many as elsewhere")
    for verb in (show, change, unset):
        add_client_arguments(verb)
        verb.add_argument("--json", action="store_true", help="print a JSON array of records")
    return parser


async def span_of(dialer: Dialer, options: argparse.Namespace) -> tuple[bytes, bytes]:
    """The span that the options name: exactly one way of naming it."""
    ways = [options.table is not None, options.start is not None or options.end is not None, options.rest]
    if sum(ways) != 1:
        raise UsageError("name one span: --table NAME, or --from KEY --to KEY, or --rest")
    if options.rest:
        return b"", b""
    if options.table is not None:
        span = table_span(await table_id_of(options.table, options.host, dialer))
        return span.start, span.end
    if options.start is None or options.end is None:
        raise UsageError("a span of plain keys needs both --from and --to")
    if options.start >= options.end:
        raise UsageError("--from comes before --to")
    return kv(options.start.encode()), kv(options.end.encode())


async def _do(options: argparse.Namespace) -> list[ZoneConfig]:
    async with calling(options) as dialer:
        return (await _OPERATIONS[options.verb](dialer, options)).configs


async def _show(dialer: Dialer, options: argparse.Namespace) -> SpanConfigsReply:
    return await dialer.call(options.host, READ_SPAN_CONFIGS, SpanConfigsRequest(), timeout=CALL_TIMEOUT_S)


async def _set(dialer: Dialer, options: argparse.Namespace) -> SpanConfigsReply:
    if options.policy is None and options.duration_ms is None and options.replicas is None:
        raise UsageError("say what to set: --policy, --duration-ms or --replicas")
    change = ChangeSpanConfig(
        *await span_of(dialer, options),
        replication_factor=options.replicas,
        policy=PolicyKind(options.policy) if options.policy else None,
        duration_ms=options.duration_ms,
    )
    return await dialer.call(options.host, CHANGE_SPAN_CONFIG, change, timeout=CHANGE_TIMEOUT_S)


async def _unset(dialer: Dialer, options: argparse.Namespace) -> SpanConfigsReply:
    remove = RemoveSpanConfig(*await span_of(dialer, options))
    return await dialer.call(options.host, REMOVE_SPAN_CONFIG, remove, timeout=CHANGE_TIMEOUT_S)


def _row(config: ZoneConfig) -> SpanConfigRow:
    start, end = ("rest", "") if config.is_rest else (show_key(config.start), show_key(config.end))
    policy = config.policy.value if config.policy else None
    return SpanConfigRow(start, end, policy, config.duration_ms or None, config.replication_factor or None)


def _shown(row: SpanConfigRow) -> str:
    return "the rest" if row.start == "rest" else f"[{row.start}, {row.end})"


def _print(rows: list[SpanConfigRow]) -> None:
    if not rows:
        print("no span has a configuration of its own")
    for row in rows:
        policy = row.policy or "as elsewhere"
        lag = f" of {row.duration_ms} ms" if row.duration_ms else ""
        note = "  (the system's own ranges lag as ever)" if row.start == "rest" and row.policy else ""
        print(f"{_shown(row)}  policy: {policy}{lag}  replicas: {row.replicas or 'as elsewhere'}{note}")


_OPERATIONS = {"show": _show, "set": _set, "unset": _unset}
