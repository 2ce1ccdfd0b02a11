"""Leases in the store: acquired by writes, released for changes, deleted when their node is dead."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.catalog import definition, lease_driver
from slackwater.catalog.lease_driver import ROWS
from slackwater.catalog.leases import Term
from slackwater.clock.timestamp import MAX, add_seconds
from slackwater.errors import AmbiguousResult, LeasesInTheWay, RetryableError, SchemaChanged, UnavailableError
from slackwater.model.kinds import INT
from slackwater.protocol.client.calls import ColumnSpec, KeySpec
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from slackwater.server.member import Member
    from slackwater.txn import Transaction

COLUMNS, KEY = (ColumnSpec("id", INT),), (KeySpec("id"),)
SHORT = {"catalog__lease__duration": 0.5, "catalog__lease__abandoned_duration": 0.5, "catalog__poll_interval": 0.05}


def adding(name: str) -> Any:
    return partial(definition.with_column, spec=ColumnSpec(name, INT))


async def rows(node: Member, table_id: int) -> list[tuple[int, int]]:
    """(version, node) of every lease on a table."""
    found = await ROWS.scan(node.kv, table_id)
    assert all(row["expiration"] == MAX for row in found)
    return [(row["version"], row["node_id"]) for row in found]


def test_a_write_acquires_a_lease_and_a_new_version_has_it_released() -> None:
    async def main() -> None:
        async with Cluster(2, catalog__poll_interval=0.05) as cluster:
            one, two = cluster.nodes
            made = await one.catalog.create("t", COLUMNS, KEY)
            for node in cluster.nodes:
                lease = await node.catalog.leases.take(made.table_id, 1)
                assert lease.deadline > node.clock.now()
                lease.give_back()
            assert await rows(one, made.table_id) == [(1, 1), (1, 2)]
            await one.catalog.publish(made.table_id, adding("a"))
            await cluster.until(
                lambda: all(n.catalog.leases.book.usable(made.table_id).version == 2 for n in cluster.nodes)
            )
            await one.catalog.publish(made.table_id, adding("b"))  # waits until both have released version 1
            assert (1, 1) not in await rows(one, made.table_id)
            assert (1, 2) not in await rows(one, made.table_id)
            with pytest.raises(SchemaChanged):
                await two.catalog.leases.take(made.table_id, 1)

    asyncio.run(main())


def test_a_publisher_reads_no_leases_on_the_version_that_nodes_acquire_meanwhile() -> None:
    async def main() -> None:
        async with Cluster(1, catalog__poll_interval=0.05) as cluster:
            catalog = cluster.nodes[0].catalog
            made = await catalog.create("t", COLUMNS, KEY)
            await catalog.publish(made.table_id, adding("a"))
            read: list[tuple[bytes, bytes]] = []

            async def work(txn: Any) -> None:
                await catalog.publish_in(txn, made.table_id, adding("b"))
                read[:] = txn._reads._spans

            await cluster.nodes[0].kv.run(work)
            leases = ROWS.span(made.table_id)
            spans = [(start, end) for start, end in read if start < leases.end and leases.start < end]
            before = ROWS.span(made.table_id, 1)
            assert spans == [(before.start, before.end)], "those on version 2 would make its acquirers and it run again"

    asyncio.run(main())


def test_a_lease_is_not_acquired_at_or_above_the_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Cluster(1, catalog__poll_interval=60.0) as cluster:
            node = cluster.nodes[0]
            made = await node.catalog.create("t", COLUMNS, KEY)
            leases, latest_in = node.catalog.leases, node.catalog.latest_in
            term = leases.book.term
            assert term is not None
            short = leases.book.term = Term(term.epoch)
            short.frontier = add_seconds(node.clock.now(), 0.3)
            monkeypatch.setattr(Term, "renewed", lambda term, record: None)  # no heartbeat moves it on

            async def slow(txn: Any, table_id: int) -> Any:
                found = await latest_in(txn, table_id)
                await asyncio.sleep(0.4)
                span = ROWS.span(table_id)
                await node.kv.scan(span.start, span.end)  # a read above the frontier: the row would lie above it
                return found

            node.catalog.latest_in = slow
            monkeypatch.setattr(lease_driver, "ACQUIRE_TIMEOUT_S", 2.0)
            with pytest.raises((RetryableError, UnavailableError)):
                await leases.take(made.table_id, 1)
            span = ROWS.span(made.table_id)
            assert (await node.kv.scan(span.start, span.end)).keys == [], "L < expiration + catalog.lease.duration"
            leases.book.term = term

    asyncio.run(main())


def test_a_version_in_use_holds_the_next_but_one_up_and_is_named() -> None:
    async def main() -> None:
        async with Cluster(2, catalog__poll_interval=0.05) as cluster:
            one, two = cluster.nodes
            made = await one.catalog.create("t", COLUMNS, KEY)
            used = await two.catalog.leases.take(made.table_id, 1)
            await one.catalog.publish(made.table_id, adding("a"))
            with pytest.raises(
                LeasesInTheWay, match=r"version 3 of table t waits: version 1 is still used by n2"
            ) as caught:
                await one.catalog.publish(made.table_id, adding("b"), timeout=0.5)
            assert isinstance(caught.value, RetryableError)
            assert caught.value.facts["holders"] == [(2, 1)]
            assert (await one.catalog.find("t")).latest.version == 2
            waiting = asyncio.create_task(one.catalog.publish(made.table_id, adding("b")))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            used.give_back()
            assert (await waiting).version == 3

    asyncio.run(main())


def test_an_old_lease_is_released_when_its_last_user_ends_and_not_at_the_next_look() -> None:
    async def main() -> None:
        async with Cluster(1, catalog__poll_interval=60.0) as cluster:
            (node,) = cluster.nodes
            made = await node.catalog.create("t", COLUMNS, KEY)
            users = [await node.catalog.leases.take(made.table_id, 1) for _ in range(2)]
            await node.catalog.publish(made.table_id, adding("a"))
            await cluster.until(lambda: users[0].unused is not None)  # it was found in use
            users[0].give_back()
            assert (1, 1) in await rows(node, made.table_id), "the other one uses it"
            users[1].give_back()
            await node.catalog.publish(made.table_id, adding("b"))
            assert (1, 1) not in await rows(node, made.table_id)

    asyncio.run(main())


def test_the_lease_of_a_dead_node_is_deleted_after_its_frontier() -> None:
    async def main() -> None:
        async with Cluster(3, **SHORT) as cluster:
            one, two, _ = cluster.nodes
            made = await one.catalog.create("t", COLUMNS, KEY)
            lease = await two.catalog.leases.take(made.table_id, 1)
            await cluster.kill(two)
            frontier = lease.deadline
            await one.catalog.publish(made.table_id, adding("a"))
            published = await one.catalog.publish(made.table_id, adding("b"))
            assert published.modified > frontier, "nothing that it still writes lies at or after the change"
            assert one.catalog.leases.reaped == 1

    asyncio.run(main())


def test_a_node_that_stops_releases_what_it_has_leased() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            one, two = cluster.nodes
            made = await one.catalog.create("t", COLUMNS, KEY)
            (await two.catalog.leases.take(made.table_id, 1)).give_back()
            assert await rows(one, made.table_id) == [(1, 2)]
            await two.node.stop()
            assert await rows(one, made.table_id) == []

    asyncio.run(main())


def test_an_ambiguous_acquisition_leaves_no_row_behind() -> None:
    async def main() -> None:
        async with Cluster(1, catalog__poll_interval=60.0) as cluster:
            (node,) = cluster.nodes
            made = await node.catalog.create("t", COLUMNS, KEY)
            leases, run = node.catalog.leases, node.kv.run

            async def lost(work: Any, **how: Any) -> Any:
                await run(work, **how)
                raise AmbiguousResult("the answer was lost")

            node.kv.run = lost  # type: ignore[method-assign]
            with pytest.raises(UnavailableError, match="nothing was written"):
                await leases.take(made.table_id, 1)
            node.kv.run = run  # type: ignore[method-assign]
            assert await rows(node, made.table_id) == [(1, 1)]
            assert leases.book.usable(made.table_id) is None
            await node.catalog.publish(made.table_id, adding("a"))
            (await leases.take(made.table_id, 2)).give_back()  # deletes what may be there, inserts what it needs
            assert await rows(node, made.table_id) == [(2, 1)]

    asyncio.run(main())


def test_a_write_whose_lease_does_not_come_in_time_is_told_that_nothing_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by seed 522434749: a bare `TimeoutError` came out of the gateway, which is no answer to a client."""
    monkeypatch.setattr(lease_driver, "ACQUIRE_TIMEOUT_S", 0.05)

    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            made = await node.catalog.create("t", COLUMNS, KEY)
            node.catalog.following = asyncio.Event().wait  # type: ignore[assignment,method-assign] # never
            with pytest.raises(UnavailableError, match="nothing was written"):
                await node.catalog.leases.take(made.table_id, 1)
            del node.catalog.following
            monkeypatch.undo()
            (await node.catalog.leases.take(made.table_id, 1)).give_back()

    asyncio.run(main())


