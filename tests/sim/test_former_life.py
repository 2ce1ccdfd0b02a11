"""Leases and promises of a replica's former life: what a snapshot, a graceful stop and a crash leave of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MIN, seconds_between
from slackwater.errors import SlackwaterError
from slackwater.model.ids import NodeId
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.range import requests
from slackwater.replica.driver.leasing import LeaseUse
from slackwater.sim.handles import NS
from slackwater.sim.scenario import load
from tests.sim.cluster import Cluster, play
from tests.sim.hunt import hunt

if TYPE_CHECKING:
    from slackwater.replica.driver import Replica

load()
N1, N2, N3 = NodeId(1), NodeId(2), NodeId(3)
SETTINGS = {
    "queue.interval": 0.0,
    "closed_timestamp.target_duration": 0.1,
    "closed_timestamp.side_transport_interval": 0.02,
}


def held_by(c: Cluster, node: str, name: bytes) -> Replica:
    """The replica that holds a key on a node."""
    found = c.nodes[node].store.holding(c.key(name))
    assert found is not None
    return found


async def lagging(c: Cluster) -> Replica:
    """A range on both nodes, led by n1, where both see new entries up to two seconds late; the leader's replica."""
    await c.kv.put(c.key(b"a"), b"1")
    await c.second_node(b"a")
    await c.settle(3)
    for name in ("n1", "n2"):
        c.world.log.link(name).lag_ns = 2 * NS
    return held_by(c, "n1", b"a")


async def refetched(c: Cluster, old: Replica) -> Replica:
    """The replica that takes the place of one that is quarantined."""
    old.quarantine("for this test")
    while (fresh := c.node.store.holding(c.key(b"a"))) is None or fresh is old:
        await c.settle(0.01)
    return fresh


def test_a_replica_fetched_anew_promises_nothing_below_its_own_commands_in_the_log() -> None:
    """Nothing is known of a command under way: its timestamp was closed, and I-10 then stopped both replicas."""

    async def story(c: Cluster) -> None:
        old = await lagging(c)
        write = c.scope.spawn(_quietly(c.kv.put(c.key(b"a"), b"2", timeout=1.0)), name="write")
        await c.settle(0.05)
        fresh = await refetched(c, old)
        assert fresh.leasing.use(c.node.clock.now()) is LeaseUse.FORMER
        assert fresh.closing.try_close(c.node.clock.now()) is CannotClose.NO_VALID_LEASE
        assert fresh.state.lai == old.state.lai, "the command is still to be applied"
        for name in ("n1", "n2"):
            c.world.log.heal(name)
        assert await c.kv.get(c.key(b"a"), timeout=60) == b"2"
        await write
        assert fresh.failure is None
        assert fresh.leasing.use(c.node.clock.now()) is LeaseUse.USABLE

    play(story, settings=SETTINGS)


async def _quietly(work: object) -> None:
    try:
        await work  # type: ignore[misc]
    except SlackwaterError:
        return


def test_the_right_half_of_a_split_that_a_former_life_proposed_waits_for_its_lease_too() -> None:
    """Reads served by the left side before it was fetched anew are not known to the right side either."""

    async def story(c: Cluster) -> None:
        old = await lagging(c)
        held = old.state
        split = requests.Batch(
            requests.Header(held.descriptor.range_id), [requests.Split(c.key(b"m"), await c.node.new_range_id())]
        )
        c.scope.spawn(_quietly(old.executor.execute(split)), name="split")
        await c.settle(0.05)
        fresh = await refetched(c, old)
        assert fresh.state.position == held.position, "the split is still to be applied"
        for name in ("n1", "n2"):
            c.world.log.heal(name)
        while (right := c.node.store.holding(c.key(b"n"))) is c.node.store.holding(c.key(b"a")) or right is None:
            await c.settle(0.001)
        assert right.state.lease == held.lease
        assert right.leasing.former

    play(story, settings=SETTINGS)


