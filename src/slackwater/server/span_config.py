"""What holds for a span of keys: for now, how many replicas its ranges should have.

One record per span in range 1, `system("config", start)`. Spans do not overlap; where no record holds, the setting
`range.replication_factor` does. Ranges are split at the bounds of spans, so each range has one configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import DecodeError, UsageError
from slackwater.model.layout import check_split_key, prefix_end, system

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.replica.driver import SystemKv

FACTOR_MAX = 9


class SpanConfig(msgspec.Struct, frozen=True):
    """The configuration of `[start, end)`."""

    start: bytes
    end: bytes
    replication_factor: int


_decoder = msgspec.msgpack.Decoder(SpanConfig)


def config_key(start: bytes) -> bytes:
    """Where the configuration of the span that begins at `start` lives."""
    return system("config", start)


def factor_of(configs: Sequence[SpanConfig], descriptor: RangeDescriptor, *, default: int) -> int:
    """How many replicas a range should have."""
    for config in configs:
        if config.start <= descriptor.start < config.end:
            return config.replication_factor
    return default


def bound_inside(configs: Sequence[SpanConfig], descriptor: RangeDescriptor) -> bytes | None:
    """The first bound of a configuration inside a range: where it must be split."""
    bounds = {b for c in configs for b in (c.start, c.end) if descriptor.start < b < descriptor.end}
    return min(bounds, default=None)


async def read_configs(kv: SystemKv) -> list[SpanConfig]:
    """Every span's configuration, in order."""
    prefix = system("config")[:-2]
    rows = await kv.scan(prefix, prefix_end(prefix))
    try:
        return [_decoder.decode(value) for _, value in rows]
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError("a span configuration cannot be read") from error


async def write_config(kv: SystemKv, config: SpanConfig) -> None:
    """Set the configuration of a span that overlaps no other (but may replace the one with the same bounds)."""
    check_split_key(config.start)
    if not config.start < config.end or not 1 <= config.replication_factor <= FACTOR_MAX:
        raise UsageError("a span configuration needs a span and 1 to 9 replicas", config=config)
    for other in await read_configs(kv):
        same = (other.start, other.end) == (config.start, config.end)
        if not same and other.start < config.end and config.start < other.end:
            raise UsageError("span configurations may not overlap", other=other)
    await kv.put(config_key(config.start), msgspec.msgpack.encode(config))
