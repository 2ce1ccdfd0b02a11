"""Protections on a simulated cluster: what is released when its owner is gone, and what is not."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.clock.timestamp import add_seconds
from slackwater.codec.layout import kv
from slackwater.config.zones import ZoneConfig, zone_key
from slackwater.errors import LimitReached
from slackwater.model.protection import Mode
from slackwater.model.spans import Span
from slackwater.protect.zone_changes import write_zone
from slackwater.server.protection import OWNED, FeedOwner
from slackwater.server.reports import report
from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import load
from tests.sim.cluster import Cluster, play
from tests.sim.hunt import hunt
from tests.sim.test_client import session

A_F = Span(kv(b"a"), kv(b"f"))
SETTINGS = {"protected_timestamp.reconcile_interval": 1.0, "feed.protection_grace": 2.0}
load()


def test_what_lost_its_owner_is_released_and_what_nobody_knows_is_not() -> None:
    async def story(c: Cluster) -> None:
        node = c.node
        now = node.clock.now()
        life = node.store.context.life

        async def made(kind: str, meta: bytes, *, expires_s: float = 0) -> bytes:
            expires = add_seconds(now, expires_s) if expires_s else 0
            return await node.protections.protect(now, Mode.AT, kind, meta, spans=[A_F], expires=expires)

        def feed(node_id: int, life: int) -> bytes:
            return msgspec.json.encode(FeedOwner("a feed", node_id, life))

        keep = {
            await made("backup", b"no reconciler knows this"),
            await made("user", b"{}"),
            await made("feed", feed(77, 5)),  # a node that is not known is not declared dead
            await made("feed", b"rubbish"),
            await made("user", b"{}", expires_s=3600),
        }
        await made("job", b"4711")
        await made("feed", feed(1, life + 1))  # another process: it expires after the grace time
        await made("feed", feed(1, life))  # this process, which knows of no such feed: it was canceled too soon
        await made("user", b"{}", expires_s=2)
        await c.settle(8)
        assert {record.id for record in (await node.protections.list()).records} == keep
        state = await node.protections.list()
        assert (state.metadata.records, state.metadata.spans) == (len(keep), len(keep))

    world = play(story, settings=SETTINGS)
    assert world.probes["protect.orphan"] == 1
    assert world.probes["feeds.protection_left_by_process"] == 1
    assert world.probes["protect.expired"] == 2


def test_what_a_job_owns_is_released_by_the_transaction_that_ends_it() -> None:
    async def story(c: Cluster) -> None:
        node = c.node

        made = await node.protections.protect(node.clock.now(), Mode.AT, "user", b"", spans=[A_F])
        release = node.job_types.releases[OWNED]
        await node.kv.run(lambda txn: release(txn, made.hex()))
        assert (await node.protections.list()).records == ()
        await node.kv.run(lambda txn: release(txn, made.hex()))  # gone already: fine

    play(story)


def test_a_table_is_protected_with_all_that_it_takes_to_read_it() -> None:
    async def story(c: Cluster) -> None:
        from slackwater.catalog.records import descriptor_key, name_key
        from slackwater.model.kinds import INT
        from slackwater.protocol.client.calls import ColumnSpec, KeySpec

        node = c.node
        table = await node.catalog.create("orders", (ColumnSpec("id", INT),), (KeySpec("id"),))
        await node.protections.protect(node.clock.now(), Mode.AT, "user", b"", tables=[table.table_id])
        (record,) = (await node.protections.list()).records
        for key in (
            descriptor_key(table.table_id, 1),
            descriptor_key(table.table_id, 9),
            name_key("orders"),
            zone_key(b""),
            zone_key(b"\x05" + table.table_id.to_bytes(4, "big")),
        ):
            assert any(key in span for span in record.spans), key

    play(story)


def test_one_protection_too_many_is_refused_at_once() -> None:
    async def story(c: Cluster) -> None:
        db = session(c)
        await db._gateways.greet()
        await db.create_table("t", {"id": "int8"}, primary_key="id")
        kept = [await db.protect(["t"], at=db.now()) for _ in range(2)]
        began = c.runtime.clock.monotonic_ns()
        with pytest.raises(LimitReached, match=r"3 protected records, and there may be 2 .*release some"):
            await db.protect(["t"], at=db.now())
        assert c.runtime.clock.monotonic_ns() - began < 1_000_000_000, "simulated time: it is not tried again"
        assert {one.id for one in await db.protections()} == {one.id for one in kept}

    play(story, settings={**SETTINGS, "protected_timestamp.records_max": 2.0})


def test_what_is_pinned_is_counted_once_the_ttl_would_let_it_go_and_old_protections_are_warned_of() -> None:
    async def story(c: Cluster) -> None:
        member = c.node
        await write_zone(c.kv, ZoneConfig(gc_ttl_s=2.0))
        for number in range(20):
            await c.kv.put(kv(b"b"), b"%d" % number)
        made = await member.protections.protect(c.node.clock.now(), Mode.AFTER, "user", b"", spans=[A_F])
        await c.kv.put(kv(b"b"), b"the newest")
        records = (await member.protections.list()).records
        assert await member.pinned.of(records) == {}, "the ttl keeps it anyway"
        await member.zone_follower.read()
        await c.settle(8)
        pinned = await member.pinned.of(records)
        assert pinned[made] > 0
        assert member.pinned.here() == pinned[made]
        assert 7 < member.pinned.oldest_s() < 20
        (warning,) = member.pinned.warnings()
        assert "slackwater protections" in warning
        assert warning in report(member.node).warnings
        await member.protections.release(made)
        await member.protections.tracker.refresh(after=c.node.clock.now())
        assert (member.pinned.here(), member.pinned.oldest_s(), member.pinned.warnings()) == (0, 0.0, [])

    play(story, settings=SETTINGS | {"protected_timestamp.warning_age": 5.0})


def test_travelers_find_what_was_protected_and_what_they_forget_expires() -> None:
    missing = {"travel.protected", "travel.looked_back", "travel.too_late", "gc.raised"}
    for seed in range(1, 5):  # which of them reaches what changes with the code; the first does today
        result = run_job(SimJob(seed=seed, play="collecting"))
        assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
        missing -= {site for site in missing if result.probes.get(site)}
        if not missing:
            return
    pytest.fail(f"never reached: {sorted(missing)}")


@pytest.mark.parametrize(
    ("name", "first"), [("M21", 1), ("M22", 2), ("X-FORGOTTEN-PROTECTIONS", 0), ("X-COVERED-BY-ANY", 0)]
)
def test_a_planted_bug_is_killed_by_its_oracle(name: str, first: int) -> None:
    hunt(name, first=first)
