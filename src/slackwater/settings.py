"""Every tunable in one table: name, default, unit, safe range, hostile range.

The safe range is what an operator may set; the hostile range is what the simulator may pick, to make rare timing
common. Values are floats or ints in the unit named; a duration is in seconds. Nothing else in the code base holds a
tunable number: bounds that are part of a format or of a proof are constants beside the code they belong to.

    settings = Settings()
    settings["closed_timestamp.target_duration"]          # 3.0
    settings.set("closed_timestamp.target_duration", 0.2)  # checked against the safe range
    settings.override({"raft": 1})                         # UnknownSetting, with the nearest names
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import InvalidSetting, UnknownSetting

if TYPE_CHECKING:
    from collections.abc import Mapping


class Setting(msgspec.Struct, frozen=True):
    """One tunable."""

    name: str
    default: float
    unit: str
    safe: tuple[float, float]
    hostile: tuple[float, float]
    help: str
    names: tuple[str, ...] = ()
    """Of a choice: the name of each number, from 0 on."""

    def parse(self, text: str) -> float:
        """A value as people write it: a number, or the name of a choice."""
        name = text.strip().lower().replace("_", "-")
        if name in self.names:
            return float(self.names.index(name))
        try:
            return float(text)
        except ValueError:
            what = f"one of {', '.join(self.names)}" if self.names else "a number"
            raise InvalidSetting(f"the value of {self.name} must be {what}", value=text[:80]) from None

    def show(self, value: float) -> str:
        """A value for people, with its unit, or the name of a choice."""
        if self.names and value in range(len(self.names)):
            return self.names[int(value)]
        return f"{value:g} {self.unit}"

    def check(self, value: float, low: float, high: float) -> None:
        """Raise unless the value lies within these bounds; of a choice, unless it is one."""
        if self.names and value not in range(len(self.names)):
            raise InvalidSetting(f"{self.name} must be one of {', '.join(self.names)}", value=value)
        if not low <= value <= high:
            raise InvalidSetting(f"{self.name} must be between {low:g} and {high:g} {self.unit}", value=value)


# fmt: off
SETTINGS: tuple[Setting, ...] = (
    # clock
    Setting("clock.max_offset", 0.5, "s", (0.001, 5), (0.005, 1.0), "Largest clock skew between nodes that is tolerated; beyond it a node stops serving."),
    # runtime
    Setting("rpc.frame_bytes_max", 16 << 20, "bytes", (1 << 16, 1 << 28), (1 << 16, 1 << 24), "Largest RPC frame; a peer that sends more is disconnected."),
    Setting("rpc.requests_in_flight_max", 4096, "requests", (1, 1 << 16), (4, 64), "Requests one connection may have running at the server."),
    Setting("rpc.requests_bytes_max", 1 << 28, "bytes", (1 << 20, 1 << 34), (1 << 20, 1 << 24), "Requests one connection may have running at the server, in bytes; one alone may be larger."),
    Setting("rpc.stream_window", 64, "messages", (1, 4096), (1, 4), "Messages a server stream may send ahead of its consumer."),
    Setting("rpc.heartbeat_interval", 0.5, "s", (0.05, 60), (0.05, 5), "How often an idle connection is probed; measures round trip and clock offset."),
    Setting("rpc.heartbeat_timeout", 2.5, "s", (0.2, 120), (0.2, 10), "A connection silent for this long is lost."),
    Setting("rpc.send_buffer_bytes", 1 << 20, "bytes", (1 << 12, 1 << 26), (1 << 10, 1 << 16), "Bytes queued on a connection above which streams stop sending."),
    Setting("rpc.connect_timeout", 2.0, "s", (0.1, 60), (0.1, 10), "After this an unfinished dial or handshake has failed."),
    Setting("rpc.reconnect_pause_min", 0.05, "s", (0.001, 10), (0.001, 1), "How long a peer is not dialed again after the first failed dial; doubles with each."),
    Setting("rpc.reconnect_pause_max", 2.0, "s", (0.05, 60), (0.05, 5), "Longest time a dead peer is not dialed again."),
    Setting("rpc.unproven_max", 128, "connections", (1, 1 << 14), (16, 64), "Accepted connections that have not greeted yet; beyond it the oldest of the busiest address gives way."),
    Setting("rpc.receive_bytes_max", 1 << 28, "bytes", (1 << 20, 1 << 34), (1 << 20, 1 << 24), "Unfinished frames over 256 KiB that all connections may hold together; one peer may hold a quarter."),
    Setting("rpc.refused_per_s", 100, "calls/s", (1, 1e9), (1, 1000), "Calls of one peer that may be refused for what they are, or weigh as much; beyond it the peer is read more slowly."),
    Setting("rpc.connections_max", 4096, "connections", (1, 1 << 16), (16, 64), "Connections one server accepts, and one dialer keeps."),
    Setting("runtime.offload_threads", 4, "threads", (1, 64), (1, 8), "Threads for work that would hold up the loop."),
    Setting("tls.reload_interval", 10.0, "s", (0.1, 3600), (1, 60), "How often a node looks whether its certificate files have changed; SIGHUP makes it look at once."),
    Setting("tls.expiry_warning", 21.0, "days", (0, 365), (0, 30), "A certificate with less left than this is warned of: journal, health, status."),
    # log
    Setting("log.entry_bytes_max", 1 << 20, "bytes", (1 << 12, 8 << 20), (1 << 12, 1 << 20), "Largest log entry; larger commands are chunked or refused."),
    Setting("log.group_commit_bytes_max", 8 << 20, "bytes", (1 << 16, 64 << 20), (1 << 12, 1 << 16), "Bytes one group commit may gather."),
    Setting("log.append_timeout", 10.0, "s", (0.1, 120), (0.1, 5), "After this an unanswered append is AppendUnknown."),
    Setting("log.queue_bytes_max", 64 << 20, "bytes", (1 << 20, 1 << 30), (1 << 16, 1 << 20), "Bytes of appends that may wait in one process; beyond it appends are Overloaded."),
    Setting("log.tail_buffer_bytes_max", 4 << 20, "bytes", (1 << 16, 1 << 28), (1 << 12, 1 << 16), "Bytes of new entries kept for one tail; a slower tail reads the log instead."),
    Setting("log.repair_interval", 1.0, "s", (0.05, 60), (0.05, 5), "How often a log is looked at in case a notification was lost."),
    # storage
    Setting("storage.block_cache_bytes", 256 << 20, "bytes", (8 << 20, 1 << 36), (8 << 20, 16 << 20), "Block cache of one store."),
    Setting("columns.disk_bytes", 16 << 30, "bytes", (0, 1 << 44), (0, 1 << 20), "Disk that files of columns of one store may take; 0: none are made."),
    Setting("columns.build_bytes", 32 << 20, "bytes/s", (1 << 16, 1 << 34), (1 << 10, 1 << 24), "Stored bytes a second that are turned into columns in the background, or merged into them."),
    Setting("columns.share", 0.05, "of one thread", (0.001, 1), (0.05, 1), "How much of the time columns are made while there are writers; a node without does not wait for them."),
    Setting("columns.rows_min", 10_000, "rows", (0, 1 << 30), (0, 20), "A table with fewer rows in a range gets no file of columns there."),
    Setting("columns.quiet_period", 30.0, "s", (0, 86400), (0, 10), "A table that was not written for this long in a range, or on the whole store, gets its columns there before a read asks; one that was read gets them at once."),
    Setting("columns.delta_percent", 3.0, "%", (0.1, 25), (0.1, 25), "When so much of a file of columns has changed, it is made anew: without writers at once, otherwise when that costs no more than its readers have paid for changes."),
    Setting("storage.memtable_bytes", 64 << 20, "bytes", (1 << 20, 1 << 30), (1 << 20, 2 << 20), "Memtable size at which a family is flushed."),
    Setting("store.flush_interval", 5.0, "s", (0.1, 300), (0.1, 20), "How often applied state is made durable, so that the log can be trimmed."),
    # leases and liveness
    Setting("lease.duration", 2.25, "s", (1, 60), (1, 10), "Length of the expiration-based lease of range 1; at least twice clock.max_offset is used, or no part of it would be of use."),
    Setting("lease.acquire_timeout", 4.0, "s", (0.1, 60), (0.5, 5), "How long a request waits for its replica to get the lease."),
    Setting("liveness.duration", 2.25, "s", (0.5, 60), (0.6, 8), "How long a node counts as live after a heartbeat, and how long it is called in vain before it is missed; at least twice clock.max_offset is used."),
    Setting("liveness.heartbeat_interval", 0.5, "s", (0.05, 20), (0.1, 2), "How often a node renews its liveness record, and calls every other node."),
    # routing
    Setting("routing.range_cache_entries", 1 << 16, "ranges", (16, 1 << 22), (1, 8), "Range descriptors a sender remembers."),
    Setting("routing.retries_max", 200, "tries", (1, 10_000), (16, 64), "Rounds of tries for one batch before it is given up as unavailable."),
    Setting("routing.send_timeout", 30.0, "s", (0.1, 3600), (2, 60), "How long a batch may take when its caller set no deadline."),
    Setting("routing.backoff_min", 0.005, "s", (0.0001, 10), (0.0005, 0.1), "First pause between rounds of tries; each is four times the one before."),
    Setting("routing.backoff_max", 0.25, "s", (0.001, 60), (0.01, 2), "Longest pause between rounds of tries."),
    Setting("routing.fanout", 16, "ranges", (1, 1024), (1, 4), "Ranges one batch is sent to at the same time."),
    # transactions
    Setting("txn.heartbeat_interval", 1.0, "s", (0.05, 30), (0.05, 2), "How often a transaction with intents tells its record that it lives."),
    Setting("txn.expiration", 5.0, "s", (0.5, 120), (0.5, 10), "A transaction without heartbeat for this long may be aborted by others."),
    Setting("txn.max_retries", 100, "restarts", (0, 100_000), (10, 100), "Times the retry helper runs a transaction again before it gives up."),
    Setting("txn.refresh_spans_max", 1000, "spans", (1, 1 << 20), (1, 4), "Read spans kept exactly; above it they are merged to covering spans."),
    Setting("txn.lock_keys_max", 4096, "keys", (1, 1 << 20), (1, 8), "Written keys kept exactly; above it they are merged to covering spans."),
    Setting("txn.buffer_bytes_max", 256 << 10, "bytes", (0, 8 << 20), (0, 256), "Blind writes a transaction holds back to send them together."),
    Setting("txn.commit_attempts_max", 64, "tries", (1, 10_000), (8, 64), "Times a commit is refreshed and tried again before the transaction restarts."),
    Setting("txn.push_attempts_max", 1000, "tries", (1, 100_000), (64, 1000), "Times one operation meets and pushes other transactions before it gives up."),
    Setting("txn.resolve_concurrency", 16, "transactions", (1, 1024), (1, 4), "Finished transactions whose intents are resolved at the same time."),
    Setting("txn.resolve_queue_max", 1024, "transactions", (1, 1 << 16), (1, 8), "Finished transactions that wait for resolution; beyond it a commit waits too."),
    # replicas
    Setting("replica.tscache_bytes_max", 4 << 20, "bytes", (1 << 16, 1 << 28), (1 << 10, 1 << 16), "Memory of one range's timestamp cache; when it is full, older reads are rounded up."),
    # ranges and their queues
    Setting("range.max_bytes", 64 << 20, "bytes", (1 << 16, 16 << 30), (1 << 10, 64 << 10), "A range above this size is split."),
    Setting("range.min_bytes", 8 << 20, "bytes", (0, 1 << 30), (0, 4 << 10), "A range below this size is merged with its right neighbor, if both fit; 0 switches merging off."),
    Setting("range.max_requests", 2500, "requests/s", (0, 1 << 20), (0, 200), "A range above this load is split at the middle of its requests; 0 switches that off."),
    Setting("range.quiet_period", 60.0, "s", (0, 86400), (0.5, 20), "A range that was split or moved is not merged before it has stayed as it is for this long."),
    Setting("range.frozen_patience", 10.0, "s", (0, 600), (0.2, 10), "A range that has been frozen by a merge for this long is thawed, unless the merge succeeded."),
    Setting("range.replication_factor", 3, "replicas", (1, 9), (1, 5), "Replicas of a range where no span configuration says otherwise."),
    Setting("range.rebuild_log_bytes", 256 << 20, "bytes", (0, 16 << 30), (1 << 16, 64 << 20), "How much of the log is replayed, in memory, for one range whose replicas are all lost; 0 switches rebuilding off."),
    Setting("queue.interval", 10.0, "s", (0, 3600), (0.2, 10), "How often every range is looked at; 0 pauses all queues."),
    Setting("queue.concurrency", 2, "ranges", (1, 64), (1, 4), "Ranges one node works on at the same time."),
    Setting("queue.check_interval", 3600.0, "s", (0, 30 * 86400), (5, 60), "How often the replicas of a range are compared; 0 switches that off."),
    Setting("gc.interval", 30.0, "s", (0, 86400), (0.2, 20), "The least time between two collections of one range, unless its garbage weighs much; 0 switches garbage collection off."),
    Setting("gc.slack", 0.05, "of the ttl", (0, 1), (0, 0.5), "A range with a long time to live is collected at most once in this part of it, and copies of zones and protections may be this old."),
    Setting("gc.urgent_score", 2.0, "byte-ttls", (0.01, 1000), (0.1, 4), "Garbage bytes times their age, over live bytes times the ttl: above this a range does not wait for gc.interval."),
    Setting("gc.batch_versions", 500, "versions", (1, 5000), (1, 50), "Versions deleted by one command."),
    Setting("gc.clear_versions", 2000, "versions", (2, 1 << 20), (2, 50), "Neighboring versions that all go are deleted one by one below this many, and by one range tombstone from there on."),
    Setting("gc.share", 0.1, "of one thread", (0.001, 1), (0.05, 1), "How much of the time a busy node collects; one without load does not pause."),
    Setting("gc.compact_versions", 50_000, "versions", (0, 1 << 30), (0, 1000), "Deleted versions in a stretch of keys after which its files are compacted, so that space comes back; 0 leaves that to the engine."),
    Setting("liveness.dead_after", 300.0, "s", (1, 86400), (5, 30), "A node that has been expired for this long is dead: its replicas are replaced, and logs are trimmed without it."),
    Setting("txn.record_retention", 90.0, "s", (1, 86400), (5, 60), "Records of finished transactions are kept for this long, so that a repeated commit finds its answer."),
    Setting("drain.timeout", 10.0, "s", (0, 600), (0, 10), "How long a stopping node tries to hand its leases over."),
    # tables and gateways
    Setting("catalog.poll_interval", 1.0, "s", (0.05, 60), (0.05, 5), "How often a node looks for new versions of tables, once it has served any."),
    Setting("catalog.lease.duration", 8.0, "s", (0.5, 3600), (0.5, 5), "How long after the end of its liveness record a node goes on writing by the versions of tables that it has leased; a node that dies delays a schema change by as much."),
    Setting("catalog.lease.abandoned_duration", 8.0, "s", (0.5, 3600), (5, 10), "How long after the end of a node's liveness record its leases on tables are deleted by others; never less than catalog.lease.duration: raise this one first, lower that one first."),
    Setting("gateway.txns_max", 1024, "transactions", (1, 1 << 16), (2, 64), "Transactions of clients that one gateway keeps open."),
    Setting("gateway.txn_idle_timeout", 60.0, "s", (1, 3600), (1, 60), "A client's transaction that was idle for this long is rolled back."),
    Setting("gateway.page_bytes", 3 << 20, "bytes", (1 << 12, 8 << 20), (1 << 12, 1 << 16), "Stored bytes that one page of a scan covers."),
    Setting("staging.rows_max", 1_000_000, "rows", (1, 100_000_000), (10, 10_000), "Rows that one publish of staged writes may hold: they are one transaction."),
    Setting("schema.backfill_rate", 1_000_000, "rows/s", (10, 10_000_000), (200, 100_000), "Rows a second that a schema change reads at most, to fill an index or to check what is there."),
    Setting("schema.backfill_chunk", 250_000, "rows", (1, 2_000_000), (1, 50), "Rows that a backfill reads at one timestamp and whose entries it sorts in memory (at most 32 MB), before it writes them in blocks. Larger runs are faster, and are the step in which progress is kept."),
    Setting("schema.backfill_block", 256 << 10, "bytes", (1 << 10, 1 << 20), (1, 400), "Bytes of entries that a backfill writes with one command, at most a quarter of log.entry_bytes_max: smaller blocks hold up other writes for a shorter time."),
    Setting("schema.backfill_parallel", 4, "ranges", (1, 64), (1, 4), "Ranges that a backfill fills at the same time."),
    Setting("staging.ttl", 86400.0, "s", (60, 30 * 86400), (1, 3600), "A staged write whose client has been silent for this long fails, and its rows are removed; how long staged writes that ended are kept in system.jobs."),
    # jobs
    Setting("jobs.poll_interval", 5.0, "s", (0.05, 300), (0.1, 5), "How often a node looks for jobs to claim or to take over; what changes is also announced."),
    Setting("jobs.running_max", 8, "jobs", (0, 1024), (1, 4), "Jobs that one node runs at the same time; 0: it runs none."),
    Setting("jobs.open_per_owner_max", 256, "jobs", (1, 10_000), (64, 256), "Jobs of one client that may wait or run at a time. Operators may have more."),
    Setting("jobs.attempts_max", 20, "attempts", (1, 10_000), (2, 20), "Attempts at a job without progress before it fails and is reverted."),
    Setting("jobs.retry_pause_min", 1.0, "s", (0.01, 3600), (0.05, 2), "Pause before a job is tried again after an error; doubles with each attempt."),
    Setting("jobs.retry_pause_max", 300.0, "s", (0.1, 86400), (0.2, 10), "Longest pause before a job is tried again."),
    Setting("jobs.lease_duration", 60.0, "s", (1, 86400), (1, 20), "How long an application outside of the cluster keeps its claim on a job without renewing it."),
    Setting("jobs.verify_rate", 100_000, "rows/s", (100, 100_000_000), (1_000, 100_000), "Rows a second that the verification of a table reads at most."),
    Setting("jobs.retention", 14 * 86400.0, "s", (60, 3650 * 86400), (2, 60), "How long jobs that ended are kept in system.jobs."),
    # closed timestamps
    Setting("closed_timestamp.target_duration", 3.0, "s", (0, 600), (0.01, 10), "How far behind now a range closes; 0 switches closing off."),
    Setting("closed_timestamp.side_transport_interval", 0.2, "s", (0.01, 10), (0.01, 2), "How often idle ranges are closed."),
    Setting("span_config.poll_interval", 10.0, "s", (0.05, 60), (0.1, 5), "How often a node reads the span configuration, in case an announcement was lost."),
    Setting("closed_timestamp.lead", 0.0, "s", (0, 5), (0, 2), "How far ahead of now ranges with the policy `lead` close; 0: as far as clock offset, round trip and transport need."),
    Setting("closed_timestamp.scheme", 0, "scheme", (0, 2), (0, 0), "How ranges close: log-driven (2020), store-wide (2018) or max-write-age (2017); can be changed while the cluster runs.", ("log-driven", "store-wide", "max-write-age")),
    Setting("closed_timestamp.activation", 0, "activation", (0, 3), (0, 0), "Which ranges close: always all of them, those with a policy of their own zone, those that followers' reads and feeds ask for, or both.", ("always", "configured", "on-demand", "configured-or-on-demand")),
    Setting("closed_timestamp.rest_after", 60.0, "s", (1, 86400), (1, 30), "With activation on demand: how long a range goes on closing after it was last asked for."),
    Setting("closed_timestamp.max_write_age", 10.0, "s", (0.1, 600), (0.1, 5), "How old a write may be under the scheme max_write_age where its zone has no lag of its own; followers are so far behind."),
    Setting("closed_timestamp.empty_command_interval", 1.0, "s", (0.05, 60), (0.1, 2), "Under the scheme max_write_age: how often a range that writes nothing puts an empty command into the log."),
    Setting("closed_timestamp.propagation_slack", 1.0, "s", (0, 10), (0, 2), "Added to the staleness that follower_read_timestamp() picks."),
    # retention
    Setting("protected_timestamp.records_max", 512, "records", (1, 1 << 16), (2, 64), "Protected timestamps that may exist at a time: every node keeps all of them in memory."),
    Setting("protected_timestamp.records_per_owner_max", 128, "records", (1, 1 << 16), (64, 128), "Protected timestamps that one client may hold at a time, as many again by its change feeds, and as many by its jobs. Operators may hold more."),
    Setting("protected_timestamp.spans_max", 4096, "spans", (1, 1 << 20), (16, 512), "Spans of all protected timestamps together."),
    Setting("protected_timestamp.refresh_interval", 10.0, "s", (0.1, 3600), (0.2, 20), "How often a node asks whether protected timestamps have changed; garbage collection lags by as much."),
    Setting("protected_timestamp.reconcile_interval", 30.0, "s", (0.5, 3600), (1, 30), "How often protections are released that have expired, or whose owner is gone."),
    Setting("protected_timestamp.warning_age", 7 * 86400.0, "s", (0, 366 * 86400), (0, 86400), "A protected timestamp older than this is warned of: journal, health, status; 0: none is."),
    # change feeds
    Setting("feed.push_interval", 1.0, "s", (0.05, 60), (0.1, 5), "How often a replica with a feed looks for transactions that hold its resolved timestamp back."),
    Setting("feed.push_after", 10.0, "s", (0.1, 600), (0.2, 10), "A transaction whose intents are older than this is pushed on behalf of a feed."),
    Setting("feed.publish_interval", 0.2, "s", (0.01, 10), (0.02, 2), "How often resolved timestamps are sent when nothing else says that they have moved."),
    Setting("feed.linger", 0.05, "s", (0, 1), (0, 0.2), "After one message to a consumer of a feed, what is committed gathers this long for the next."),
    Setting("feed.message_bytes", 256 << 10, "bytes", (1 << 10, 8 << 20), (1 << 10, 1 << 14), "About how large a message to a consumer of a feed gets."),
    Setting("feed.consumer_bytes_max", 16 << 20, "bytes", (1 << 16, 1 << 30), (1 << 12, 1 << 16), "What a node buffers for one consumer; one that takes less than is written is cut off and resumes."),
    Setting("feed.client_bytes_max", 16 << 20, "bytes", (1 << 16, 1 << 30), (1 << 10, 1 << 16), "What a feed client buffers ahead of its reader."),
    Setting("feed.catch_up_slots", 4, "scans", (1, 256), (1, 4), "Catch-up scans that one node runs at the same time; no consumer gets all of them."),
    Setting("feed.keep_attached", 30.0, "s", (0, 3600), (0, 10), "How long a range goes on following its feed after its last consumer, for one that comes back."),
    Setting("feed.protection_grace", 600.0, "s", (0, 7 * 86400), (0, 20), "How long history is kept for a change feed whose consumer went away, so that it can come back with its token; 0: not at all."),
    Setting("feed.recent_bytes_max", 4 << 20, "bytes", (0, 1 << 28), (0, 1 << 12), "Recent changes that a range with a feed keeps, so that a consumer that resumes needs no scan."),
    Setting("feed.index_bytes_max", 4 << 20, "bytes", (0, 1 << 28), (0, 1 << 14), "Keys of recent changes that a range with a feed keeps on disk, so that a consumer that resumes after a restart needs no scan either; 0: none."),
    Setting("feed.stall_timeout", 30.0, "s", (1, 3600), (2, 30), "A range that says nothing for this long is asked for on another replica; a consumer that takes nothing for this long loses its scan."),
    Setting("feed.poll_interval", 10.0, "s", (0.1, 3600), (0.5, 20), "How often what is announced by feed is also read, in case an announcement was lost."),
)
# fmt: on

_BY_NAME = {s.name: s for s in SETTINGS}


class Settings(dict[str, float]):
    """Current values by name. One instance per node; changed in place when the settings table changes."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__({s.name: s.default for s in SETTINGS})
        self.changes = 0
        """Counts up with every change: what is worked out from settings is worked out again when this differs."""
        self.override(values or {})

    def __missing__(self, name: str) -> float:
        raise _unknown(name)

    def __setitem__(self, name: str, value: float) -> None:
        """Set a value after checking it, as `set` does."""
        self.set(name, value)

    def set(self, name: str, value: float) -> None:
        """Change one setting, within its safe range."""
        setting = describe(name)
        setting.check(value, *setting.safe)
        super().__setitem__(name, value)
        self.changes += 1

    def override(self, values: Mapping[str, float]) -> None:
        """Set several, checked against known names and the wider of the two ranges (for simulation and tests)."""
        for name, value in values.items():
            setting = describe(name)
            low, high = min(setting.safe[0], setting.hostile[0]), max(setting.safe[1], setting.hostile[1])
            setting.check(value, low, high)
            super().__setitem__(name, value)
            self.changes += 1


def describe(name: str) -> Setting:
    """The table row of one setting."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise _unknown(name) from None


def _unknown(name: str) -> UnknownSetting:
    near = difflib.get_close_matches(name, _BY_NAME, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `slackwater settings` lists them all"
    return UnknownSetting(f"there is no setting {name!r}{hint}")
