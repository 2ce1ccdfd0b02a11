"""The oracles' own sharpness: what a clock beyond the bound excuses, and what it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slackwater import hooks
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.model.ids import NodeId, RangeId
from slackwater.sim.checkers import OperationOutcome, Recorder, check_registers
from slackwater.sim.handles import NS
from slackwater.sim.oracles.history import relaxed
from slackwater.sim.oracles.leases import Clocks, OneHolder
from slackwater.sim.oracles.witness import Witness
from slackwater.sim.world import OracleFailure, World
from tests.unit.sim.helpers import idle, world


def cluster() -> World:
    """Three idle nodes and a witness."""
    made = world(3)
    for name in ("n1", "n2", "n3"):
        made.add_node(name, idle)
    made.facts["witness"] = Witness(made)
    return made


def replica(range_id: int, *, holder: int, sequence: int) -> Any:
    lease = SimpleNamespace(holder=NodeId(holder), sequence=sequence, status=lambda: f"seq {sequence}")
    return SimpleNamespace(state=SimpleNamespace(descriptor=SimpleNamespace(range_id=RangeId(range_id)), lease=lease))


def serve(oracle: Any, node: str, what: Any, now: int) -> None:
    """What the witness would pass on; raises what the oracle found."""
    oracle.serving(node, what, now)
    failure, oracle.world.loop.failure = oracle.world.loop.failure, None
    if failure is not None:
        raise failure


def holders(w: World) -> OneHolder:
    oracle = OneHolder()
    oracle.attach(w)
    serve(oracle, "n2", replica(7, holder=2, sequence=5), 1)
    return oracle


@pytest.mark.parametrize("sequence", [4, 5])
def test_two_leaseholders_are_found(sequence: int) -> None:
    oracle = holders(cluster())
    with pytest.raises(OracleFailure, match="two leaseholders"):
        serve(oracle, "n1", replica(7, holder=1, sequence=sequence), 2)


def test_a_broken_clock_excuses_its_own_node_and_nobody_else() -> None:
    w = cluster()
    oracle = holders(w)
    w.cast_shadow(w.machines["n1"], -2 * NS)
    serve(oracle, "n1", replica(7, holder=1, sequence=4), 2)
    with pytest.raises(OracleFailure):
        serve(oracle, "n3", replica(7, holder=3, sequence=4), 2)


def test_a_broken_clock_that_leads_the_first_range_may_have_misled_the_others() -> None:
    w = cluster()
    oracle = holders(w)
    w.cast_shadow(w.machines["n1"], -2 * NS)
    serve(oracle, "n1", replica(FIRST_RANGE, holder=1, sequence=1), 2)
    serve(oracle, "n3", replica(7, holder=3, sequence=4), 2)


def test_the_excuse_ends_with_the_shadow() -> None:
    w = cluster()
    oracle = holders(w)
    shadow = w.cast_shadow(w.machines["n1"], 2 * NS)
    w.loop.now_ns = 5 * NS
    shadow.ended_ns = w.loop.now_ns
    serve(oracle, "n3", replica(7, holder=3, sequence=4), 2)  # a stamp of the future may have reached it
    assert shadow.upto_ns is not None
    w.loop.now_ns = shadow.upto_ns
    for node in ("n1", "n3"):
        with pytest.raises(OracleFailure):
            serve(oracle, node, replica(7, holder=int(node[1]), sequence=4), 2)


def test_a_node_whose_clock_was_set_while_it_ran_must_not_serve() -> None:
    w = cluster()
    oracle = Clocks()
    oracle.attach(w)
    serve(oracle, "n1", replica(7, holder=1, sequence=4), 1)
    w.loop.now_ns = NS
    shadow = w.cast_shadow(w.machines["n1"], 2 * NS)
    serve(oracle, "n2", replica(7, holder=2, sequence=5), 2)
    with pytest.raises(OracleFailure, match="clock was set"):
        serve(oracle, "n1", replica(7, holder=1, sequence=6), 3)
    shadow.ended_ns = NS
    serve(oracle, "n1", replica(7, holder=1, sequence=6), 4)


def test_real_time_does_not_count_in_a_shadow_but_does_around_it() -> None:
    w = cluster()
    recorder = Recorder(lambda: w.loop.now_ns)

    def write(at_s: int, value: bytes) -> None:
        w.loop.now_ns = at_s * NS
        pen = recorder.write(b"k", value, client=1)
        w.loop.now_ns += NS // 2
        pen.ok()

    def read(at_s: int, saw: bytes) -> None:
        w.loop.now_ns = at_s * NS
        pen = recorder.read(b"k", client=2)
        w.loop.now_ns += NS // 2
        pen.ok(saw=saw)

    write(1, b"a")
    write(11, b"b")
    read(13, b"a")  # stale
    assert check_registers(recorder.history().register_ops)
    w.loop.now_ns = 10 * NS
    shadow = w.cast_shadow(w.machines["n1"], -2 * NS)
    shadow.ended_ns = 12 * NS
    assert shadow.upto_ns is not None
    assert shadow.upto_ns > 14 * NS
    assert not check_registers(relaxed(recorder.history(), w).register_ops)
    read(40, b"a")  # stale long after it
    assert check_registers(relaxed(recorder.history(), w).register_ops)
    assert relaxed(recorder.history(), cluster()) == recorder.history()
    assert {op.outcome for op in recorder.history().register_ops} == {OperationOutcome.OK}


def test_a_queue_above_its_bound_ends_the_run() -> None:
    w = cluster()
    w.install_hooks()
    try:
        hooks.level("box", 3, 4)
        hooks.level("box", 4, 4)
        hooks.level("box", 2, 4)
        assert (w.levels, w.loop.failure) == ({"box": (4, 4)}, None)
        hooks.level("box", 5, 4)
        assert isinstance(w.loop.failure, OracleFailure)
        assert w.loop.failure.violation.oracle == "I-31"
    finally:
        hooks.install()
