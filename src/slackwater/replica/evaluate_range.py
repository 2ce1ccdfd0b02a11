"""Evaluating requests that change the range itself: each becomes one trigger.

A request is held against what this store has applied before it becomes a command: a command that could not be applied, or
that would leave an unusable range, never enters the log. The caller is another node, and may be wrong or forged.

All of them hold the exclusive latch on the range, so no write is between evaluation and apply. What changes the descriptor
carries the generation it was evaluated under and applies only if that still holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import check_split_key
from slackwater.errors import ConditionFailed, UnavailableError, UsageError
from slackwater.model.descriptors import FIRST_RANGE, REPLICAS_MAX, Generation, RangeDescriptor
from slackwater.protocol.log.commands import (
    ChecksumTrigger,
    DescriptorTrigger,
    FreezeTrigger,
    MergeTrigger,
    SplitTrigger,
    ThawTrigger,
)
from slackwater.protocol.range import requests

if TYPE_CHECKING:
    from slackwater.protocol.range.requests import Result
    from slackwater.replica.evaluation import View, Work
    from slackwater.replica.state import RangeState

CHECKSUM_ID_BYTES_MAX = 64


def split(work: Work, request: requests.Split) -> Result:
    """Divide the range at a key."""
    old = work.view.state.descriptor
    if not old.start < request.at < old.end:
        raise UsageError(
            "a split key must lie inside the range, not at its start", at=request.at, start=old.start, end=old.end
        )
    check_split_key(request.at)
    if old.range_id == FIRST_RANGE:
        raise UsageError("the first range holds the index of ranges and is never split", at=request.at)
    if request.right_id <= FIRST_RANGE or work.view.neighbors.state_of(request.right_id) is not None:
        raise UsageError("the id of the right half is taken; let admin.split choose it", right_id=request.right_id)
    generation = Generation(old.generation + 1)
    left = RangeDescriptor(old.range_id, old.start, request.at, old.replicas, generation)
    right = RangeDescriptor(request.right_id, request.at, old.end, old.replicas, generation)
    assert left.end == right.start, "the halves meet and are of one age"
    assert left.generation == right.generation, "the halves meet and are of one age"
    assert left.range_id != right.range_id, "two ranges have two ids"
    assert left.start < left.end, "both halves hold keys"
    assert right.start < right.end, "both halves hold keys"
    work.evaluation.trigger = SplitTrigger(left, right, work.view.prepared)
    work.evaluation.generation = old.generation
    return requests.SplitResult(left, right)


def subsume(work: Work, request: requests.Subsume) -> None:
    """Freeze the range. The answer is made from the state in which the freeze applied.

    Only when this store's own replica of the left side agrees: it, and nothing a caller says, will later be the witness
    that the merge did not happen (see `thaw`).
    """
    here = work.view.state.descriptor
    left = work.view.neighbors.left_of(here).descriptor
    if left is None or left.range_id != request.left_id or left.generation != request.left_generation:
        raise UnavailableError(
            "the left neighbour on this node is not the one named; look at both ranges again",
            left=left.status() if left else "none",
        )
    if set(left.replicas) != set(here.replicas):
        raise UsageError("only neighbours with the same replicas can merge", left=left.status(), right=here.status())
    closed_by_leaseholder, cache = work.view.floor - 1, work.view.tscache
    work.evaluation.trigger = FreezeTrigger(request.left_id, request.left_generation)
    work.evaluation.generation = here.generation

    def frozen(state: RangeState, now: Timestamp) -> Result:
        # Reads went on until the freeze applied here, so the floor is looked up *after* that: everything this leaseholder
        # ever served was at or below its clock, or is the highest of its cache (evaluation would miss the last of them).
        served = cache.highest if cache is not None else now
        assert state.frozen is not None, "a freeze is answered from the state in which it applied"
        assert state.frozen.left_generation == request.left_generation, "the freeze that was asked for has applied"
        return requests.SubsumeResult(
            position=state.position,
            lai=state.lai,
            closed=Timestamp(max(state.closed, closed_by_leaseholder)),
            read_floor=Timestamp(max(state.read_floor, now, served)),
            freeze_generation=request.left_generation,
            gc_threshold=state.gc_threshold,
            txn_floor=state.txn_floor,
            stats=state.stats,
            kept=state.kept,
        )

    work.evaluation.finishers.append(frozen)


def thaw(work: Work, request: requests.Thaw) -> Result:
    """End a freeze whose merge can no longer apply.

    The proof is local. Let g be the left side's generation under which this range was frozen. Along the keys just left
    of this range, generations only ever increase, and exactly one command leads on from g. If this store has applied
    that very command and this range is still here, it was not the merge, on no replica (one log, one verdict), and a
    merge evaluated under g can never be accepted again.

    Less would not do. "The left side says its generation is higher": it is higher after a *successful* merge as well,
    and this replica might only not have heard. "The left side here has a higher generation": it may have come as a
    snapshot of a time when it had merged with this range and split again, and this replica is what was left behind.
    """
    frozen = work.view.state.frozen
    if frozen is None:
        return requests.Done()
    if request.left_generation_passed and request.left_generation_passed <= frozen.left_generation:
        raise UsageError(
            "the left side could still merge; raise its generation first (AbortMerge)",
            frozen_under=frozen.left_generation,
        )
    low, high = work.view.neighbors.left_of(work.view.state.descriptor).seen
    if not low <= frozen.left_generation < high:
        raise UnavailableError(
            "this store has not seen the left side pass the freeze's generation; try again in a moment, or elsewhere",
            frozen_under=frozen.left_generation,
        )
    work.evaluation.trigger = ThawTrigger()
    return requests.Done()


def merge(work: Work, request: requests.Merge) -> Result:
    """Take over the frozen right neighbour."""
    left, right = work.view.state.descriptor, request.right
    if left.end != right.start or set(left.replicas) != set(right.replicas):
        raise UsageError("only neighbours with the same replicas can merge", left=left.status(), right=right.status())
    if left.range_id == FIRST_RANGE:
        raise UsageError("the first range holds the index of ranges and is never merged")
    if request.frozen.freeze_generation != left.generation:
        raise UnavailableError("the range changed since its neighbour was frozen; thaw that and try again")
    _check_frozen(work.view, right, request.frozen)
    generation = Generation(max(left.generation, right.generation) + 1)
    merged = RangeDescriptor(left.range_id, left.start, right.end, left.replicas, generation)
    assert merged.generation > right.generation, "the merged range is newer than both"
    assert merged.start < right.start < merged.end, "the right side is inside the merged range"
    work.evaluation.trigger = MergeTrigger(merged, right, request.frozen)
    work.evaluation.generation = left.generation
    return requests.Done()


def _check_frozen(view: View, right: RangeDescriptor, frozen: requests.SubsumeResult) -> None:
    """Refuse a merge that this store's own replica of the right side does not bear out.

    Both sides have the same replicas, so the right side is here. A frozen range stands still: its descriptor, statistics and
    thresholds are those of the freeze. Only what its leaseholder had promised or served is taken from the caller, in bounds.
    """
    here = view.neighbors.state_of(right.range_id)
    if here is None or here.position < frozen.position:
        raise UnavailableError(
            f"r{right.range_id} is not here up to its freeze; try again in a moment",
            applied=here.position if here else 0,
            freeze=frozen.position,
        )
    under = here.frozen
    if here.descriptor != right or under is None or under.left_id != view.state.descriptor.range_id:
        raise UsageError(f"r{right.range_id} is not frozen for this merge", here=here.status())
    if under.left_generation != frozen.freeze_generation or here.lai < frozen.lai:
        raise UsageError(f"r{right.range_id} was frozen for another merge", here=here.status())
    stands = (here.gc_threshold, here.txn_floor, here.stats, here.kept)
    if stands != (frozen.gc_threshold, frozen.txn_floor, frozen.stats, frozen.kept):
        raise UsageError(f"r{right.range_id} was frozen in another state than the merge names", here=here.status())
    furthest = view.furthest()
    if not here.closed <= frozen.closed <= furthest or not here.read_floor <= frozen.read_floor <= furthest:
        raise UsageError(f"the merge names impossible timestamps for r{right.range_id}", here=here.status())


def abort_merge(work: Work, request: requests.AbortMerge) -> Result:
    """Raise the generation past one under which a merge may have been proposed. Answers with the generation reached."""
    old = work.view.state.descriptor
    if old.generation > request.generation:
        return requests.Number(old.generation)
    if request.generation > old.generation:
        raise UsageError(
            "no merge can have been proposed under a generation that the range has not reached", actual=old.generation
        )
    raised = msgspec.structs.replace(old, generation=Generation(request.generation + 1))
    assert raised.generation > old.generation, "no merge under the old generation can apply now"
    work.evaluation.trigger = DescriptorTrigger(raised)
    work.evaluation.generation = old.generation
    return requests.Number(raised.generation)


def change_replicas(work: Work, request: requests.ChangeReplicas) -> Result:
    """Replace the set of replicas."""
    state = work.view.state
    if request.generation != state.descriptor.generation:
        raise ConditionFailed("the range changed since its replicas were looked at", actual=state.descriptor.generation)
    count = len(request.replicas)
    if not 0 < count <= REPLICAS_MAX or len(set(request.replicas)) != count:
        raise UsageError(
            f"a range needs 1 to {REPLICAS_MAX} replicas, each on another node",
            replicas=request.replicas[:REPLICAS_MAX],
        )
    if state.lease.holder not in request.replicas:
        raise UsageError(f"n{state.lease.holder} holds the lease; transfer it before removing that replica")
    for node in request.replicas:
        if node not in state.descriptor.replicas and not work.view.neighbors.node_known(node):
            raise UnavailableError(f"n{node} is not known here; wait until it has joined, or name another node")
    changed = msgspec.structs.replace(
        state.descriptor, replicas=request.replicas, generation=Generation(request.generation + 1)
    )
    assert state.lease.holder in changed.replicas, "the leaseholder keeps its replica"
    assert changed.generation == state.descriptor.generation + 1, "every change raises the generation"
    work.evaluation.trigger = DescriptorTrigger(changed)
    work.evaluation.generation = request.generation
    return requests.Done()


def transfer_lease(work: Work, request: requests.TransferLease) -> Result:
    """Hand over the lease; the driver, which knows the target's liveness, makes the trigger."""
    if request.to != work.view.state.lease.holder:
        work.evaluation.transfer_to = request
    assert work.evaluation.trigger is None, "a transfer is proposed by the driver"
    return requests.Done()


def compute_checksum(work: Work, request: requests.ComputeChecksum) -> Result:
    """Have every replica digest its state at this point of the log."""
    if not 0 < len(request.checksum_id) <= CHECKSUM_ID_BYTES_MAX:
        raise UsageError(f"a checksum is known by 1 to {CHECKSUM_ID_BYTES_MAX} bytes", got=len(request.checksum_id))
    work.evaluation.trigger = ChecksumTrigger(request.checksum_id)
    return requests.Done()


def barrier(work: Work, request: requests.Barrier) -> None:
    """An empty command; answers with the range and the index at which it applied."""
    work.evaluation.finishers.append(lambda state, _: requests.Passed(state.descriptor.range_id, state.lai))


def close_now(work: Work, request: requests.CloseNow) -> Result | None:
    """An empty command whose flush closes the timestamp, unless that is closed already."""
    state = work.view.state
    if state.closed >= request.at:
        return requests.ClosedResult(state.lai, state.closed)
    work.evaluation.close_at = Timestamp(max(work.evaluation.close_at, request.at))
    work.evaluation.finishers.append(lambda applied, _: requests.ClosedResult(applied.lai, applied.closed))
    return None
