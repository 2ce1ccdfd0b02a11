"""Liveness records as nodes see each other's: graceful ends, lost answers, and who may end whose epoch."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from slackwater.catalog.leases import abandoned_after
from slackwater.clock import HybridClock
from slackwater.clock.timestamp import MIN, add_seconds
from slackwater.errors import ConditionFailed, UnavailableError
from slackwater.model.ids import NodeId
from slackwater.replica.driver import NodeLiveness
from slackwater.replica.driver.liveness import liveness_key
from slackwater.runtime import RealRuntime
from slackwater.settings import Settings

N1, N2 = NodeId(1), NodeId(2)


class Records:
    """Range 1, as a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    async def get(self, key):
        return self.rows.get(key)

    async def put(self, key, value):
        self.rows[key] = value

    async def conditional_put(self, key, value, *, expected):
        if self.rows.get(key) != expected:
            raise ConditionFailed("another value", key=key, actual=self.rows.get(key))
        self.rows[key] = value

    async def scan(self, start, end):
        return sorted((k, v) for k, v in self.rows.items() if start <= k < end)

    async def increment(self, key, by):
        raise AssertionError("liveness counts nothing")


class Wall:
    def __init__(self) -> None:
        self.ns = 10**18

    def __call__(self) -> int:
        return self.ns


def pair(wall: Wall, records: Records) -> list[NodeLiveness]:
    runtime = RealRuntime(disk=None)
    settings = Settings()
    return [
        NodeLiveness(n, runtime, HybridClock(wall, max_offset_s=0.5), settings, records, trusted=lambda: None)
        for n in (N1, N2)
    ]


def test_a_node_that_left_is_over_at_once_for_everybody():
    """Others know a later expiration than the one it leaves behind; its epoch tells them which is newer."""

    async def main():
        wall, records = Wall(), Records()
        one, two = pair(wall, records)
        await one._begin()
        await two._begin()
        wall.ns += 10**9
        await one._heartbeat()
        await two.refresh()
        before = two.get(N1)
        assert before.live_at(two._clock.now())
        await one.leave()
        assert one.own() is None
        await two.refresh()
        after = two.get(N1)
        assert (after.epoch, after.draining) == (before.epoch + 1, True)
        wall.ns += 1000_000
        assert not after.live_at(two._clock.now())

    asyncio.run(main())


def test_leaving_meets_a_heartbeat_whose_answer_was_lost():
    async def main():
        wall, records = Wall(), Records()
        one, _ = pair(wall, records)
        await one._begin()
        own = one.own()
        wall.ns += 10**9
        await one._heartbeat()
        one._own = own  # as if that answer had been lost
        await one.leave()
        await one.refresh()
        assert one.get(N1).epoch == own.epoch + 1

    asyncio.run(main())


def test_a_heartbeat_under_way_does_not_revive_a_node_that_leaves():
    async def main():
        wall, records = Wall(), Records()
        one, _ = pair(wall, records)
        await one._begin()
        await one.leave()
        raw = records.rows[liveness_key(N1)]
        await one._heartbeat()
        with pytest.raises(UnavailableError):
            await one._write(raw, one.get(N1))
        assert records.rows[liveness_key(N1)] == raw
        assert one.own() is None

    asyncio.run(main())


def test_only_an_expired_epoch_is_ended_by_others():
    async def main():
        wall, records = Wall(), Records()
        one, two = pair(wall, records)
        await one._begin()
        await two.refresh()
        with pytest.raises(UnavailableError, match="has not expired"):
            await two.end_epoch(two.get(N1))
        wall.ns += int(10e9)
        seen = two.get(N1)
        await one._heartbeat()
        with pytest.raises(UnavailableError, match="came back"):
            await two.end_epoch(seen)
        wall.ns += int(10e9)
        ended = await two.end_epoch(two.get(N1))
        assert ended.epoch == seen.epoch + 1
        assert one.own() is None, "its own clock says so, whatever it has heard"
        await one._heartbeat()  # refused: it finds the new epoch
        await one._heartbeat()
        assert one.own().epoch == ended.epoch

    asyncio.run(main())


def test_a_slow_answer_does_not_hide_that_the_node_has_come_back():
    """The record that one wrote to end an epoch is older news than the renewal that one heard of before the answer came."""

    async def main():
        wall, records = Wall(), Records()
        one, two = pair(wall, records)
        await one._begin()
        await two._begin()
        await two.refresh()
        wall.ns += int(10e9)
        put = records.conditional_put

        async def slowly(key, value, *, expected):
            await put(key, value, expected=expected)
            records.conditional_put = put
            await one._heartbeat()  # refused: it finds the new epoch
            await one._heartbeat()
            await two.refresh()

        records.conditional_put = slowly
        ended = await two.end_epoch(two.get(N1))
        assert two.get(N1).epoch == ended.epoch
        assert two.get(N1).live_at(two._clock.now())

    asyncio.run(main())


