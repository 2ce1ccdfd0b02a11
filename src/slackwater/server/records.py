"""Checks what is written under the keys of the cluster's own records: every node reads them, and must be able to.

    02  meta             a range descriptor that ends where its key says
    03  liveness         the record of the node that its key names
        address          the descriptor of the node that its key names
        config           the configuration of the span that its key names
        setting          a number
        table            one version of the table that its key names, or the note that it is being dropped
        table_name       a table's id
        alloc            a counter

The check is made where a write is evaluated (`slackwater.replica.evaluate_data:put`), for every caller: raw key/value
requests reach the same keys, and one record that does not decode would end the loops of every node that reads it.
Names that are not listed are no records and are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog.records import check_name_record, check_table_record
from slackwater.codec import layout
from slackwater.codec.keys import unescape
from slackwater.config.zones import ZoneConfig
from slackwater.errors import DecodeError, UsageError
from slackwater.model.descriptors import Liveness, NodeDescriptor
from slackwater.server import meta
from slackwater.storage.writes import counter_of

if TYPE_CHECKING:
    from collections.abc import Callable

DESCRIPTOR_BYTES_MAX = 1 << 16
"""No record of a range, a node or a span is larger."""

_liveness = msgspec.msgpack.Decoder(Liveness)
_node = msgspec.msgpack.Decoder(NodeDescriptor)
_config = msgspec.msgpack.Decoder(ZoneConfig)
_number = msgspec.msgpack.Decoder(float)


def check_record(key: bytes, value: bytes) -> None:
    """Raise `UsageError` when `value` could not be read back from under `key`."""
    try:
        if key.startswith(layout.META):
            _check_range(key, value)
        elif key.startswith(layout.SYSTEM):
            name, at = unescape(key, 1)
            check = _CHECKS.get(name)
            if check is not None:
                rest, end = unescape(key, at)
                _require(end == len(key), "bytes follow its key")
                check(key, rest, value)
    except (DecodeError, UsageError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = error.message if isinstance(error, DecodeError | UsageError) else str(error)
        raise UsageError(f"this is no record of the system: {why}; nothing was written", key=key[:64]) from None


def _require(holds: bool, why: str) -> None:  # noqa: FBT001 - reads as a statement
    if not holds:
        raise DecodeError(why)


def _check_range(key: bytes, value: bytes) -> None:
    _require(len(value) <= DESCRIPTOR_BYTES_MAX, "it is too large")
    found = meta.decode(key, value).descriptor
    _require(key == layout.meta(found.end), "the range ends at another key")
    _require(found.start < found.end <= layout.KEY_MAX, "its bounds are not in order")
    _require(0 < len(found.replicas) == len(set(found.replicas)), "its replicas are none, or doubled")
    _require(found.range_id > 0 and found.generation > 0, "its id and its generation count from 1")


def _check_liveness(key: bytes, rest: bytes, value: bytes) -> None:
    found = _liveness.decode(value)
    _require(rest == found.node_id.to_bytes(4, "big"), "it is of another node")


def _check_address(key: bytes, rest: bytes, value: bytes) -> None:
    _require(len(value) <= DESCRIPTOR_BYTES_MAX, "it is too large")
    found = _node.decode(value)
    _require(rest == found.node_id.to_bytes(4, "big"), "it is of another node")


def _check_config(key: bytes, rest: bytes, value: bytes) -> None:
    _require(len(value) <= DESCRIPTOR_BYTES_MAX, "it is too large")
    found = _config.decode(value)
    _require(rest == found.start, "it is of another span")
    _require(found.is_rest or found.start < found.end, "its bounds are not in order")


_CHECKS: dict[bytes, Callable[[bytes, bytes, bytes], object]] = {
    b"liveness": _check_liveness,
    b"address": _check_address,
    b"config": _check_config,
    b"setting": lambda key, rest, value: (rest.decode(), _number.decode(value)),
    b"table": lambda key, rest, value: check_table_record(key, value),
    b"table_name": lambda key, rest, value: check_name_record(rest, value),
    b"alloc": lambda key, rest, value: counter_of(value),
}
