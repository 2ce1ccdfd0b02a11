"""Blind writes that are a transaction of their own, the short way: one batch to one range, no coordinator.

    rows of one range ──► [PutRows, EndTxn(one_phase)] ──► one command: values and the record, no intents
                                │                          (begun in this very step where the range is on this node)
                                │
                                └─ anything in the way (an intent, a range that was divided, …): nothing happened;
                                   the long way, a `Transaction` of the same name, deals with it

Most writes are this: one row, and nothing in the way. Nothing was read, so the leaseholder may put it at any timestamp
(`can_forward`), there is nothing to refresh, nothing to heartbeat and nothing to clean up. The record is written all the same:
a caller that loses the answer asks it (`settle`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import LOGICAL_BITS, Timestamp
from slackwater.errors import AmbiguousResult, SlackwaterError
from slackwater.hooks import buggify, probe
from slackwater.model.txns import Txn
from slackwater.protocol.range.requests import BATCH_REQUESTS_MAX, Batch, Committed, EndTxn, Header, Put, PutRows
from slackwater.runtime.later import Later

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.protocol.range.requests import BatchResult, Request
    from slackwater.txn.context import TxnContext

AT_ONCE_ROWS_MAX = 256
AT_ONCE_BYTES_MAX = 64 << 10
"""More rows, or bytes of them, go the long way, which knows how to divide them."""
assert AT_ONCE_ROWS_MAX <= BATCH_REQUESTS_MAX, "rows that are written at once fit one batch"


def begin_write(
    context: TxnContext, name: bytes, keys: list[bytes], values: list[bytes], *, below: Timestamp
) -> Later[tuple[Timestamp, bool] | None] | None:
    """Write sorted, unique rows by a command that is begun in this very step, if one range on this node has them all.

    None, at once or told: nothing was done. Told an error other than `AmbiguousResult`: nothing came of it. Told a timestamp: the
    rows are committed there, which may be told to others once that time has come (`TxnContext.acknowledged`); and whether it has.
    """
    assert len(keys) == len(values), "a value for every key"
    home = context.sender.here(keys[0], keys[-1])
    if home is None or not _small(keys, values):
        return None
    requests, header = _one_batch(context, name, keys, values, below=below, home=home)
    try:
        begun = context.sender.at_once(Batch(header, requests), header.ts)
    except SlackwaterError:  # refused before anything was begun
        probe("txn.write_in_the_way")
        return None
    if begun is None or isinstance(begun, Later):
        return None if begun is None else begun.map(partial(_committed, context))
    done: Later[tuple[Timestamp, bool] | None] = Later()  # it had been committed before: the record said so
    done.settle(_committed(context, begun))
    return done


async def write_at_once(
    context: TxnContext,
    name: bytes,
    keys: list[bytes],
    values: list[bytes],
    *,
    below: Timestamp | None = None,
    timeout: float | None,
) -> Timestamp | None:
    """Write sorted, unique rows if one range has them and nothing is in the way: the commit timestamp, or None.

    With `below`, the commit timestamp stays below that.

    `AmbiguousResult` means what it says: the record of `name`, at the first key, knows.
    """
    assert len(keys) == len(values) > 0, "a value for every key"
    home = context.sender.cache.lookup(keys[0])
    if home is None or not home.contains(keys[-1]) or not _small(keys, values):
        return None
    requests, header = _one_batch(context, name, keys, values, below=below, home=home)
    try:
        assert home.contains(keys[0]), "all rows are in one range"
        answer = await context.sender.send(requests, header, timeout=timeout)
    except AmbiguousResult:
        raise
    except SlackwaterError:
        probe("txn.write_in_the_way")
        return None
    return await context.acknowledged(_commit_ts(answer))


def _small(keys: list[bytes], values: list[bytes]) -> bool:
    """Whether rows may be one batch."""
    if buggify("txn.write_the_long_way") or len(keys) > AT_ONCE_ROWS_MAX:
        return False
    return sum(map(len, values)) + sum(map(len, keys)) <= AT_ONCE_BYTES_MAX


def _one_batch(
    context: TxnContext,
    name: bytes,
    keys: list[bytes],
    values: list[bytes],
    *,
    below: Timestamp | None,
    home: RangeDescriptor,
) -> tuple[list[Request], Header]:
    """The writes and the commit, for the range that has them all."""
    write: Request = Put(keys[0], values[0]) if len(keys) == 1 else PutRows(keys, values)
    now = context.clock.now()
    limit = Timestamp(now + (context.clock.max_offset_us << LOGICAL_BITS))
    txn = Txn(context.life(name, now), keys[0], now, 0, now, now, limit, 1)
    commit = EndTxn(commit=True, one_phase=True, can_forward=True, deadline=below)
    header = Header(home.range_id, ts=now, txn=txn, uncertainty_limit=limit, generation=home.generation)
    assert txn.read_ts <= txn.uncertainty_limit, "what is uncertain lies above what is read"
    return [write, commit], header


def _committed(context: TxnContext, answer: BatchResult | None) -> tuple[Timestamp, bool] | None:
    """Where a range has committed, and whether that time has come; None if nothing was done."""
    if answer is None:
        return None
    ts = _commit_ts(answer)
    return ts, context.passed(ts)


def _commit_ts(answer: BatchResult) -> Timestamp:
    ended = answer.results[-1]
    if not isinstance(ended, Committed):
        raise AmbiguousResult("the range did not answer a commit as one; ask the record", kind=type(ended).__name__)
    return ended.commit_ts
