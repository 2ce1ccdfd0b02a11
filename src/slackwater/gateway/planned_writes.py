"""Writes rows of a table with secondary indexes inside a transaction: reads what the plan needs, plans, writes rows and entries.

    rows ──► plan ──► reads (old rows and unique values: one message) ──► puts and deletes, held back to the commit
                                                                              │ all in one range: one command
                                                                              └ several: intents, and a record

The reads are the transaction's own, so they see what it wrote before, and hold until it commits: a row that another transaction
changes in between makes this one read again. Rows and entries are committed at one timestamp or not at all, wherever they
are and whatever dies in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import ConditionFailed
from slackwater.protocol.range.requests import Get, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.catalog.planning import WritePlanner
    from slackwater.protocol.client.calls import WriteKind
    from slackwater.protocol.range.requests import Request
    from slackwater.txn import Transaction

KEYS_READ_AT_ONCE = 2_000
"""Keys of one message to a range; more are read in several."""


async def write_planned(
    txn: Transaction, planner: WritePlanner, kind: WriteKind, keys: Sequence[bytes], values: Sequence[bytes]
) -> None:
    """Give a transaction rows and what follows from them; after an error that is not retryable it has got none of it."""
    if not keys:
        return
    writes = planner.begin(kind, keys, values)
    found = await read_keys(txn, writes.reads())
    further = writes.further_reads(found)
    if further:
        found |= await read_keys(txn, further)
    try:
        planned = writes.plan(found)
    except ConditionFailed:
        _anchor(txn, keys[0])  # as a client takes it, to whom such an error says that the write was looked at
        raise
    _anchor(txn, keys[0])
    if planned.puts:
        ordered = sorted(planned.puts)
        await txn.put_rows(ordered, [planned.puts[key] for key in ordered])
    if planned.deletes:
        await txn.delete_rows(planned.deletes)


def _anchor(txn: Transaction, key: bytes) -> None:
    """Let a transaction's record live with its first row: that is where its client asks for it."""
    if not txn.state.anchor:
        txn.state.anchor = key


async def read_keys(txn: Transaction, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
    """The values of keys as a transaction sees them; None where there is none."""
    found: dict[bytes, bytes | None] = {}
    for low in range(0, len(keys), KEYS_READ_AT_ONCE):
        part = keys[low : low + KEYS_READ_AT_ONCE]
        gets: list[Request] = [Get(key) for key in part]
        for key, value in zip(part, await txn.batch(gets), strict=True):
            found[key] = value.value if isinstance(value, Value) else None
    return found
