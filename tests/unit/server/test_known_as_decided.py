"""How far a range is resolved is asked for often beside a large commit: that its intents are decided is found out once."""

from __future__ import annotations

import asyncio
from typing import Any

from slackwater.codec.layout import kv
from slackwater.protocol.closedts.frontier import HoldKind
from slackwater.protocol.range import requests
from slackwater.replica.driver import bulk_gate, closing
from slackwater.runtime import run
from tests.unit.server.cluster import DEADLINE_S, Cluster

SETTINGS = {
    "closed_timestamp__target_duration": 0.05,
    "closed_timestamp__side_transport_interval": 0.02,
    "txn__lock_keys_max": 2,
    "txn__buffer_bytes_max": 0,
}


def test_that_many_intents_are_decided_is_found_out_once_and_anew_after_another_intent(monkeypatch: Any) -> None:
    monkeypatch.setattr(bulk_gate, "PATIENCE_S", 3600.0)
    monkeypatch.setattr(closing, "INTENTS_INLINE_MAX", 2)
    monkeypatch.setattr(closing, "DECIDED_S", 3600.0)
    walks = 0
    walk = closing._resolve_frozen

    def walking(*args: Any) -> Any:
        nonlocal walks
        walks += 1
        return walk(*args)

    monkeypatch.setattr(closing, "_resolve_frozen", walking)

    async def main() -> None:
        async with Cluster(1, **SETTINGS) as cluster:
            node = cluster.nodes[0]
            await node.admin.split(kv(b"m"))
            replica = node.store.holding(kv(b"z"))
            assert replica is not None
            ask = [requests.QueryResolved(kv(b"z"), kv(b"zz"))]
            batch = requests.Batch(requests.Header(replica.state.descriptor.range_id), ask)

            async def asked() -> requests.ResolvedResult:
                (found,) = (await replica.closing.query_resolved(batch)).results
                assert isinstance(found, requests.ResolvedResult)
                return found

            async with node.store.context.bulk_gate.admitted(node.store.context.runtime.clock):  # nothing is resolved
                txn = node.kv.begin()
                await txn.put(kv(b"a"), b"1")  # its record is in the other range
                for n in range(8):
                    await txn.put(kv(b"z%d" % n), b"1")
                committed = await txn.commit()
                async with asyncio.timeout(DEADLINE_S):
                    while (await asked()).ts < committed:
                        await asyncio.sleep(0.01)
                before = walks
                for _ in range(3):
                    found = await asked()
                    assert found.ts == found.closed >= committed
                assert walks == before > 0, "it is known"
                assert (await replica.closing.frontier()).resolved >= committed
                assert walks == before + 1, "the whole range was not asked for before"
                other = node.kv.begin()
                await other.put(kv(b"z5x"), b"1")
                async with asyncio.timeout(DEADLINE_S):
                    while (found := await asked()).ts == found.closed:
                        await asyncio.sleep(0.01)
                assert found.held_by is not None
                assert found.held_by.key == kv(b"z5x")
                assert (await replica.closing.frontier()).holding().kind is HoldKind.TRANSACTION
                assert walks > before + 2
                await other.rollback()

    run(main())
