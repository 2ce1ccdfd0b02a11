"""What a consumer can check of a feed while it consumes it. For simulation and for tests with real processes alike.

    feed ──► Validators ──► OrderPerKey        I-24   first deliveries ascend per key; a repeat equals what came before
                       ├──► ResolvedHolds      I-23   resolved ascends; nothing new comes at or below it
                       ├──► BeforeAndAfter     I-22   before-images fit the mirror; versions re-read from the source agree
                       └──► Fingerprints       I-22   the table rebuilt at every resolved timestamp equals the source there

All share one `Mirror`: every version delivered, by key. A validator never raises because the feed is wrong: it notes a
`Breach` with the rule's ID and the facts. The simulator turns breaches into violations of its oracles; a test asserts that
there are none. Each can be used alone, and a new one is a class with three methods.

The source is asked through two plain functions that the caller provides, `read(key, ts)` and `table_at(ts)`. Who has to
await to read the source (a real cluster) leaves them out, collects `Fingerprints.digests` and compares later with
`fingerprint(rows)`.

`restarted()` says that the consumer resumed: from then on repeats of what was delivered are fine, also at or below a
resolved timestamp, and resolved may start lower; new events below it are still a breach.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.feeds.frontier import Frontier
from slackwater.protocol.feeds.events import Changes, Ended, Resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from slackwater.model.spans import Span
    from slackwater.protocol.feeds.events import ChangedValue, Event

BREACHES_MAX = 100
"""Kept per validator: the first ones tell the story."""
DIGEST_BYTES = 16


class Breach(msgspec.Struct, frozen=True):
    """One broken rule."""

    rule: str
    summary: str
    facts: dict[str, object]

    def __str__(self) -> str:
        return f"{self.rule}: {self.summary} {self.facts}"


def fingerprint(rows: Iterable[tuple[bytes, bytes]]) -> str:
    """The digest of a table's (key, value) pairs in key order."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for key, value in rows:
        digest.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value)
    return digest.hexdigest()


class Mirror:
    """Every version delivered, and so the table as of any timestamp since the feed began."""

    def __init__(self, base: Iterable[tuple[bytes, bytes]] = (), *, after: Timestamp = MIN) -> None:
        """`base` is the table as of `after`, where the feed starts without an initial scan."""
        self.versions: dict[bytes, dict[Timestamp, bytes]] = {key: {after: value} for key, value in base}
        self._times: dict[bytes, list[Timestamp]] = {key: [after] for key in self.versions}

    def add(self, value: ChangedValue) -> None:
        """One delivery."""
        known = self.versions.setdefault(value.key, {})
        if value.ts not in known:
            insort(self._times.setdefault(value.key, []), value.ts)
        known[value.ts] = value.value

    def delivered(self, key: bytes, ts: Timestamp) -> bytes | None:
        """What was delivered under (key, ts); None when nothing was."""
        return self.versions.get(key, {}).get(ts)

    def newest(self, key: bytes) -> Timestamp:
        """The highest timestamp delivered of a key."""
        times = self._times.get(key)
        return times[-1] if times else MIN

    def read(self, key: bytes, *, upto: Timestamp) -> bytes:
        """The value of a key as of `upto`; empty when it has none."""
        times = self._times.get(key, [])
        at = bisect_right(times, upto)
        return self.versions[key][times[at - 1]] if at else b""

    def table_at(self, ts: Timestamp) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of the table as of `ts`, in key order."""
        for key in sorted(self.versions):
            value = self.read(key, upto=ts)
            if value:
                yield key, value


class Validator(Protocol):
    """Looks at deliveries before they are added to the mirror."""

    breaches: list[Breach]

    def value(self, value: ChangedValue) -> None:
        """One version arrives."""
        ...

    def resolved(self, ts: Timestamp, span: Span) -> None:
        """Everything of `span` at or below `ts` is said to be here."""
        ...

    def restarted(self) -> None:
        """The consumer has resumed from an earlier place."""
        ...


class _Base:
    def __init__(self) -> None:
        self.breaches: list[Breach] = []

    def value(self, value: ChangedValue) -> None:
        """Nothing to check."""

    def resolved(self, ts: Timestamp, span: Span) -> None:
        """Nothing to check."""

    def restarted(self) -> None:
        """Nothing to forget."""

    def _note(self, rule: str, summary: str, **facts: object) -> None:
        if len(self.breaches) < BREACHES_MAX:
            self.breaches.append(Breach(rule, summary, facts))


class OrderPerKey(_Base):
    """I-24: first deliveries of a key ascend; a repeat is equal to what was delivered."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__()
        self._mirror = mirror

    def value(self, value: ChangedValue) -> None:
        """One version arrives."""
        known = self._mirror.delivered(value.key, value.ts)
        if known is None:
            newest = self._mirror.newest(value.key)
            if value.ts < newest:
                self._note("I-24", "a version comes after a newer one", key=value.key, ts=value.ts, newest=newest)
        elif known != value.value:
            self._note("I-24", "a repeat differs", key=value.key, ts=value.ts, was=known, now=value.value)


