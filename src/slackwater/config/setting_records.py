"""Settings of the whole cluster as keys and bytes: `system("setting", name)` → a number. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.codec.keys import unescape
from slackwater.codec.layout import prefix_span, system
from slackwater.errors import DecodeError

if TYPE_CHECKING:
    from slackwater.model.spans import Span

_decoder = msgspec.msgpack.Decoder(float)
_PREFIX = system("setting")[:-2]


def settings_span() -> Span:
    """All records."""
    return prefix_span(_PREFIX)


def setting_key(name: str) -> bytes:
    """Where a setting's record lives."""
    return system("setting", name.encode())


def encode_setting(value: float) -> bytes:
    """The bytes of a record."""
    return msgspec.msgpack.encode(float(value))


def setting_name(key: bytes) -> str:
    """The setting that a record is of."""
    try:
        return unescape(key, len(_PREFIX))[0].decode()
    except UnicodeDecodeError:
        raise DecodeError("a setting's name is no text", key=key[:64]) from None


def decode_setting(value: bytes) -> float:
    """The value in a record."""
    try:
        return float(_decoder.decode(value))
    except (msgspec.MsgspecError, ValueError):
        raise DecodeError("a setting's record is no number", value=value[:16]) from None