def test_an_idle_range_whose_leaseholder_was_fetched_anew_goes_on_closing() -> None:
    async def story(c: Cluster) -> None:
        await c.kv.put(c.key(b"a"), b"1")
        await c.second_node(b"a")
        await c.settle(3)
        c.settings.override({"queue.interval": 60.0})
        old = held_by(c, "n1", b"a")
        sequence, fresh = old.state.lease.sequence, await refetched(c, old)
        await c.settle(3)
        assert fresh.state.lease.sequence > sequence, "acquired anew, although nobody asked for anything"
        assert seconds_between(held_by(c, "n2", b"a").closing.closed(), c.node.clock.now()) < 1

    play(story, settings=SETTINGS)


@pytest.mark.parametrize("how", ["refetched", "stopped", "killed"])
def test_what_a_follower_was_promised_outlives_all_but_a_crash(how: str) -> None:
    """A range at rest: the log alone knows of nothing since its last command."""

    async def story(c: Cluster) -> None:
        await c.kv.put(c.key(b"a"), b"1")
        await c.second_node(b"a")
        await c.settle(5)
        old, machine = held_by(c, "n2", b"a"), c.world.machines["n2"]
        for other in ("n1", "c1"):  # what it is told afterwards must not count
            for link in (c.world.net.link("n2", other), c.world.net.link(other, "n2")):
                if how != "refetched":
                    link.cut()
        before = old.closing.closed()
        assert seconds_between(old.state.closed, before) > 1
        if how == "refetched":
            old.quarantine("for this test")
            while (fresh := c.nodes["n2"].store.holding(c.key(b"a"))) is None or fresh is old:
                await c.settle(0.01)
            assert fresh.closing.closed() >= before
            return
        if how == "stopped":
            await c.nodes["n2"].store.stop()
        machine.crash(kernel_lives=True)
        machine.start()
        await c.settle(0.1)
        after = held_by(c, "n2", b"a").closing.closed()
        assert after >= before if how == "stopped" else MIN < after < before

    play(story, settings=SETTINGS)


def test_a_replica_that_forgets_what_it_closed_is_found_out() -> None:
    hunt("X-CLOSED-FORGOTTEN")


@pytest.mark.parametrize("bug", ["", "X-ENDED-UNHEARD"])
def test_an_epoch_that_its_node_ended_binds_a_taker_whose_clock_is_behind_and_has_heard_nothing_but_the_log(
    bug: str,
) -> None:
    """Its record came by the log, without a stamp: the next lease began below what the one before had closed and served."""

    async def story(c: Cluster) -> None:
        await c.kv.put(c.key(b"a"), b"1")
        for name in ("n2", "n3"):
            c.world.add_node(name, c.boot_node)
            while name not in c.nodes:
                await c.settle(0.1)
        for key in (b"\x02", c.key(b"a")):
            await c.node.admin.relocate(key, [N1, N2, N3])
        await c.node.admin.transfer_lease(b"\x02", N3)
        await c.node.admin.transfer_lease(c.key(b"a"), N2)
        await c.settle(5)
        n1, n2 = c.nodes["n1"], c.nodes["n2"]
        for name, by in (("n1", -1), ("n2", 1)):
            clock = c.world.machines[name].clock
            clock.step_ns = by * clock.band_ns - clock.skew_ns()
        await c.settle(5)
        for one, other in (("n1", "n2"), ("n1", "n3")):
            for link in (c.world.net.link(one, other), c.world.net.link(other, one)):
                link.cut()
        await c.settle(0.2)
        assert await n2.kv.get(c.key(b"a")) == b"1"
        served = n2.store.horizon()
        await n2.liveness.leave(horizon=n2.store.horizon)
        assert n1.clock.peek() < served, "its clock is behind, and no message has told it"
        while (record := n1.liveness.get(N2)) is None or record.epoch == held_by(c, "n1", b"a").state.lease.epoch:
            await c.settle(0.001)
        await held_by(c, "n1", b"a").leasing.hold()
        assert (held_by(c, "n1", b"a").state.lease.start > served) == (bug == ""), "I-07, unless it is planted out"

    play(story, settings=SETTINGS, bugs=frozenset({bug} - {""}))
