"""What a store does when it cannot read what it holds (I-34).

    read fails ── DamageError? ── no ──► the caller asks another replica; this one stays
                       │ yes
                       ▼
    quarantined at once: serves, votes and sends nothing          the caller asks another replica
                       │
    hand the lease over, if it is here ── the replica still applies and proposes: only its reading is broken
                       │
    halted, and fetched anew from a healthy replica; when damage comes again and again, after longer and longer pauses

A compaction that meets damage stops all writing: the node then hands all its leases over and ends (`end_damaged`). Whatever met
it first, the store notes it, and the next start copies what is whole to a new engine (`replica/rebuild.py`).

Damage is counted and remembered for the journal by itself: a replica may be well again before an operator looks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from slackwater.errors import DamageError, SlackwaterError, StorageError, UnavailableError
from slackwater.hooks import probe
from slackwater.replica.driver.context import DetachReason
from slackwater.replica.snapshot import check_whole
from slackwater.runtime.sync import timeout

if TYPE_CHECKING:
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.replica.driver.context import ReplicaContext
    from slackwater.replica.driver.replica import Replica
    from slackwater.replica.driver.store import Store
    from slackwater.replica.state import RangeState

AGAIN_S_MAX = 60.0
"""The longest a range rests before it is fetched again: a file that stays in the way is not helped by fetching."""
INCIDENTS_KEPT_MAX = 64
DOUBLINGS_MAX = 10
"""Of the pause between two fetches of one range."""
HAND_OVER_S = 3.0
assert HAND_OVER_S < AGAIN_S_MAX, "a lease is handed over before a range is fetched again"
assert AGAIN_S_MAX <= 2.0**DOUBLINGS_MAX, "pauses grow up to the longest one"


class Incident(NamedTuple):
    """One read that failed: numbered, so that a reader of the list knows what is new to it."""

    number: int
    range_id: RangeId
    damage: bool
    why: str


class DamageLog:
    """Read errors of one store: counts for metrics, the newest for the journal."""

    def __init__(self) -> None:
        self.read_errors = 0
        self.damaged = 0
        """Replicas quarantined because of damage."""
        self.refused = 0
        """Snapshots that were not whole, sent or received."""
        self.incidents: deque[Incident] = deque(maxlen=INCIDENTS_KEPT_MAX)
        self._met: dict[RangeId, int] = {}

    def note(self, range_id: RangeId, error: StorageError) -> None:
        """Count a read that failed."""
        self.read_errors += 1
        damage = isinstance(error, DamageError)
        assert not self.incidents or self.incidents[-1].number < self.read_errors, "a number stands for one incident"
        self.incidents.append(Incident(self.read_errors, range_id, damage, str(error)))

    def rest_s(self, range_id: RangeId) -> float:
        """How long to wait before a damaged range is fetched anew: not at all the first time. Counts this time."""
        before = self._met.get(range_id, 0)
        self._met[range_id] = before + 1
        assert self._met[range_id] > 0, "damage is counted"
        return 0.0 if not before else min(AGAIN_S_MAX, 2.0 ** min(before - 1, DOUBLINGS_MAX))


def read_failed(store: Store, range_id: RangeId, error: StorageError) -> SlackwaterError:
    """Deal with a read that failed on this store; returns what the caller is told, which sends it to another replica.

    A range with one replica only is not quarantined: what is not damaged is still served, and worth saving.
    """
    if isinstance(error, DamageError) and error.remote:
        return UnavailableError("another node met damage; ask again", cause=str(error))
    replica = store.replicas.get(range_id)
    store.damage.note(range_id, error)
    if isinstance(error, DamageError) and replica is not None and len(replica.state.descriptor.replicas) == 1:
        return error  # no other replica can serve: what can still be read is served, and the rest is an error
    if isinstance(error, DamageError) and replica is not None and replica.failure is None and not replica.retired:
        probe("replica.damaged")
        store.damage.damaged += 1
        assert store.damage.damaged <= store.damage.read_errors, "a replica is damaged because it could not be read"
        store.quarantined[range_id] = str(error)
        replica.context.engine.note_damage(f"r{range_id}: {error}")
        replica.suspend(error)
        assert replica.failure is not None, "a replica that cannot be read serves nothing (I-34)"
        replica.dismiss(DetachReason.FAILED, str(error))
        store.on_damaged(replica)
    return UnavailableError(f"r{range_id} could not be read on this node; ask another replica", cause=str(error))


async def end_damaged(store: Store, error: DamageError) -> None:
    """End a node whose store takes no more writes: its leases are handed over, and its next start rebuilds the store.

    Where ranges have no other replica, it stays: what is not damaged can still be read, and no other replica has it.
    """
    for range_id in list(store.replicas):
        store.read_failed(range_id, error)
    if not any(replica.failure is not None for replica in store.replicas.values()):
        return
    await store.context.runtime.clock.sleep(HAND_OVER_S + 1.0)
    raise DamageError(
        "the store takes no more writes, its files are damaged; restart the node: it rebuilds them"
    ) from error


async def check_received(log: DamageLog, context: ReplicaContext, state: RangeState) -> None:
    """Refuse a replica of which a part did not arrive, or cannot be read back (I-34)."""
    frozen = context.engine.snapshot(once=True)
    try:
        await context.runtime.offload(check_whole, frozen, state)
    except StorageError:
        log.refused += 1
        raise
    finally:
        frozen.close()


async def hand_over(replica: Replica, to: NodeId, *, life: int) -> bool:
    """Transfer the lease of a replica that serves nothing any more; whether that is known to have happened."""
    try:
        async with timeout(HAND_OVER_S):
            await replica.give_lease(to, life=life)
    except (SlackwaterError, TimeoutError):
        probe("replica.hand_over_failed")
        return False
    probe("replica.handed_over")
    return True
