"""Zone configuration: how many replicas a span's ranges have, which timestamps they close, and for how long history is kept.

One record per span, `system("config", start)`, one for the system's own keys and one for all the rest. What a record leaves
open, the record for the rest decides, and what that leaves open, a setting or a default does:

    record of the span ──► record of the rest ──► range.replication_factor, closed_timestamp.target_duration, 4 h of history

    [a ────────── m)  policy=lead             read everywhere at present time; writers wait for their time to come
            [m ── p)  gc_ttl_s=600            ten minutes of history instead of four hours
    the rest          replicas=5              …

Spans do not overlap. Ranges are split at their bounds and never merge across one, so that sooner or later each range lies in one
zone; until then a range closes what the most careful of its policies allows, and collects nothing.

The system's own keys (the catalog among them) are a zone of their own. Their history is kept for at least as long as that of any
other zone: a table can be read at a time only with the descriptors of that time.

**How long is history certain to be there?** A protection at `ts` may commit below `ts + gc_ttl`: until then no range has
collected `ts`. That would be wrong after the ttl was *raised*: what the shorter ttl allowed to go is gone. So a record also says
what it replaced, and the commit timestamp of the record (`Zone.written`) says when:

    floor = written − ttl_before        at or below it, history may have been collected under an earlier, shorter ttl

`Zones.allowance` puts both together. A zone that is removed while its floor still matters stays as a record that decides nothing
else; the next change after that takes it away. `revised` computes all of that; it is the only way to a changed record.

What garbage collection needs to know (`Zones.of`): the ttl, and the MVCC timestamp at which the configuration was written,
because protections must have been read *after* it; and `Zones.read_at`, up to which this copy is known to be complete, because
a ttl that was raised since then may already have been relied on. With R, the read time of the protections:

    threshold <= min(R, Zones.read_at) − ttl − clock offset,   if written < R
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.codec.layout import KEY_MAX, KEY_MIN, check_split_key, prefix_end, system
from slackwater.codec.layout import KV as KV_PREFIX
from slackwater.errors import DecodeError, UsageError
from slackwater.model.spans import Span, SpanSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.settings import Settings

FACTOR_MAX = 9
ZONES_MAX = 10_000
DURATION_MS_MAX = 600_000
GC_TTL_S_DEFAULT = 4 * 3600.0
GC_TTL_S_MIN = 1.0
GC_TTL_S_MAX = 366 * 86400.0
SYSTEM_SPAN = Span(KEY_MIN, KV_PREFIX)
"""The system's own keys: one zone, whatever other records say."""


class PolicyKind(enum.Enum):
    """What a closing policy is relative to."""

    OFF = "off"
    LAG = "lag"
    LEAD = "lead"


class ZoneConfig(msgspec.Struct, frozen=True):
    """The configuration of `[start, end)`, or of the rest of the key space when both are empty."""

    start: bytes = b""
    end: bytes = b""
    replication_factor: int = 0
    """0: as many as elsewhere."""
    policy: PolicyKind | None = None
    """None: as elsewhere."""
    duration_ms: int = 0
    """How far a lagging span lags; 0: `closed_timestamp.target_duration`."""
    gc_ttl_s: float = 0.0
    """For how long history is kept; 0: as elsewhere."""
    ttl_before_s: float = 0.0
    """What the ttl was before this record raised it; 0: it did not."""
    floor: Timestamp = MIN
    """What earlier records knew to be collected."""

    @property
    def is_rest(self) -> bool:
        """Whether this is the record for all that has none of its own."""
        return not self.start and not self.end

    @property
    def is_system(self) -> bool:
        """Whether this is the record for the system's own keys."""
        return self.start == SYSTEM_SPAN.start and self.end == SYSTEM_SPAN.end

    @property
    def decides(self) -> bool:
        """Whether it decides anything; otherwise it only remembers what was collected."""
        return bool(self.replication_factor or self.policy is not None or self.duration_ms or self.gc_ttl_s)


class Zone(msgspec.Struct, frozen=True):
    """A stored record and the MVCC timestamp at which it was written."""

    config: ZoneConfig
    written: Timestamp

    @property
    def floor(self) -> Timestamp:
        """At or below this, history may have been collected under an earlier, shorter ttl."""
        before_s = self.config.ttl_before_s
        return max(self.config.floor, add_seconds(self.written, -before_s) if before_s else MIN)


