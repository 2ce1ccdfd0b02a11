"""Reading what an error carries, whether it was raised in this process or came over the wire.

In this process a fact is the object itself; over RPC structs arrive as the lists they encode to, and one that was too
large arrives as text. Whatever cannot be read counts as not being there: facts are hints, and their absence costs a
round trip, not an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.model.descriptors import RangeDescriptor
from slackwater.model.ids import NodeId
from slackwater.model.txns import Intent

if TYPE_CHECKING:
    from slackwater.errors import ConflictError, RangeMismatch, SlackwaterError

T = TypeVar("T")


def descriptors_of(error: RangeMismatch) -> list[RangeDescriptor]:
    """What the refusing replica knows about the keys asked for."""
    return _structs(error.facts.get("descriptors"), RangeDescriptor)


def intents_of(error: ConflictError) -> list[Intent]:
    """The intents in the way: those that name a transaction and the place of its record."""
    return [i for i in _structs(error.facts.get("intents"), Intent) if i.txn_id and i.anchor]


def hint_of(error: SlackwaterError) -> NodeId:
    """The node that holds the lease, says the refusal; 0 for no idea."""
    hint = error.facts.get("hint")
    return NodeId(hint) if isinstance(hint, int) else NodeId(0)


def timestamp_of(error: SlackwaterError, name: str) -> Timestamp:
    """A timestamp among the facts; MIN when there is none, or none that another may follow."""
    value = error.facts.get(name)
    return Timestamp(value) if isinstance(value, int) and MIN <= value < MAX else MIN


def maybe_sent(error: SlackwaterError) -> bool:
    """Whether the request may have reached a replica. Only an explicit `sent=False` says no."""
    return error.facts.get("sent") is not False


def _structs(value: object, kind: type[T]) -> list[T]:
    if not isinstance(value, list | tuple):
        return []
    found = []
    for item in value:
        made = _struct(item, kind)
        if made is not None:
            found.append(made)
    return found


def _struct(item: Any, kind: type[T]) -> T | None:
    if isinstance(item, kind):
        return item
    try:
        if isinstance(item, bytes):
            return msgspec.msgpack.decode(item, type=kind)
        return msgspec.convert(item, type=kind)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return None
