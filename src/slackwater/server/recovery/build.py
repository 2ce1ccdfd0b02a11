"""Makes the store of a new cluster from a plan: every surviving key as it was at T, on one node, on a new and empty log.

What belonged to the old cluster's nodes is made anew: where ranges are (meta), which nodes there are and how they are, the
numbers that ranges and nodes get next. The old nodes' liveness records stay as of nodes that have left, one epoch on: whatever
hangs on an old epoch, such as the claim of a job, has ended. Everything else, settings and table definitions included, is data
and comes as it was at T.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import META, VERSION_BYTES, meta, prefix_span, system
from slackwater.errors import UsageError, invariant
from slackwater.model.descriptors import Epoch, Generation, Liveness, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.spans import Span
from slackwater.replica.driver.liveness import liveness_key, liveness_span
from slackwater.replica.state import RangeState, encode_state, state_key
from slackwater.runtime.seam import Family
from slackwater.server.bootstrap import NODE_ID_KEY, RANGE_ID_KEY, first_bounds
from slackwater.server.identity import StoreIdentity, put_identity
from slackwater.server.recovery.plan import describe, outcomes, read_at, system_lost
from slackwater.storage.batch import WriteBatch
from slackwater.storage.overlay import Overlay
from slackwater.storage.stats import recompute
from slackwater.storage.versions import ts_of
from slackwater.storage.writes import increment, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slackwater.log.contract import LogIdentity
    from slackwater.model.txns import Resolution
    from slackwater.runtime.seam import Engine
    from slackwater.server.recovery.plan import RecoveredPiece, RecoveryPlan
    from slackwater.storage.intents import StoredIntent

VERSIONS_AT_ONCE = 4_096
_ADDRESSES = prefix_span(system("address")[:-2])


class RebuiltStore(NamedTuple):
    """What was made."""

    identity: StoreIdentity
    at: Timestamp
    ranges: int
    versions: int


def build(
    plan: RecoveryPlan,
    engine: Engine,
    *,
    cluster_id: str,
    log: LogIdentity,
    accept_loss: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> RebuiltStore:
    """Write a plan's keys at T into an empty engine; the caller flushes it. Refuses what would make a broken cluster."""
    _check(plan, engine, accept_loss=accept_loss)
    old_nodes = {int(s.identity.node_id) for s in plan.survivors} | {n for s in plan.survivors for n in s.epochs}
    node_id = NodeId(max(old_nodes) + 1)
    fate, ranges, versions = outcomes(plan.survivors), _ranges(plan, node_id), 0
    for piece in plan.pieces:
        progress(f"writing {describe(piece)}")
        versions += _copy(piece, engine, plan.at, fate)
    _write_own(plan, engine, [descriptor for descriptor, _ in ranges], node_id)
    batch = WriteBatch()
    for descriptor, threshold in ranges:
        state = RangeState(
            descriptor,
            closed=plan.at,
            read_floor=plan.newest,
            gc_threshold=threshold,
            txn_floor=plan.newest,
            stats=tuple(recompute(engine, descriptor.start, descriptor.end)),
        )
        batch.put(Family.LOCAL, state_key(descriptor.range_id), encode_state(state))
    identity = StoreIdentity(cluster_id, node_id, log)
    put_identity(batch, identity)
    engine.write(batch)
    return RebuiltStore(identity, plan.at, len(ranges), versions)


def _check(plan: RecoveryPlan, engine: Engine, *, accept_loss: bool) -> None:
    if engine.cursor(Family.LOCAL, start=b"", end=b"\xff").chunk(1)[0]:
        raise UsageError("the new store is not empty; recover into a directory that holds nothing")
    if gone := system_lost(plan):
        raise UsageError(
            f"the cluster's own records {describe(gone[0])} are in none of these stores, so no cluster can be made; name more"
        )
    if plan.lost and not accept_loss:
        hurt = sorted(name for name, cuts in plan.tables.items() if cuts)
        named = f"; tables that lose rows: {', '.join(hurt)}" if hurt else ""
        raise UsageError(
            f"no store that was named has {', '.join(describe(piece) for piece in plan.lost)}{named}. Name more stores, or "
            "go on without these keys: --accept-loss"
        )


