"""A 3-server NATS log whose servers are killed and restarted; re-created streams; settings that would lose entries."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("nats")

from slackwater import hooks
from slackwater.errors import (
    AppendUnknown,
    ConnectionLost,
    LogBehindStore,
    LogIdentityMismatch,
    LogTrimmed,
    LossyLogRefused,
    UsageError,
)
from slackwater.log import check_identity, open_log
from slackwater.log.nats_server import LocalNats
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.clock import RealClock
from slackwater.runtime.rng import RealRng
from slackwater.runtime.tasks import Scope
from slackwater.settings import Settings
from tests.integration.damage import flip_byte
from tests.integration.log_account import Account, Writer, read_all, read_upto

pytestmark = pytest.mark.integration
ROUNDS = 4
ACKS_PER_PHASE = 60
R1 = RangeId(1)


def _open(url, scope, **settings):
    return open_log(url, clock=RealClock(), rng=RealRng(), scope=scope, settings=Settings(settings))


async def _more_acknowledged(writers: list[Writer], count: int) -> None:
    wanted = [writer.acknowledged() + count for writer in writers]
    while any(writer.acknowledged() < want for writer, want in zip(writers, wanted, strict=True)):
        for writer in writers:
            writer.check_running()
        await asyncio.sleep(0.05)


def test_killed_servers_lose_nothing_that_was_acknowledged(tmp_path):
    """Each round kills one server, the leader of the stream every other time, and restarts it while writers go on."""

    async def go() -> None:
        scope = Scope("test")
        async with LocalNats(tmp_path / "nats", servers=3, clock=RealClock()) as servers:
            url = servers.url(stream="orders")
            log = await _open(url, scope)
            identity = log.identity()
            follower = log.tail(R1, after=Position(0))
            writers = [Writer(url, 1, f"w{w}", concurrency=8, directory=tmp_path) for w in range(2)]
            try:
                await _more_acknowledged(writers, ACKS_PER_PHASE)
                for round_ in range(ROUNDS):
                    leader = await servers.leader_of("orders")
                    victim = leader if round_ % 2 == 0 and leader is not None else round_ % 3
                    servers.kill(victim)
                    await _more_acknowledged(writers, ACKS_PER_PHASE)
                    await servers.restart(victim)
                    await _more_acknowledged(writers, ACKS_PER_PHASE)
            finally:
                for writer in writers:
                    writer.kill()
            account = Account()
            for writer in writers:
                account.add(writer.words)
            fresh = await _open(url, scope)
            assert fresh.identity() == identity, "leaders may change, the log does not"
            entries = await read_all(fresh, 1)
            account.check(entries)
            assert len(account.acked) >= 2 * ROUNDS * ACKS_PER_PHASE
            assert await read_upto(follower, await log.head(R1)) == entries, "one order for all readers"
            await log.close()
            await fresh.close()
        await scope.close()

    asyncio.run(go())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    servers = LocalNats(tmp_path_factory.mktemp("nats"), servers=1, clock=RealClock())
    asyncio.run(servers.start())
    yield servers
    servers.stop()


async def _api(server: LocalNats, verb: str, body: str = "") -> str:
    import nats

    client = await nats.connect(server.addresses[0])
    try:
        return (await client.request(f"$JS.API.{verb}", body.encode(), timeout=5)).data.decode()
    finally:
        await client.close()


def test_a_recreated_stream_is_another_log(server):
    async def go() -> None:
        scope = Scope("test")
        log = await _open(server.url(stream="again"), scope)
        await log.append(R1, [b"old"])
        remembered = log.identity()
        tail = log.tail(R1, after=Position(0))
        await tail.__anext__()
        await _api(server, "STREAM.DELETE.again")
        with pytest.raises(LogIdentityMismatch, match="deleted or re-created"):  # while it is open
            await asyncio.wait_for(tail.__anext__(), 30)
        fresh = await _open(server.url(stream="again"), scope)
        with pytest.raises(LogIdentityMismatch):  # the old handle does not write to the new stream
            await log.append(R1, [b"new"])
        with pytest.raises(LogIdentityMismatch, match="not the log the store was built on"):  # and at the next start
            check_identity(fresh, remembered)
        await log.close()
        await fresh.close()
        await scope.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ('"storage":"memory"', "a stream in memory"),
        ('"storage":"file","max_age":3600000000000', "deleted by age"),
        ('"storage":"file","max_msgs":10,"discard":"old"', "when full"),
        ('"storage":"file","max_msgs_per_subject":10', "old entries of a range"),
        ('"storage":"file","retention":"interest"', "once some consumer has read them"),
    ],
)
def test_settings_that_lose_acknowledged_entries_are_refused(server, config, complaint):
    async def go() -> None:
        scope = Scope("test")
        meta = '"metadata":{"slackwater.incarnation":"x","slackwater.format":"1"}'
        await _api(server, "STREAM.DELETE.lossy")
        answer = await _api(server, "STREAM.CREATE.lossy", f'{{"name":"lossy","subjects":["lossy.>"],{config},{meta}}}')
        assert '"error"' not in answer
        with pytest.raises(LossyLogRefused, match=complaint):
            await _open(server.url(stream="lossy"), scope)
        log = await _open(server.url(stream="lossy") + "&allow_lossy=1", scope)
        await log.append(R1, [b"the operator insists"])
        await log.close()
        await scope.close()

    asyncio.run(go())


def test_sync_interval_is_verified_or_vouched_for(server, tmp_path):
    async def go() -> None:
        scope = Scope("test")
        address = server.addresses[0]
        with pytest.raises(LossyLogRefused, match="sync_interval is unknown"):
            await _open(f"nats://{address}/?stream=plain&replicas=1", scope)
        with pytest.raises(LossyLogRefused, match="3 were asked for"):
            await _open(f"nats://{address}/?stream=plain&replicas=3&sync_always=1", scope)
        log = await _open(f"nats://{address}/?stream=plain&replicas=1&sync_always=1", scope)
        await log.close()
        lazy = LocalNats(tmp_path, servers=1, clock=RealClock(), sync_interval='"2m"')
        async with lazy:
            with pytest.raises(LossyLogRefused, match="sync_interval=120s, must be `always`"):
                await _open(lazy.url(stream="lazy"), scope)
        with pytest.raises(ConnectionLost):
            await _open(lazy.url(stream="lazy"), scope, **{"log.append_timeout": 0.5})
        with pytest.raises(UsageError, match="stream name"):
            await _open(f"nats://{address}/?stream=a.b", scope)
        await scope.close()

    asyncio.run(go())


def test_a_reader_that_was_away_finds_out_what_was_trimmed(server):
    """Live tails that missed entries which were then trimmed: one lost something, the other did not."""

    async def go() -> None:
        scope = Scope("test")
        log = await _open(server.url(stream="holes"), scope)
        behind, ahead = log.tail(R1, after=Position(0)), log.tail(RangeId(2), after=Position(0))
        await log.append(R1, [b"1"])
        await log.append(RangeId(2), [b"a"])
        assert [e.payload for e in await behind.__anext__()] == [b"1"]
        assert [e.payload for e in await ahead.__anext__()] == [b"a"]
        log.live._seen -= 1  # as after a reconnect that lost the last message and all that follows
        log.live._broken = True
        last = await log.append(R1, [b"2", b"3"])
        await log.trim(R1, upto=last)
        assert await log.head(R1) == last
        log.live.disturb()
        await log.append(RangeId(2), [b"b"])
        assert [e.payload for e in await ahead.__anext__()] == [b"b"]
        with pytest.raises(LogTrimmed):
            await asyncio.wait_for(behind.__anext__(), 30)
        await log.close()
        await scope.close()

    asyncio.run(go())


def test_large_appends_are_split_and_keep_their_order(server):
    async def go() -> None:
        scope = Scope("test")
        log = await _open(server.url(stream="large"), scope)
        payloads = [b"%d" % n for n in range(2500)] + [bytes([n]) * (1 << 20) for n in range(12)]
        last = await log.append(R1, payloads)
        assert last == await log.head(R1)
        found = []
        tail = log.tail(R1, after=Position(0))
        while len(found) < len(payloads):
            found += [entry.payload for entry in await asyncio.wait_for(tail.__anext__(), 30)]
        assert found == payloads
        await log.close()
        await scope.close()

    asyncio.run(go())


def test_a_server_that_cuts_its_stream_at_a_damaged_block_is_noticed(tmp_path):
    """It says nothing and numbers new messages from there on: tails passed over all of them, for ever."""

    async def go() -> None:
        scope = Scope("test")
        async with LocalNats(tmp_path, servers=1, clock=RealClock()) as servers:
            url = servers.url(stream="cut")
            log = await _open(url, scope, **{"log.append_timeout": 3.0})
            tail = log.tail(R1, after=Position(0))
            for n in range(40):
                last = await log.append(R1, [b"%d" % n])
            while (await asyncio.wait_for(tail.__anext__(), 30))[-1].position < last:
                pass
            servers.kill(0)
            (block,) = tmp_path.rglob("*.blk")
            flip_byte(block, block.stat().st_size // 2)
            await servers.restart(0)
            other = await _open(url, scope)
            assert await other.append(R1, [b"x"]) < last, (
                "what was acknowledged is gone, and its positions are used again"
            )
            for n in range(40):
                await other.append(RangeId(2), [b"again %d" % n])
            with pytest.raises(LogBehindStore, match="lost messages and numbered others in their place"):
                await asyncio.wait_for(tail.__anext__(), 30)
            with pytest.raises(LogBehindStore):
                await log.append(R1, [b"y"])
            await log.close()
            await other.close()
        await scope.close()

    asyncio.run(go())


def test_a_single_server_that_restarts_is_waited_for(tmp_path):
    """Handles outlive the server: appends get an answer that holds, tails go on where they were."""

    async def go() -> None:
        scope = Scope("test")
        async with LocalNats(tmp_path, servers=1, clock=RealClock()) as servers:
            log = await _open(servers.url(stream="restarts"), scope, **{"log.append_timeout": 3.0})
            tail = log.tail(R1, after=Position(0))
            acked, unknown = [], set()
            for round_ in range(3):
                work = [asyncio.ensure_future(log.append(R1, [b"%d/%d" % (round_, n)])) for n in range(40)]
                await asyncio.sleep(0.002 * round_)
                servers.kill(0)
                await servers.restart(0)
                outcomes = await asyncio.gather(*work, return_exceptions=True)
                for n, outcome in enumerate(outcomes):
                    if isinstance(outcome, int):
                        acked.append((outcome, b"%d/%d" % (round_, n)))
                    elif isinstance(outcome, AppendUnknown):
                        unknown.add(b"%d/%d" % (round_, n))
            last = await log.append(R1, [b"end"])
            found: list[tuple[int, bytes]] = []
            while not found or found[-1][0] < last:
                found += await asyncio.wait_for(tail.__anext__(), 30)
            assert set(acked) <= set(found), "acknowledged, but lost"
            payloads = [payload for _, payload in found]
            assert {p for p in payloads if payloads.count(p) > 1} <= unknown
            assert set(payloads) <= unknown | {payload for _, payload in acked} | {b"end"}
            await log.close()
        await scope.close()

    asyncio.run(go())


def test_a_tail_goes_on_when_its_consumer_is_gone_without_a_word(server):
    """A consumer lives on one server; when that dies, nothing tells the reader. It notices what it is owed."""
    hit: set[str] = set()

    async def go() -> None:
        scope = Scope("test")
        log = await _open(server.url(stream="owed"), scope)
        tail = log.tail(R1, after=Position(0))
        await log.append(R1, [b"1"])
        assert [e.payload for e in await tail.__anext__()] == [b"1"]
        names = json.loads(await _api(server, "CONSUMER.NAMES.owed"))["consumers"]
        assert names, "the live reader has a consumer"
        for name in names:
            await _api(server, f"CONSUMER.DELETE.owed.{name}")
        last = await log.append(R1, [b"2"])
        found = [payload for _, payload in await asyncio.wait_for(read_upto(tail, last), 30)]
        assert found == ["2"]
        await log.close()
        await scope.close()

    hooks.install(probe=hit.add)
    try:
        asyncio.run(go())
    finally:
        hooks.install()
    assert "log.nats_consumer_owes" in hit
    assert "log.nats_bridged" in hit
