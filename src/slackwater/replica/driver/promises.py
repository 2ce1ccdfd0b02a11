"""What replicas were promised by the side transport, kept over a graceful restart of their node.

Promises are no part of the replicated state, and most ranges are idle most of the time: what is closed there is known from
promises alone. A node that stops in good order writes them down, all in one record, with its last flush; the next start
takes them up before anything is served, so that no replica knows less than before (I-09). A promise (index, timestamp) is
true for ever, so a record that is older than the store around it does no harm.

A node that crashes leaves none. Its replicas know what they have applied, and are told the rest by the first message of
their leaseholders' nodes: docs/decisions/015-what-a-restart-remembers.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.closedts.receiver import Promise
from slackwater.codec.layout import range_local
from slackwater.hooks import probe
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.ids import RangeId
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater.closedts.publisher import Publisher
    from slackwater.replica.driver.replica import Replica
    from slackwater.runtime.seam import Engine, Reader

PROMISES_KEY = range_local(0, b"promises")

_decoder = msgspec.msgpack.Decoder(dict[int, tuple[int, int]])


def note(engine: Engine, replicas: Mapping[RangeId, Replica]) -> None:
    """Write down what replicas know beyond what they have applied; made durable by the flush that follows."""
    known: dict[RangeId, Promise] = {}
    for range_id, replica in replicas.items():
        closed = replica.closing.closed()
        if closed > replica.state.closed:
            known[range_id] = Promise(replica.state.lai, closed)
    batch = WriteBatch()
    batch.put(Family.LOCAL, PROMISES_KEY, msgspec.msgpack.encode(known))
    engine.write(batch)


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
