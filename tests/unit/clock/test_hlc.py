import pytest

from slackwater.clock import HybridClock, OffsetMonitor, PeerOffset, SteadyWall, StepGuard, from_us
from slackwater.clock.hlc import MEASUREMENT_AGE_MAX_NS, PEERS_MAX
from slackwater.errors import ClockError

MS = 1_000


class Wall:
    def __init__(self, us: int = 1_000_000) -> None:
        self.us = us

    def __call__(self) -> int:
        return self.us * 1_000


def test_now_follows_wall_time_and_counts_when_it_stands_still():
    wall = Wall()
    clock = HybridClock(wall, max_offset_s=0.5)
    assert clock.now() == from_us(wall.us)
    assert clock.now() == from_us(wall.us, 1)
    wall.us += 1
    assert clock.now() == from_us(wall.us)


def test_a_wall_clock_set_back_does_not_take_the_clock_with_it():
    wall = Wall()
    clock = HybridClock(wall, max_offset_s=0.5)
    before = clock.now()
    wall.us -= 500_000
    assert clock.now() == before + 1
    assert clock.physical() < before


def test_the_floor_outlives_a_restart():
    wall = Wall()
    floor = from_us(wall.us + 100, 5)
    assert HybridClock(wall, max_offset_s=0.5, floor=floor).now() == floor + 1


def test_update_raises_now_above_what_was_heard():
    clock = HybridClock(Wall(), max_offset_s=0.5)
    heard = from_us(1_000_000 + 300 * MS, 9)
    clock.update(heard)
    assert clock.peek() == heard
    assert clock.now() == heard + 1


def test_update_ignores_the_past_and_refuses_what_is_beyond_the_bound():
    clock = HybridClock(Wall(), max_offset_s=0.5)
    first = clock.now()
    clock.update(from_us(1))
    assert clock.peek() == first
    clock.update(from_us(1_000_000 + 500 * MS))
    with pytest.raises(ClockError) as caught:
        clock.update(from_us(1_000_000 + 500 * MS + 1))
    assert caught.value.facts["offset_us"] == 500 * MS + 1
    assert clock.peek() == from_us(1_000_000 + 500 * MS)


def test_peek_uses_nothing_up():
    clock = HybridClock(Wall(), max_offset_s=0.5)
    assert clock.peek() == clock.peek() == clock.now()


def monitor(*offsets_us: int, error_us: int = 0) -> OffsetMonitor:
    made = OffsetMonitor(max_offset_s=0.5)
    for i, offset in enumerate(offsets_us):
        made.record(f"n{i}", PeerOffset(offset, error_us, 0))
    return made


@pytest.mark.parametrize("offsets", [(), (0,), (500 * MS,), (600 * MS, 0), (600 * MS, 600 * MS, 0, 0)])
def test_without_a_majority_the_node_serves(offsets):
    monitor(*offsets).check(0)


@pytest.mark.parametrize("offsets", [(600 * MS,), (600 * MS, -700 * MS), (-600 * MS, -600 * MS, 0)])
def test_a_majority_beyond_the_bound_fences_the_node(offsets):
    with pytest.raises(ClockError) as caught:
        monitor(*offsets).check(0)
    assert caught.value.facts["offset_us"] == max(offsets, key=abs)


def test_a_measurement_proves_only_what_lies_outside_its_error():
    monitor(600 * MS, error_us=100 * MS).check(0)
    with pytest.raises(ClockError):
        monitor(600 * MS, error_us=100 * MS - 1).check(0)


def test_old_measurements_do_not_count():
    old = monitor(900 * MS)
    with pytest.raises(ClockError):
        old.check(MEASUREMENT_AGE_MAX_NS)
    old.check(MEASUREMENT_AGE_MAX_NS + 1)


def test_a_precise_measurement_is_kept_for_a_while_over_a_vague_one():
    found = monitor(900 * MS)
    found.record("n0", PeerOffset(600 * MS, 400 * MS, 1))
    with pytest.raises(ClockError):
        found.check(2)
    found.record("n0", PeerOffset(600 * MS, 400 * MS, MEASUREMENT_AGE_MAX_NS))
    found.check(MEASUREMENT_AGE_MAX_NS)


def test_peers_are_bounded_and_the_oldest_goes_first():
    found = monitor(*[900 * MS] * PEERS_MAX)
    for i in range(PEERS_MAX):
        found.record(f"m{i}", PeerOffset(0, 0, 0))
    found.check(0)


