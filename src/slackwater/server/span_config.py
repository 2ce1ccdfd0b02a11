"""What holds for a span of keys: how many replicas its ranges should have, and which timestamps they close.

One record per span in range 1, `system("config", start)`, and one for all the rest, `system("config", "")`. What a record
leaves open, the record for the rest decides, and what that leaves open, the settings do:

    record of the span ──► record of the rest ──► range.replication_factor, closed_timestamp.target_duration

    [a ────────── m)  policy=lead             read everywhere at present time; writers wait for their time to come
            [m ── p)  lag of 500 ms           …
    the rest          replicas=5              …

Spans do not overlap. A change is one transaction that reads all records: two operators who set overlapping spans at the
same time do not both succeed. Ranges are split at the bounds of spans and never merge across one, so that sooner or later
each range has one configuration; until then a range closes what the most careful of its policies allows
(`closedts.policy.SpanPolicies`). Configuration is a wish, not a promise: nothing that is served depends on when a
node learns of it, and a node that has read none yet closes by the cluster's lag.

The system's own keys always lag, by the cluster's setting: leases and the index of ranges must not wait for the future, and
what follows them must learn how far it is. No record has a say in that, the one for the rest included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.closedts.policy import Kind, Policy, SpanPolicies
from slackwater.codec.layout import KV as KV_PREFIX
from slackwater.codec.layout import check_split_key, prefix_end, system
from slackwater.errors import DecodeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.replica.driver import SystemKv
    from slackwater.txn.coordinator import Transaction
    from slackwater.txn.kv import KV

FACTOR_MAX = 9
CONFIGS_MAX = 10_000
DURATION_MS_MAX = 600_000
SYSTEM_POLICY = Policy()
"""Of the keys below `layout.KV`, whatever records say."""


class SpanConfig(msgspec.Struct, frozen=True):
    """The configuration of `[start, end)`, or of the rest of the key space when both are empty."""

    start: bytes = b""
    end: bytes = b""
    replication_factor: int = 0
    """0: as many as elsewhere."""
    policy: Kind | None = None
    """None: as elsewhere."""
    duration_ms: int = 0
    """How far a lagging span lags; 0: `closed_timestamp.target_duration`."""

    @property
    def is_rest(self) -> bool:
        """Whether this is the record for all that has none of its own."""
        return not self.start and not self.end

    def closing(self) -> Policy | None:
        """Which timestamps it has closed; None: the record leaves that open."""
        return None if self.policy is None else Policy(self.policy, self.duration_ms)


_decoder = msgspec.msgpack.Decoder(SpanConfig)


def config_key(start: bytes) -> bytes:
    """Where the configuration of the span that begins at `start` lives."""
    return system("config", start)


def config_span() -> tuple[bytes, bytes]:
    """All records: what a watcher watches."""
    prefix = system("config")[:-2]
    return prefix, prefix_end(prefix)


# --- what follows from it ------------------------------------------------------------------------------------------


def config_of(configs: Sequence[SpanConfig], descriptor: RangeDescriptor) -> SpanConfig:
    """What holds where a range begins, with what the rest's record fills in."""
    rest = next((c for c in configs if c.is_rest), SpanConfig())
    for config in configs:
        if not config.is_rest and config.start <= descriptor.start < config.end:
            factor = config.replication_factor or rest.replication_factor
            if config.policy is None:
                return SpanConfig(b"", b"", factor, rest.policy, rest.duration_ms)
            return SpanConfig(b"", b"", factor, config.policy, config.duration_ms)
    return rest


def factor_of(configs: Sequence[SpanConfig], descriptor: RangeDescriptor, *, default: int) -> int:
    """How many replicas a range should have."""
    return config_of(configs, descriptor).replication_factor or default


def bound_inside(configs: Sequence[SpanConfig], descriptor: RangeDescriptor) -> bytes | None:
    """The first bound of a configuration inside a range: where it must be split."""
    bounds = {b for c in configs for b in (c.start, c.end) if descriptor.start < b < descriptor.end}
    return min(bounds, default=None)


def policies_of(configs: Sequence[SpanConfig], *, rtt_step: int) -> SpanPolicies:
    """Which policy holds where; leads are made for a round trip of that step."""

    def stepped(policy: Policy) -> Policy:
        return Policy(policy.kind, 0, rtt_step) if policy.kind is Kind.LEAD else policy

    rest = next((c.closing() for c in configs if c.is_rest), None) or Policy()
    named = [(c.start, c.end, stepped(p)) for c in configs if not c.is_rest and (p := c.closing()) is not None]
    users = [(max(start, KV_PREFIX), end, policy) for start, end, policy in named if end > KV_PREFIX]
    return SpanPolicies([(b"", KV_PREFIX, SYSTEM_POLICY), *users], default=rest)


