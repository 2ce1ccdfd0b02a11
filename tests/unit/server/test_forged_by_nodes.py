"""Every method that nodes may call, with values that fit its types and lie: under the certificate of a real node.

Ranges and nodes that are not there, generations, leases and times of others, counts and bounds without end. What holds after all:

    each call is answered, or refused by one error of the tree
    nothing crashed, and no replica was given up but by those whose word is law (`store.quarantine`)
    rows that were not addressed are what they were, and more can be written

SLACKWATER_FORGED=seconds draws for longer than the moment that the test takes by default.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

from slackwater.clock.timestamp import MAX, add_seconds
from slackwater.codec.layout import kv
from slackwater.errors import InvariantViolation, SlackwaterError
from slackwater.protocol.range import requests
from slackwater.protocol.range.requests import Batch, Header
from slackwater.routing.transport import KV_BATCH
from slackwater.runtime import run
from slackwater.runtime.access import Role
from slackwater.runtime.rpc.method import StreamMethod
from slackwater.runtime.tls import node_files
from tests.fuzz.shapes import Shapes, Words, methods
from tests.unit.server.guarded import Guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.runtime.rpc import Dialer

SECONDS = float(os.environ.get("SLACKWATER_FORGED", "0"))
ROUNDS = 10
"""Bodies for each method."""
LAW = {"store.quarantine", "admin.drain", "admin.stop"}
"""A node that says so has the last word: there is no lie to be told."""
STILL = [kv(b"still%02d" % i) for i in range(20)]
CALL_S, STREAM_S, ITEMS_MAX = 0.5, 0.05, 5


def for_nodes() -> list[Any]:
    return [m for m in methods().values() if Role.NODE in m.callers and m.name not in LAW]


def words(guarded: Guarded, ranges: list[Any]) -> Words:
    node, now = guarded.node, guarded.node.clock.now()
    states = [node.store.replicas[r.range_id].state for r in ranges]
    numbers = [9, 77, *(r.range_id for r in ranges), *(r.generation for r in ranges), *(s.lai for s in states)]
    numbers += [s.lease.sequence for s in states]
    times = [0, now, MAX, MAX - 1, add_seconds(now, 3600), add_seconds(now, -3600), *(s.closed for s in states)]
    keys = [kv(b"a"), kv(b"b"), kv(b"k"), kv(b"l"), kv(b""), b"t" * 16]
    return Words(keys=keys, names=["t", "still"], numbers=numbers, times=times)


def well_made(request: Any) -> bool:
    """Whether what is written has keys that some codec made: nodes are trusted with that, others are not (`test_raw_writes`)."""
    if not isinstance(request, requests.VERSION_WRITES):
        return True
    keys = [request.key] if hasattr(request, "key") else getattr(request, "keys", [])
    return all(key in (kv(b"a"), kv(b"b"), kv(b"k"), kv(b"l")) for key in keys)


def batches(shapes: Shapes, guarded: Guarded, ranges: list[Any]) -> list[Any]:
    """One batch for each kind of request, addressed as a sound sender would: to a range that is there, by its descriptor."""
    made = []
    for kind in get_args(requests.Request):
        try:
            request = msgspec.msgpack.decode(msgspec.msgpack.encode(shapes.tree(kind)), type=kind)
        except (msgspec.MsgspecError, OverflowError):
            continue
        if not well_made(request):
            continue
        for found in ranges:
            state = guarded.node.store.replicas[found.range_id].state
            made.append(Batch(Header(found.range_id, generation=state.descriptor.generation), [request]))
    return made


def drawn(shapes: Shapes, guarded: Guarded, ranges: list[Any]) -> Iterator[tuple[Any, str, Any]]:
    """One round: a method, what to count it as, and a request."""
    system = frozenset({1, 2, 3} - {r.range_id for r in ranges})
    for method in for_nodes():
        try:
            yield method, method.name, method.decode_request(shapes.body(method, avoid=system))
        except (SlackwaterError, msgspec.MsgspecError):
            continue
    for batch in batches(shapes, guarded, ranges):
        yield KV_BATCH, type(batch.requests[0]).__name__, batch


async def forge(dialer: Dialer, address: str, method: Any, request: Any) -> str:
    """What became of one call."""
    try:
        async with asyncio.timeout(STREAM_S if isinstance(method, StreamMethod) else 2 * CALL_S):
            if not isinstance(method, StreamMethod):
                await dialer.call(address, method, request, timeout=CALL_S)
                return "done"
            async with await dialer.stream(address, method, request) as stream:
                for _ in range(ITEMS_MAX):
                    await anext(stream)
            return "done"
    except (StopAsyncIteration, TimeoutError):
        return "silent"
    except InvariantViolation as error:
        return f"BROKEN {error}"
    except SlackwaterError as error:
        return f"BROKEN {error}" if "crashed" in str(error) else type(error).__name__


@pytest.mark.parametrize("seed", [time.time_ns() & 0xFFFFFF] if SECONDS else [1])
def test_well_typed_lies_of_a_node_break_nothing(certs, seed: int) -> None:
    async def main() -> None:
        crashes: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: crashes.append(context))
        async with Guarded(certs) as guarded:
            node = guarded.node
            await node.admin.split(kv(b"a"))
            await node.admin.split(kv(b"m"))
            await node.kv.put_rows([kv(b"b"), kv(b"k")], [b"v", b"w"])
            await node.kv.put_rows(STILL, [b"s"] * len(STILL))
            ranges = [await node.sender.range_of(key) for key in (kv(b"b"), STILL[0])]
            dialer = guarded.dialer(files=node_files(certs), node_id=7)
            shapes, told, ends = (
                Shapes(seed, words(guarded, ranges)),
                dict[str, dict[str, int]](),
                time.monotonic() + SECONDS,
            )
            rounds = 0
            while rounds < ROUNDS or time.monotonic() < ends:
                rounds += 1
                for method, name, request in drawn(shapes, guarded, ranges):
                    said = await forge(dialer, guarded.address, method, request)
                    counts = told.setdefault(name, {})
                    counts[said] = counts.get(said, 0) + 1
                    assert not said.startswith("BROKEN"), (said, request)
                    assert crashes == [], request
                    failed = {r: p.failure for r, p in node.store.replicas.items() if p.failure is not None}
                    assert failed == {}, request
            rows = await node.kv.scan(STILL[0], kv(b"stillz"), timeout=20)
            assert rows.keys == sorted(STILL)
            assert set(rows.values) == {b"s"}
            await node.kv.put(kv(b"still"), b"after", timeout=20)
            if SECONDS:
                print(seed, rounds, msgspec.json.encode(told).decode())
            unsent = {method.name for method in for_nodes()} | {k.__name__ for k in get_args(requests.Request)}
            assert unsent <= told.keys(), "each was sent"

    run(main())
