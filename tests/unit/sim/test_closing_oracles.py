"""The watchers of closed timestamps on their own: the ledger against every promise kept in a list, and each rule broken once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.descriptors import (
    FIRST_RANGE,
    Generation,
    Lease,
    LeaseAppliedIndex,
    LeaseSequence,
    RangeDescriptor,
)
from slackwater.model.ids import NodeId, Position
from slackwater.protocol.log.commands import Command
from slackwater.replica.apply import ApplyOutcome, ApplyVerdict
from slackwater.replica.state import RangeState
from slackwater.sim.oracles.closing import AboveClosed, Ledger, NeverBack, NotTooEarly, Stairs, listen
from slackwater.sim.oracles.witness import ApplyEvent
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Callable

N1 = NodeId(1)


class Broken(AssertionError):
    """An oracle said no."""


class Ground:
    """As much of a world as a watcher needs."""

    def __init__(self) -> None:
        self.taps: dict[str, Callable[..., None]] = {}
        self.facts = {"witness": SimpleNamespace(watchers=[])}
        self.machines = {"n1": SimpleNamespace(incarnation=1)}

    def violated(self, oracle: str, kind: str, summary: str, **evidence: object) -> None:
        raise Broken(f"{oracle} {kind}")

    def applied(self, event: ApplyEvent) -> None:
        for watcher in self.facts["witness"].watchers:
            watcher.applied(event)

    def promise(self, lai: int, ts: int) -> None:
        sender = SimpleNamespace(node_id=N1, promises=lambda: [(FIRST_RANGE, lai, Timestamp(ts), None)])
        self.taps["closedts.published"](sender, MIN, None, None)

    def believe(self, replica: object, ts: int) -> None:
        self.taps["closedts.believed"](replica, Timestamp(ts))


def ground() -> Ground:
    world, ledger = Ground(), Ledger()
    for oracle in (ledger, NeverBack(ledger), AboveClosed(ledger), NotTooEarly(ledger)):
        oracle.attach(world)  # type: ignore[arg-type]
    return world


def state(*, lai: int, closed: int, position: int) -> RangeState:
    descriptor = RangeDescriptor(FIRST_RANGE, b"a", b"z", (N1,), Generation(1))
    lease = Lease(N1, LeaseSequence(1), MIN)
    return RangeState(
        descriptor, lease, lai=LeaseAppliedIndex(lai), closed=Timestamp(closed), position=Position(position)
    )


def event(
    *, lai: int, closed: int, write: int = 0, had: int = 0, verdict: ApplyVerdict = ApplyVerdict.ACCEPTED
) -> ApplyEvent:
    """One command at index `lai` that carries `closed` and writes at `write`, applied where `had` was closed."""
    command = Command(
        command_id=lai.to_bytes(16, "big"),
        lease_sequence=LeaseSequence(1),
        lai=LeaseAppliedIndex(lai),
        closed=Timestamp(closed),
        min_write_ts=Timestamp(write),
    )
    before, after = (
        state(lai=lai - 1, closed=had, position=lai),
        state(lai=lai, closed=max(had, closed), position=lai + 1),
    )
    return ApplyEvent(
        "n1", before, after, WriteBatch(), [ApplyOutcome(command, verdict)], Position(lai + 1), engine=None, first=True
    )


class Believer:
    """As much of a replica as a watcher needs."""

    def __init__(self, state: RangeState) -> None:
        self.state = state
        self.context = SimpleNamespace(runtime=SimpleNamespace(name="n1"))
        self.stopped = self.retired = False
        self.failure = None


def replica(*, lai: int, closed: int) -> Believer:
    return Believer(state(lai=lai, closed=closed, position=9))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40)), max_size=25))
def test_the_ledger_answers_like_a_list_of_all_promises(promises: list[tuple[int, int]]) -> None:
    stairs = Stairs()
    for at, (lai, ts) in enumerate(promises):
        known = max((t for i, t in promises[:at] if i <= lai), default=0)
        assert stairs.add(lai, ts) is (ts > known)
    for lai in range(14):
        assert stairs.upto(lai) == max((t for i, t in promises if i <= lai), default=0)
    assert stairs.highest == max((t for _, t in promises), default=0)
    assert stairs.lais == sorted(set(stairs.lais))
    assert stairs.times == sorted(set(stairs.times))


def test_what_holds_passes() -> None:
    world, one = ground(), replica(lai=5, closed=10)
    world.promise(5, 20)
    world.believe(one, 20)
    world.applied(event(lai=6, closed=21, write=22))
    world.promise(6, 30)
    world.believe(one, 20)
    world.applied(event(lai=7, closed=30, write=31, had=21))


@pytest.mark.parametrize("closed", [19, 0])
def test_a_command_that_carries_less_than_was_promised_is_i09(closed: int) -> None:
    world = ground()
    world.promise(5, 20)
    with pytest.raises(Broken, match="I-09 carried-went-back"):
        world.applied(event(lai=6, closed=closed))


def test_commands_of_one_lease_never_carry_less_than_those_before() -> None:
    world = ground()
    world.applied(event(lai=6, closed=20))
    with pytest.raises(Broken, match="I-09 carried-went-back"):
        world.applied(event(lai=7, closed=19, had=0))


def test_a_replica_that_believes_less_than_before_is_i09() -> None:
    world, one = ground(), replica(lai=5, closed=10)
    world.promise(5, 20)
    world.believe(one, 20)
    with pytest.raises(Broken, match="I-09 believed-went-back"):
        world.believe(one, 19)


@pytest.mark.parametrize(("graceful", "lai", "breaks"), [(True, 5, True), (True, 4, False), (False, 5, False)])
def test_a_node_that_stopped_in_good_order_believes_no_less_afterwards(graceful: bool, lai: int, breaks: bool) -> None:
    """The next life has replicas of its own: what they believe is held against the life before, by index."""
    world = ground()
    world.promise(4, 19)
    world.promise(5, 20)
    world.believe(replica(lai=5, closed=10), 20)
    if graceful:
        world.facts["stopped"] = {("n1", 1)}
    world.machines["n1"].incarnation = 2
    if not breaks:
        world.believe(replica(lai=lai, closed=10), 19)
        return
    with pytest.raises(Broken, match="I-09 believed-went-back"):
        world.believe(replica(lai=lai, closed=10), 19)


def test_a_write_at_what_was_promised_before_its_index_is_i10() -> None:
    world = ground()
    world.promise(5, 20)
    with pytest.raises(Broken, match="I-10 below-closed"):
        world.applied(event(lai=6, closed=20, write=20))


def test_a_promise_that_a_later_command_has_broken_already_is_i10() -> None:
    world = ground()
    world.applied(event(lai=6, closed=5, write=15))
    world.promise(6, 40)
    with pytest.raises(Broken, match="I-10 promised-too-late"):
        world.promise(5, 15)


def test_a_command_that_had_to_be_refused_for_its_writes_is_i10() -> None:
    world = ground()
    with pytest.raises(Broken, match="I-10 proposed-below-closed"):
        world.applied(event(lai=6, closed=30, write=20, had=25, verdict=ApplyVerdict.BELOW_CLOSED))


def test_a_promise_used_before_its_index_is_i12() -> None:
    world, one = ground(), replica(lai=4, closed=10)
    world.promise(5, 20)
    world.believe(one, 10)
    with pytest.raises(Broken, match="I-12 used-too-early"):
        world.believe(one, 20)


def test_listeners_of_one_tap_are_all_told_in_order() -> None:
    world, heard = Ground(), []
    for name in ("first", "second", "third"):
        listen(world, "site", lambda fact, name=name: heard.append((name, fact)))  # type: ignore[arg-type]
    world.taps["site"](7)
    assert heard == [("first", 7), ("second", 7), ("third", 7)]