class Sourced(msgspec.Struct, frozen=True):
    """A value and where it comes from, for people: `this zone`, `the rest`, a setting's name, `default`, `the longest zone`."""

    value: float | str
    source: str


class Effective(msgspec.Struct, frozen=True):
    """What holds in one zone, with everything inherited filled in."""

    gc_ttl_s: float
    written: Timestamp
    """The latest MVCC timestamp of the records that decided it, or of a record's disappearance."""
    floor: Timestamp
    """At or below this, history may have been collected under an earlier, shorter ttl."""


class Allowance(msgspec.Struct, frozen=True):
    """Which history of some spans is certain to be there: above `floor`, and no older than `gc_ttl_s`."""

    gc_ttl_s: float
    floor: Timestamp

    def deadline(self, ts: Timestamp) -> Timestamp:
        """A protection at `ts` must commit below this; MIN: it is too late whatever happens."""
        return add_seconds(ts, self.gc_ttl_s) if ts > self.floor else MIN


class Zones:
    """A copy of all records, complete as of `read_at`. Immutable."""

    def __init__(self, records: Sequence[Zone] = (), *, read_at: Timestamp = MIN, vanished: Timestamp = MIN) -> None:
        self.records = tuple(records)
        self.read_at = read_at
        """Every change committed at or below this is in here; MIN: nothing has been read."""
        self.vanished = vanished
        """No record has disappeared after this and up to `read_at`."""
        self.rest = next((z for z in records if z.config.is_rest), Zone(ZoneConfig(), MIN))
        self.system = next((z for z in records if z.config.is_system), None)
        self._named = [z for z in records if not z.config.is_rest and z.config.start >= KV_PREFIX]

    def since(self, before: Zones) -> Zones:
        """A copy that knows what the copy before it held: a record that is gone was removed at `read_at` at the latest."""
        gone = {z.config.start for z in before.records} - {z.config.start for z in self.records}
        unknown = before.read_at == MIN
        return Zones(self.records, read_at=self.read_at, vanished=self.read_at if gone or unknown else before.vanished)

    @property
    def known(self) -> bool:
        """Whether the records have been read at all: unknown means no garbage collection."""
        return self.read_at > MIN

    def named(self, key: bytes) -> Zone | None:
        """The record of the span that holds a key, if one has been written for it."""
        return next((z for z in self._named if z.config.start <= key < z.config.end), None)

    def at(self, key: bytes) -> Effective:
        """What holds for a key."""
        if key < KV_PREFIX:
            return self._of_system()
        return self._of_users(self.named(key))

    def of(self, span: Span) -> Effective | None:
        """What holds for a span that lies in one zone; None if it lies in several: nothing is collected there."""
        first = self.at(span.start)
        return first if self._zone_end(span.start) >= span.end else None

    def allowance(self, spans: Iterable[Span]) -> Allowance:
        """Which history of all these spans is certain to be there."""
        ttl_s, floor = GC_TTL_S_MAX, MIN
        for span in spans:
            at = span.start
            while at < span.end:
                here = self.at(at)
                ttl_s, floor = min(ttl_s, here.gc_ttl_s), max(floor, here.floor)
                at = self._zone_end(at)
        return Allowance(ttl_s, floor)

    def _of_users(self, zone: Zone | None) -> Effective:
        rest = self.rest
        rest_ttl_s = rest.config.gc_ttl_s or GC_TTL_S_DEFAULT
        if zone is None:
            return Effective(rest_ttl_s, max(rest.written, self.vanished), rest.floor)
        written = max(zone.written, rest.written, self.vanished)
        if zone.config.gc_ttl_s:
            return Effective(zone.config.gc_ttl_s, written, zone.floor)
        return Effective(rest_ttl_s, written, max(zone.floor, rest.floor))

    def _of_system(self) -> Effective:
        own = self.system.config.gc_ttl_s if self.system else 0.0
        longest = max([own or GC_TTL_S_DEFAULT, *(z.config.gc_ttl_s for z in self.records)])
        written = max([self.vanished, *(z.written for z in self.records)])
        return Effective(longest, written, self.system.floor if self.system else MIN)

    def _zone_end(self, key: bytes) -> bytes:
        """Where the zone that holds a key ends."""
        if key < KV_PREFIX:
            return KV_PREFIX
        zone = self.named(key)
        if zone is not None:
            return zone.config.end
        return min((z.config.start for z in self._named if z.config.start > key), default=KEY_MAX)

    # --- for people

    def explained(self, key: bytes, settings: Settings) -> dict[str, Sourced]:
        """Every value that holds for a key, with where it comes from."""
        own = self.system if key < KV_PREFIX else self.named(key)
        chain = [(own.config, "this zone")] if own else []
        chain.append((self.rest.config, "the rest"))
        factor, target = "range.replication_factor", "closed_timestamp.target_duration"
        found = {
            "replicas": _first((c.replication_factor, w) for c, w in chain) or Sourced(int(settings[factor]), factor),
            "policy": _first((c.policy.value if c.policy else "", w) for c, w in chain) or Sourced("lag", "default"),
        }
        lag = _first((c.duration_ms if c.policy is PolicyKind.LAG else 0, w) for c, w in chain if c.policy is not None)
        if found["policy"].value == PolicyKind.LAG.value:
            found["duration_ms"] = lag or Sourced(round(settings[target] * 1000), target)
        if key < KV_PREFIX:
            found["policy"] = Sourced(PolicyKind.LAG.value, "always for the system's keys")
            found["duration_ms"] = Sourced(round(settings[target] * 1000), target)
            ttl_s, own_s = self._of_system().gc_ttl_s, own.config.gc_ttl_s if own else 0.0
            why = "this zone" if own_s == ttl_s else "default" if ttl_s == GC_TTL_S_DEFAULT else "the longest zone"
            found["gc_ttl_s"] = Sourced(ttl_s, why)
        else:
            ttl = _first((c.gc_ttl_s, where) for c, where in chain)
            found["gc_ttl_s"] = ttl or Sourced(GC_TTL_S_DEFAULT, "default")
        return found