def test_a_node_that_goes_on_in_another_epoch_looks_after_its_leases_at_once():
    """Its idle ranges closed nothing for a whole `queue.interval`: no request told it that their leases were over."""

    async def main():
        wall, records = Wall(), Records()
        one, two = pair(wall, records)
        news: list[int] = []
        await one._begin()
        await two._begin()
        one.on_news = lambda: news.append(one.own().epoch)
        await one._heartbeat()
        assert news == [], "the same epoch is no news"
        wall.ns += 60 * 10**9
        await two.refresh()
        ended = await two.end_epoch(two.get(N1))
        await one._heartbeat()
        assert news == [], "it has heard of its end, and is not live yet"
        await one._heartbeat()
        assert news == [ended.epoch]
        await one._heartbeat()
        assert news == [ended.epoch]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("duration", "interval", "expected"),
    [(4.0, 1.0, 1.0), (1.2, 1.0, 0.35), (2.0, 5.0, 0.75), (0.5, 1.0, 0.25), (0.8, 0.1, 0.1)],
)
def test_heartbeats_come_while_the_record_is_of_use(duration: float, interval: float, expected: float):
    """With 0.5 s of clock error a record of 1.2 s is of use for 0.7 s: one heartbeat a second would not keep it so.

    Shorter ones last 1 s all the same: of a record of 0.5 s nothing would be of use at all.
    """
    settings = Settings({"liveness.duration": duration, "liveness.heartbeat_interval": interval})
    clock = HybridClock(Wall(), max_offset_s=0.5)
    liveness = NodeLiveness(N1, RealRuntime(disk=None), clock, settings, Records(), trusted=lambda: None)
    assert liveness._interval == pytest.approx(expected)


def test_what_was_promised_under_an_epoch_is_known_however_it_ends():
    """Leases are deleted by the end of the epoch after theirs, Q: never before what their own node relied on, P + duration."""

    async def main():
        for end in ("leaves", "steps down", "is ended", "restarts"):
            wall, records = Wall(), Records()
            one, two = pair(wall, records)
            one.lease_s = lambda: 8.0
            relied: list[int] = []
            one.on_own = lambda record: relied.append(record.promised_upto)
            await one._begin()
            wall.ns += 10**9
            await one._heartbeat()
            await two.refresh()
            promised = max(relied)
            assert promised == add_seconds(two.get(N1).expiration, 8.0)
            if end == "leaves":
                await one.leave()
            elif end == "steps down":
                await one.step_down(horizon=lambda: MIN)
            elif end == "is ended":
                wall.ns += 10 * 10**9
                await two.end_epoch(two.get(N1))
            else:
                wall.ns += 10 * 10**9
                again, _ = pair(wall, records)
                await again._begin()
            await two.refresh()
            after = two.get(N1)
            assert (after.epoch, after.relied_upto) == (2, promised), end
            if end in ("leaves", "steps down"):
                assert after.expiration < promised, "others need not wait for its ranges"
            assert abandoned_after(after, abandoned_s=8.0) >= promised, end

    asyncio.run(main())


def test_a_frontier_that_was_handed_out_is_kept_when_leases_are_made_shorter():
    async def main():
        wall, records = Wall(), Records()
        one, _ = pair(wall, records)
        one.lease_s = lambda: 60.0
        await one._begin()
        handed_out = one.get(N1).promised_upto
        one.lease_s = lambda: 2.0
        for _ in range(5):
            wall.ns += 10**9
            await one._heartbeat()
            assert one.get(N1).promised_upto >= handed_out
        wall.ns += 60 * 10**9
        await one._heartbeat()
        record = one.get(N1)
        assert record.promised_upto == add_seconds(record.expiration, 2.0)

    asyncio.run(main())


def test_a_record_that_an_older_version_wrote_is_replaced_like_any_other():
    """It has fewer fields, so that what is known of it encodes to other bytes: its epoch could never be ended."""

    async def main():
        wall, records = Wall(), Records()
        one, two = pair(wall, records)
        await one._begin()
        await two._begin()
        key = liveness_key(N1)
        records.rows[key] = msgspec.msgpack.encode(msgspec.msgpack.decode(records.rows[key])[:-1])
        wall.ns += 60 * 10**9
        await two.refresh()
        before = two.get(N1)
        ended = await two.end_epoch(before)
        assert ended.epoch == before.epoch + 1
        await two.refresh()
        assert two.get(N1) == ended
        key = liveness_key(N2)
        records.rows[key] = msgspec.msgpack.encode(msgspec.msgpack.decode(records.rows[key])[:-1])
        await two._heartbeat()
        assert two.own() is not None, "so does its own node, when another one has marked it"

    asyncio.run(main())