def test_a_deletion_that_arrives_late_does_not_delete_a_lease_that_was_acquired_anew() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            made = await node.catalog.create("t", COLUMNS, KEY)
            leases = node.catalog.leases
            (await leases.take(made.table_id, 1)).give_back()
            late = node.kv.begin()
            await leases._delete_row(late, (made.table_id, 1))

            async def anew(txn: Transaction) -> None:
                row = {"desc_id": made.table_id, "version": 1, "expiration": MAX, "node_id": 1, "epoch": 7}
                await ROWS.put(txn, row)

            await node.kv.run(anew)
            with pytest.raises(RetryableError):
                await late.commit()
            assert await rows(node, made.table_id) == [(1, 1)]

    asyncio.run(main())


def test_a_node_whose_epoch_was_ended_acquires_its_leases_anew() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            one, two = cluster.nodes
            made = await one.catalog.create("t", COLUMNS, KEY)
            lease = await two.catalog.leases.take(made.table_id, 1)
            before = lease.term.epoch
            await two.liveness.step_down(horizon=two.store.horizon)
            await cluster.until(lambda: two.catalog.leases.book.term.epoch > before)
            assert lease.term.epoch == before
            assert two.catalog.leases.find(made.table_id, 1) is None
            again = await two.catalog.leases.take(made.table_id, 1)
            assert again is lease
            assert lease.term.epoch > before
            (row,) = await ROWS.scan(one.kv, made.table_id)
            assert row["epoch"] == lease.term.epoch

    asyncio.run(main())