def _first(values: Iterable[tuple[float | str, str]]) -> Sourced | None:
    return next((Sourced(value, source) for value, source in values if value), None)


# --- for ranges ----------------------------------------------------------------------------------------------------


def config_of(configs: Sequence[ZoneConfig], descriptor: RangeDescriptor) -> ZoneConfig:
    """What holds where a range begins, with what the rest's record fills in."""
    rest = next((c for c in configs if c.is_rest), ZoneConfig())
    for config in configs:
        if not config.is_rest and config.start <= descriptor.start < config.end:
            closing = rest if config.policy is None else config
            return ZoneConfig(
                replication_factor=config.replication_factor or rest.replication_factor,
                policy=closing.policy,
                duration_ms=closing.duration_ms,
                gc_ttl_s=config.gc_ttl_s or rest.gc_ttl_s,
            )
    return msgspec.structs.replace(rest, ttl_before_s=0.0, floor=MIN)


def factor_of(configs: Sequence[ZoneConfig], descriptor: RangeDescriptor, *, default: int) -> int:
    """How many replicas a range should have."""
    return config_of(configs, descriptor).replication_factor or default


def bound_inside(configs: Sequence[ZoneConfig], descriptor: RangeDescriptor) -> bytes | None:
    """The first bound of a zone inside a range: where it must be split."""
    bounds = {b for c in configs for b in (c.start, c.end) if descriptor.start < b < descriptor.end}
    return min(bounds, default=None)


# --- as keys and bytes ---------------------------------------------------------------------------------------------

_decoder = msgspec.msgpack.Decoder(ZoneConfig)


def zone_key(start: bytes) -> bytes:
    """Where the configuration of the span that begins at `start` lives."""
    return system("config", start)


def zones_span() -> Span:
    """All records: what a watcher watches."""
    prefix = system("config")[:-2]
    return Span(prefix, prefix_end(prefix))


def encode_zone(config: ZoneConfig) -> bytes:
    """The bytes of a record."""
    return msgspec.msgpack.encode(config)


