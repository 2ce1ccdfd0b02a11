"""Tailing the log: what a replica does when the reader breaks, the disk is full, or a neighbour is missing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.codec.layout import kv
from slackwater.errors import ConnectionLost, StorageError, UnavailableError
from slackwater.model.ids import Position, RangeId
from slackwater.replica.driver.store import MISSING_WAITS_MAX, NEIGHBOUR_WAITS_MAX
from slackwater.runtime import run
from slackwater.runtime.seam import Family
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from slackwater.storage.batch import WriteBatch


def test_a_merge_does_not_wait_long_for_a_right_side_that_is_not_coming(monkeypatch: Any) -> None:
    async def main() -> None:
        monkeypatch.setattr("slackwater.replica.driver.store.NEIGHBOUR_WAIT_S", 0.001)
        async with Cluster(1) as cluster:
            store, ahead = cluster.nodes[0].store, Position(10**9)
            waits: list[RangeId] = []
            wait = store._arrived.wait

            async def counted(range_id: RangeId, *, seconds: float) -> bool:
                waits.append(range_id)
                return await wait(range_id, seconds=seconds)

            monkeypatch.setattr(store._arrived, "wait", counted)
            with pytest.raises(UnavailableError, match="not here to be merged"):
                await store.wait_applied(RangeId(99), ahead)
            assert len(waits) == MISSING_WAITS_MAX
            store._installing[RangeId(98)] = store.replicas[RangeId(3)].state.descriptor
            with pytest.raises(UnavailableError, match="not here to be merged"):
                await store.wait_applied(RangeId(98), ahead)
            assert len(waits) == MISSING_WAITS_MAX + NEIGHBOUR_WAITS_MAX, "one that is on its way is waited for"
            del store._installing[RangeId(98)]

    run(main())


def test_a_merge_stops_waiting_at_once_when_the_right_side_fails(monkeypatch: Any) -> None:
    async def main() -> None:
        monkeypatch.setattr("slackwater.replica.driver.store.NEIGHBOUR_WAIT_S", 3600.0)
        async with Cluster(1) as cluster:
            store = cluster.nodes[0].store
            waiting = asyncio.ensure_future(store.wait_applied(RangeId(3), Position(10**9)))
            await cluster.until(lambda: len(store.replicas[RangeId(3)]._applied))
            store.replicas[RangeId(3)].quarantine("broken")
            with pytest.raises(UnavailableError, match="not here to be merged"):
                await asyncio.wait_for(waiting, 20)

    run(main())


def test_a_merge_takes_over_nothing_from_a_right_side_that_is_quarantined() -> None:
    """It had applied its freeze, so it was taken for ready, and what was wrong with it became the merged range's."""

    async def main() -> None:
        async with Cluster(1) as cluster:
            store = cluster.nodes[0].store
            right = store.replicas[RangeId(3)]
            await store.wait_applied(RangeId(3), right.state.position)
            right.quarantine("it differs from the others")
            with pytest.raises(UnavailableError, match="not here to be merged"):
                await store.wait_applied(RangeId(3), right.state.position)

    run(main())


class BrokenReader:
    """A log whose next readers fail before they deliver anything."""

    def __init__(self, log: Any, errors: list[Exception]) -> None:
        self._log = log
        self._errors = errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def tail(self, range_id: RangeId, *, after: Position) -> AsyncIterator[Any]:
        """Fail as long as there are errors left."""
        if self._errors and range_id == 3:
            raise self._errors.pop(0)
        async for entries in self._log.tail(range_id, after=after):
            yield entries


class Handles:
    """Gives out handles of a log whose readers break."""

    def __init__(self, log: Any, errors: list[Exception]) -> None:
        self._log = log
        self._errors = errors

    def handle(self) -> BrokenReader:
        """One for a node."""
        return BrokenReader(self._log.handle(), self._errors)


def test_a_reader_that_breaks_is_opened_again_where_it_was() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(10)
            await node.store.flush()
            await cluster.kill(node)
            errors: list[Exception] = [ConnectionLost("the log server went away"), StorageError("cannot read")]
            whole, cluster.log = cluster.log, Handles(cluster.log, errors)
            again = await cluster.add(node.engine, 0)  # type: ignore[arg-type]
            cluster.log = whole
            await again.kv.put(kv(b"after"), b"1")
            assert not errors
            assert again.store.replicas[RangeId(3)].failure is None
            assert len(await cluster.keys()) == 11

    run(main())


