"""A peer whose calls are refused, or weigh much, is read more slowly; its neighbors are not, and every call is answered."""

import asyncio

import msgspec
import pytest

from slackwater.errors import (
    AccessDenied,
    ConflictError,
    ConstraintViolation,
    DamagedRow,
    DecodeError,
    NotFound,
    NotLeaseholder,
    Overloaded,
    ProtocolError,
    UsageError,
)
from slackwater.runtime import run
from slackwater.runtime.access import ANYBODY, Certificate
from slackwater.runtime.rpc import Method, wire
from slackwater.runtime.rpc.patience import (
    BURST_S,
    HOLD_S_MAX,
    HOLD_S_MIN,
    PEERS_MAX,
    Patience,
    PatienceByPeer,
    is_misuse,
)
from tests.unit.runtime.test_rpc_hostile import HELLO, raw_client
from tests.unit.runtime.world import ECHO, NETS, Answer, Ask, world

SECOND = 10**9


def test_a_burst_is_free_and_then_each_call_waits_for_its_turn():
    patience = Patience(10.0)
    assert [patience.spend(1, SECOND) for _ in range(int(10 * BURST_S))] == [0.0] * int(10 * BURST_S)
    assert patience.spend(1, SECOND) == pytest.approx(0.1)
    assert patience.spend(1, SECOND + SECOND // 10) == pytest.approx(0.1)
    assert patience.spend(1, 3 * SECOND) == 0.0, "what was not used for a while is there again"
    assert patience.spend(0.001, 3 * SECOND) == 0.0
    heavy = Patience(10.0)
    assert heavy.spend(1000.0, SECOND) == HOLD_S_MAX, "no call is waited for longer than that"
    assert heavy.spend(1.0, SECOND + int(HOLD_S_MAX * SECOND)) == pytest.approx(0.1)
    assert Patience(1e6).spend(4e6 + 1, SECOND) == HOLD_S_MIN


def test_a_peer_is_the_bearer_of_a_certificate_or_else_a_connection():
    peers = PatienceByPeer(10.0)
    ann, bob = Certificate("client", "ann", serial=1), Certificate("client", "bob")
    assert peers.of(ann) is peers.of(Certificate("client", "ann", serial=2))
    assert peers.of(ann) is not peers.of(bob)
    assert peers.of(None) is not peers.of(None)
    kept = peers.of(ann)
    for n in range(PEERS_MAX - 1):
        peers.of(Certificate("client", f"user {n}"))
    assert peers.of(ann) is kept, "bob was seen before her"
    assert len(peers._known) == PEERS_MAX


MISUSES = [UsageError("x"), ProtocolError("x"), AccessDenied("x"), DecodeError("x")]
NO_MISUSES = [ConflictError("x"), NotFound("x"), ConstraintViolation("x"), NotLeaseholder("x"), Overloaded("x")]


def test_what_counts_is_what_would_be_refused_again_and_of_a_node_what_no_node_sends():
    assert [is_misuse(error, of_node=False) for error in MISUSES] == [True] * 4
    assert [is_misuse(error, of_node=True) for error in MISUSES] == [False, True, True, True]
    assert not any(is_misuse(error, of_node=False) for error in [*NO_MISUSES, DamagedRow("x"), ValueError("x")])


def no_method(call_id):
    return wire.encode(wire.Request(call_id, "no.method", 0, 0, msgspec.Raw(b"\x80")))


def test_every_refused_call_is_answered_in_order_and_a_neighbor_does_not_wait_for_them():
    free = int(5 * BURST_S)
    calls = free + 8

    async def main():
        async with world("tcp", refused_per_s=5) as w:
            neighbor = await w.peer()
            async with raw_client(w) as raw:
                raw.send(HELLO, *(no_method(n) for n in range(1, calls + 1)))
                await raw.receive()
                heard = []
                while len(heard) < free + 1:
                    heard.append((await raw.receive()).id)
                before = len(raw.waiting)
                assert await neighbor.call(ECHO, Ask(3)) == Answer(3)
                assert len(raw.waiting) == before < calls - len(heard), (
                    "the neighbor was served while the peer was held"
                )
                assert w.server.held_s > 0
                while len(heard) < calls:
                    heard.append((await raw.receive()).id)
                assert heard == list(range(1, calls + 1))

    run(main())


def test_a_peer_that_is_held_is_not_read_and_keeps_its_connection():
    async def main():
        async with world("tcp", refused_per_s=1) as w:
            async with raw_client(w) as raw:
                raw.send(HELLO, *(no_method(n) for n in range(1, 6)))
                said = [await raw.receive() for _ in range(6)]
                assert isinstance(said[-1], wire.Fault)
                session = next(iter(w.server._sessions))
                assert session._held == []
                raw.send(no_method(6))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert session._held == [], "what it sends stays in its socket"
                assert (await raw.receive()).id == 6
                raw.send(wire.encode(wire.Request(7, ECHO.name, 0, 0, msgspec.Raw(msgspec.msgpack.encode(Ask(7))))))
                assert isinstance(await raw.receive(), wire.Response)
            assert w.server.refused_total == {}

    run(main())


SPLIT = Method("split", Ask, Answer, callers=ANYBODY, weight=10.0)


@pytest.mark.parametrize("net", NETS)
def test_calls_that_weigh_much_are_all_served_at_their_pace(net):
    async def main():
        async with world(net, refused_per_s=1) as w:
            w.server.handle_sync(SPLIT, lambda request, _: Answer(request.n))
            peer = await w.peer()
            for n in range(3):
                assert await peer.call(SPLIT, Ask(n)) == Answer(n)
                assert w.server.held_s == pytest.approx((n + 1) * HOLD_S_MAX, abs=0.1)

    run(main())
