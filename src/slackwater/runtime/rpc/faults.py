"""Errors that travel: class name, message and facts out; the same class back in at the caller.

A caller acts on the class (`except NotLeaseholder`), so the class must survive the wire. Only classes of `errors.py`
do: an unknown name, from a newer peer say, becomes a plain `SlackwaterError` whose message keeps the name. Facts are
limited to what msgpack can carry; anything else travels as its `repr`. Tuples arrive as lists and structs as what they
encode to.
"""

from __future__ import annotations

from typing import Any

import msgspec

from slackwater import errors
from slackwater.errors import DamageError, InvariantViolation, SlackwaterError
from slackwater.runtime.rpc.wire import Fault, Goodbye, encode

FACTS_MAX = 32
FACT_BYTES_MAX = 1 << 16
MESSAGE_CHARS_MAX = 4096
_RULE = "rule"  # InvariantViolation keeps its rule beside the facts; on the wire it is one of them

CLASSES: dict[str, type[SlackwaterError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, SlackwaterError)
}


def fault(call_id: int, ts: int, error: BaseException) -> Fault:
    """The frame that ends a call with this error."""
    name, message, facts = pack(error)
    return Fault(call_id, ts, name, message, facts)


def goodbye(error: BaseException) -> Goodbye:
    """The frame that ends a connection with this error."""
    return Goodbye(*pack(error))


def pack(error: BaseException) -> tuple[str, str, dict[str, Any]]:
    """An error as class name, message and facts."""
    if not isinstance(error, SlackwaterError):
        return SlackwaterError.__name__, _text(f"{type(error).__name__}: {error}"), {}
    facts = {_text(name): _carry(value) for name, value in list(error.facts.items())[:FACTS_MAX]}
    if isinstance(error, InvariantViolation):
        facts[_RULE] = error.rule
    name = type(error).__name__
    if CLASSES.get(name) is not type(error):  # a private subclass: the nearest class the peer knows
        name = next(c.__name__ for c in type(error).__mro__ if CLASSES.get(c.__name__) is c)
    return name, _text(error.message), facts


def without_facts(error: SlackwaterError) -> SlackwaterError:
    """The same error with nothing but its class and message, for when its facts do not fit in a frame."""
    name, message, facts = pack(error)
    return unpack(name, message, {_RULE: facts[_RULE]} if isinstance(error, InvariantViolation) else {})


def unpack(name: str, message: str, facts: dict[str, Any]) -> SlackwaterError:
    """The error a peer packed, as the same class."""
    known = CLASSES.get(name)
    if known is None:
        return SlackwaterError(f"{name}: {message}", **facts)
    if known is InvariantViolation:
        violation = InvariantViolation(str(facts.pop(_RULE, "?")), facts)
        violation.remote = True
        return violation
    error = known.__new__(known)
    SlackwaterError.__init__(error, message, **facts)  # a subclass may have a constructor of its own
    if isinstance(error, DamageError):
        error.remote = True
    return error


def _text(text: str) -> str:
    """Bounded, and without the half characters that file names can hold and UTF-8 cannot."""
    return text[:MESSAGE_CHARS_MAX].encode("utf-8", "backslashreplace").decode()


def _carry(value: object) -> object:
    """The value if msgpack can carry it within the bound, its `repr` otherwise."""
    try:
        if len(encode(value)) <= FACT_BYTES_MAX:
            return msgspec.to_builtins(value, builtin_types=(bytes, bytearray))
    except Exception:  # whatever it is that cannot be encoded, its repr can
        pass
    return repr(value)[:MESSAGE_CHARS_MAX]
