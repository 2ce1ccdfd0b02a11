"""Bodies for every RPC method, made from the types that the method declares.

A body is drawn in two steps. First a tree of plain values that fits the type, where every leaf comes from a pool: edge cases
of its kind, or words that mean something to this cluster (its ranges, keys, tables, times). Then, sometimes, a fault: a leaf
of another kind, a field too few or too many, flipped or missing bytes.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from typing import Any

import msgspec
from msgspec import inspect as mi

import slackwater
from slackwater.runtime.rpc.method import Method, StreamMethod

DEPTH_MAX = 6
EDGES = [
    0,
    1,
    -1,
    2,
    7,
    127,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
]
FLOATS = [0.0, -0.0, 1.5, -1.0, 1e308, 1e-308, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "a", "no such", "\0", "x" * 300, "\U0001f600", "../../etc/passwd", "%s%n", "'; drop table t; --"]
BYTES = [
    b"",
    b"\x00",
    b"\xff",
    b"\x05",
    b"\x05\x00\x00\x00\x01",
    b"x" * 300,
    b"\x01r" + bytes(8),
    b"\x02\xff",
    b"\x03a",
]
UNSENT = {"sim"}  # packages whose methods no node serves


class Words:
    """What means something to the cluster under siege."""

    def __init__(self, *, keys: list[bytes], names: list[str], numbers: list[int], times: list[int]) -> None:
        self.keys, self.names, self.numbers, self.times = keys, names, numbers, times


def methods() -> dict[str, Method[Any, Any] | StreamMethod[Any, Any]]:
    """Every method that is declared anywhere in the package, by name."""
    found: dict[str, Method[Any, Any] | StreamMethod[Any, Any]] = {}
    for module in pkgutil.walk_packages(slackwater.__path__, "slackwater."):
        top = module.name.split(".")[1]
        if top in UNSENT or top in {"spark", "demo"}:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Method | StreamMethod):
                found[value.name] = value
    return dict(sorted(found.items()))


class Shapes:
    """Draws bodies of one run; the same seed draws the same bodies."""

    def __init__(self, seed: int, words: Words) -> None:
        self._random = random.Random(seed)
        self._words = words
        self._types: dict[str, mi.Type] = {}

    def body(
        self,
        method: Method[Any, Any] | StreamMethod[Any, Any],
        *,
        avoid: frozenset[int] = frozenset(),
        damage: bool = False,
    ) -> bytes:
        """An encoded request for a method, mostly one that decodes. No whole number of it is one of `avoid`.

        With `damage` its bytes may be no message at all, which ends the connection they are sent on.
        """
        known = self._types.get(method.name)
        if known is None:
            known = self._types[method.name] = mi.type_info(method.request_type)
        tree = self._value(known, 0)
        if self._chance(0.15):
            tree = self._disturb(tree)
        if avoid:
            tree = _without(tree, avoid)
        try:
            encoded = msgspec.msgpack.encode(tree)
        except (OverflowError, msgspec.MsgspecError, RecursionError):
            encoded = b"\xc0"
        return self._damage(encoded) if damage and self._chance(0.5) else encoded

    def tree(self, kind: type) -> Any:
        """Plain values that fit a type."""
        return self._value(mi.type_info(kind), 0)

    def noise(self) -> bytes:
        """Bytes that are no request at all."""
        return self._random.randbytes(self._random.choice([0, 1, 3, 20, 200, 3000]))

    def number(self) -> int:
        """A whole number for the envelope."""
        return self._random.choice(EDGES)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _value(self, kind: mi.Type, depth: int) -> Any:
        pick = self._random.choice
        match kind:
            case mi.NoneType():
                return None
            case mi.BoolType():
                return pick([False, True])
            case mi.IntType():
                return self._whole()
            case mi.FloatType():
                return pick(FLOATS)
            case mi.StrType():
                return pick(self._words.names) if self._chance(0.6) else pick(TEXTS)
            case mi.BytesType() | mi.MemoryViewType() | mi.ByteArrayType():
                return self._bytes()
            case mi.EnumType(cls=cls):
                return pick([member.value for member in cls])
            case mi.LiteralType(values=values):
                return pick(list(values))
            case mi.ListType(item_type=item) | mi.VarTupleType(item_type=item) | mi.SetType(item_type=item):
                return [self._value(item, depth + 1) for _ in range(self._count(depth))]
            case mi.TupleType(item_types=items):
                return [self._value(item, depth + 1) for item in items]
            case mi.DictType(key_type=key, value_type=value):
                pairs = [
                    (self._value(key, depth + 1), self._value(value, depth + 1)) for _ in range(self._count(depth))
                ]
                return {k: v for k, v in pairs if isinstance(k, str | int | bytes)}
            case mi.UnionType(types=types):
                return self._value(pick(types), depth + 1)
            case mi.StructType():
                return self._struct(kind, depth)
            case _:
                return pick([None, 0, "x", b"x", [], {}, 1.5])

    def _struct(self, kind: mi.StructType, depth: int) -> Any:
        # A field with a default is often left out, so that most bodies are simple ones.
        values = {
            field.encode_name: self._value(field.type, depth + 1)
            for field in kind.fields
            if field.required or (depth < DEPTH_MAX and self._chance(0.4))
        }
        if not kind.array_like:
            return values if kind.tag is None else {str(kind.tag_field): kind.tag, **values}
        filled = []
        for field in kind.fields:  # an array may only end early
            if field.encode_name not in values and not self._chance(0.7):
                break
            filled.append(values.get(field.encode_name, self._default(field, depth)))
        return filled if kind.tag is None else [kind.tag, *filled]

    def _default(self, field: mi.Field, depth: int) -> Any:
        if field.default is not mi.NODEFAULT:
            return msgspec.to_builtins(field.default, builtin_types=(bytes,))
        return self._value(field.type, depth + 1)

    def _whole(self) -> int:
        draw = self._random.random()
        if draw < 0.4:
            return self._random.choice(self._words.numbers)
        return self._random.choice(self._words.times if draw < 0.7 else EDGES)

    def _bytes(self) -> bytes:
        draw = self._random.random()
        if draw < 0.7:
            return self._random.choice(self._words.keys)
        return self._random.choice(BYTES) if draw < 0.95 else self._random.randbytes(self._random.randrange(40))

    def _count(self, depth: int) -> int:
        return 0 if depth >= DEPTH_MAX else self._random.choice([0, 1, 1, 1, 2, 3])

    def _disturb(self, tree: Any) -> Any:
        """The tree with one part replaced by something of another kind, taken out, or doubled."""
        odd = [None, -1, 1 << 63, "x", b"x", [], {}, float("nan"), [[[]]], True]
        if isinstance(tree, dict) and tree:
            name = self._random.choice(sorted(tree, key=repr))
            if self._chance(0.3):
                return {k: v for k, v in tree.items() if k != name}
            return {**tree, name: self._disturb(tree[name]) if self._chance(0.5) else self._random.choice(odd)}
        if isinstance(tree, list) and tree:
            at = self._random.randrange(len(tree))
            if self._chance(0.3):
                return tree[:at] + tree[at + 1 :]
            if self._chance(0.3):
                return tree + tree[at:]
            return [
                *tree[:at],
                self._disturb(tree[at]) if self._chance(0.5) else self._random.choice(odd),
                *tree[at + 1 :],
            ]
        return self._random.choice(odd)

    def _damage(self, encoded: bytes) -> bytes:
        if not encoded:
            return encoded
        at = self._random.randrange(len(encoded))
        return self._random.choice(
            [
                encoded[:at],
                encoded[:at] + bytes([encoded[at] ^ self._random.randrange(1, 256)]) + encoded[at + 1 :],
                encoded[:at] + self._random.randbytes(4) + encoded[at:],
                encoded + encoded,
            ]
        )


def _without(tree: Any, avoid: frozenset[int]) -> Any:
    if isinstance(tree, dict):
        return {k: _without(v, avoid) for k, v in tree.items()}
    if isinstance(tree, list):
        return [_without(v, avoid) for v in tree]
    return 990 if type(tree) is int and tree in avoid else tree
