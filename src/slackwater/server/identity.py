"""Who a store belongs to: cluster, node and log, written once and checked at every start.

A store holds a range's state up to a position in one particular log. Opened against another log — a re-created stream, a
restored file, the neighbour's cluster — its positions would mean something else, and acknowledged writes would silently be
missing (pitfall 55). So the first start writes down which log it was, and every later one refuses any other.
"""

from __future__ import annotations

import msgspec

from slackwater.errors import LogIdentityMismatch, StorageError, UsageError
from slackwater.model.layout import range_local
from slackwater.runtime.seam import Engine, Family, LogIdentity, NodeId
from slackwater.storage.batch import WriteBatch

IDENTITY_KEY = range_local(0, b"identity")


class StoreIdentity(msgspec.Struct, frozen=True):
    """What a store is part of."""

    cluster_id: str
    node_id: NodeId
    log: LogIdentity


def read_identity(engine: Engine) -> StoreIdentity | None:
    """The identity written at the store's first start; None for an empty store."""
    raw = engine.get(Family.LOCAL, IDENTITY_KEY)
    if raw is None:
        return None
    try:
        return msgspec.msgpack.decode(raw, type=StoreIdentity)
    except msgspec.MsgspecError as error:
        raise StorageError("the store's identity cannot be read; is this a slackwater data directory?") from error


def put_identity(batch: WriteBatch, identity: StoreIdentity) -> None:
    """Write down who a store is, in the batch that makes it so."""
    batch.put(Family.LOCAL, IDENTITY_KEY, msgspec.msgpack.encode(identity))


async def write_identity(engine: Engine, identity: StoreIdentity) -> None:
    """Make an empty store part of a cluster, durably."""
    if read_identity(engine) is not None:
        raise UsageError("this store already belongs to a cluster; use an empty data directory")
    batch = WriteBatch()
    put_identity(batch, identity)
    engine.write(batch)
    await engine.flush()


def check_log(identity: StoreIdentity, actual: LogIdentity) -> None:
    """Refuse a log that is not the one this store was built on."""
    if identity.log != actual:
        raise LogIdentityMismatch(
            "this is not the log that the store was built on; start with the original log, or restore the store from a backup",
            expected=tuple(identity.log),
            actual=tuple(actual),
        )
