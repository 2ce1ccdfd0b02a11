"""A transaction that begins again."""

from __future__ import annotations

import pytest

from slackwater.codec.layout import kv
from slackwater.errors import RetryableError, TransactionAborted
from slackwater.runtime import run
from tests.unit.server.cluster import Cluster


@pytest.mark.parametrize("first", [RetryableError("a read is not current"), TransactionAborted("by a rival"), None])
def test_one_that_a_rival_aborted_begins_again_as_another(first: RetryableError | None) -> None:
    """Found by the bank: the heartbeat had heard of it, an operation had failed for another reason."""

    async def main() -> None:
        async with Cluster(1) as cluster:
            txn = cluster.nodes[0].kv.begin()
            await txn.put(kv(b"k"), b"before")
            before = txn.state.txn_id
            txn._spoiled = first
            txn._heart.verdict = TransactionAborted("by a rival")
            await txn.restart()
            assert txn.spoiled is None
            assert txn.state.txn_id != before
            await txn.put(kv(b"k"), b"after")
            await txn.commit()
            assert await cluster.nodes[0].kv.get(kv(b"k")) == b"after"

    run(main())
