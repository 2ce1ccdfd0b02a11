"""The contract of an ordered log: what a replicated state machine needs of the outside, rules L-1 to L-6.

    append(r7, [a, b]) ──► position 41      durable, and in one order for all readers, once it returns
    tail(r7, after=39) ──► [b @ 41] …       everything after a position, without gaps, then more as it comes
    trim(r7, upto=30)                       advice: entries that no replica needs any more
    identity()                              which incarnation of which log this is

`MemoryLog`, `SqliteLog`, `NatsLog` and the simulator's log keep it, and one conformance suite holds them to it
(`tests/property/test_log_conformance.py`). It stands here, not in the runtime seam: ranges and positions are nouns of the
model, and the runtime is below that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from slackwater.model.ids import Position, RangeId


class Entry(NamedTuple):
    """One payload in the log of one range."""

    position: Position
    payload: bytes


class LogIdentity(NamedTuple):
    """Names one incarnation of a log. A re-created log has another `incarnation` even under the same name."""

    kind: str
    name: str
    incarnation: str


@runtime_checkable
class OrderedLog(Protocol):
    """Durable, ordered entries per range. Several ranges share one physical log.

    Contract
        L-1  Once `append` returned, its entries are durable and will be read by every tail, in one order for all.
        L-2  `AppendUnknown` means the entries may appear, now or later, once — or, on logs that retry, twice — or never.
             Any other error means they never will.
        L-3  Positions of one range increase strictly in reading order. Gaps are fine. Callers do no arithmetic on them.
        L-4  A tail delivers every entry with position > after, in order, without gaps, and then waits for more.
             If entries after `after` were trimmed it raises `LogTrimmed` instead of skipping.
        L-5  `trim(upto)` removes entries with position <= upto of that range only. It is advisory and idempotent.
        L-6  `identity()` changes if and only if positions may have restarted.
    """

    async def append(self, range_id: RangeId, payloads: Sequence[bytes]) -> Position:
        """Append in order; returns the position of the last. Other appends may interleave."""
        ...

    def tail(self, range_id: RangeId, *, after: Position) -> AsyncIterator[list[Entry]]:
        """Batches of entries with position > after, for ever; close the iterator to stop."""
        ...

    async def trim(self, range_id: RangeId, *, upto: Position) -> None:
        """Let go of the entries up to a position (L-5)."""
        ...

    async def head(self, range_id: RangeId) -> Position:
        """The position of the newest entry ever appended to this range (0 if none), trimmed or not."""
        ...

    def identity(self) -> LogIdentity:
        """Which incarnation of which log this is (L-6)."""
        ...

    async def close(self) -> None:
        """Let go of the log: tails end, appends in flight are unknown."""
        ...
