"""Every number in a request is bounded where its type is declared, so that one that no handler expects does not decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec import inspect as mi

from slackwater.errors import DecodeError
from slackwater.protocol.client.calls import WRITE
from slackwater.runtime.rpc.method import StreamMethod
from tests.fuzz.shapes import methods

if TYPE_CHECKING:
    from collections.abc import Iterator


def unbounded(kind: mi.Type, path: str, inside: frozenset[type] = frozenset()) -> Iterator[str]:
    """Where in a type there are integers without a lowest or a highest value."""
    match kind:
        case mi.IntType(ge=low, gt=above, le=high, lt=below):
            if (low is None and above is None) or (high is None and below is None):
                yield path
        case mi.StructType(cls=cls, fields=fields):
            for field in () if cls in inside else fields:
                yield from unbounded(field.type, f"{path}.{field.name}", inside | {cls})
        case mi.NamedTupleType(fields=fields):
            for field in fields:
                yield from unbounded(field.type, f"{path}.{field.name}", inside)
        case mi.ListType(item_type=item) | mi.VarTupleType(item_type=item) | mi.SetType(item_type=item):
            yield from unbounded(item, f"{path}[]", inside)
        case mi.TupleType(item_types=items) | mi.UnionType(types=items):
            for item in items:
                yield from unbounded(item, path, inside)
        case mi.DictType(key_type=key, value_type=value):
            yield from unbounded(key, f"{path} keys", inside)
            yield from unbounded(value, f"{path} values", inside)


@pytest.mark.parametrize("name", methods())
def test_every_number_of_a_request_has_bounds(name):
    method = methods()[name]
    assert list(unbounded(mi.type_info(method.request_type), name)) == []


@pytest.mark.parametrize("name", [n for n, m in methods().items() if isinstance(m, StreamMethod) and "closedts" in n])
def test_what_nodes_say_of_closed_timestamps_has_bounds_too(name):
    assert list(unbounded(mi.type_info(methods()[name].response_type), name)) == []


@pytest.mark.parametrize("table_id", [0, -1, 1 << 31, 1 << 63])
def test_an_id_that_no_table_has_does_not_decode(table_id):
    body = {"table_id": table_id, "version": 1, "kind": "upsert", "keys": [b"k"], "values": [b"v"]}
    with pytest.raises(DecodeError, match="table_id"):
        WRITE.decode_request(msgspec.msgpack.encode(body))


def test_the_walk_finds_what_is_not_bounded():
    class Odd(msgspec.Struct):
        a: list[tuple[str, int]]
        b: dict[str, int | None] = {}

    assert list(unbounded(mi.type_info(Odd), "odd")) == ["odd.a[]", "odd.b values"]
