"""A node in numbers, in the text form that Prometheus reads.

    # HELP slackwater_ranges Replicas on this node.
    # TYPE slackwater_ranges gauge
    slackwater_ranges 12

Nothing is counted for the sake of this page: it is made from what the parts keep anyway, when the page is asked for. What is per
range elsewhere is summed or given as quantiles here, so that the page stays small however many ranges there are.

The number to watch is `slackwater_closed_lag_seconds`: how far behind now the ranges of this node are closed, which is how
stale a follower read must be. When it grows, `slackwater frontier` says which range holds it back, and why.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from slackwater import __version__
from slackwater.clock.timestamp import seconds_between, us_of
from slackwater.closedts.kinds import DEFAULT, Scheme
from slackwater.model.jobs import Status, oldest_running_s
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from slackwater.feeds.driver import NodeFeeds
    from slackwater.jobs import Jobs
    from slackwater.replica.driver import Store
    from slackwater.replica.driver.context import ReplicaContext
    from slackwater.server.member import Member
    from slackwater.server.node import Node

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES = (0.0, 0.5, 0.9, 1.0)


class Sample(NamedTuple):
    """One value of a metric."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()


class Metric(NamedTuple):
    """A named number, or a few told apart by labels."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


def render(metrics: Iterable[Metric]) -> str:
    """The page."""
    lines: list[str] = []
    for metric in metrics:
        if not metric.samples:
            continue
        lines.append(f"# HELP {metric.name} {_escape(metric.help, quotes=False)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [metric.name + _labels(sample.labels) + " " + _number(sample.value) for sample in metric.samples]
    return "\n".join(lines) + "\n"


def collect(node: Node) -> Iterator[Metric]:
    """Every metric of a node, as it is now."""
    yield gauge("slackwater_build_info", "Version; the value is always 1.", 1, version=__version__)
    yield gauge("slackwater_ready", "1 once the node belongs to a cluster and serves.", float(node.ready.is_set()))
    yield gauge("slackwater_clock_seconds", "The node's hybrid clock.", us_of(node.clock.peek()) / 1e6)
    yield gauge("slackwater_rpc_connections", "Connections that others opened to this node.", node.server.connections)
    yield from _of_doors(node)
    yield counter("slackwater_rpc_crashes_total", "Handlers that failed with a bug.", node.server.crashes)
    crashes = 0 if node.member is None else node.member.queues.crashes
    yield counter("slackwater_queue_crashes_total", "Queues that failed with a bug.", crashes)
    offsets = {peer: us / 1e6 for peer, us in node.offsets.latest().items()}
    yield gauges("slackwater_clock_offset_seconds", "A peer's clock minus ours.", "peer", offsets)
    if node.member is not None:
        yield from _of_cluster(node.member)
        yield from _of_store(node.member, node.member.store)
        yield from _of_protections(node.member)
        yield from _of_jobs(node.member.jobs)
        yield from _of_feeds(node.member, node.member.feeds)
    yield from _of_process()


def _of_doors(node: Node) -> Iterator[Metric]:
    refused = node.server.refused_total
    samples = [Sample(count, (("reason", reason),)) for reason, count in sorted(refused.items())]
    yield Metric("slackwater_rpc_refused_total", "counter", "Peers and calls that were refused, by error.", samples)
    held = node.server.held_s
    yield counter("slackwater_rpc_held_seconds_total", "For how long peers were not read for what they sent.", held)
    if node.credentials is None:
        return
    now_s = node.runtime.clock.wall_ns() / 1e9
    left = {term.what: term.ends_s - now_s for term in node.credentials.terms}
    yield gauges("slackwater_certificate_left_seconds", "How long a certificate is still valid.", "certificate", left)
    text = "1 while the certificates on disk cannot be used and former ones are in force."
    yield gauge("slackwater_certificates_unusable", text, float(bool(node.credentials.problem)))
    yield gauge("slackwater_certificates_revoked", "Entries of ca.crl.", len(node.credentials.revoked))


def _of_protections(member: Member) -> Iterator[Metric]:
    state = member.protections.tracker.state
    yield gauge("slackwater_protections", "Protected timestamps, as this node knows them.", len(state.records))
    yield gauge(
        "slackwater_oldest_protection_seconds",
        "Age of the oldest protected timestamp; 0: none.",
        member.pinned.oldest_s(),
    )
    text = "History in ranges led here that only protections keep."
    yield gauge("slackwater_pinned_bytes", text, member.pinned.here())


def _of_jobs(jobs: Jobs) -> Iterator[Metric]:
    counts = Counter(job.status.value for job in jobs.seen)
    by_status = {status.value: float(counts[status.value]) for status in Status if not status.ended}
    text = "Jobs of the cluster that have not ended, as this node saw them last."
    yield gauges("slackwater_jobs", text, "status", by_status)
    yield gauge(
        "slackwater_oldest_running_job_seconds",
        "How long ago the oldest running job was first started; 0: none runs.",
        oldest_running_s(jobs.seen, jobs.store.now()),
    )
    yield counter("slackwater_jobs_failed_total", "Jobs that failed on this node.", jobs.failed_total)


def _of_cluster(member: Member) -> Iterator[Metric]:
    yield gauge(
        "slackwater_node_unfit", "1 while this node leads nothing: see /health.", float(bool(member.node.why_unfit()))
    )
    yield counter(
        "slackwater_step_downs_total", "Times that this node gave its leases up by itself.", member.fitness.times
    )
    now = member.clock.peek()
    records = member.liveness.all()
    live = {f"n{r.node_id}": float(r.live_at(now)) for r in records}
    yield gauges("slackwater_node_live", "1 while a node's liveness record has not expired.", "node", live)
    epochs = {f"n{r.node_id}": float(r.epoch) for r in records}
    yield gauges("slackwater_node_epoch", "How often a node began anew.", "node", epochs)


def _of_store(member: Member, store: Store) -> Iterator[Metric]:
    replicas = list(store.replicas.values())
    led = [r for r in replicas if r.state.lease.holder == member.node_id]
    now_ns = store.context.runtime.clock.monotonic_ns()
    yield gauge("slackwater_ranges", "Replicas on this node.", len(replicas))
    yield gauge("slackwater_leases", "Leases this node holds.", len(led))
    failures = store.context.writes.failures
    yield counter("slackwater_store_failures_total", "Writes and flushes that the store refused.", failures)
    yield gauge("slackwater_ranges_quarantined", "Replicas that serve nothing.", len(store.quarantined))
    damage, questions = store.damage, member.queues.context.open_questions()
    yield counter("slackwater_read_errors_total", "Reads of this store that failed.", damage.read_errors)
    yield counter("slackwater_damaged_total", "Replicas quarantined because the disk lost bytes.", damage.damaged)
    yield counter("slackwater_snapshots_refused_total", "Replica snapshots that were not whole.", damage.refused)
    yield gauge("slackwater_ranges_disputed", "Ranges led here whose replicas differ: decide.", len(questions))
    load = sum(r.load.rate(now_ns=now_ns) for r in replicas)
    yield gauge("slackwater_requests_per_second", "Requests to this node's replicas, averaged over ten seconds.", load)
    total = Stats()
    for replica in replicas:
        total = total.plus(Stats(*replica.state.stats))
    yield gauge("slackwater_live_bytes", "Bytes of newest versions.", total.live_bytes)
    yield gauge("slackwater_live_keys", "Keys with a value.", total.live_keys)
    yield gauge("slackwater_total_bytes", "Bytes of all versions.", total.total_bytes)
    yield gauge("slackwater_versions", "Versions of all keys.", total.versions)
    yield gauge("slackwater_intents", "Unfinished writes of transactions.", total.intents)
    yield gauge("slackwater_garbage_bytes", "Bytes of versions that no read at the present sees.", total.garbage_bytes)
    columns = store.context.columns
    changed = sum(len(kept.delta) for kept in columns)
    yield gauge("slackwater_columns_bytes", "Files of columns of this store.", columns.size)
    yield gauge("slackwater_columns_segments", "Files of columns of this store, counted.", len(list(columns)))
    yield gauge("slackwater_columns_changed_keys", "Versions written beside those files since they were made.", changed)
    yield counter("slackwater_columns_made_total", "Files of columns that were made.", columns.made)
    help_text = "Time that went into making files of columns, on one thread."
    yield counter("slackwater_columns_making_seconds_total", help_text, columns.making_s)
    yield counter("slackwater_columns_damaged_total", "Files of columns that were damaged.", columns.damaged)
    yield counter("slackwater_columns_pages_total", "Pages of scans that came from columns.", columns.pages)
    yield counter("slackwater_columns_row_pages_total", "Pages of scans that were made of rows.", columns.row_pages)
    paused = store.context.bulk_gate.paused_s
    yield counter(
        "slackwater_bulk_reads_paused_seconds_total", "Time that bulk reads have waited for point work.", paused
    )
    now = member.clock.peek()
    lags = sorted(max(0.0, seconds_between(closed, now)) for r in replicas if (closed := r.closing.closed()))
    samples = [Sample(_quantile(lags, q), (("quantile", f"{q:g}"),)) for q in QUANTILES] if lags else []
    help_text = "How far behind now the replicas of this node are closed."
    yield Metric("slackwater_closed_lag_seconds", "gauge", help_text, samples)
    yield from _of_closing(store.context)
    yield from _of_collecting(member, store)


def _of_closing(context: ReplicaContext) -> Iterator[Metric]:
    counts = context.closing
    refusals = {} if context.transport is None else context.transport.refusals
    samples = [Sample(refusals.get(reason, 0), (("reason", reason.value),)) for reason in CannotClose]
    help_text = "Times that a range led here could not be closed without a command."
    yield Metric("slackwater_cannot_close_total", "counter", help_text, samples)
    running = DEFAULT if context.transport is None else context.transport.running
    schemes = [Sample(int(scheme in running), (("scheme", scheme.label),)) for scheme in Scheme]
    yield Metric("slackwater_closing_scheme", "gauge", "Whether this node closes by a scheme.", schemes)
    yield counter("slackwater_follower_reads_total", "Reads at a closed timestamp: no lease needed.", counts.served)
    yield counter("slackwater_follower_reads_waited_total", "Those that waited for their timestamp.", counts.waited)
    yield counter("slackwater_follower_reads_refused_total", "Those sent on: it was not closed here.", counts.refused)
    yield counter("slackwater_closes_total", "Log entries written to close the present on demand.", counts.closes)
    seconds = counts.close_ns / 1e9
    yield counter("slackwater_close_seconds_total", "How long these took until they were applied.", seconds)


def _of_collecting(member: Member, store: Store) -> Iterator[Metric]:
    counts, now = member.queues.gc.counts, member.clock.peek()
    yield counter("slackwater_gc_runs_total", "Ranges led here that were looked at for garbage.", counts.runs)
    yield counter("slackwater_gc_refused_total", "Those that could not be collected then.", counts.refused)
    yield counter("slackwater_gc_thresholds_raised_total", "Thresholds raised, through the log.", counts.raised)
    yield counter("slackwater_gc_versions_total", "Versions collected.", counts.versions)
    yield counter("slackwater_gc_spans_total", "Spans collected by one range tombstone.", counts.spans)
    yield counter("slackwater_gc_scanned_total", "Versions looked at for that.", counts.scanned)
    yield counter(
        "slackwater_gc_compactions_total", "Replicas whose files were compacted after it.", counts.compactions
    )
    raised = [r.state.gc_threshold for r in store.replicas.values() if r.state.gc_threshold]
    back = min((seconds_between(threshold, now) for threshold in raised), default=0.0)
    yield gauge("slackwater_history_seconds", "How far back every collected range of this node is read.", back)
    kept = sum(len(r.state.kept) for r in store.replicas.values())
    yield gauge("slackwater_kept_entries", "Entries of older history kept by ranges for protections.", kept)


def _of_feeds(member: Member, feeds: NodeFeeds) -> Iterator[Metric]:
    now = member.clock.peek()
    attached = [a for a in feeds.attached.values() if a.feed.resolved.value]
    lag = max((seconds_between(a.feed.resolved.value, now) for a in attached), default=0.0)
    held = sum(s.account.bytes for s in feeds.sessions.values())
    yield gauge("slackwater_feed_ranges", "Replicas here that change feeds listen to.", len(feeds.attached))
    yield gauge("slackwater_feed_consumers", "Consumers of change feeds that this node serves.", len(feeds.sessions))
    yield gauge("slackwater_feed_buffered_bytes", "What waits for those consumers.", held)
    yield gauge(
        "slackwater_feed_resolved_lag_seconds", "How far the slowest of those ranges is resolved behind now.", lag
    )
    protections = member.feed_client.protections
    yield gauges(
        "slackwater_feed_protection_lag_seconds",
        "How far back a change feed run by this node keeps history.",
        "feed",
        {name: protection.lag_s for name, protection in protections.items()},
    )
    alarming = sum(p.alarming for p in protections.values())
    yield gauge("slackwater_feed_protection_alarms", "Change feeds that lag dangerously.", alarming)


def _of_process() -> Iterator[Metric]:
    times = os.times()
    yield counter("process_cpu_seconds_total", "CPU time of this process.", times.user + times.system)
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel's, opened often
            pages = int(file.read().split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE")
        yield gauge("process_resident_memory_bytes", "Memory this process occupies.", memory)
        yield gauge("process_open_fds", "Open files and sockets.", len(os.listdir("/proc/self/fd")))  # noqa: PTH208


def gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    """One number that goes up and down."""
    return Metric(name, "gauge", text, [Sample(value, tuple(labels.items()))])


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """One number for each value of a label."""
    return Metric(name, "gauge", text, [Sample(value, ((label, key),)) for key, value in sorted(values.items())])


def counter(name: str, text: str, value: float) -> Metric:
    """One number that only grows while the process lives."""
    return Metric(name, "counter", text, [Sample(value)])


def _quantile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1 << 53 else repr(float(value))


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value, quotes=True)}"' for name, value in labels) + "}"


def _escape(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
