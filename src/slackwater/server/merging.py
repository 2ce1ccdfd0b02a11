"""Merging two neighbours, and undoing a merge that did not come to its end.

    left  L gen g      ────────────────────────── Merge(frozen) ──► L gen g', covers both
    right R            ── Subsume(L, g) ── frozen: serves nothing, closes nothing ── gone
                              │                        ▲
                              └─ every replica of R has applied up to the freeze ─┘

The node that runs this may die at any step. What it leaves behind is a frozen R, and at most one `Merge` under generation g
somewhere on its way into L's log. `undo` ends that, and may be run by any node, at any time, any number of times:

    1  AbortMerge(g) on L     L's generation is now above g: a Merge under g is refused at apply, on every replica
    2  Thaw on R              only where R's leaseholder has itself applied the command that led L on from g, with R still there

If the merge had succeeded before 1, L passed g by it, and R disappeared in the same engine batch: step 2 finds no R whose
store has passed g. A replica of R that lags behind refuses until it has caught up, and then it is gone as well. So R is
thawed if and only if the merge did not and cannot happen (proof: `replica/evaluate_range.py:thaw`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.config.zones import config_of
from slackwater.errors import SlackwaterError, UnavailableError, UsageError
from slackwater.hooks import buggify, probe
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.protect.zone_changes import read_zones
from slackwater.protocol.node.services import ReplicaStatus
from slackwater.protocol.range import requests
from slackwater.runtime.deadline import Deadline

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId, Position, RangeId
    from slackwater.server.admin import Admin

APPLIED_WAIT_S = 5.0
"""How long a frozen range waits for its slowest replica before it is thawed again."""
UNREACHABLE_WAIT_S = 1.0
"""… and for one whose node does not answer at all: it may have died, and the range's clients wait."""
POLL_S = 0.02


async def merge(admin: Admin, key: bytes) -> RangeDescriptor:
    """Merge the range that holds `key` with its right neighbour; returns the merged range."""
    left = (await admin.describe(key)).descriptor
    if left.end >= admin.key_max:
        raise UsageError("the last range has no right neighbour", range_id=left.range_id)
    right = (await admin.describe(left.end)).descriptor
    await _check(admin, left, right)
    try:
        await _merge(admin, left, right)
    except SlackwaterError as error:
        probe("merge.undone")
        await undo(admin, right, left_generation=left.generation)
        now = (await admin.describe(left.start)).descriptor
        if not now.contains(right.start):
            raise UnavailableError(
                "the ranges could not be merged; both go on as they were", cause=str(error)
            ) from error
    merged = (await admin.describe(left.start)).descriptor
    await admin.meta.publish(merged)
    return merged


async def _check(admin: Admin, left: RangeDescriptor, right: RangeDescriptor) -> None:
    """Refuse early what would only have to be undone."""
    if left.range_id == FIRST_RANGE:
        raise UsageError("the first range holds the index of ranges and is never merged")
    if right.start != left.end:
        raise UnavailableError("the ranges changed while they were looked at", left=left.status(), right=right.status())
    if set(left.replicas) != set(right.replicas):
        raise UsageError("only neighbours with the same replicas can merge", left=left.status(), right=right.status())
    configs = [zone.config for zone in (await read_zones(admin.kv)).records]
    if config_of(configs, left) != config_of(configs, right):
        raise UsageError("only neighbours with the same span configuration can merge", at=right.start)
    for range_id in (left.range_id, right.range_id):
        for node, found in (await admin.peers.replicas(left.replicas, range_id)).items():
            if not isinstance(found, ReplicaStatus) or found.failure:
                raise UnavailableError(
                    f"the replica of r{range_id} on n{node} is not ready for a merge", found=str(found)
                )


async def _merge(admin: Admin, left: RangeDescriptor, right: RangeDescriptor) -> None:
    frozen = await admin.ask(requests.Subsume(left.range_id, left.generation), at=right.start)
    if not isinstance(frozen, requests.SubsumeResult):
        raise UnavailableError("a freeze was answered with something else", kind=type(frozen).__name__)
    if buggify("merge.stop_after_freeze"):
        raise UnavailableError("stopped after the freeze")
    await wait_applied(admin, right.range_id, right.replicas, frozen.position)
    # Frozen, so its descriptor stands still: what it is now is what is merged.
    right = (await admin.describe(right.start)).descriptor
    await admin.ask(requests.Merge(right, frozen), at=left.start)


async def wait_applied(admin: Admin, range_id: RangeId, nodes: tuple[NodeId, ...], position: Position) -> None:
    """Return once every replica has applied up to `position`: a merge must not make the left side wait for the right."""
    clock = admin.runtime.clock
    deadline = Deadline(clock, seconds=APPLIED_WAIT_S)
    silent: Deadline | None = None
    while True:
        found = await admin.peers.replicas(nodes, range_id)
        late = [n for n, s in found.items() if not isinstance(s, ReplicaStatus) or s.failure or s.position < position]
        if not late:
            return
        if not any(isinstance(s, SlackwaterError) for s in found.values()):
            silent = None
        elif silent is None:
            silent = Deadline(clock, seconds=UNREACHABLE_WAIT_S)
        if deadline.passed or (silent is not None and silent.passed):
            raise UnavailableError("some replicas do not keep up", range_id=range_id, late=late)
        await clock.sleep(POLL_S)


async def undo(admin: Admin, right: RangeDescriptor, *, left_generation: int) -> None:
    """Make sure that no merge under `left_generation` can happen, then let the frozen range go on, if it still is one."""
    left = await admin.range_below(right.start)
    reached = await admin.ask(requests.AbortMerge(left_generation), at=left.start)
    if not isinstance(reached, requests.Number):
        raise UnavailableError("an abort was answered with something else", kind=type(reached).__name__)
    now = (await admin.describe(left.start)).descriptor
    await admin.meta.publish(now)
    if now.contains(right.start):
        probe("merge.had_succeeded")
        return
    await admin.ask(requests.Thaw(), at=right.start)
