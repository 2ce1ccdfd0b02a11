"""A read is complete or an error, and only whole copies are copied (I-34).

    ends         a stream that says *this was all* withheld nothing, whatever its disk did
    installed    a replica that came by snapshot holds what its statistics say, byte for byte
    applied      so does every replica after some of its entries, and in the end: the statistics are evidence that can be
                 relied on when replicas differ
    served       no reader is told of a disk: while another replica is there, it is asked instead

The oracle reads the engines underneath the faults, so it knows what a disk withholds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import StorageError
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.oracles.replication import DIGEST_ONE_IN, sampled
from slackwater.sim.oracles.settled import engine_of
from slackwater.sim.oracles.witness import witness_of
from slackwater.sim.scenarios.cluster_plan import cluster_of
from slackwater.storage.stats import Stats, recompute

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.replica.driver import Replica, Store
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import Family, Reader
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.sim.world import World


class Whole:
    """I-34."""

    name = "I-34"

    def attach(self, world: World) -> None:
        """Watch streams, installed snapshots, refusals and applies."""
        self.world = world
        world.taps["storage.stream_ended"] = self._ended
        world.taps["store.installed"] = self._installed
        world.taps["rpc.failed"] = self._told
        witness_of(world).watchers.append(self)

    def judge(self, world: World) -> Iterable[Violation]:
        """Every replica holds what its statistics say."""
        for name, node in cluster_of(world).up():
            for replica in node.member.store.replicas.values() if node.member else ():
                if replica.failure is None and (text := _differs(engine_of(node), replica.state)):
                    yield Violation(self.name, "not-whole", f"{name} {text}", {})

    def applied(self, event: ApplyEvent) -> None:
        """Count what a replica holds, now and then."""
        if event.engine is not None and sampled(event.position, DIGEST_ONE_IN) and event.last_of_run:
            self._check(event.node, event.engine, event.after)

    def serving(self, node: str, replica: Replica, now: Timestamp) -> None:
        """Nothing to see here."""

    def _ended(self, disk: str, family: Family, withheld: bytes | None) -> None:
        if withheld is not None:
            text = f"a stream of {family.name} on {disk} ended in front of {withheld!r} and was taken for complete"
            self.world.violated(self.name, "short-stream", text)

    def _installed(self, store: Store, state: RangeState) -> None:
        node = store.context.runtime.name  # type: ignore[attr-defined]
        engine = witness_of(self.world).engines.get(node)
        if engine is not None:
            self._check(node, engine, state)

    def _told(self, method: str, error: BaseException) -> None:
        if method == "kv.batch" and isinstance(error, StorageError):
            self.world.violated(self.name, "reader-told", f"a reader was told of the disk: {error}")

    def _check(self, node: str, engine: Reader, state: RangeState) -> None:
        if text := _differs(engine, state):
            self.world.violated(self.name, "not-whole", f"{node} {text}")


def _differs(engine: Reader, state: RangeState) -> str:
    found, expected = recompute(engine, state.descriptor.start, state.descriptor.end), Stats(*state.stats)
    return "" if found == expected else f"r{state.descriptor.range_id} holds {found}, its statistics say {expected}"
