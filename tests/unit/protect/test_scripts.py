"""Golden scripts of protections and zones that meet: `tests/scripts/protect/*.txt`.

One zone, one span, one collector. Times are seconds; a transaction reads at one time and commits at another, and is refused
where a serializable transaction would be: when what it read has changed before its commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, seconds_between
from slackwater.codec.layout import kv
from slackwater.config.zones import Zone, ZoneConfig, Zones, revised
from slackwater.errors import RetryableError, TooLate
from slackwater.model.protection import Metadata, Mode, Record, State, kept_in
from slackwater.model.retention import Retained, decide, readable
from slackwater.model.spans import Span
from tests import golden

if TYPE_CHECKING:
    from pathlib import Path

SPAN = Span(kv(b"a"), kv(b"z"))


def at(second: str | float) -> Timestamp:
    return add_seconds(MIN, float(second))


def shown(ts: Timestamp) -> str:
    return f"{seconds_between(MIN, ts):g}"


class Runner:
    """Verbs: zone, protect-begin, protect-commit, protect, release, read-zones, read-protections, collect, readable."""

    def __init__(self) -> None:
        self.zones = Zones(read_at=MIN)
        self.records: dict[str, Record] = {}
        self.version = 0
        self.open: dict[str, tuple[Record, Timestamp, int, Zones]] = {}
        self.known_zones = Zones()
        self.known = State(Metadata(), (), MIN)
        self.range = Retained(SPAN.start, SPAN.end, MIN)

    def do_zone(self, *, ttl: str, commit: str) -> str:
        now = at(commit)
        revision = revised(self.zones, ZoneConfig(SPAN.start, SPAN.end, gc_ttl_s=float(ttl)), now=now)
        kept = {z.config.start: z for z in self.zones.records if z.config.start not in revision.deletes}
        self.zones = Zones(list((kept | {p.start: Zone(p, now) for p in revision.puts}).values()), read_at=now)
        zone = self.zones.at(SPAN.start)
        return f"zone ttl={zone.gc_ttl_s:g} written={shown(zone.written)} floor={shown(zone.floor)}"

    def do_protect_begin(self, name: str, *, ts: str, now: str, mode: str = "at") -> str:
        allowance = self.zones.allowance([SPAN])
        deadline = allowance.deadline(at(ts))
        if deadline <= at(now):
            raise TooLate(f"{ts} may be collected already")
        record = Record(name.encode().ljust(16), at(ts), Mode(mode), "script", b"", (SPAN,))
        self.open[name] = (record, deadline, self.version, self.zones)
        return f"protect {name} ts={ts} must commit below {shown(deadline)}"

    def do_protect_commit(self, name: str, *, commit: str) -> str:
        record, deadline, version, zones = self.open.pop(name)
        if self.zones is not zones or self.version != version:
            raise RetryableError("what the transaction has read was changed; run it again")
        if at(commit) >= deadline:
            raise RetryableError("the commit timestamp is past the transaction's deadline")
        self.records[name] = record
        self.version += 1
        return f"protected {name} at {commit}"

    def do_read_zones(self, *, now: str) -> str:
        self.known_zones = Zones(self.zones.records, read_at=at(now)).since(self.known_zones)
        return f"zones as of {now}: ttl={self.known_zones.at(SPAN.start).gc_ttl_s:g}"

    def do_read_protections(self, *, now: str) -> str:
        self.known = State(Metadata(self.version), tuple(self.records.values()), at(now))
        return f"protections as of {now}: {', '.join(self.records) or 'none'}"

    def do_collect(self) -> str:
        zone = self.known_zones.of(SPAN)
        if zone is None or not self.known_zones.known or self.known.read_at <= zone.written:
            return "nothing: the protections were read before the zone was written"
        target = add_seconds(Timestamp(min(self.known.read_at, self.known_zones.read_at)), -zone.gc_ttl_s)
        decided = decide(self.range, kept_in(self.known.over(SPAN), SPAN), target=target)
        self.range = Retained(SPAN.start, SPAN.end, decided.threshold, decided.kept)
        kept = ", ".join(f"{'after' if k.after else 'at'} {shown(k.ts)}" for k in decided.kept) or "nothing"
        return f"threshold={shown(decided.threshold)} keeps {kept}"

    def do_readable(self, *, ts: str) -> str:
        whole = readable(self.range.threshold, self.range.kept, SPAN.start, SPAN.end, ts=at(ts))
        return f"{ts}: {'readable' if whole else 'collected'}"


@pytest.mark.parametrize("path", golden.scripts("protect"), ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
