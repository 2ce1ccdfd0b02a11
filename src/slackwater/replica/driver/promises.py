"""What replicas were promised by the side transport, kept over restarts of their node.

Promises are no part of the replicated state, and most ranges are idle most of the time: what is closed there is known from
promises alone. So a node writes them down, all in one record, with every flush; the next start takes them up before anything
is served. A node that was stopped in good order knows no less than before; one that crashed knows no less than at its last
flush (I-09), and is told the rest by the first message of its leaseholders' nodes. Recovery from surviving stores counts on
that: a range at rest must not hold everything back. A promise (index, timestamp) is true for ever, so a record that is older
than the store around it does no harm. Why, and what it costs: docs/decisions/015-what-a-restart-remembers.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.closedts.records import Promise
from slackwater.codec.layout import range_local
from slackwater.hooks import probe
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.ids import RangeId
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from slackwater.closedts.publisher import Publisher
    from slackwater.replica.driver.replica import Replica
    from slackwater.runtime.seam import Engine, Reader

PROMISES_KEY = range_local(0, b"promises")
LOOKED_AT_ONCE = 256
"""Replicas whose promises are looked up in one step of the loop."""

_decoder = msgspec.msgpack.Decoder(dict[int, tuple[int, int]])


async def note(engine: Engine, replicas: Mapping[RangeId, Replica], pause: Callable[[], Awaitable[None]]) -> int:
    """Write down what replicas know beyond what they have applied; made durable by the flush that follows.

    Looks at a few replicas at a time and pauses in between: promises need no common moment. Returns how many there are.
    """
    known: dict[RangeId, Promise] = {}
    for number, (range_id, replica) in enumerate(list(replicas.items()), 1):
        # What this node promised itself, as leaseholder, reached it like any other promise, with its index.
        closed = replica.closing.closed()
        if closed > replica.state.closed:
            known[range_id] = Promise(replica.state.lai, closed)
        if number % LOOKED_AT_ONCE == 0:
            await pause()
    encoded = msgspec.msgpack.encode(known)
    assert len(_decoder.decode(encoded)) == len(known), "what is noted can be recalled (I-09)"
    batch = WriteBatch()
    batch.put(Family.LOCAL, PROMISES_KEY, encoded)
    engine.write(batch)
    return len(known)


def recall(engine: Engine, transport: Publisher) -> None:
    """Hand what was written down to the replicas that are here, before they are asked."""
    for range_id, promise in remembered(engine).items():
        transport.recall(range_id, promise)


def remembered(reader: Reader) -> dict[RangeId, Promise]:
    """The promises that a store's node last wrote down."""
    raw = reader.get(Family.LOCAL, PROMISES_KEY)
    try:
        known = {} if raw is None else _decoder.decode(raw)
    except msgspec.MsgspecError:  # of another version of this program; replicas are told again
        probe("store.promises_unreadable")
        return {}
    return {RangeId(r): Promise(LeaseAppliedIndex(lai), Timestamp(ts)) for r, (lai, ts) in known.items()}