def _ranges(plan: RecoveryPlan, node_id: NodeId) -> list[tuple[RangeDescriptor, Timestamp]]:
    """The new ranges, each with the threshold below which its history has been collected."""
    fixed, found = set(first_bounds()), list[tuple[bytes, bytes, object, Timestamp]]()
    for piece in plan.pieces:
        copy = piece.copy
        source = None if copy is None else (copy.store, copy.state.descriptor.range_id)
        threshold = MIN if copy is None else copy.state.gc_threshold
        if found and found[-1][2] == source and piece.start not in fixed:
            found[-1] = (found[-1][0], piece.end, source, threshold)
        else:
            found.append((piece.start, piece.end, source, threshold))
    invariant(all(a[1] == b[0] for a, b in pairwise(found)), "A-tiled", ranges=len(found))
    return [
        (RangeDescriptor(RangeId(number), start, end, (node_id,), Generation(1)), threshold)
        for number, (start, end, _, threshold) in enumerate(found, 1)
    ]


def _copy(
    piece: RecoveredPiece, engine: Engine, at: Timestamp, fate: Callable[[StoredIntent], Resolution | None]
) -> int:
    """Write every version of a piece at or below `at`; how many those were."""
    if piece.copy is None:
        return 0
    reader, count = read_at(piece, at, fate), 0
    for span in _kept(piece):
        cursor = reader.cursor(Family.DATA, start=span.start, end=span.end)
        while True:
            keys, values = cursor.chunk(VERSIONS_AT_ONCE)
            if not keys:
                break
            kept = [i for i, stored in enumerate(keys) if _inside(stored, span) and ts_of(stored) <= at]
            batch = WriteBatch()
            batch.put_many(Family.DATA, [keys[i] for i in kept], [values[i] for i in kept])
            engine.write(batch)
            count += len(kept)
    return count


def _inside(stored: bytes, span: Span) -> bool:
    return span.start <= stored[:-VERSION_BYTES] < span.end


def _kept(piece: RecoveredPiece) -> Iterator[Span]:
    """The keys of a piece that come along: all but those that tell of the old cluster's nodes and ranges."""
    left = [Span(piece.start, piece.end)]
    counters = (Span(key, key + b"\x00") for key in (RANGE_ID_KEY, NODE_ID_KEY))
    for gone in (prefix_span(META), Span(*liveness_span()), _ADDRESSES, *counters):
        cut: list[Span] = []
        for span in left:
            cut += [Span(span.start, min(span.end, gone.start))] if span.start < gone.start else []
            cut += [Span(max(span.start, gone.end), span.end)] if gone.end < span.end else []
        left = [span for span in cut if span.start < span.end]
    yield from left


def _write_own(plan: RecoveryPlan, engine: Engine, ranges: list[RangeDescriptor], node_id: NodeId) -> None:
    """Write where the new ranges are, which nodes have left, and the next numbers, all at T."""
    batch = WriteBatch()
    overlay = Overlay(engine, batch)
    for descriptor in ranges:
        put(overlay, batch, meta(descriptor.end), msgspec.msgpack.encode(descriptor), ts=plan.at)
    epochs: dict[int, int] = {}
    for survivor in plan.survivors:
        for node, epoch in ((int(survivor.identity.node_id), 0), *survivor.epochs.items()):
            epochs[node] = max(epochs.get(node, 0), epoch)
    for node, epoch in sorted(epochs.items()):
        record = Liveness(NodeId(node), Epoch(epoch + 1), plan.at, decommissioning=True)
        put(overlay, batch, liveness_key(NodeId(node)), msgspec.msgpack.encode(record), ts=plan.at)
    increment(overlay, batch, RANGE_ID_KEY, len(ranges), ts=plan.at)
    increment(overlay, batch, NODE_ID_KEY, int(node_id), ts=plan.at)
    engine.write(batch)
