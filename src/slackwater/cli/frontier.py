"""`slackwater frontier`: how far every replica of a span is closed and resolved, and what holds it back.

The node that is asked names the others; each of them is asked directly for its own replicas, all at the same time. A range
is shown with its leaseholder first: why nothing is closed is the leaseholder's to tell, why a follower is behind it is
the follower's. A node that does not answer is named at the end.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slackwater.cli.calling import CALL_TIMEOUT_S, calling
from slackwater.cli.status import ASK_TIMEOUT_S, ask_all, print_table
from slackwater.clock.timestamp import MIN, seconds_between, show
from slackwater.codec.layout import KEY_MAX, kv, show_key, table_span
from slackwater.errors import UsageError
from slackwater.protocol.client import calls as native
from slackwater.protocol.closedts.frontier import FRONTIER, HoldKind, ReplicaFrontier, ReplicaFrontiersRequest
from slackwater.protocol.node.services import REPORT, ReportRequest
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments, is_table_id

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.descriptors import NodeDescriptor
    from slackwater.runtime.rpc.dialer import Dialer

TEXT = """\
closed     nothing at or below this time will ever be written again, as this replica knows: it serves reads there
resolved   and no unfinished transaction has written there either: such reads meet nothing, feeds have everything

what can hold a replica back
  transaction  an unfinished transaction has written there; if it lasts, look for a client that forgot to commit
  apply        the replica has not applied the log that far: a slow or restarted node
  merge        the range is being merged with its neighbor; a moment
  lease        no node holds the lease, or it is on its way to another node
  node         the node that holds the lease has stopped; another one takes over when a request needs it
  request      writes that are not in the log yet: the log is slow, or a request is
  policy       closing is off for this span (`slackwater zone`, closed_timestamp.target_duration), or rests until it is
               asked for (closed_timestamp.activation)
  replica      the replica is quarantined; it is fetched anew by itself

examples:
  slackwater frontier                          every range of the cluster
  slackwater frontier --table orders           the ranges of one table, by name or id
  slackwater frontier --from rates/ --to rates0
  slackwater frontier --behind 5               only replicas that are resolved less far than 5 s ago
  slackwater frontier --json | jq '.replicas[] | select(.kind == "transaction")'