nobody = OffsetMonitor(max_offset_s=0.5)


def test_peers_vouch_for_a_clock_that_was_put_right():
    wall, monotonic, _, guard = guarded()
    peers = OffsetMonitor(max_offset_s=0.5)
    peers.record("n2", PeerOffset(0, 10, monotonic() - 1))
    wall.us -= 900 * MS
    for _ in range(2):
        with pytest.raises(ClockError, match="while it ran"):
            guard.check(peers)
    monotonic.us += 1
    peers.record("n2", PeerOffset(0, 10, monotonic()))
    peers.record("n3", PeerOffset(900 * MS, 10, monotonic()))
    with pytest.raises(ClockError, match="while it ran"):
        guard.check(peers)
    peers.record("n3", PeerOffset(-9, 10, monotonic()))
    guard.check(peers)
    guard.check(nobody)


def guarded(*, max_offset_s: float = 0.5) -> tuple[Wall, Wall, HybridClock, StepGuard]:
    wall, monotonic = Wall(), Wall(77)
    clock = HybridClock(wall, max_offset_s=max_offset_s)
    return wall, monotonic, clock, StepGuard(clock, wall_ns=wall, monotonic_ns=monotonic, max_offset_s=max_offset_s)


def test_a_clock_that_runs_on_is_trusted_and_one_that_is_set_is_not():
    wall, monotonic, _, guard = guarded()
    wall.us += 3_600_000_000
    monotonic.us += 3_600_000_000
    guard.check(nobody)
    for step_us in (500 * MS + 1, -(500 * MS) - 1):
        wall.us += step_us
        with pytest.raises(ClockError, match="while it ran") as caught:
            guard.check(nobody)
        assert caught.value.facts["offset_us"] == step_us
        wall.us -= step_us
        guard.check(nobody)


def test_a_clock_that_was_ahead_is_not_trusted_before_time_has_caught_up():
    wall, monotonic, clock, guard = guarded()
    wall.us += 2_000 * MS
    clock.now()
    wall.us -= 2_000 * MS
    with pytest.raises(ClockError, match="caught up"):
        guard.check(nobody)
    for watch in (wall, monotonic):
        watch.us += 1_500 * MS
    guard.check(nobody)


def test_a_clock_that_jumped_and_was_put_right_leaves_nothing_behind():
    """Issue 11, item 14: the node stayed silent for as long as its clock had been ahead."""
    wall, monotonic = Wall(), Wall(77)
    steady = SteadyWall(wall, monotonic, max_offset_s=0.5)
    clock = HybridClock(steady, max_offset_s=0.5)
    guard = StepGuard(clock, wall_ns=wall, monotonic_ns=monotonic, max_offset_s=0.5, steady=steady)
    before = clock.now()
    for step_us in (3_600_000 * MS, -3_600_000 * MS):
        wall.us += step_us
        with pytest.raises(ClockError, match="while it ran"):
            guard.check(nobody)
        for watch in (wall, monotonic):
            watch.us += 10 * MS
        assert 0 < clock.now() - before < from_us(100 * MS), "it goes on as if nothing had been set"
        wall.us -= step_us
        guard.check(nobody)


def test_a_clock_that_its_peers_agree_with_is_followed_to_where_it_was_set():
    wall, monotonic = Wall(), Wall(77)
    steady = SteadyWall(wall, monotonic, max_offset_s=0.5)
    clock = HybridClock(steady, max_offset_s=0.5)
    guard = StepGuard(clock, wall_ns=wall, monotonic_ns=monotonic, max_offset_s=0.5, steady=steady)
    wall.us += 60_000 * MS
    peers = OffsetMonitor(max_offset_s=0.5)
    with pytest.raises(ClockError):
        guard.check(peers)
    monotonic.us += 10 * MS
    wall.us += 10 * MS
    peers.record("n2", PeerOffset(9, 10, monotonic()))
    guard.check(peers)
    assert clock.now() >= from_us(wall.us)


def test_a_measurement_that_contradicts_a_more_exact_one_replaces_it():
    monitor = OffsetMonitor(max_offset_s=0.5)
    monitor.record("n2", PeerOffset(0, 10, 0))
    monitor.record("n2", PeerOffset(5, 100, 1))
    assert monitor.latest() == {"n2": 0}, "less exact, and they agree"
    monitor.record("n2", PeerOffset(900 * MS, 100, 2))
    with pytest.raises(ClockError):
        monitor.check(3)
