from __future__ import annotations

import pytest

from slackwater import hooks
from slackwater.errors import StorageError, invariant
from slackwater.runtime.seam import Family
from slackwater.sim.clocks import SimClock, wave
from slackwater.sim.faults import INJECTORS, FaultKind, inject, nemesis
from slackwater.sim.handles import NS
from slackwater.sim.tape import Tape
from slackwater.sim.world import OracleFailure
from tests.unit.sim.helpers import idle, loop, run_in, world


def ticking(log):
    async def boot(runtime):
        try:
            while True:
                log.append((runtime.name, runtime.clock.monotonic_ns()))
                await runtime.clock.sleep(1)
        finally:
            log.append("finally")

    return boot


def advance(w, seconds):
    w.loop.run(upto_ns=w.loop.now_ns + round(seconds * NS))


def test_crash_stops_a_node_without_finally_and_start_boots_it_again():
    log, w = [], world()
    n1 = w.add_node("n1", ticking(log))
    advance(w, 3.5)
    assert len(log) == 4
    n1.crash()
    n1.crash()
    advance(w, 10)
    assert len(log) == 4
    assert not n1.up
    n1.start()
    n1.start()
    advance(w, 2.5)
    assert len(log) == 7
    assert n1.incarnation == 2
    w.loop.dispose()


def test_pause_holds_steps_back_and_resume_runs_them():
    log, w = [], world()
    n1 = w.add_node("n1", ticking(log))
    advance(w, 3.5)
    n1.pause()
    advance(w, 20)
    assert len(log) == 4
    n1.resume()
    advance(w, 2)
    assert len(log) == 7, "one that was due, and two more"
    w.loop.dispose()


def test_crash_of_a_paused_node_drops_what_was_held():
    log, w = [], world()
    n1 = w.add_node("n1", ticking(log))
    advance(w, 1.5)
    n1.pause()
    advance(w, 5)
    n1.crash()
    n1.resume()
    advance(w, 5)
    assert log == [log[0], log[1]]
    w.loop.dispose()


def test_a_slow_node_makes_less_progress():
    def progress(mean_ns):
        log, w = [], world()
        w.add_node("n1", ticking(log)).slow_down(mean_ns)
        advance(w, 60)
        w.loop.dispose()
        return len(log)

    assert progress(NS) < progress(0) - 10


def test_a_program_that_stops_itself_is_restarted_and_any_other_error_ends_the_run():
    async def full(runtime):
        await runtime.clock.sleep(1)
        raise StorageError("the disk is full")

    w = world()
    n1 = w.add_node("n1", full)
    advance(w, 30)
    assert n1.incarnation > 2

    async def buggy(runtime):
        raise KeyError("oops")

    w = world()
    w.add_node("n1", buggy)
    with pytest.raises(OracleFailure, match=r"I-31 .*KeyError"):
        advance(w, 1)

    async def broken(runtime):
        invariant(1 > 2, "I-04", index=7)

    w = world()
    w.add_node("n1", broken)
    with pytest.raises(Exception, match="I-04 violated"):
        advance(w, 1)


def test_offload_takes_time_and_returns_what_the_work_returns():
    w = world()
    w.add_node("n1", idle)
    assert run_in(w, "n1", lambda runtime: runtime.offload(pow, 2, 10)) == 1024
    assert w.loop.now_ns > 0


def test_hooks_are_counted_armed_per_run_and_silent_after_healing():
    armed = fired = 0
    for seed in range(40):
        w = world(seed)
        w.install_hooks()
        try:
            hooks.probe("a")
            hooks.probe("a")
            answers = [hooks.buggify("site") for _ in range(40)]
            w.healthy = True
            assert not any(hooks.buggify("site") for _ in range(40))
        finally:
            hooks.install()
        assert w.probes["a"] == 2
        armed += any(answers)
        fired += sum(answers)
    assert 3 <= armed <= 20
    assert 4 <= fired / armed <= 16
    assert hooks.buggify("site") is False


@pytest.mark.parametrize("kind", FaultKind, ids=lambda kind: kind.value)
def test_every_fault_begins_ends_and_leaves_the_world_whole(kind):
    w = world(3)
    log = []
    for name in ("n1", "n2", "n3"):
        w.add_node(name, ticking(log))
    w.add_client("c1", ticking(log))
    w.calm_clients = lambda: False
    w.spoil = lambda draw: draw.pick(["n1 r1", "n2 r1"])
    if kind is FaultKind.RESET:
        run_in(w, "n2", lambda runtime: runtime.net.listen("n2:1", lambda c: _Deaf()))
        run_in(w, "n1", lambda runtime: runtime.net.connect("n2:1", lambda c: _Deaf()))
    advance(w, 1)
    for machine in w.nodes:
        machine.stopper = _end_well
        _store_a_row(machine)
    w.spare = lambda node, family, key: True
    fault = inject(w, kind)
    assert fault is not None
    advance(w, 60)
    assert fault.end_ns is not None, "it ended by itself"
    assert str(fault).startswith(kind.value)
    w.heal()
    assert all(m.up and not m.paused and not m.slow_ns and not m.disk.full for m in w.machines.values())
    assert not any(m.disk.spoiled for m in w.machines.values())
    assert all(not link.cuts and not link.slow_ns and not link.loss_percent for link in w.net.links.values())
    assert all(vars(link) == vars(type(link)()) for link in w.log.links.values())
    w.loop.dispose()


def _store_a_row(machine):
    engine = machine.disk.open("store")
    batch = engine.batch()
    for family in (Family.DATA, Family.LOCK):
        batch.put(family, b"k", b"v")
    engine.write(batch)


async def _end_well():
    """A program that has nothing to do before it ends."""


class _Deaf:
    def frames(self, frames):
        pass

    def closed(self, reason):
        pass

    def writable(self):
        pass


def test_every_kind_has_an_injector_and_a_nemesis_shows_all_it_was_given():
    assert set(INJECTORS) == set(FaultKind)
    w = world(5)
    for name in ("n1", "n2", "n3"):
        w.add_node(name, idle)
    w.add_client("c1", idle)
    w.calm_clients = lambda: False
    kinds = frozenset(FaultKind) - {FaultKind.RESET, FaultKind.STOP, FaultKind.QUARANTINE, FaultKind.DISK_ROT}
    w.spare = lambda node, family, key: True
    w.spawn(nemesis(w, kinds, mean_ns=NS, upto_ns=120 * NS), name="nemesis")
    advance(w, 100)
    assert {f.kind for f in w.faults} == kinds
    assert len(w.faults) >= 30
    w.heal()
    count = len(w.faults)
    advance(w, 20)
    assert len(w.faults) == count, "no faults after healing"
    w.loop.dispose()


@pytest.mark.parametrize("seed", range(20))
def test_clocks_stay_in_their_band_and_monotonic_time_is_honest(seed):
    lp = loop()
    clock = SimClock(lp, Tape(seed).stream("clock/n1"), max_offset_ns=NS // 2)
    before = clock.monotonic_ns()
    for step in range(600):
        lp.now_ns = step * NS
        assert abs(clock.skew_ns()) <= clock.band_ns
    assert clock.monotonic_ns() - before == 599 * NS
    clock.step_ns = -(10**9)
    assert clock.monotonic_ns() - before == 599 * NS


def test_wave_is_a_wave():
    values = [wave(t, 1000, 500) for t in range(1000)]
    assert max(values) == 500
    assert min(values) == -500
    assert values[0] == values[500] == 0
    assert abs(sum(values)) < 500
