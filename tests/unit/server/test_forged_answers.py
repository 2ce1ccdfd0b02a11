"""Answers that no sound node gives: a peer that lies is passed by or refused, and the node that asked goes on (decision 056).

Two nodes; every row is on n2 alone, which twists what its own replica answered. All is asked through n1.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.layout import kv
from slackwater.errors import (
    ConditionFailed,
    ConflictError,
    InvariantViolation,
    RangeMismatch,
    SlackwaterError,
    WriteTooOld,
)
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.txns import Intent, TxnStatus
from slackwater.protocol.node import services
from slackwater.protocol.node.snapshots import SnapshotBlock, SnapshotHeader
from slackwater.protocol.range import requests
from slackwater.protocol.range.requests import Batch, BatchResult, Done, Number, Pushed, Rows, Value
from slackwater.replica.snapshot import check_whole
from slackwater.routing.transport import KV_BATCH
from slackwater.runtime import run
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from slackwater.runtime.rpc import Context
    from slackwater.server.member import Member

KEY, OTHER, START, END = kv(b"k"), kv(b"l"), kv(b"a"), kv(b"z")
TIMEOUT_S = 0.2


class Liar:
    """What n2 makes of its answers."""

    def __init__(self, node: Member) -> None:
        self.twist: Callable[[Batch, BatchResult], BatchResult] | None = None
        self.lies = 0
        honest = node.server.handlers[KV_BATCH.name]

        async def lying(batch: Batch, context: Context) -> BatchResult:
            answer = await honest.function(batch, context)
            if self.twist is None or batch.header.range_id == 1:
                return answer
            twisted = self.twist(batch, answer)
            self.lies += twisted is not answer
            return twisted

        node.server.handlers[KV_BATCH.name] = honest._replace(function=lying, at_once=None)


def of(kind: type, change: Callable[[Any], Any]) -> Callable[[Batch, BatchResult], BatchResult]:
    """Twists results of one kind."""

    def twist(batch: Batch, answer: BatchResult) -> BatchResult:
        if not any(isinstance(result, kind) for result in answer.results):
            return answer
        made = [change(result) if isinstance(result, kind) else result for result in answer.results]
        return structs.replace(answer, results=made)

    return twist


def raises(error: Callable[[], SlackwaterError]) -> Callable[[Batch, BatchResult], BatchResult]:
    """Answers data with an error."""

    def twist(batch: Batch, answer: BatchResult) -> BatchResult:
        if not isinstance(batch.requests[0], requests.Get | requests.Put | requests.ConditionalPut | requests.Scan):
            return answer
        found = error()
        if isinstance(found, InvariantViolation):
            found.remote = True  # else the liar would journal it as a crash of its own
        raise found

    return twist


def resolved(**changes: Any) -> Callable[[Any], Any]:
    return lambda pushed: structs.replace(pushed, resolution=structs.replace(pushed.resolution, **changes))


def every(change: Callable[[BatchResult], BatchResult]) -> Callable[[Batch, BatchResult], BatchResult]:
    return lambda _, answer: change(answer)


def shuffled(rows: Any) -> Any:
    return structs.replace(rows, keys=rows.keys[::-1])


SHORT = Intent(KEY, b"", b"", Timestamp(1), 0, Timestamp(1))
FOREIGN = Intent(KEY, b"x" * 16, KEY, MAX, 1 << 60, MAX)
LIES: dict[str, Callable[[Batch, BatchResult], BatchResult]] = {
    "no results": every(lambda answer: structs.replace(answer, results=[])),
    "too many results": every(lambda answer: structs.replace(answer, results=[*answer.results, Done()])),
    "nothing but done": every(lambda answer: structs.replace(answer, results=[Done() for _ in answer.results])),
    "numbers for all": every(
        lambda answer: structs.replace(answer, results=[Number(-(1 << 62)) for _ in answer.results])
    ),
    "a value from the end of time": of(Value, lambda value: structs.replace(value, ts=MAX)),
    "written at the end of time": every(lambda answer: structs.replace(answer, ts=MAX, txn_write_ts=MAX)),
    "rows in a wrong order": of(Rows, shuffled),
    "rows from elsewhere": of(Rows, lambda rows: structs.replace(rows, keys=[kv(b"zz") for _ in rows.keys])),
    "rows without values": of(Rows, lambda rows: structs.replace(rows, values=[])),
    "goes on before it began": of(Rows, lambda rows: structs.replace(rows, resume=b"")),
    "a pending commit": of(requests.Committed, lambda c: structs.replace(c, status=TxnStatus.PENDING)),
    "an aborted commit": of(requests.Committed, lambda c: structs.replace(c, status=TxnStatus.ABORTED)),
    "a commit at no time": of(requests.Committed, lambda c: structs.replace(c, commit_ts=MIN)),
    "a commit at the end of time": of(requests.Committed, lambda c: structs.replace(c, commit_ts=MAX)),
    "another transaction's fate": of(Pushed, resolved(txn_id=b"y" * 16)),
    "a commit of a missing record": of(
        Pushed, lambda p: structs.replace(resolved(status=TxnStatus.COMMITTED)(p), ambiguous=True)
    ),
    "a push of all time": of(Pushed, resolved(status=TxnStatus.COMMITTED, ts=MAX)),
    "a commit of nothing": of(Pushed, resolved(status=TxnStatus.COMMITTED, ts=MIN)),
    "a conflict with nothing": raises(lambda: ConflictError("x", intents=[])),
    "a conflict with a nameless intent": raises(lambda: ConflictError("x", intents=[SHORT])),
    "a conflict with one of the future": raises(lambda: ConflictError("x", intents=[FOREIGN] * 3)),
    "a version beyond all time": raises(lambda: WriteTooOld("x", key=KEY, existing=MAX)),
    "a version before all time": raises(lambda: WriteTooOld("x", key=KEY, existing=-(1 << 63))),
    "a version beyond all numbers": raises(lambda: WriteTooOld("x", key=KEY, existing=(1 << 64) - 1)),
    "a condition without a key": raises(lambda: ConditionFailed("x", key=None, actual=7)),
    "a mismatch with nothing": raises(lambda: RangeMismatch("x", descriptors=["?"])),
    "an invariant": raises(lambda: InvariantViolation("I-10", {"why": "I say so"})),
}


async def one_sided(cluster: Cluster) -> Liar:
    """All rows are on n2, and n1 knows it."""
    first, second = cluster.nodes
    await first.admin.split(START)
    await first.admin.change_replicas(START, [NodeId(1), NodeId(2)])
    await first.admin.transfer_lease(START, NodeId(2))
    await first.admin.change_replicas(START, [NodeId(2)])
    await first.kv.put(KEY, b"v")
    await first.kv.put(OTHER, b"w")
    assert await first.kv.get(KEY) == b"v"
    return Liar(second)


async def in_txn(node: Member) -> None:
    async def body(txn: Any) -> None:
        await txn.get(KEY)
        await txn.scan(START, END)
        await txn.put(kv(b"t"), b"1")

    await node.kv.run(body, timeout=TIMEOUT_S)


async def met(node: Member, work: Callable[[], Awaitable[Any]]) -> None:
    """Do something where the intent of another transaction is in the way."""
    other = node.kv.begin(timeout=TIMEOUT_S)
    try:
        await other.cput(kv(b"c"), b"2", expected=None)
        await work()
    finally:
        await other.rollback()


def operations(node: Member) -> dict[str, Callable[[], Awaitable[Any]]]:
    at = {"timeout": TIMEOUT_S}
    return {
        "get": lambda: node.kv.get(KEY, **at),
        "scan": lambda: node.kv.scan(START, END, **at),
        "page": lambda: node.kv.scan(START, END, max_keys=1, **at),
        "reverse": lambda: node.kv.reverse_scan(START, END, **at),
        "put": lambda: node.kv.put(kv(b"p"), b"x", **at),
        "cput": lambda: node.kv.cput(kv(b"q"), b"x", expected=None, **at),
        "increment": lambda: node.kv.increment(kv(b"i"), **at),
        "txn": lambda: in_txn(node),
        "read past an intent": lambda: met(node, lambda: node.kv.get(kv(b"c"), **at)),
        "write past an intent": lambda: met(node, lambda: node.kv.put(kv(b"c"), b"3", **at)),
    }


def of_the_tree(error: Exception) -> bool:
    """Whether a caller is told something that it can act on; what a peer says of its own rules is one such thing."""
    return isinstance(error, SlackwaterError) and (not isinstance(error, InvariantViolation) or error.remote)


def test_a_lie_of_a_peer_is_an_error_of_the_tree_and_the_node_goes_on() -> None:
    told: dict[str, set[str]] = {}

    async def main() -> None:
        crashes: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: crashes.append(context))
        async with Cluster(2, routing__retries_max=3) as cluster:
            liar = await one_sided(cluster)
            first = cluster.nodes[0]
            for name, lie in LIES.items():
                liar.lies, liar.twist = 0, lie
                for what, ask in operations(first).items():
                    try:
                        await ask()
                        said = "done"
                    except Exception as error:
                        if not of_the_tree(error):
                            pytest.fail(f"{name}, {what}: {type(error).__name__}: {error}")
                        said = type(error).__name__
                    told.setdefault(name, set()).add(said)
                assert liar.lies or "Error" in str(told[name]), f"nobody was told that: {name}"
                liar.twist = None
                assert await first.kv.get(KEY, timeout=10) == b"v"
                assert (await first.kv.scan(KEY, kv(b"m"), timeout=10)).keys == [KEY, OTHER]
                await first.kv.put(kv(b"after"), name.encode(), timeout=10)
            assert crashes == []

    run(main())


@pytest.mark.parametrize("lie", [n for n, _ in LIES.items() if n.startswith(("rows", "goes", "no results", "numbers"))])
def test_a_scan_that_a_liar_answers_is_served_elsewhere(lie: str) -> None:
    """The other replica has the rows too; the lie of one is not passed on."""

    async def main() -> None:
        async with Cluster(3, locality=("near", "near", "far"), closed_timestamp__target_duration=0.1) as cluster:
            first, second = cluster.nodes[:2]
            await first.admin.split(START)
            await first.admin.change_replicas(START, [NodeId(2), NodeId(1), NodeId(3)])
            await first.kv.put_rows([KEY, OTHER], [b"v", b"w"])
            await first.admin.transfer_lease(START, NodeId(3))
            await first.admin.change_replicas(START, [NodeId(2), NodeId(3)])
            ts = await first.kv.put(kv(b"b"), b"u")
            liar = Liar(second)
            liar.twist = LIES[lie]
            header = requests.Header(requests.RangeId(0), ts=ts, follower_ok=True, wait_ms=5_000)
            for _ in range(5):
                answer = await first.kv.read([requests.Scan(START, END)], header, timeout=10)
                (rows,) = answer.results
                assert isinstance(rows, Rows)
                assert rows.keys == [kv(b"b"), KEY, OTHER]
            assert liar.lies > 0, "the liar was asked"

    run(main())


def of_blocks(change: Callable[[SnapshotBlock], SnapshotBlock]) -> Callable[[Any], Any]:
    return lambda part: change(part) if isinstance(part, SnapshotBlock) and part.keys else part


def moved(key: bytes) -> bytes:
    """The same version, of a key of the left neighbor."""
    return kv(b"A") + key[len(kv(b"A")) :]


SNAPSHOT_LIES: dict[str, Callable[[Any], Any]] = {
    "keys of another range": of_blocks(lambda block: structs.replace(block, keys=[moved(key) for key in block.keys])),
    "keys without values": of_blocks(lambda block: structs.replace(block, values=block.values[1:])),
    "a family that is none": of_blocks(lambda block: structs.replace(block, family=77)),
    "no header": lambda part: SnapshotBlock(0, [KEY], [b"x"]) if isinstance(part, SnapshotHeader) else part,
    "no state": lambda part: SnapshotHeader(b"\xc1") if isinstance(part, SnapshotHeader) else part,
}


@pytest.mark.parametrize("lie", [*SNAPSHOT_LIES, "another range"])
def test_a_snapshot_that_is_none_of_its_range_is_not_installed(lie: str) -> None:
    """n3 needs a replica anew, and both others lie to it."""

    async def main() -> None:
        async with Cluster(3) as cluster:
            first, second, third = cluster.nodes
            await first.kv.put(kv(b"A"), b"mine")
            await first.admin.split(START)
            await first.kv.put_rows([KEY, OTHER], [b"v", b"w"])
            left = await first.admin.change_replicas(kv(b"A"), [NodeId(1), NodeId(2), NodeId(3)])
            right = await first.admin.change_replicas(START, [NodeId(1), NodeId(2), NodeId(3)])
            await cluster.until(lambda: {left.range_id, right.range_id} <= third.store.replicas.keys())
            honest = {node: node.server.handlers[services.SNAPSHOT.name] for node in (first, second)}

            async def lying(request: services.SnapshotRequest, context: Context) -> AsyncIterator[Any]:
                other = lie == "another range" and request.range_id == right.range_id
                asked = services.SnapshotRequest(left.range_id) if other else request
                async for part in honest[first].function(asked, context):
                    yield SNAPSHOT_LIES.get(lie, lambda part: part)(part)

            for node, handler in honest.items():
                node.server.handlers[services.SNAPSHOT.name] = handler._replace(function=lying)
            if lie == "another range":  # newer than what n3 has: it would be replaced
                third.store.replicas[left.range_id].quarantine("for a test")
            third.store.replicas[right.range_id].quarantine("for a test")
            with pytest.raises(SlackwaterError) as raised:
                await third.fetch(right.range_id, NodeId(2))
            assert of_the_tree(raised.value)
            if lie != "another range":
                check_whole(third.engine, third.store.replicas[left.range_id].state)
            assert await first.kv.get(kv(b"A")) == b"mine"
            assert await third.kv.get(KEY) == b"v"
            for node, handler in honest.items():
                node.server.handlers[services.SNAPSHOT.name] = handler
            await cluster.until(lambda: healthy(third, right.range_id))

    run(main())


def healthy(node: Member, range_id: RangeId) -> bool:
    replica = node.store.replicas.get(range_id)
    return replica is not None and replica.failure is None