def test_what_a_full_disk_refused_is_applied_once_there_is_room(monkeypatch: Any) -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(10)
            engine, write, refused = node.engine, node.engine.write, []
            replica = node.store.replicas[RangeId(3)]

            def full(batch: WriteBatch) -> None:
                if len(refused) < 3 and any(b"full" in key for writes in batch.writes for key in writes):
                    refused.append(replica.state.position)
                    raise StorageError("no space left on the device")
                write(batch)

            monkeypatch.setattr(engine, "write", full)
            await node.kv.put(kv(b"full"), b"1", timeout=20)
            assert len(refused) == 3
            assert len(set(refused)) == 1, "nothing of the entry was applied"
            assert replica.failure is None
            assert await node.kv.get(kv(b"full")) == b"1"

    run(main())


def test_a_listener_gets_each_entry_with_its_own_writes_however_many_are_applied_together() -> None:
    class Listener:
        def __init__(self) -> None:
            self.seen: list[tuple[Position, set[bytes]]] = []

        def applied(self, before: Any, after: Any, batch: WriteBatch, outcomes: Any, position: Position) -> None:
            if after.descriptor.range_id == 3:
                self.seen.append((position, {k for k in batch.writes[Family.DATA] if b"each" in k}))

    async def main() -> None:
        async with Cluster(1, store__flush_interval=300) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(5)
            await node.store.flush()
            for i in range(6):
                await node.kv.put(kv(b"each%d" % i), b"1")
            await cluster.kill(node)
            engine = node.engine.crash(keep=lambda unflushed: 0)  # type: ignore[attr-defined]
            listener = Listener()
            again = await cluster.add(engine, 0, listener=listener)  # it replays all six in one run
            await cluster.until(lambda: again.liveness.own() is not None)
            assert len(await cluster.keys()) == 11
            written = [keys for _, keys in listener.seen if keys]
            assert [len(keys) for keys in written] == [1] * 6
            positions = [position for position, _ in listener.seen]
            assert positions == sorted(set(positions))

    run(main())


def test_a_node_that_catches_up_serves_others_in_between(monkeypatch: Any) -> None:
    class Listener:
        def __init__(self) -> None:
            self.turn = 0
            self.applied_in: Counter[int] = Counter()

        def applied(self, before: Any, after: Any, batch: WriteBatch, outcomes: Any, position: Position) -> None:
            self.applied_in[self.turn] += sum(len(v) for v in batch.writes[Family.DATA].values() if v is not None)

        async def count(self) -> None:
            while True:
                self.turn += 1
                await asyncio.sleep(0)

    async def main() -> None:
        monkeypatch.setattr("slackwater.replica.driver.replica.APPLY_RUN_BYTES_MAX", 250_000)
        async with Cluster(1, store__flush_interval=300) as cluster:
            node = cluster.nodes[0]
            await node.store.flush()
            for i in range(12):
                await node.kv.put(kv(b"large%02d" % i), bytes(100_000))
            await cluster.kill(node)
            engine = node.engine.crash(keep=lambda unflushed: 0)  # type: ignore[attr-defined]
            listener = Listener()
            counting = asyncio.create_task(listener.count())
            await cluster.add(engine, 0, listener=listener)  # the log has all twelve for it at once
            assert len(await cluster.keys()) == 12
            counting.cancel()
            assert sum(listener.applied_in.values()) >= 12 * 100_000
            assert max(listener.applied_in.values()) <= 250_000, "more was applied in one turn of the loop"

    run(main())


def test_an_append_that_was_seen_and_is_not_answered_holds_up_nothing() -> None:
    """Found by seed 648215958: the answer was lost, the entry applied, and every write of the range waited 10 s for it."""

    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            log = node.store.context.log
            append, unanswered = log.append, 0

            async def silent(range_id: RangeId, payloads: Sequence[bytes]) -> Position:
                nonlocal unanswered
                position = await append(range_id, payloads)
                if range_id == 3:
                    unanswered += 1
                    await asyncio.Event().wait()
                return position

            log.append = silent  # type: ignore[method-assign]
            for i in range(3):
                await asyncio.wait_for(node.kv.put(kv(b"k%d" % i), b"v"), 20)
            assert unanswered == 3
            assert len(await cluster.keys()) == 3

    run(main())
