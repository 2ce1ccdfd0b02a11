"""Who a store belongs to: cluster, node and log, written once and checked at every start.

A store holds a range's state up to a position in one particular log. Opened against another log — a re-created stream, a
restored file, the neighbour's cluster — its positions would mean something else, and acknowledged writes would silently be
missing (pitfall 55). So the first start writes down which log it was, and every later one refuses any other. A log of the
right name that ends before what the store has applied (restored from an older backup, or its newest entries were lost) is
refused as well: it would give the same positions to other entries.

A store is also one of a kind. Every process that runs on it draws a number, its *life*, and adds it to the store before it
takes the node's liveness record: a process that finds a life there which its store never had is a copy's
(`replica.driver.liveness`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slackwater.codec.layout import range_local
from slackwater.errors import (
    LogBehindStore,
    LogIdentityMismatch,
    SlackwaterError,
    StorageError,
    UnavailableError,
    UsageError,
)
from slackwater.hooks import probe
from slackwater.log.contract import LogIdentity
from slackwater.model.descriptors import Genesis
from slackwater.model.ids import NodeId
from slackwater.replica.driver.stored import stored_states
from slackwater.routing.parallel import in_parallel
from slackwater.runtime.seam import Engine, Family, Reader
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from slackwater.log.contract import OrderedLog
    from slackwater.runtime.seam import Rng, Runtime, TaskScope

IDENTITY_KEY = range_local(0, b"identity")
LIVES_KEY = range_local(0, b"lives")
STORE_FORMAT = 1
LIVES_KEPT_MAX = 64
"""Of the lives that a store had: the last ones may all have tried to take the record, and any one of them may have it."""
LIFE_BYTES = 7
HEADS_AT_ONCE_MAX = 32
HEADS_TRIES_MAX = 5
HEADS_PAUSE_S = 1.0
"""A log of several servers may be asked where it lags behind its others: it is asked again before a store is refused."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """What a store is part of."""

    cluster_id: str
    node_id: NodeId
    log: LogIdentity
    born: Genesis | None = None
    """None: the cluster is older than this record, and what it began with is not known."""
    format: int = STORE_FORMAT
    """Of what the store holds; raised by a version whose stores an older one would misread."""


def read_identity(engine: Reader) -> StoreIdentity | None:
    """The identity written at the store's first start; None for an empty store."""
    raw = engine.get(Family.LOCAL, IDENTITY_KEY)
    if raw is None:
        return None
    try:
        identity = msgspec.msgpack.decode(raw, type=StoreIdentity)
    except msgspec.MsgspecError as error:
        raise StorageError("the store's identity cannot be read; is this a slackwater data directory?") from error
    if identity.format > STORE_FORMAT:
        raise StorageError(
            f"the store has format {identity.format}, and this version reads formats up to {STORE_FORMAT}; use a newer one"
        )
    return identity


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


class StoreLives:
    """The lives of one store; this process's is the newest. Satisfies `replica.driver.liveness.Lives`."""

    def __init__(self, engine: Engine, rng: Rng) -> None:
        self._engine = engine
        raw = engine.get(Family.LOCAL, LIVES_KEY)
        self._known: list[int] = [] if raw is None else msgspec.msgpack.decode(raw, type=list[int])
        self.life = 1 + int.from_bytes(rng.bytes(LIFE_BYTES), "big")

    def knows(self, life: int) -> bool:
        """Whether a process that ran on this very store had that life; 0 is of a time before lives were counted."""
        return life in (0, self.life) or life in self._known

    async def claim(self) -> None:
        """Return once this life is in the store, durably: before anything in the log or in a record names it."""
        batch = WriteBatch()
        batch.put(Family.LOCAL, LIVES_KEY, msgspec.msgpack.encode([*self._known[1 - LIVES_KEPT_MAX :], self.life]))
        self._engine.write(batch)
        await self._engine.flush()


async def check_heads(engine: Engine, log: OrderedLog, runtime: Runtime, scope: TaskScope) -> None:
    """Refuse a log that ends before what a replica in this store has applied; wait for one that does not answer."""
    states, tries = stored_states(engine), 0
    while True:
        works = [partial(log.head, state.descriptor.range_id) for state in states]
        heads = await in_parallel(scope, works, limit=HEADS_AT_ONCE_MAX, name="heads")
        errors = [head for head in heads if isinstance(head, SlackwaterError)]
        if any(not isinstance(error, UnavailableError) for error in errors):
            raise errors[0]
        known = [(state, head) for state, head in zip(states, heads, strict=True) if isinstance(head, int)]
        ahead = next((one for one in known if one[0].position > one[1]), None)
        if ahead is None and not errors:
            return
        tries += ahead is not None
        if ahead is not None and tries == HEADS_TRIES_MAX:
            state, head = ahead
            raise LogBehindStore(
                "the log ends before what this store has applied: it was restored from an older backup, or has lost its "
                "newest entries. Start with the log that has them; if they are lost for good, start this node with an "
                "empty store, so that it takes its replicas from the other nodes",
                range_id=state.descriptor.range_id,
                applied=state.position,
                head=head,
            )
        probe("start.ask_log_again")
        await runtime.clock.sleep(HEADS_PAUSE_S)


def check_log(identity: StoreIdentity, actual: LogIdentity) -> None:
    """Refuse a log that is not the one this store was built on."""
    if identity.log != actual:
        raise LogIdentityMismatch(
            "this is not the log that the store was built on; start with the original log, or restore the store from a backup",
            expected=tuple(identity.log),
            actual=tuple(actual),
        )