def decode_zone(value: bytes) -> ZoneConfig:
    """A stored record."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError("a zone configuration cannot be read") from error


# --- changing it ---------------------------------------------------------------------------------------------------


class Revision(msgspec.Struct, frozen=True):
    """What a change writes: records to put, and the starts of records to delete."""

    puts: tuple[ZoneConfig, ...]
    deletes: tuple[bytes, ...] = ()


def revised(zones: Zones, change: ZoneConfig, *, now: Timestamp) -> Revision:
    """The records to write so that `change` holds in its span; one that decides nothing lets the span be as the rest.

    Where a ttl becomes longer by it, in this zone or in that of the system's keys, the record says what it was before.
    """
    after = Zones([*(z for z in zones.records if z.config.start != change.start), Zone(change, now)])
    puts = [_with_floor(zones, after, change)]
    deletes: list[bytes] = []
    if not change.is_system and after._of_system().gc_ttl_s > zones._of_system().gc_ttl_s:
        old = zones.system.config if zones.system else ZoneConfig(SYSTEM_SPAN.start, SYSTEM_SPAN.end)
        puts.append(_with_floor(zones, after, old))
    for config, written in [*((p, now) for p in puts), *((z.config, z.written) for z in zones.records)]:
        spent = Zone(config, written).floor <= add_seconds(now, -_ttl_s(after, config))
        if not config.decides and spent and (config in puts or config.start not in {p.start for p in puts}):
            deletes.append(config.start)
    kept = tuple(p for p in puts if p.start not in deletes)
    return Revision(kept, tuple(s for s in deletes if s in {z.config.start for z in zones.records}))


def _with_floor(before: Zones, after: Zones, config: ZoneConfig) -> ZoneConfig:
    """`config` as it is to be written: with what was known to be collected, and the ttl that it makes longer."""
    was_s, is_s = _ttl_s(before, config), _ttl_s(after, config)
    floor = before.rest.floor if config.is_rest else before.at(config.start).floor
    return msgspec.structs.replace(config, floor=floor, ttl_before_s=was_s if is_s > was_s else 0.0)


def _ttl_s(zones: Zones, config: ZoneConfig) -> float:
    """The ttl that holds in the zone of a record."""
    if config.is_rest:
        return zones.rest.config.gc_ttl_s or GC_TTL_S_DEFAULT
    return zones.at(config.start).gc_ttl_s


def check_zone(config: ZoneConfig) -> None:
    """Raise `UsageError` unless a zone may be configured like this."""
    if not config.is_rest and not config.is_system:
        check_split_key(config.start)
        if not config.start < config.end:
            raise UsageError("a span ends above its start", start=config.start, end=config.end)
    in_system = not config.is_rest and config.start < KV_PREFIX
    if not 0 <= config.replication_factor <= FACTOR_MAX:
        raise UsageError(
            f"a range has 1 to {FACTOR_MAX} replicas; 0 is as many as elsewhere", replicas=config.replication_factor
        )
    if not 0 <= config.duration_ms <= DURATION_MS_MAX or (config.duration_ms and config.policy is not PolicyKind.LAG):
        raise UsageError(
            f"a duration of 1 to {DURATION_MS_MAX} ms belongs to the policy `lag`", duration_ms=config.duration_ms
        )
    if config.policy is PolicyKind.LEAD and config.start < KV_PREFIX:
        raise UsageError("the system's own keys cannot lead, so name the spans that should", start=config.start)
    if config.policy is not None and in_system:
        raise UsageError(
            "the system's own keys always lag by closed_timestamp.target_duration; name a span of tables or plain keys",
            start=config.start,
        )
    if config.gc_ttl_s and not GC_TTL_S_MIN <= config.gc_ttl_s <= GC_TTL_S_MAX:
        raise UsageError(
            f"history is kept from {GC_TTL_S_MIN:g} second to {GC_TTL_S_MAX / 86400:g} days", gc_ttl_s=config.gc_ttl_s
        )
    if config.gc_ttl_s and in_system and not config.is_system:
        raise UsageError("the system's own keys have one gc ttl, for all of them", start=config.start)


def check_apart(config: ZoneConfig, others: Iterable[Zone]) -> None:
    """Raise `UsageError` if the span overlaps another zone's, or there are too many zones."""
    others = list(others)
    if len(others) >= ZONES_MAX:
        raise UsageError("too many spans have a configuration of their own; give neighbors one span", limit=ZONES_MAX)
    for zone in others:
        other = zone.config
        same = (other.start, other.end) == (config.start, config.end)
        special = other.is_rest or config.is_rest or other.is_system or config.is_system
        if (
            not same
            and not special
            and SpanSet([Span(other.start, other.end)]).overlaps(Span(config.start, config.end))
        ):
            raise UsageError("zones may not overlap; unset the other one first", other=other)