class ResolvedHolds(_Base):
    """I-23: resolved ascends per span, and nothing new comes at or below it."""

    def __init__(self, mirror: Mirror, spans: Sequence[Span], *, after: Timestamp = MIN) -> None:
        super().__init__()
        self._mirror = mirror
        self._spans = spans
        self._after = after
        self.frontier = Frontier(spans, after=after)
        """All that was ever promised."""
        self._session = Frontier(spans, after=MIN)

    def value(self, value: ChangedValue) -> None:
        """One version arrives."""
        promised = self.frontier.at(value.key)
        if promised is None:
            self._note("I-22", "a key outside the feed's spans", key=value.key, ts=value.ts)
        elif value.ts <= promised and self._mirror.delivered(value.key, value.ts) is None:
            self._note("I-23", "new at or below resolved", key=value.key, ts=value.ts, resolved=promised)

    def resolved(self, ts: Timestamp, span: Span) -> None:
        """A promise about a span."""
        for known, told in self._session.entries():
            if known.overlaps(span) and told > ts:
                self._note("I-23", "resolved goes back", span=known, was=told, now=ts)
                break
        self._session.forward(span, ts)
        self.frontier.forward(span, ts)

    def restarted(self) -> None:
        """A resumed feed may begin lower; what was promised stays promised."""
        self._session = Frontier(self._spans, after=MIN)


class BeforeAndAfter(_Base):
    """Before-images are what the mirror holds; each version, read again from the source, is what was delivered."""

    def __init__(self, mirror: Mirror, *, read: Callable[[bytes, Timestamp], bytes | None] | None = None) -> None:
        super().__init__()
        self._mirror = mirror
        self._read = read

    def value(self, value: ChangedValue) -> None:
        """One version arrives."""
        if value.before is not None and value.key in self._mirror.versions:
            expected = self._mirror.read(value.key, upto=Timestamp(value.ts - 1))
            if value.before != expected:
                self._note("I-22", "a wrong before-image", key=value.key, ts=value.ts, got=value.before, want=expected)
        if self._read is not None:
            found = self._read(value.key, value.ts) or b""
            if found != value.value:
                self._note("I-22", "the source disagrees", key=value.key, ts=value.ts, got=value.value, want=found)


class Fingerprints(_Base):
    """I-22: the table rebuilt at every resolved timestamp equals the source as of then."""

    def __init__(
        self,
        mirror: Mirror,
        holds: ResolvedHolds,
        *,
        table_at: Callable[[Timestamp], Iterable[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        super().__init__()
        self._mirror = mirror
        self._holds = holds
        self._table_at = table_at
        self.digests: dict[Timestamp, str] = {}
        """By resolved timestamp of the whole feed: for comparing later."""

    def resolved(self, ts: Timestamp, span: Span) -> None:
        """Compare whenever the whole feed has come further."""
        whole = self._holds.frontier.resolved
        if whole == MIN or whole in self.digests:
            return
        self.digests[whole] = fingerprint(self._mirror.table_at(whole))
        if self._table_at is not None:
            self.compare(whole, self._table_at(whole))

    def compare(self, ts: Timestamp, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """The source's table as of a resolved timestamp, which may come much later than the feed's."""
        source = list(rows)
        if fingerprint(source) == fingerprint(self._mirror.table_at(ts)):
            return
        mine, theirs = dict(self._mirror.table_at(ts)), dict(source)
        differing = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
        first = differing[0] if differing else None
        self._note(
            "I-22",
            "the rebuilt table differs from the source",
            ts=ts,
            keys=len(differing),
            first=first,
            mirror=mine.get(first) if first is not None else None,
            source=theirs.get(first) if first is not None else None,
        )


class Validators:
    """Several validators over one mirror, fed with events."""

    def __init__(
        self,
        spans: Sequence[Span],
        *,
        after: Timestamp = MIN,
        base: Iterable[tuple[bytes, bytes]] = (),
        read: Callable[[bytes, Timestamp], bytes | None] | None = None,
        table_at: Callable[[Timestamp], Iterable[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        self.mirror = Mirror(base, after=after)
        self.holds = ResolvedHolds(self.mirror, spans, after=after)
        self.fingerprints = Fingerprints(self.mirror, self.holds, table_at=table_at)
        self.all: list[Validator] = [
            OrderPerKey(self.mirror),
            self.holds,
            BeforeAndAfter(self.mirror, read=read),
            self.fingerprints,
        ]

    def event(self, event: Event, span: Span) -> None:
        """What a registration over `span` has sent."""
        if isinstance(event, Changes):
            for value in event.rows():
                for validator in self.all:
                    validator.value(value)
                self.mirror.add(value)
        elif isinstance(event, Resolved):
            for validator in self.all:
                validator.resolved(event.ts, span)
        elif isinstance(event, Ended):
            return

    def restarted(self) -> None:
        """The consumer has resumed."""
        for validator in self.all:
            validator.restarted()

    @property
    def breaches(self) -> list[Breach]:
        """Everything noted, validator by validator."""
        return [breach for validator in self.all for breach in validator.breaches]
