"""Planted bugs of leases on versions of tables, and of schema changes: what I-29 and I-30 must see."""

from __future__ import annotations

from slackwater.sim.faults import FaultKind
from slackwater.sim.mutants.patch import Patch
from slackwater.sim.scenario import PlantedBug, plant

plant(
    PlantedBug(
        "M24",
        "a lease is written on the version that the node knows, which may be an old one",
        play="schema",
        expected=("I-29",),
        settings={"catalog.poll_interval": 3.0},
        patches=(
            Patch(
                "slackwater.catalog.lease_driver:DescriptorLeases._acquire",
                "now = await self._catalog.latest_in(txn, table_id)",
                "now = self._catalog.tables.by_id(table_id).latest",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M25",
        "a node that ends its epoch early has its leases deleted as if it had never promised more",
        play="schema",
        expected=("I-30",),
        faults=frozenset({FaultKind.LOG_CUT, FaultKind.DISK_FULL}),
        settings={"liveness.duration": 6.0, "catalog.lease.abandoned_duration": 0.5, "catalog.lease.duration": 0.5},
        patches=(
            Patch(
                "slackwater.catalog.leases:abandoned_after",
                "max(add_seconds(record.expiration, abandoned_s), record.relied_upto)",
                "add_seconds(record.expiration, abandoned_s)",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M26",
        "a lease that was acquired while a newer version was heard of is not looked at again, and stays for ever",
        play="schema",
        expected=("I-29", "I-31"),
        # A version must be published between the row of a lease and its node's hearing of it.
        faults=frozenset({FaultKind.LOG_SLOW, FaultKind.SLOW_NODE, FaultKind.SLOW_LINK}),
        patches=(
            Patch(
                "slackwater.catalog.lease_driver:DescriptorLeases.sweep",
                "[lease for lease in self.book.held() if self._is_old(lease)]",
                """[
    lease
    for lease in self.book.held()
    if self._is_old(lease) and lease.since < self._catalog.tables.by_id(lease.table.table_id).latest.modified
]""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M27",
        "a commit does not look at its deadline: rows are written by a version that is not valid any more",
        play="schema",
        expected=("I-30",),
        faults=frozenset({FaultKind.LOG_CUT, FaultKind.DISK_FULL}),
        settings={"catalog.lease.duration": 0.5, "catalog.lease.abandoned_duration": 0.5},
        patches=(
            Patch("slackwater.replica.records:check_commit", "commit_ts >= request.deadline", "False"),
            Patch("slackwater.replica.evaluate:_check_deadline", "write_ts >= below", "False"),
        ),
    )
)
plant(
    PlantedBug(
        "M31",
        "a backfill puts an entry although a writer has put or deleted it since the row was read",
        play="schema",
        expected=("I-30",),
        patches=(
            Patch(
                "slackwater.storage.writes:fill_rows",
                "prior.ts > above or (alone and prior.value)",
                "alone and prior.value",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M32",
        "a backfill takes an intent for a write that is decided, and leaves its key out",
        play="schema",
        expected=("I-30",),
        patches=(
            Patch(
                "slackwater.storage.writes:fill_rows",
                "_locks(reader, keys, ts, None)",
                """locked = dict(intents_in(reader, keys[0], keys[-1] + bytes(1)))
pairs = [(key, value) for key, value in zip(keys, values) if key not in locked]
if not pairs:
    return [], None
keys, values = [key for key, _ in pairs], [value for _, value in pairs]""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M33",
        "rows whose entries a backfill left out, since another row may have their key, are taken for done",
        play="schema",
        expected=("I-30",),
        patches=(Patch("slackwater.catalog.bulk_fill:BulkBackfill._put", "left and unique", "False"),),
    )
)
plant(
    PlantedBug(
        "M34",
        "a row that goes leaves no trace at a unique entry that is not there: the backfill puts the one that it had",
        play="schema",
        expected=("I-30",),
        patches=(
            Patch(
                "slackwater.catalog.planning:_is_own_or_none",
                "entry is None or (key, codec.row_key(entry)) in side.owned",
                "entry is not None and (key, codec.row_key(entry)) in side.owned",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M35",
        "a backfill reads rows as of before *backfilling*: what a writer without the index inserted later gets no entry",
        play="schema",
        expected=("I-30",),
        patches=(
            Patch(
                "slackwater.catalog.bulk_fill:BulkBackfill.read",
                "Timestamp(max(self._kv.context.clock.now(), latest.modified))",
                "Timestamp(task.history.versions[-3].modified)",
            ),
        ),
    )
)