"""


class FrontierLine(msgspec.Struct, frozen=True):
    """One replica."""

    range_id: int
    node: int
    leads: bool
    closed: int
    resolved: int
    closed_lag_s: float | None
    resolved_lag_s: float | None
    kind: str
    """What sort of thing holds it back; empty for nothing."""
    what: str
    since: str
    for_s: float | None
    policy: str
    start: str
    end: str


class Report(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    now: str
    replicas: list[FrontierLine]
    unreachable: list[int]
    schemes: dict[int, list[str]] = {}
    """How each node closes: several schemes while the cluster moves from one to another."""


def main(argv: list[str]) -> int:
    """Print the frontier of a span; exits with status 1 when a node did not answer."""
    options = _parser().parse_args(argv)
    report = run(_ask(options))
    if options.json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(report)
    return 1 if report.unreachable else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slackwater frontier",
        description="Explain how far each replica is closed and resolved, and what holds it back since when.",
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_client_arguments(parser)
    parser.add_argument("--table", metavar="NAME|ID", help="the ranges of one table")
    parser.add_argument("--from", dest="start", metavar="KEY", help="from this plain key on")
    parser.add_argument("--to", dest="end", metavar="KEY", help="up to this plain key")
    parser.add_argument("--behind", type=float, metavar="SECONDS", help="only replicas resolved longer ago than this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


async def _ask(options: argparse.Namespace) -> Report:
    async with calling(options) as dialer:
        start, end = await _span(options, dialer)
        first = await dialer.call(options.host, REPORT, ReportRequest(), timeout=CALL_TIMEOUT_S)
        nodes = sorted(first.nodes or [first.node], key=lambda node: node.node_id)
        answers = await ask_all([partial(_replicas_of, dialer, node, start, end) for node in nodes])
    found: list[ReplicaFrontier] = [replica for answer in answers if answer for replica in answer[0]]
    found.sort(key=lambda r: (r.range_id, not r.leads, r.node_id))
    rows = [_row(replica, first.now) for replica in found]
    if options.behind is not None:
        rows = [r for r in rows if r.resolved_lag_s is None or r.resolved_lag_s > options.behind]
    silent = [int(node.node_id) for node, answer in zip(nodes, answers, strict=True) if answer is None]
    schemes = {int(node.node_id): answer[1] for node, answer in zip(nodes, answers, strict=True) if answer}
    return Report(show(first.now), rows, silent, schemes)


async def _span(options: argparse.Namespace, dialer: Dialer) -> tuple[bytes, bytes]:
    """What was asked about."""
    if options.table is not None:
        if options.start is not None or options.end is not None:
            raise UsageError("give either --table or --from and --to")
        span = table_span(await table_id_of(options.table, options.host, dialer))
        return span.start, span.end
    start = b"" if options.start is None else kv(options.start.encode())
    end = KEY_MAX if options.end is None else kv(options.end.encode())
    if start >= end:
        raise UsageError("--from comes before --to")
    return start, end


async def table_id_of(table: str, host: str, dialer: Dialer) -> int:
    """The number of a table that was named by it or by its name."""
    if is_table_id(table):
        return int(table)
    reply = await dialer.call(host, native.FIND_TABLE, native.FindTable(table), timeout=CALL_TIMEOUT_S)
    return reply.table.latest.schema.table_id


async def _replicas_of(
    dialer: Dialer, node: NodeDescriptor, start: bytes, end: bytes
) -> tuple[list[ReplicaFrontier], list[str]]:
    """The replicas of one node, and the schemes by which it closes."""
    found: list[ReplicaFrontier] = []
    request = ReplicaFrontiersRequest(start=start, end=end)
    while True:
        reply = await dialer.call(node.address, FRONTIER, request, timeout=ASK_TIMEOUT_S)
        found += reply.replicas
        if not reply.more:
            return found, reply.schemes
        request = msgspec.structs.replace(request, beyond=found[-1].range_id)


def _row(replica: ReplicaFrontier, now: Timestamp) -> FrontierLine:
    held = replica.holding()
    return FrontierLine(
        range_id=replica.range_id,
        node=replica.node_id,
        leads=replica.leads,
        closed=replica.closed,
        resolved=replica.resolved,
        closed_lag_s=_lag(replica.closed, now),
        resolved_lag_s=_lag(replica.resolved, now),
        kind=held.kind.value,
        what=held.what,
        since="" if held.since == MIN else show(held.since),
        for_s=_lag(held.since, now),
        policy=replica.policy,
        start=show_key(replica.start) if replica.start else "-",
        end=show_key(replica.end),
    )


def _lag(ts: Timestamp, now: Timestamp) -> float | None:
    return None if ts == MIN else round(seconds_between(ts, now), 3)


def _print(report: Report) -> None:
    table = [["range", "replica", "role", "closed", "resolved", "held back by", "for", "policy", "span"]]
    last = 0
    for row in report.replicas:
        head, span = (f"r{row.range_id}", f"[{row.start}, {row.end})") if row.range_id != last else ("", "")
        last = row.range_id
        role = "leads" if row.leads else "follows"
        lags = [_shown(row.closed_lag_s), _shown(row.resolved_lag_s)]
        held = f"{row.kind}: {row.what}" if row.kind != HoldKind.NOTHING.value else "-"
        since = "-" if row.for_s is None else f"{max(0.0, row.for_s):.1f} s"
        table.append([head, f"n{row.node}", role, *lags, held, since, row.policy, span])
    print_table(table)
    if any(schemes not in ([], ["log-driven"]) for schemes in report.schemes.values()):
        print("closing by  " + "   ".join(f"n{node} {' + '.join(by)}" for node, by in report.schemes.items()))
    for node in report.unreachable:
        print(f"n{node} did not answer: its replicas are not shown", file=sys.stderr)


def _shown(lag_s: float | None) -> str:
    if lag_s is None:
        return "never"
    return f"{lag_s:.1f} s ago" if lag_s >= 0 else f"{-lag_s:.1f} s ahead"