# --- reading and writing it ----------------------------------------------------------------------------------------


def decode_config(value: bytes) -> SpanConfig:
    """A stored record."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError("a span configuration cannot be read") from error


async def read_configs(kv: SystemKv) -> list[SpanConfig]:
    """Every span's configuration, in order."""
    return [decode_config(value) for _, value in await kv.scan(*config_span())]


async def write_config(kv: KV, config: SpanConfig) -> None:
    """Set the configuration of a span that overlaps no other (but may replace the one with the same bounds)."""
    _check(config)

    async def write(txn: Transaction) -> None:
        await _check_alone(txn, config)
        await txn.put(config_key(config.start), msgspec.msgpack.encode(config))

    await kv.run(write)


async def change_config(
    kv: KV,
    start: bytes,
    end: bytes,
    *,
    replication_factor: int | None = None,
    policy: Kind | None = None,
    duration_ms: int | None = None,
    timeout: float | None = None,
) -> SpanConfig:
    """Change some of a span's configuration, keeping what is not named; returns the whole of it."""
    made: list[SpanConfig] = []

    async def write(txn: Transaction) -> None:
        found = await txn.get(config_key(start))
        old = SpanConfig(start, end) if found is None else decode_config(found)
        new = SpanConfig(
            start,
            end,
            old.replication_factor if replication_factor is None else replication_factor,
            old.policy if policy is None else policy,
            old.duration_ms if duration_ms is None else duration_ms,
        )
        if policy is not None and policy is not Kind.LAG and duration_ms is None:
            new = msgspec.structs.replace(new, duration_ms=0)
        _check(new)
        await _check_alone(txn, new)
        await txn.put(config_key(start), msgspec.msgpack.encode(new))
        made[:] = [new]

    await kv.run(write, timeout=timeout)
    return made[0]


async def remove_config(kv: KV, start: bytes, end: bytes, *, timeout: float | None = None) -> bool:
    """Let a span be as the rest again; whether it was anything else."""

    async def remove(txn: Transaction) -> bool:
        found = await txn.get(config_key(start))
        if found is None:
            return False
        if (other := decode_config(found)).end != end:
            raise UsageError("the configuration that begins there ends elsewhere; name its bounds", end=other.end)
        await txn.delete(config_key(start))
        return True

    return await kv.run(remove, timeout=timeout)


def _check(config: SpanConfig) -> None:
    if not config.is_rest:
        check_split_key(config.start)
        if not config.start < config.end:
            raise UsageError("a span ends above its start", start=config.start, end=config.end)
    if not 0 <= config.replication_factor <= FACTOR_MAX:
        raise UsageError(
            f"a range has 1 to {FACTOR_MAX} replicas; 0 is as many as elsewhere", replicas=config.replication_factor
        )
    if not 0 <= config.duration_ms <= DURATION_MS_MAX or (config.duration_ms and config.policy is not Kind.LAG):
        raise UsageError(
            f"a duration of 1 to {DURATION_MS_MAX} ms belongs to the policy `lag`", duration_ms=config.duration_ms
        )
    if config.policy is Kind.LEAD and config.start < KV_PREFIX:
        raise UsageError("the system's own keys cannot lead, so name the spans that should", start=config.start)
    if config.policy is not None and not config.is_rest and config.start < KV_PREFIX:
        raise UsageError(
            "the system's own keys always lag by closed_timestamp.target_duration; name a span of tables or plain keys",
            start=config.start,
        )


async def _check_alone(txn: Transaction, config: SpanConfig) -> None:
    """No other span overlaps it. The scan is part of the transaction, so none can come meanwhile."""
    rows = await txn.scan(*config_span())
    others = [decode_config(value) for value in rows.values]
    if len(others) >= CONFIGS_MAX:
        raise UsageError("too many spans have a configuration of their own; give neighbors one span", limit=CONFIGS_MAX)
    for other in others:
        same = (other.start, other.end) == (config.start, config.end)
        apart = other.is_rest or config.is_rest or other.end <= config.start or config.end <= other.start
        if not same and not apart:
            raise UsageError("span configurations may not overlap; unset the other first", other=other)
