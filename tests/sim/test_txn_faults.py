"""Lost answers, stale routes, planted bugs: the ways in which a client can be left in the dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.errors import (
    AmbiguousResult,
    ConflictError,
    ConnectionLost,
    SlackwaterError,
    TransactionAborted,
    UnavailableError,
)
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE
from slackwater.sim.faults import FaultKind, inject
from slackwater.sim.loop import NS
from slackwater.txn.state import TxnPhase
from tests.sim.cluster import Cluster, play
from tests.sim.test_txn import add, number

if TYPE_CHECKING:
    from slackwater.model.ids import NodeId
    from slackwater.txn import Transaction


class Loser:
    """Loses the first `count` answers (or requests) to batches that hold a request of a kind."""

    def __init__(self, c: Cluster, kind: type, *, answer: bool, count: int = 1) -> None:
        self.kind, self.left = kind, count
        if answer:
            c.tap.after = self.after
        else:
            c.tap.before = self.before

    def strikes(self, batch: requests.Batch) -> bool:
        if self.left and any(isinstance(r, self.kind) for r in batch.requests):
            self.left -= 1
            return True
        return False

    async def before(self, node_id: NodeId, batch: requests.Batch) -> None:
        if self.strikes(batch):
            raise ConnectionLost("the request was lost", sent=True)

    async def after(self, node_id: NodeId, batch: requests.Batch, result: requests.BatchResult) -> None:
        if self.strikes(batch):
            raise ConnectionLost("the answer was lost", sent=True)


# --- answers that never come


@pytest.mark.parametrize("answer", [True, False], ids=["answer lost", "request lost"])
@pytest.mark.parametrize("ranges", [1, 2])
def test_an_unanswered_commit_is_settled_by_its_record(answer: bool, ranges: int) -> None:
    async def story(c: Cluster) -> None:
        if ranges == 2:
            await c.split(b"m")
        a, z = c.key(b"a"), c.key(b"z")
        runs = 0
        loser = Loser(c, requests.EndTxn, answer=answer)

        async def both(txn: Transaction) -> None:
            nonlocal runs
            runs += 1
            await add(txn, a, 1)
            await add(txn, z, 1)

        await c.kv.run(both)
        assert loser.left == 0
        assert runs == (1 if answer else 2)
        assert (number(await c.kv.get(a)), number(await c.kv.get(z))) == (1, 1)
        await c.settle()
        assert c.intents() == 0

    world = play(story)
    assert world.probes["txn.settled_committed" if answer else "txn.settled_aborted"] == 1


def test_a_commit_that_arrives_after_it_was_given_up_is_void() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        Loser(c, requests.EndTxn, answer=False)
        txn = c.kv.begin()
        await txn.put(a, b"1")
        with pytest.raises(TransactionAborted):
            await txn.commit()
        node_id, late = next((n, b) for n, b in c.tap.sent if isinstance(b.requests[-1], requests.EndTxn))
        with pytest.raises(TransactionAborted):
            await c.tap.inner.batch(node_id, late)
        assert await c.kv.get(a) is None

    play(story)


def test_a_commit_whose_record_cannot_be_reached_is_ambiguous() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        Loser(c, requests.EndTxn | requests.PushTxn, answer=True, count=10**6)
        txn = c.kv.begin(timeout=2.0)
        await txn.put(a, b"1")
        with pytest.raises(AmbiguousResult):
            await txn.commit()
        assert txn.phase is TxnPhase.UNKNOWN
        c.tap.after = None
        assert await c.kv.get(a) in (b"1", None)

    play(story)


@pytest.mark.parametrize("answer", [True, False], ids=["answer lost", "request lost"])
def test_an_unanswered_write_in_a_transaction_counts_once(answer: bool) -> None:
    async def story(c: Cluster) -> None:
        n = c.key(b"n")
        loser = Loser(c, requests.Increment, answer=answer, count=2)
        assert await c.kv.run(lambda txn: txn.increment(n)) == 1
        assert loser.left == 0
        assert await c.kv.increment(n, 0) == 1

    world = play(story)
    assert world.probes["txn.restart"] == 2


def test_a_write_that_arrives_after_the_commit_is_void() -> None:
    async def story(c: Cluster) -> None:
        n = c.key(b"n")
        Loser(c, requests.Increment, answer=False)
        txn = c.kv.begin()
        with pytest.raises(Exception, match="unanswered"):
            await txn.increment(n)
        await txn.restart()
        assert await txn.increment(n) == 1
        await txn.commit()
        await c.settle()
        node_id, late = next((n_, b) for n_, b in c.tap.sent if isinstance(b.requests[0], requests.Increment))
        assert late.header.txn is not None
        assert late.header.txn.epoch == 0
        await c.tap.inner.batch(node_id, late)  # an intent of an epoch that is over
        assert await c.kv.increment(n, 0) == 1
        assert await c.kv.get(c.key(b"other")) is None

    play(story)


def test_a_plain_write_is_ambiguous_and_never_repeated() -> None:
    async def story(c: Cluster) -> None:
        n = c.key(b"n")
        for answer, expected in ((True, 1), (False, 1)):
            c.tap.before = c.tap.after = None
            await c.kv.get(n)
            Loser(c, requests.Increment, answer=answer)
            sent = c.tap.kinds().count("Increment")
            with pytest.raises(AmbiguousResult):
                await c.kv.increment(n)
            assert c.tap.kinds().count("Increment") == sent + 1
            c.tap.before = c.tap.after = None
            assert await c.kv.increment(n, 0) == expected

    play(story)


def test_a_request_that_never_left_is_sent_again() -> None:
    async def story(c: Cluster) -> None:
        n = c.key(b"n")
        await c.kv.get(n)
        left = 3

        async def before(node_id: NodeId, batch: requests.Batch) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                raise ConnectionLost("could not connect", sent=False)

        c.tap.before = before
        assert await c.kv.increment(n) == 1

    play(story)


def test_reads_are_repeated_when_the_answer_is_lost() -> None:
    async def story(c: Cluster) -> None:
        await c.kv.put(c.key(b"a"), b"1")
        Loser(c, requests.Get, answer=True, count=3)
        assert await c.kv.get(c.key(b"a")) == b"1"

    play(story)


def test_a_bulk_load_is_repeated_when_the_answer_is_lost() -> None:
    async def story(c: Cluster) -> None:
        Loser(c, requests.PutRows, answer=True, count=2)
        keys = [c.key(b"%d" % n) for n in range(5)]
        await c.kv.put_rows(keys, [b"x"] * 5)
        assert (await c.kv.scan(keys[0], c.key(b"9"))).keys == keys

    play(story)


def test_nobody_answers_before_the_deadline() -> None:
    async def story(c: Cluster) -> None:
        Loser(c, requests.Get, answer=False, count=10**6)
        begun = c.world.seconds
        with pytest.raises(UnavailableError):
            await c.kv.get(c.key(b"a"), timeout=3.0)
        assert c.world.seconds - begun < 4

    play(story)


def test_rounds_are_bounded() -> None:
    async def story(c: Cluster) -> None:
        await c.kv.get(c.key(b"a"))
        loser = Loser(c, requests.Get, answer=False, count=10**6)
        with pytest.raises(UnavailableError):
            await c.kv.get(c.key(b"a"))
        assert 10**6 - loser.left <= 8

    world = play(story, settings={"routing.retries_max": 3})
    assert world.probes["routing.gave_up"] == 1


# --- ranges that change behind the cache


def test_a_stale_cache_learns_from_refusals() -> None:
    async def story(c: Cluster) -> None:
        keys = [c.key(bytes([n])) for n in range(ord("a"), ord("k"))]
        await c.kv.put_rows(keys, [b"v"] * len(keys))
        for at in (b"c", b"e", b"g"):
            await c.split(at)
        assert (await c.kv.scan(keys[0], c.key(b"z"))).keys == keys
        for key in keys:
            assert await c.kv.get(key) == b"v"
        assert len(await c.sender.ranges_of(keys[0], c.key(b"z"))) == 4

    world = play(story)
    assert world.probes["routing.range_mismatch"] >= 1


def test_an_index_that_lags_behind_a_split_is_no_obstacle() -> None:
    async def story(c: Cluster) -> None:
        a, z = c.key(b"a"), c.key(b"z")
        await c.kv.put(z, b"1")
        await c.split(b"m", meta=False)
        for _, kv in (c.new_client(), (c.sender, c.kv)):
            assert await kv.get(z) == b"1", "the replica that refuses knows its neighbour"
            assert await kv.get(a) is None
        fresh, _ = c.new_client()
        (done,) = (await fresh.send([requests.Barrier()], requests.Header(NO_RANGE), at=z)).results
        assert isinstance(done, requests.Passed)
        assert done.lai == 1
        assert (await fresh.range_of(z)).start == c.key(b"m"), "a request without a key gets there as well"

    world = play(story)
    assert world.probes["routing.asked_neighbour"] == 1


def test_a_split_between_attempts_does_not_divide_what_must_be_atomic() -> None:
    async def story(c: Cluster) -> None:
        a, z = c.key(b"a"), c.key(b"z")
        await c.kv.put_rows([a, z], [b"0", b"0"])
        await c.split(b"m")  # the client still believes in one range

        async def both(txn: Transaction) -> None:
            await txn.put(a, b"1")
            await txn.put(z, b"1")

        await c.kv.run(both)
        assert (await c.kv.scan(a, c.key(b"zz"))).values == [b"1", b"1"]
        await c.settle()
        assert c.intents() == 0

    world = play(story)
    assert world.probes["txn.one_phase_split"] == 1


def test_a_cache_of_one_range_is_enough() -> None:
    async def story(c: Cluster) -> None:
        for at in (b"c", b"f", b"h"):
            await c.split(at)
        keys = [c.key(bytes([n])) for n in range(ord("a"), ord("k"))]

        async def all_of_them(txn: Transaction) -> None:
            for key in keys:
                await add(txn, key, 1)

        await c.kv.run(all_of_them)
        assert (await c.kv.scan(keys[0], c.key(b"z"))).values == [b"1"] * len(keys)

    play(story, settings={"routing.range_cache_entries": 1, "routing.fanout": 1})


def test_requests_without_a_key_need_a_place() -> None:
    async def story(c: Cluster) -> None:
        answer = await c.sender.send([requests.Barrier()], requests.Header(NO_RANGE), at=c.key(b"a"))
        assert len(answer.results) == 1
        (info,) = (await c.sender.send([requests.LeaseInfo()], requests.Header(NO_RANGE), at=c.key(b"a"))).results
        assert isinstance(info, requests.LeaseResult)
        with pytest.raises(Exception, match="names no key"):
            await c.sender.send([requests.Barrier()], requests.Header(NO_RANGE))

    play(story)


# --- clocks that differ


@pytest.mark.parametrize("bug", ["", "X-NO-UNCERTAINTY"])
def test_what_was_acknowledged_is_seen_by_whoever_begins_later_on_a_slow_clock(bug: str) -> None:
    seen: list[bytes | None] = []

    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"0")
        await c.settle(1)
        _, late = c.new_client(behind_s=0.3)
        await c.kv.put(a, b"1")
        txn = late.begin()
        assert txn.state.read_ts < c.clock.now()
        seen.append(await txn.get(a))
        await txn.commit()
        seen.append(await late.get(a))

    play(story, bugs=frozenset({bug} - {""}))
    assert seen == ([b"0", b"1"] if bug else [b"1", b"1"])


# --- everything at once


def bank(seed: int, *, bugs: frozenset[str] = frozenset(), faults: bool = True) -> tuple[int, int]:
    """Transfers between accounts on four ranges while connections break; returns the total and what it should be."""
    accounts = 8
    seen: list[int] = []
    failures: list[int] = []

    async def story(c: Cluster) -> None:
        keys = [c.key(b"%d" % n) for n in range(accounts)]
        await c.kv.put_rows(keys, [b"100"] * accounts)
        for at in (b"2", b"4", b"6"):
            await c.split(at)
        draw = c.world.tape.stream("workload/bank")
        stop = False

        async def trouble() -> None:
            while not stop:
                await c.world.sleep_ns(draw.between(NS // 20, NS))
                inject(c.world, draw.pick((FaultKind.RESET, FaultKind.RESET, FaultKind.SLOW_LINK)))

        async def client(times: int) -> None:
            for _ in range(times):
                source, target = draw.below(accounts), draw.below(accounts)
                amount = 1 + draw.below(10)

                async def transfer(txn: Transaction) -> None:
                    have = number(await txn.get(keys[source]))
                    if have < amount or source == target:
                        return
                    await txn.put(keys[source], b"%d" % (have - amount))
                    await txn.put(keys[target], b"%d" % (number(await txn.get(keys[target])) + amount))

                try:
                    await c.kv.run(transfer)
                    if draw.chance(1, 3):
                        rows = await c.kv.run(lambda txn: txn.scan(keys[0], c.key(b"9")))
                        seen.append(sum(map(int, rows.values)))
                except (AmbiguousResult, UnavailableError, ConflictError):
                    failures.append(1)

        if faults:
            c.world.spawn(trouble(), name="trouble")
        for work in [c.scope.spawn(client(12), name="client") for _ in range(4)]:
            await work
        stop = True
        c.world.heal()
        await c.settle(40)
        rows = await c.kv.scan(keys[0], c.key(b"9"))
        seen.append(sum(map(int, rows.values)))
        assert c.intents() == 0
        assert len(failures) < 10, "most of it must get through"

    hostile = {"txn.buffer_bytes_max": 0} if seed % 2 else {}
    play(story, seed=seed, bugs=bugs, buggify=faults, settings=hostile)
    wrong = [total for total in seen if total != 100 * accounts]
    return (wrong[0] if wrong else seen[-1]), 100 * accounts


@pytest.mark.parametrize("seed", range(6))
def test_money_is_neither_made_nor_lost(seed: int) -> None:
    total, expected = bank(seed)
    assert total == expected


@pytest.mark.parametrize("bug", ["X-NO-REFRESH", "M29"])
def test_planted_bugs_lose_money(bug: str) -> None:
    outcomes = (bank(seed, bugs=frozenset({bug}), faults=False) for seed in range(4))
    assert any(total != expected for total, expected in outcomes)


def test_the_first_heartbeat_of_an_old_transaction_is_bounded_by_its_deadline() -> None:
    """Seeds 424280 and 424290 (I-33): a commit waited a whole expiration for it, whatever its caller's timeout was."""

    async def story(c: Cluster) -> None:
        began: list[float] = []

        async def work(txn: Transaction) -> None:
            await txn.get(c.key(b"a"))
            await txn.put(c.key(b"b"), b"1")
            await txn.put(c.key(b"z"), b"1")
            await c.settle(4)
            began.append(c.world.seconds)
            c.world.machines["n1"].pause()

        await c.split(b"m")
        await c.kv.put(c.key(b"a"), b"0")
        with pytest.raises(SlackwaterError):
            await c.kv.run(work, timeout=5.0)
        took_s = c.world.seconds - began[0]
        c.world.machines["n1"].resume()
        assert took_s < 2, f"one second was left, and it took {took_s} s"

    world = play(story, settings={"txn.expiration": 6.0})
    assert world.probes["txn.heartbeat_first"]