def test_a_node_that_cannot_delete_its_leases_ends_its_epoch() -> None:
    async def main() -> None:
        async with Cluster(2, **SHORT) as cluster:
            one, two = cluster.nodes
            made = await one.catalog.create("t", COLUMNS, KEY)
            (await two.catalog.leases.take(made.table_id, 1)).give_back()

            async def refuses(*_: object) -> None:
                raise RetryableError("it cannot write there")

            epoch = two.catalog.leases.book.term.epoch
            two.catalog.leases._delete = refuses  # type: ignore[method-assign]
            await one.catalog.publish(made.table_id, adding("a"))
            assert (await one.catalog.publish(made.table_id, adding("b"))).version == 3
            assert two.liveness.get(two.node_id).epoch > epoch

    asyncio.run(main())


def test_a_dropped_table_takes_no_rows_from_the_first_of_its_two_last_versions_on() -> None:
    async def main() -> None:
        async with Cluster(2, catalog__poll_interval=0.05) as cluster:
            one, two = cluster.nodes
            made = await one.catalog.create("t", COLUMNS, KEY)
            used = await two.catalog.leases.take(made.table_id, 1)
            dropping = asyncio.create_task(one.catalog.drop("t"))
            await cluster.until(lambda: two.catalog.tables.by_id(made.table_id).latest.dropping)
            with pytest.raises(SchemaChanged, match="is being dropped"):
                await one.catalog.leases.take(made.table_id, 2)
            assert not dropping.done()
            deadline = used.deadline
            used.give_back()
            dropped = await dropping
            assert (dropped.version, dropped.dropped) == (3, True)
            assert dropped.modified < deadline, "it did not have to wait for the frontier"
            with pytest.raises(SchemaChanged, match="was dropped"):
                await two.catalog.leases.take(made.table_id, 3)

    asyncio.run(main())


def test_a_node_that_cannot_even_end_its_epoch_goes_on_and_lets_it_expire() -> None:
    """Found by seed 717271137: the error came out of the task that keeps the leases, and ended the node."""

    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            leases = node.catalog.leases
            tried = 0

            async def lost() -> None:
                nonlocal tried
                tried += 1
                raise AmbiguousResult("the answer was lost")

            leases._give_up = lost
            assert leases.book.term is not None
            leases._doubtful[(1, 1)] = leases.book.term.epoch
            leases._stuck_since_ns = 0
            await leases._judge()
            assert tried == 1

    asyncio.run(main())
