"""The first ranges of a new cluster.

    r1   [min, /system/liveness end)   meta, liveness, node addresses: expiration-based lease, never split or merged
    r2   [… , /kv)                     the rest of the system records
    r3   [/kv, max)                    everything users write; splits as it grows

Their descriptors are also in meta, which is part of r1, so those records are put into the engine directly.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog.records import TABLE_ID_KEY
from slackwater.codec.layout import KEY_MAX, KEY_MIN, KV, SYSTEM, meta, prefix_end, system
from slackwater.errors import HistoryIncomplete
from slackwater.model.descriptors import Generation, Genesis, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.system_tables import FIRST_USER_TABLE_ID
from slackwater.replica.state import RangeState, encode_state, state_key
from slackwater.runtime.seam import Family
from slackwater.server.identity import put_identity
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.overlay import Overlay
from slackwater.storage.stats import ZERO
from slackwater.storage.writes import increment, put

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.runtime.seam import Engine
    from slackwater.server.identity import StoreIdentity

FIRST_NODE = NodeId(1)
FIRST_FREE_RANGE_ID = 4
RANGE_ID_KEY = system("alloc", b"range")
NODE_ID_KEY = system("alloc", b"node")

_LIVENESS_END = prefix_end(SYSTEM + b"m")
"""r1 ends after every system record whose name starts with a letter up to `m`: alloc, liveness, and room for more."""


def first_bounds() -> list[bytes]:
    """Where the first ranges meet: bounds that every cluster has."""
    return [_LIVENESS_END, KV]


def first_descriptors(node_id: NodeId) -> list[RangeDescriptor]:
    """The descriptors of a new cluster's ranges, all on its first node."""
    bounds = [KEY_MIN, *first_bounds(), KEY_MAX]
    return [
        RangeDescriptor(RangeId(i + 1), bounds[i], bounds[i + 1], (node_id,), Generation(1))
        for i in range(len(bounds) - 1)
    ]


def bootstrap_store(engine: Engine, identity: StoreIdentity, ts: Timestamp) -> None:
    """Write the first ranges, their meta records, the id counters and the store's identity, in one batch.

    One batch, or a power cut in between would leave a store with ranges and without a name, to be bootstrapped again over
    what is there.
    """
    batch = _first_records(engine, identity.node_id, ts)
    put_identity(batch, msgspec.structs.replace(identity, born=Genesis(ts, _digest(batch))))
    engine.write(batch)


def begin_again(born: Genesis | None) -> MemoryEngine:
    """The first ranges as the cluster's first node wrote them, in an engine of their own, to replay the log upon."""
    if born is None:
        raise HistoryIncomplete("the cluster is older than the record of what it began with")
    engine = MemoryEngine()
    batch = _first_records(engine, FIRST_NODE, born.at)
    if _digest(batch) != born.digest:
        raise HistoryIncomplete(
            "another version made this cluster, and began it with other records than this one would"
        )
    engine.write(batch)
    return engine


def _digest(batch: WriteBatch) -> bytes:
    return hashlib.blake2b(batch.encode(), digest_size=16).digest()


def _first_records(engine: Engine, node_id: NodeId, ts: Timestamp) -> WriteBatch:
    """What a cluster begins with; a function of its arguments alone, as the engine is empty."""
    batch = WriteBatch()
    overlay = Overlay(engine, batch)
    stats = ZERO
    descriptors = first_descriptors(node_id)
    for descriptor in descriptors:
        stats = stats.plus(put(overlay, batch, meta(descriptor.end), msgspec.msgpack.encode(descriptor), ts=ts).stats)
    for key, value in (
        (RANGE_ID_KEY, FIRST_FREE_RANGE_ID - 1),
        (NODE_ID_KEY, node_id),
        (TABLE_ID_KEY, FIRST_USER_TABLE_ID - 1),
    ):
        stats = stats.plus(increment(overlay, batch, key, value, ts=ts)[1].stats)
    for descriptor in descriptors:
        # Everything written here lies in the first range; the others start empty.
        state = RangeState(descriptor, closed=ts, stats=tuple(stats if descriptor.range_id == 1 else ZERO))
        batch.put(Family.LOCAL, state_key(descriptor.range_id), encode_state(state))
    return batch
