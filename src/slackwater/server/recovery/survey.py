"""Reads what a surviving store holds: who it was, its replicas, and up to when each of them is complete. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import StorageError, UsageError
from slackwater.model.descriptors import Liveness, NodeDescriptor
from slackwater.replica.driver.liveness import liveness_span
from slackwater.replica.driver.promises import remembered
from slackwater.replica.driver.stored import stored_states
from slackwater.replica.snapshot import check_whole
from slackwater.runtime.seam import Family
from slackwater.server.addresses import BOOK_KEY
from slackwater.server.identity import read_identity
from slackwater.storage.versions import newest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import Reader
    from slackwater.server.identity import StoreIdentity

NODES_MAX = 100_000
"""Liveness records that are looked at."""


class Copy(NamedTuple):
    """One replica in one surviving store."""

    store: str
    reader: Reader
    state: RangeState
    closed: Timestamp
    """Everything at or below this is here, decided or as an intent: the applied state's, or a promise whose index is applied."""
    damage: str = ""
    """Why it cannot be used; empty: it holds exactly what its statistics say."""

    def name(self) -> str:
        """The replica for people."""
        return f"r{self.state.descriptor.range_id} in {self.store}"


class Survivor(NamedTuple):
    """One surviving store."""

    name: str
    reader: Reader
    identity: StoreIdentity
    copies: list[Copy]
    epochs: dict[int, int]
    """The highest liveness epoch of each node, as far as this store knows."""
    addresses: dict[int, str]
    """Where the nodes of its cluster were."""


def survey(name: str, reader: Reader, *, progress: Callable[[str], None] = lambda _: None) -> Survivor:
    """Read one store. Raises `UsageError` when it belongs to no cluster; a damaged replica is noted, not raised."""
    identity = read_identity(reader)
    if identity is None:
        raise UsageError(f"{name} is an empty store: it belongs to no cluster and has nothing to recover", store=name)
    states = stored_states(reader)
    promises = remembered(reader)
    copies = []
    for state in states:
        range_id = state.descriptor.range_id
        progress(f"{name}: reading r{range_id}")
        promise = promises.get(range_id)
        closed = promise.ts if promise is not None and promise.lai <= state.lai else MIN
        copies.append(Copy(name, reader, state, Timestamp(max(closed, state.closed)), _damage(reader, state)))
    return Survivor(name, reader, identity, copies, _epochs(reader), _addresses(reader))


def check_together(survivors: Sequence[Survivor]) -> None:
    """Raise `UsageError` unless all stores are of different nodes of one cluster, on one log."""
    if not survivors:
        raise UsageError("name at least one surviving store: --store DIR")
    first, nodes = survivors[0], dict[int, Survivor]()
    for one in survivors:
        if one.identity.cluster_id != first.identity.cluster_id:
            raise UsageError(
                f"{one.name} belongs to cluster {one.identity.cluster_id}, {first.name} to cluster "
                f"{first.identity.cluster_id}; name stores of one cluster only",
                store=one.name,
            )
        if one.identity.log != first.identity.log:
            raise UsageError(
                f"{one.name} was built on another log than {first.name}; their positions cannot be compared. Leave one out",
                store=one.name,
            )
        twin = nodes.setdefault(one.identity.node_id, one)
        if twin is not one:
            raise UsageError(
                f"{one.name} and {twin.name} are both of node n{one.identity.node_id}; one is a copy of the other. Name the "
                "newer one only",
                store=one.name,
            )


def _damage(reader: Reader, state: RangeState) -> str:
    try:
        check_whole(reader, state)
    except StorageError as error:
        return error.message
    return ""


def _epochs(reader: Reader) -> dict[int, int]:
    """The newest epochs in the liveness records that this store holds, if it holds some."""
    start, end = liveness_span()
    cursor, keys = reader.cursor(Family.DATA, start=start, end=end), list[bytes]()
    try:
        while len(keys) < NODES_MAX and (chunk := cursor.chunk(1_000)[0]):
            keys += chunk
    except StorageError:
        return {}  # range 1 is damaged here, which its own copy says
    found: dict[int, int] = {}
    for key in sorted({stored[:-8] for stored in keys}):
        version = newest(reader, key)
        if version is not None and version.value:
            record = msgspec.msgpack.decode(version.value, type=Liveness)
            found[record.node_id] = int(record.epoch)
    return found


def _addresses(reader: Reader) -> dict[int, str]:
    raw = reader.get(Family.LOCAL, BOOK_KEY)
    known = [] if raw is None else msgspec.msgpack.decode(raw, type=list[NodeDescriptor])
    return {node.node_id: node.address for node in known}
