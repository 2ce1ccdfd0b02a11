"""I-13 as a twin: one drawn program under each scheme of closing; followers agree wherever two can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.closedts.kinds import Scheme
from slackwater.errors import NotLeaseholder
from slackwater.model.ids import NodeId
from slackwater.protocol.range.requests import Batch, Get, Header, Value
from slackwater.sim.tape import Tape
from tests.sim.cluster import Cluster, play

if TYPE_CHECKING:
    from slackwater.clock import Timestamp
    from slackwater.sim.tape import TapeStream

KEYS = (b"a", b"f", b"p", b"x")
OPERATIONS = 24
Answers = dict[tuple[int, bytes, str], bytes | None]
"""What a follower answered for a key as it was after an operation: by number of the operation, key and node."""


async def _operate(c: Cluster, draw: TapeStream, number: int) -> None:
    """One operation of the program, the same under every scheme."""
    key = draw.pick(KEYS)
    kind = draw.pick(("put", "put", "put", "delete", "transfer", "pause"))
    if number == OPERATIONS // 3:
        await c.split(b"m")
    elif kind == "put":
        await c.kv.put(c.key(key), str(number).encode())
    elif kind == "delete":
        await c.kv.delete(c.key(key))
    elif kind == "transfer":
        await c.transfer(key, NodeId(draw.pick((1, 2))))
    await c.settle(draw.pick((0.1, 0.4, 1.5)))


async def _ask(c: Cluster, moments: list[Timestamp], into: Answers) -> None:
    """Read every key at every moment so far on both nodes; keep what they answer as followers."""
    for name in ("n1", "n2"):
        store = c.nodes[name].store
        for key in KEYS:
            replica = store.holding(c.key(key))
            assert replica is not None
            range_id = replica.state.descriptor.range_id
            for number, ts in enumerate(moments):
                try:
                    read = Batch(Header(range_id, ts=ts, follower_ok=True), [Get(c.key(key))])
                    answer = await store.execute(read)
                except NotLeaseholder:
                    continue
                value = answer.results[0]
                assert isinstance(value, Value)
                if answer.by_follower:
                    known = into.setdefault((number, key, name), value.value)
                    assert known == value.value, "what was closed does not change"


def _answers(seed: int, scheme: Scheme) -> Answers:
    found: Answers = {}

    async def story(c: Cluster) -> None:
        draw, moments = Tape(seed).stream("program"), []
        await c.kv.put(c.key(b"a"), b"first")
        await c.second_node(b"a")
        await c.settle(3)
        for number in range(OPERATIONS):
            await _operate(c, draw, number)
            moments.append(c.clock.now())
            await _ask(c, moments, found)
        await c.settle(3)
        await _ask(c, moments, found)
        for node in c.nodes.values():
            transport = node.store.context.transport
            assert transport is not None
            assert transport.running == {scheme}

    settings = {
        "queue.interval": 0.0,
        "closed_timestamp.scheme": float(scheme),
        "closed_timestamp.target_duration": 0.5,
        "closed_timestamp.max_write_age": 0.5,
        "closed_timestamp.empty_command_interval": 0.3,
    }
    play(story, seed=seed, settings=settings)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_two_schemes_give_the_same_answers_wherever_both_can_serve(seed: int) -> None:
    """I-13, as a twin: one program, drawn once, under each scheme."""
    by_scheme = {scheme: _answers(seed, scheme) for scheme in Scheme}
    for scheme in (Scheme.STORE_WIDE, Scheme.MAX_WRITE_AGE):
        both = by_scheme[Scheme.LOG_DRIVEN].keys() & by_scheme[scheme].keys()
        assert len(both) > OPERATIONS, f"followers under {scheme.name} served too little to compare"
        assert {k: by_scheme[Scheme.LOG_DRIVEN][k] for k in both} == {k: by_scheme[scheme][k] for k in both}
        assert len({by_scheme[scheme][k] for k in both}) > 5, "answers differ by moment"
