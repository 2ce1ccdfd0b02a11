"""V, the committed versions of every key, and the rule that what is closed does not change (I-02).

V is read off the first apply of each entry: every version that a command puts into DATA. It is complete whatever is
collected later, and it is what reads at a timestamp are compared with in the end (I-15, I-18).

I-02 is sampled. At some applied positions, what a read at the closed timestamp would see is kept: for each key the
timestamp of the visible version. Later, on whichever replica next gets its turn, the same moment is looked at again and
must look the same. Keys with an intent at or below that moment are left out: no read gets past them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.layout import TABLE, prefix_end, split_version
from slackwater.runtime.seam import Family
from slackwater.sim.checkers.history import ObservedVersion, VersionHistory
from slackwater.sim.oracles.dropped import TableLives
from slackwater.sim.oracles.replication import _Watcher, sampled
from slackwater.sim.scenarios.cluster_plan import KV_SPAN
from slackwater.storage.intents import decode_intent

if TYPE_CHECKING:
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.storage.memory import MemoryEngine

LOOK_ONE_IN = 24
LOOKS_KEPT_MAX = 16
CHUNK = 4096
ROWS_END = prefix_end(TABLE)
"""Behind the keys of clients lie the rows of tables; V has both."""


class VersionsOracle(_Watcher):
    """V, and a rule of its own: a version never gets another value."""

    name = "I-02"

    def __init__(self) -> None:
        self.found: dict[bytes, dict[int, bytes]] = {}

    def applied(self, event: ApplyEvent) -> None:
        """Take the versions of an entry that is new."""
        if not event.first:
            return
        for stored, value in event.batch.writes[Family.DATA].items():
            if value is None or not KV_SPAN[0] <= stored < ROWS_END:
                continue
            key, ts = split_version(stored)
            known = self.found.setdefault(key, {}).setdefault(ts, value)
            if known != value:
                self.violated("version-rewritten", f"{event.node} gave {key!r} at {ts} another value")

    def history(self) -> VersionHistory:
        """V for the checkers: keys that clients write by themselves; rows of tables are written down as registers."""
        return VersionHistory.of(
            {
                key: [ObservedVersion(ts, value or None) for ts, value in versions.items()]
                for key, versions in self.found.items()
                if key < KV_SPAN[1]
            }
        )


class _Look:
    """What a read of [start, end) at `ts` saw, somewhere, some time ago."""

    __slots__ = ("blocked", "end", "node", "start", "ts", "visible")

    def __init__(self, node: str, engine: MemoryEngine, start: bytes, end: bytes, ts: int) -> None:
        self.node = node
        self.start, self.end, self.ts = start, end, ts
        self.visible = _visible(engine, start, end, ts)
        self.blocked = _blocked(engine, start, end, ts)


class ClosedStays(_Watcher):
    """I-02."""

    name = "I-02"

    def __init__(self) -> None:
        self._looks: list[_Look] = []
        self._turn = 0
        self._lives = TableLives()

    def applied(self, event: ApplyEvent) -> None:
        """Now and then: look again at a kept moment, and keep another."""
        self._lives.learn(event)
        if event.engine is None or not sampled(event.position, LOOK_ONE_IN) or not event.last_of_run:
            return
        descriptor, closed = event.after.descriptor, event.after.closed
        if descriptor.start < KV_SPAN[0] or not closed:
            return
        for look in self._looks:
            above = event.after.gc_threshold <= look.ts <= closed
            if above and look.start < descriptor.end and descriptor.start < look.end:
                self._again(event, look)
        fresh = _Look(event.node, event.engine, descriptor.start, descriptor.end, closed)
        if len(self._looks) < LOOKS_KEPT_MAX:
            self._looks.append(fresh)
        else:
            self._looks[self._turn % LOOKS_KEPT_MAX] = fresh
            self._turn += 1

    def _again(self, event: ApplyEvent, look: _Look) -> None:
        assert event.engine is not None
        descriptor = event.after.descriptor
        start, end = max(look.start, descriptor.start), min(look.end, descriptor.end)
        visible = _visible(event.engine, start, end, look.ts)
        skip = look.blocked | _blocked(event.engine, start, end, look.ts)
        expected = {k: ts for k, ts in look.visible.items() if start <= k < end}
        for key in sorted(visible.keys() | expected.keys()):
            differs = key not in skip and visible.get(key) != expected.get(key)
            if differs and look.ts < self._lives.gone(key):
                text = (
                    f"{event.node} r{descriptor.range_id}: a read at the closed timestamp {look.ts} now sees {key!r} at "
                    f"{visible.get(key)}, {look.node} saw it at {expected.get(key)}"
                )
                self.violated("closed-changed", text)


def _visible(engine: MemoryEngine, start: bytes, end: bytes, ts: int) -> dict[bytes, int]:
    """For each key with a value at `ts` when that was written; a deletion is seen by what is not there."""
    found: dict[bytes, int] = {}
    seen: bytes | None = None
    cursor = engine.cursor(Family.DATA, start=start, end=end)
    while True:
        keys, values = cursor.chunk(CHUNK)
        if not keys:
            return found
        for stored, value in zip(keys, values, strict=True):
            key, written = split_version(stored)
            if written <= ts and key != seen:
                seen = key
                if value:
                    found[key] = written


def _blocked(engine: MemoryEngine, start: bytes, end: bytes, ts: int) -> set[bytes]:
    """Keys with an intent at or below `ts`."""
    found: set[bytes] = set()
    cursor = engine.cursor(Family.LOCK, start=start, end=end)
    while True:
        keys, values = cursor.chunk(CHUNK)
        if not keys:
            return found
        found.update(k for k, raw in zip(keys, values, strict=True) if decode_intent(raw).ts <= ts)
