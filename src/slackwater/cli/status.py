"""`slackwater status` and `slackwater ranges`: what a cluster looks like from one node, and what each node says itself.

The node that is asked names the others; each of them is then asked directly, all at the same time, for at most a few
seconds. One that does not answer is listed all the same, with what the first one knows about it.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.cli.calling import CALL_TIMEOUT_S, calling
from slackwater.cli.protect import age, size
from slackwater.clock.timestamp import MIN, seconds_between, show
from slackwater.codec.layout import show_key
from slackwater.errors import SlackwaterError
from slackwater.model.jobs import Job, Status, instant, oldest_running_s
from slackwater.protocol.client.jobs import LIST_JOBS, ListJobs
from slackwater.protocol.client.protections import PROTECTIONS, ListProtections
from slackwater.protocol.node.services import REPORT, STATUS, ReplicaStatus, ReportReply, ReportRequest, StatusRequest
from slackwater.routing.parallel import in_parallel
from slackwater.runtime.real import run
from slackwater.runtime.tasks import Scope
from slackwater.server.arguments import add_client_arguments
from slackwater.server.replication import count_replicas, warnings
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.descriptors import Liveness, NodeDescriptor
    from slackwater.protocol.client.protections import Protection
    from slackwater.runtime.rpc.dialer import Dialer

ASK_TIMEOUT_S = 3.0
NODES_AT_ONCE = 32
LATELY = dt.timedelta(days=1)
"""Jobs that failed within this time are named."""
FAILED_SHOWN_MAX = 5


WAITING = "waiting for init"
STATUS_COLUMNS = """\
columns
  state    live; draining (handing over its leases); expired (no heartbeat for liveness.duration: its leases move); no
           answer (it did not answer this command)
  epoch    grows when others had to declare the node dead
  leases   of so many of its ranges it is the leaseholder, which serves their writes
  bad      replicas that are quarantined: they serve nothing, and `slackwater ranges` says why
  clock    its clock minus that of the node asked
"""
RANGES_COLUMNS = """\
columns
  gen       changes whenever the range's bounds or replicas do
  lai       commands applied; replicas of one range that are equally far have the same
  position  in the log
  closed    how long ago the time is up to which this replica serves reads by itself
  columns   bytes of its files of columns, how old what they show is, and which share of it has changed since
  garbage   bytes of versions that no read at the present sees; collected when they are older than the zone's gc ttl
  history   how far back it can be read; +2: two entries of older history are kept, because something protects them
  span      its keys: [first, end)
