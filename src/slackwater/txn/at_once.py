"""Blind writes that are a transaction of their own, the short way: one batch to one range, no coordinator.

    rows of one range ──► [PutRows, EndTxn(one_phase)] ──► one command: values and the record, no intents
                                │
                                └─ anything in the way (an intent, a range that was divided, …): nothing happened;
                                   the long way, a `Transaction` of the same id, deals with it

Most writes are this: one row, nobody in the way. Nothing was read, so the leaseholder may put it at any timestamp
(`can_forward`), there is nothing to refresh, nothing to heartbeat and nothing to clean up. The record is written all the same:
whoever loses the answer asks it (`settle`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import LOGICAL_BITS, Timestamp
from slackwater.errors import AmbiguousResult, SlackwaterError
from slackwater.hooks import buggify, probe
from slackwater.model.txns import Txn
from slackwater.protocol.range.requests import Committed, EndTxn, Header, Put, PutRows
from slackwater.routing.sender import NO_RANGE

if TYPE_CHECKING:
    from slackwater.protocol.range.requests import Request
    from slackwater.txn.context import TxnContext

AT_ONCE_ROWS_MAX = 256
AT_ONCE_BYTES_MAX = 64 << 10
"""More rows, or bytes of them, go the long way, which knows how to divide them."""


async def write_at_once(
    context: TxnContext,
    txn_id: bytes,
    keys: list[bytes],
    values: list[bytes],
    *,
    below: Timestamp | None = None,
    timeout: float | None,
) -> Timestamp | None:
    """Write sorted, unique rows if one range has them and nobody is in the way; returns when, or None: nothing happened.

    With `below`, the commit timestamp stays below that.

    `AmbiguousResult` means what it says: the record of `txn_id`, at the first key, knows.
    """
    home = context.sender.cache.lookup(keys[0])
    if home is None or not home.contains(keys[-1]) or buggify("txn.write_the_long_way"):
        return None
    if len(keys) > AT_ONCE_ROWS_MAX or sum(map(len, values)) + sum(map(len, keys)) > AT_ONCE_BYTES_MAX:
        return None
    write: Request = Put(keys[0], values[0]) if len(keys) == 1 else PutRows(keys, values)
    now = context.clock.now()
    limit = Timestamp(now + (context.clock.max_offset_us << LOGICAL_BITS))
    txn = Txn(txn_id, keys[0], now, 0, now, now, limit, 1)
    header = Header(NO_RANGE, ts=now, txn=txn, uncertainty_limit=limit)
    commit = EndTxn(commit=True, one_phase=True, can_forward=True, deadline=below)
    try:
        answer = await context.sender.send([write, commit], header, timeout=timeout)
    except AmbiguousResult:
        raise
    except SlackwaterError:
        probe("txn.write_in_the_way")
        return None
    ended = answer.results[-1]
    if not isinstance(ended, Committed):
        raise AmbiguousResult("the range did not answer a commit as one; ask the record", kind=type(ended).__name__)
    return await context.acknowledged(ended.commit_ts)
