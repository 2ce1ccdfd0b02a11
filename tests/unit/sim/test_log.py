"""The simulated log keeps the contract L-1 … L-6 under every fault it can show."""

from __future__ import annotations

import pytest

from slackwater.errors import AppendUnknown, ConnectionLost, EntryTooLarge, LogTrimmed
from slackwater.log.contract import OrderedLog
from slackwater.model.ids import Position, RangeId
from slackwater.sim.handles import NS
from tests.unit.sim.helpers import idle, run_in, world

R1, R2 = RangeId(1), RangeId(2)


def two_nodes(seed=1, **settings):
    w = world(seed, **settings)
    w.add_node("n1", idle)
    w.add_node("n2", idle)
    return w


def landed(w, range_id=R1):
    return [entry.payload for entry in w.log.range(range_id).entries]


async def read(runtime, count, *, after=0, range_id=R1):
    found = []
    tail = runtime.log.tail(range_id, after=Position(after))
    async for entries in tail:
        found.extend(entries)
        if len(found) >= count:
            break
    await tail.aclose()
    return found


def append(w, *payloads, node="n1", range_id=R1):
    return run_in(w, node, lambda runtime: runtime.log.append(range_id, list(payloads)))


def try_append(w, payload):
    async def attempt(runtime):
        try:
            return await runtime.log.append(R1, [payload])
        except AppendUnknown:
            return "unknown"

    return run_in(w, "n1", attempt)


def test_it_is_an_ordered_log():
    w = two_nodes()
    assert isinstance(w.machines["n1"].runtime.log, OrderedLog)


def test_acknowledged_entries_are_read_in_one_order_by_all():
    w = two_nodes()
    positions = [append(w, f"{i}".encode(), b"+", node=f"n{1 + i % 2}") for i in range(20)]
    assert positions == sorted(set(positions))
    expected = landed(w)
    for node in ("n1", "n2"):
        entries = run_in(w, node, lambda runtime: read(runtime, 40))
        assert [e.payload for e in entries] == expected
        assert [e.position for e in entries] == sorted({e.position for e in entries})
        tail = run_in(w, node, lambda runtime: read(runtime, 10, after=entries[29].position))
        assert tail == entries[30:]


def test_a_tail_waits_for_more():
    w = two_nodes()
    w.loop.call_later(5, w.log.land, R1, [b"later"])
    entries = run_in(w, "n2", lambda runtime: read(runtime, 1))
    assert [e.payload for e in entries] == [b"later"]
    assert w.seconds > 5


def test_ranges_share_positions_but_not_entries():
    w = two_nodes()
    append(w, b"a")
    append(w, b"b", range_id=R2)
    assert (landed(w, R1), landed(w, R2)) == ([b"a"], [b"b"])
    assert run_in(w, "n1", lambda runtime: runtime.log.head(R2)) == w.log.range(R2).newest
    assert run_in(w, "n1", lambda runtime: runtime.log.head(RangeId(9))) == 0


@pytest.mark.parametrize(
    ("knob", "copies"), [("lose_answer", 1), ("lose_request", 0), ("duplicate", 2)], ids=["answer", "request", "twice"]
)
def test_ambiguous_appends(knob, copies):
    w = two_nodes()
    setattr(w.log.link("n1"), knob, 100)
    assert try_append(w, b"x") == "unknown"
    w.loop.run(upto_ns=w.loop.now_ns + 60 * NS)
    assert landed(w) == [b"x"] * copies


def test_an_append_may_land_after_its_caller_gave_up_and_after_a_later_one():
    w = two_nodes()
    w.log.link("n1").late = 100
    assert try_append(w, b"late") == "unknown"
    assert landed(w) == []
    w.log.heal("n1")
    append(w, b"soon")
    w.loop.run(upto_ns=w.loop.now_ns + 60 * NS)
    assert landed(w) == [b"soon", b"late"]


def test_an_append_of_a_node_that_dies_lands_all_the_same():
    w = two_nodes()

    async def ask(runtime):
        await runtime.log.append(R1, [b"last words"])

    n1 = w.machines["n1"]
    w.loop.call_soon(lambda: n1.runtime.scope("s").spawn(ask(n1.runtime), name="ask"), context=n1.domain.context)
    w.loop.run(upto_ns=w.loop.now_ns + 1000)
    n1.crash()
    w.loop.run(upto_ns=w.loop.now_ns + NS)
    assert landed(w) == [b"last words"]


def test_a_cut_node_appends_nothing_and_reads_nothing_until_healed():
    w = two_nodes()
    w.log.link("n1").cut = True
    assert try_append(w, b"x") == "unknown"
    append(w, b"y", node="n2")
    w.loop.call_later(20, w.log.heal, "n1")
    begin = w.seconds
    assert [e.payload for e in run_in(w, "n1", lambda runtime: read(runtime, 1))] == [b"y"]
    assert w.seconds > begin + 19


def test_trimmed_entries_are_an_error_not_a_gap():
    w = two_nodes()
    positions = [append(w, f"{i}".encode()) for i in range(5)]
    run_in(w, "n1", lambda runtime: runtime.log.trim(R1, upto=positions[2]))
    run_in(w, "n1", lambda runtime: runtime.log.trim(R1, upto=positions[1]))
    assert landed(w) == [b"3", b"4"]

    async def too_early(runtime):
        with pytest.raises(LogTrimmed):
            await read(runtime, 5)
        return await read(runtime, 2, after=positions[2])

    assert [e.payload for e in run_in(w, "n2", too_early)] == [b"3", b"4"]
    assert run_in(w, "n1", lambda runtime: runtime.log.head(R1)) == positions[4]


def test_a_reader_restart_ends_the_tail_and_a_new_one_goes_on():
    w = two_nodes()
    append(w, b"a")
    w.loop.call_later(1, w.log.restart_readers, "n2")
    w.loop.call_later(2, w.log.land, R1, [b"b"])

    async def main(runtime):
        found = await read(runtime, 1)
        with pytest.raises(ConnectionLost, match="restarted"):
            await read(runtime, 1, after=found[-1].position)
        return found + await read(runtime, 1, after=found[-1].position)

    assert [e.payload for e in run_in(w, "n2", main)] == [b"a", b"b"]
    assert w.log.range(R1).readers == {}


def test_reader_lag_delays_one_node_only():
    w = two_nodes()
    w.log.link("n2").lag_ns = 30 * NS
    append(w, b"a")
    begin = w.seconds
    run_in(w, "n1", lambda runtime: read(runtime, 1))
    assert w.seconds - begin < 1
    run_in(w, "n2", lambda runtime: read(runtime, 1))
    assert w.seconds - begin > 1


def test_an_oversized_entry_is_refused_and_identity_is_stable():
    w = two_nodes(log__entry_bytes_max=1 << 12)

    async def main(runtime):
        with pytest.raises(EntryTooLarge):
            await runtime.log.append(R1, [bytes((1 << 12) + 1)])
        return runtime.log.identity()

    assert run_in(w, "n1", main) == run_in(w, "n2", main)
    assert landed(w) == []