"""


class NodeRow(msgspec.Struct, frozen=True):
    """One node of `slackwater status`."""

    node: int
    address: str
    locality: str
    state: str
    """live, draining, expired, or unknown: by its liveness record; waiting for init before there is a cluster."""
    epoch: int
    expires_in_s: float | None
    answers: bool
    ranges: int | None
    leases: int | None
    quarantined: int | None
    clock_offset_us: int | None
    """Its clock minus that of the node that was asked first."""
    started_at: str
    questions: dict[int, str] = {}
    """Ranges it leads whose replicas differ, and where an operator has to decide which is right."""
    unfit: list[str] = []
    """Why it leads nothing now, as it says itself."""
    warnings: list[str] = []
    """What an operator should know of it, such as certificates that are about to end."""


class ReplicaRow(msgspec.Struct, frozen=True):
    """One replica of one range."""

    node: int
    lai: int
    position: int
    durable: int
    closed_lag_s: float | None
    live_keys: int
    total_bytes: int
    intents: int
    frozen: bool
    failure: str
    column_bytes: int = 0
    column_age_s: float | None = None
    """How long ago the oldest anchor of its files of columns is."""
    column_changed: float | None = None
    """The share of their rows that was written since."""
    garbage_bytes: int = 0
    history_s: float | None = None
    """How far back it can be read; None: to the beginning."""
    kept: int = 0
    """Entries of older history that stay, because something protects them."""


class RangeRow(msgspec.Struct, frozen=True):
    """One range of `slackwater ranges`: as its most advanced replica describes it, and every replica."""

    range_id: int
    start: str
    end: str
    generation: int
    replicas: tuple[int, ...]
    leaseholder: int
    lease_sequence: int
    lease: str
    copies: list[ReplicaRow]


def status_main(argv: list[str]) -> int:
    """Print the nodes."""
    options = _options(
        "status",
        "List the nodes of a cluster: which are live, what they hold, how far their clocks are apart.",
        argv,
        STATUS_COLUMNS,
    )
    rows, short, jobs = run(_status(options))
    if options.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    table = [["node", "address", "state", "epoch", "ranges", "leases", "bad", "clock", "locality"]]
    for row in rows:
        offset = "-" if row.clock_offset_us is None else f"{row.clock_offset_us / 1000:+.1f} ms"
        state = row.state if row.answers else f"{row.state}, no answer"
        counts = ["-" if n is None else str(n) for n in (row.ranges, row.leases, row.quarantined)]
        name = f"n{row.node}" if row.node else "-"
        table.append([name, row.address, state, str(row.epoch), *counts, offset, row.locality or "-"])
    print_table(table)
    for line in jobs:
        print(line)
    for row in rows:
        for warning in row.warnings:
            print(f"\nn{row.node}: {warning}")
        for question in row.questions.values():
            print(f"\nDECIDE  {question}")
            print("        see docs/operations.md, *When a disk is damaged*; slackwater refetch RANGE --node N answers")
        for why in row.unfit:
            print(f"WARNING: n{row.node} leads nothing now: {why}")
    for warning in short:
        print(f"WARNING: {warning}")
    if any(row.state == WAITING for row in rows):
        certs = f" --certs {options.certs}" if options.certs else ""
        print(f"\nThis node belongs to no cluster yet; make one with: slackwater init --host {options.host}{certs}")
    return 0


def ranges_main(argv: list[str]) -> int:
    """Print the ranges."""
    options = _options(
        "ranges",
        "List the ranges of a cluster: bounds, lease, and where every replica stands.",
        argv,
        RANGES_COLUMNS,
    )
    rows = run(_ranges(options))
    if options.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    head = ["range", "gen", "lease", "replica", "lai", "position", "closed", "keys", "bytes", "garbage", "history"]
    table = [[*head, "columns", "span"]]
    for row in rows:
        for at, copy in enumerate(row.copies):
            lag = "-" if copy.closed_lag_s is None else f"-{copy.closed_lag_s:.1f} s"
            head = [f"r{row.range_id}", str(row.generation), row.lease] if at == 0 else ["", "", ""]
            span = f"[{row.start}, {row.end})" if at == 0 else ""
            note = f" QUARANTINED: {copy.failure}" if copy.failure else " frozen" if copy.frozen else ""
            numbers = [str(copy.lai), str(copy.position), lag, str(copy.live_keys), str(copy.total_bytes)]
            numbers += [str(copy.garbage_bytes), _history(copy), _columns(copy)]
            table.append([*head, f"n{copy.node}{note}", *numbers, span])
    print_table(table)
    return 0


def _history(copy: ReplicaRow) -> str:
    """How far back a replica can be read, and how many older entries are kept besides: `600 s +2`."""
    back = "all" if copy.history_s is None else f"{copy.history_s:.0f} s"
    return f"{back} +{copy.kept}" if copy.kept else back


def _options(name: str, description: str, argv: list[str], columns: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"slackwater {name}",
        description=description,
        epilog=f"{columns}\nexamples:\n  slackwater {name}\n"
        f"  slackwater {name} --host db1.example:7400 --certs /etc/slackwater --json | jq '.[]'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_client_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    return parser.parse_args(argv)


def job_lines(jobs: Sequence[Job], now: dt.datetime) -> list[str]:
    """What `status` says of jobs: how many by status, the oldest that runs, and those that failed lately; [] without any."""
    if not jobs:
        return []
    counts = Counter(job.status for job in jobs)
    line = "jobs: " + ", ".join(f"{counts[status]} {status.value}" for status in Status if counts[status])
    if counts[Status.RUNNING]:
        line += f"; the oldest has been running for {oldest_running_s(jobs, now):.0f} s"
    failed = [j for j in jobs if j.status is Status.FAILED and j.finished is not None and now - j.finished < LATELY]
    named = [f"job {job.id} ({job.type}) failed: {job.error[:200]}" for job in failed[-FAILED_SHOWN_MAX:]]
    more = len(failed) - len(named)
    return [
        line,
        *named,
        *([f"and {more} more within a day; see `slackwater jobs list --status failed`"] if more else []),
    ]


def protection_lines(found: Sequence[Protection], now: Timestamp) -> list[str]:
    """What `status` says of protections: how many, how old the oldest is, what they pin at most; [] without any."""
    if not found:
        return []
    oldest_s = max(seconds_between(one.timestamp, now) for one in found)
    # Several may pin the same bytes: each is told the whole history of its ranges.
    pinned = max(one.pinned_bytes for one in found)
    return [f"protections: {len(found)}, the oldest {age(oldest_s)} old, the largest pins {size(pinned)}"]


async def _jobs(dialer: Dialer, options: argparse.Namespace, first: ReportReply) -> list[str]:
    """The lines about jobs and protections. `status` is for bad days too: what cannot be read now, it says, and goes on."""
    if not first.node.node_id:
        return []
    lines = []
    try:
        reply = await dialer.call(options.host, LIST_JOBS, ListJobs(), timeout=ASK_TIMEOUT_S)
        lines += job_lines(reply.jobs, instant(first.now))
    except SlackwaterError as error:
        lines.append(f"jobs: cannot be read now ({error})")
    try:
        kept = await dialer.call(options.host, PROTECTIONS, ListProtections(), timeout=ASK_TIMEOUT_S)
        lines += protection_lines(kept.protections, first.now)
    except SlackwaterError as error:
        lines.append(f"protections: cannot be read now ({error})")
    return lines


async def _status(options: argparse.Namespace) -> tuple[list[NodeRow], list[str], list[str]]:
    """Every node, what is wrong with the replicas of the whole, and what there is to say of jobs."""
    async with calling(options) as dialer:
        first = await dialer.call(options.host, REPORT, ReportRequest(), timeout=CALL_TIMEOUT_S)
        nodes = sorted(first.nodes or [first.node], key=lambda node: node.node_id)

        async def ask(node: NodeDescriptor) -> ReportReply:
            return await dialer.call(node.address, REPORT, ReportRequest(), timeout=ASK_TIMEOUT_S)

        answers = await ask_all([partial(ask, node) for node in nodes])
        held = await ask_all([partial(_replicas_of, dialer, node) for node in nodes if node.node_id])
        jobs = [] if options.json else await _jobs(dialer, options, first)
    counted = count_replicas(replica for answer in held for replica in answer or ())
    liveness = {record.node_id: record for record in first.liveness}
    rows = [
        _node_row(node, liveness.get(node.node_id), first, answer) for node, answer in zip(nodes, answers, strict=True)
    ]
    return rows, warnings(counted, nodes=sum(answer is not None for answer in held)), jobs


def _node_row(node: NodeDescriptor, record: Liveness | None, first: ReportReply, answer: ReportReply | None) -> NodeRow:
    live = record is not None and record.live_at(first.now)
    state = "unknown" if record is None else "draining" if record.draining else "live" if live else "expired"
    if not node.node_id:
        state = WAITING
    offset = 0 if node.node_id == first.node.node_id else first.offsets_us.get(f"n{node.node_id}")
    return NodeRow(
        node=node.node_id,
        address=node.address,
        locality=",".join(f"{k}={v}" for k, v in node.locality),
        state=state,
        epoch=record.epoch if record else 0,
        expires_in_s=round(seconds_between(first.now, record.expiration), 3) if record else None,
        answers=answer is not None,
        ranges=answer.ranges if answer else None,
        leases=answer.leases if answer else None,
        quarantined=len(answer.quarantined) if answer else None,
        clock_offset_us=offset,
        started_at=show(node.started_at) if node.started_at != MIN else "",
        questions={int(r): question for r, question in answer.questions.items()} if answer else {},
        unfit=answer.unfit if answer else [],
        warnings=answer.warnings if answer else [],
    )


async def _ranges(options: argparse.Namespace) -> list[RangeRow]:
    async with calling(options) as dialer:
        first = await dialer.call(options.host, REPORT, ReportRequest(), timeout=CALL_TIMEOUT_S)
        nodes = sorted(first.nodes or [first.node], key=lambda node: node.node_id)
        answers = await ask_all([partial(_replicas_of, dialer, node) for node in nodes])
    found: dict[int, list[tuple[int, ReplicaStatus]]] = {}
    for node, answer in zip(nodes, answers, strict=True):
        for replica in answer or ():
            found.setdefault(replica.descriptor.range_id, []).append((node.node_id, replica))
    rows = [_range_row(copies, first) for copies in found.values()]
    return sorted(rows, key=lambda row: row.range_id)


async def _replicas_of(dialer: Dialer, node: NodeDescriptor) -> list[ReplicaStatus]:
    return (await dialer.call(node.address, STATUS, StatusRequest(), timeout=ASK_TIMEOUT_S)).replicas


def _range_row(copies: list[tuple[int, ReplicaStatus]], first: ReportReply) -> RangeRow:
    _, best = max(copies, key=lambda copy: (copy[1].lai, copy[1].position))
    return RangeRow(
        range_id=best.descriptor.range_id,
        start=show_key(best.descriptor.start),
        end=show_key(best.descriptor.end),
        generation=best.descriptor.generation,
        replicas=best.descriptor.replicas,
        leaseholder=best.lease.holder,
        lease_sequence=best.lease.sequence,
        lease=best.lease.status(),
        copies=[_replica_row(node, replica, first) for node, replica in copies],
    )


def _columns(copy: ReplicaRow) -> str:
    """The columns of one replica, for people: `1.2 MB -35 s 0.4 %`."""
    if copy.column_age_s is None or copy.column_changed is None:
        return "-"
    return f"{copy.column_bytes / 1e6:.1f} MB -{copy.column_age_s:.0f} s {100 * copy.column_changed:.1f} %"


def _replica_row(node: int, replica: ReplicaStatus, first: ReportReply) -> ReplicaRow:
    stats, columns = Stats(*replica.stats), replica.columns
    return ReplicaRow(
        node=node,
        lai=replica.lai,
        position=replica.position,
        durable=replica.durable,
        closed_lag_s=round(seconds_between(replica.closed, first.now), 3) if replica.closed != MIN else None,
        live_keys=stats.live_keys,
        total_bytes=stats.total_bytes,
        intents=stats.intents,
        frozen=replica.frozen,
        failure=replica.failure,
        column_bytes=columns.size if columns else 0,
        column_age_s=round(seconds_between(columns.anchor, first.now), 3) if columns else None,
        column_changed=round(columns.changed / max(1, columns.rows), 4) if columns else None,
        garbage_bytes=stats.garbage_bytes,
        history_s=round(seconds_between(replica.gc_threshold, first.now), 3) if replica.gc_threshold != MIN else None,
        kept=replica.kept,
    )


async def ask_all(questions: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """The answers in order; None for a node that did not answer."""
    scope = Scope("ask")
    try:
        answers = await in_parallel(scope, questions, limit=NODES_AT_ONCE, name="ask")
    finally:
        await scope.close()
    return [None if isinstance(answer, SlackwaterError) else answer for answer in answers]


def print_table(table: list[list[str]]) -> None:
    """Print rows in aligned columns."""
    print("\n".join(aligned(table)))


def aligned(table: list[list[str]]) -> list[str]:
    """Rows as lines whose columns are as wide as they need to be."""
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
