"""One consumer of one range: history first, then the live stream, through one bounded buffer.

    WAITING ──open()──► SCANNING ──history(done)──► LIVE ──► ENDED
    no buffer yet       history goes out;           everything goes out
                        live news wait behind it

`open` and the engine snapshot that history is read from happen in one step, and the live stream is joined in that step:

    log        … p−1  p │ p+1  p+2  …                    p: applied when the snapshot was taken
    history    ─────────┘                                every version in (after, ∞) up to p, in key order
    live                  └───────────────────           every version from p+1 on
    out        history, then what waited, then live      no gap, no repeat; per key ascending, because a commit is always
                                                         the newest version of its key

While a registration waits for the first lock scan or for a catch-up slot it holds nothing, so waiting costs no memory.

The buffer
    Bytes of history and of waiting live events count together against one budget. History is pulled, so it waits while
    the consumer is slow (`wants_history`). Live events cannot wait: when they do not fit, the consumer is too slow and the
    registration ends with SLOW_CONSUMER and the timestamp to resume from. Nothing is ever left out silently (I-22).
    If that happens while history is being read, the reading goes on: at its end everything up to `opened_at` (what was
    resolved when the snapshot was taken) has been sent, so the consumer resumes from there and every attempt makes
    progress, however busy the range.

What a busy range commits in small entries is taken as large blocks: entries that wait together are sent together.
Resolved timestamps stand in the buffer behind the events they cover, and a newer one takes the place of an older one that
have not been taken yet.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import invariant
from slackwater.hooks import level, probe
from slackwater.protocol.feeds.events import EVENT_SIZE_MIN, Changes, Ended, EndReason, Event, Resolved, joined, size_of

if TYPE_CHECKING:
    from slackwater.model.spans import Span

BUFFER_BYTES_MIN = 1 << 10
HISTORY_SHARE = 2
"""History is pulled while less than budget / this waits to be taken; the rest of the budget is for live events."""
BUFFER_BYTES_DEFAULT = 4 << 20


class Account:
    """What all registrations of one consumer hold together, and may hold: a consumer of a thousand ranges is one consumer."""

    __slots__ = ("bytes", "limit")

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self.limit = limit


class FeedPhase(enum.Enum):
    """Where a registration stands."""

    WAITING = "waiting"
    SCANNING = "scanning"
    LIVE = "live"
    ENDED = "ended"


_SILENT = (FeedPhase.WAITING, FeedPhase.ENDED)


class Registration:
    """The state machine of one consumer. Pure: its driver moves bytes."""

    def __init__(
        self,
        span: Span,
        *,
        after: Timestamp,
        befores: bool = False,
        budget_bytes: int = BUFFER_BYTES_DEFAULT,
        account: Account | None = None,
    ) -> None:
        self.span = span
        self.after = after
        self.befores = befores
        self.quiet = False
        """Whether resolved timestamps hardly matter to it."""
        self.phase = FeedPhase.WAITING
        self.budget_bytes = max(budget_bytes, BUFFER_BYTES_MIN)
        self.bytes = 0
        """Of everything buffered."""
        self._account = account or Account(self.budget_bytes)
        self.opened_at = MIN
        self.highest = after
        """Of all history read, wherever it went."""
        self._out: deque[tuple[Event, int]] = deque()
        """(event, bytes)."""
        self._live: list[tuple[Changes, int]] = []
        self._live_bytes = 0
        self._overflowed = False
        self._resolved = after
        """The last one put into the buffer."""
        self._taken = after
        """The last one the consumer has taken."""

    # --- input ----------------------------------------------------------------------------------------------------

    def open(self, *, resolved: Timestamp) -> None:
        """The snapshot of history is taken in this very step, and the live stream joined."""
        invariant(self.phase is FeedPhase.WAITING, "A-feed-phase", phase=self.phase.value)
        self.phase = FeedPhase.SCANNING
        self.opened_at = resolved

    def wants_history(self) -> bool:
        """Whether the next block of history may be read."""
        # Only what can be taken counts: live events wait for history to end, so history must not wait for them.
        return self.phase is FeedPhase.SCANNING and (self.bytes - self._live_bytes) * HISTORY_SHARE < self.budget_bytes

    def history(self, changes: Changes, *, done: bool, resolved: Timestamp) -> None:
        """A block of history; with the last one, what waited follows and the registration is live."""
        if changes.timestamps:
            self.highest = Timestamp(max(self.highest, max(changes.timestamps)))
        if self.phase is FeedPhase.ENDED:
            return
        invariant(self.phase is FeedPhase.SCANNING, "A-feed-phase", phase=self.phase.value)
        if len(changes):
            self._append(changes)
        if not done:
            return
        self.phase = FeedPhase.LIVE
        if self._overflowed:
            self.resolve(self.opened_at)
            self._append(Ended(EndReason.SLOW_CONSUMER, self._resolved, "writes outran the reading of history"))
            self.phase = FeedPhase.ENDED
            return
        self._out.extend(self._live)
        self._live, self._live_bytes = [], 0
        self.resolve(resolved)

    def live(self, changes: Changes) -> None:
        """What was committed just now."""
        if self.phase in _SILENT or self._overflowed:
            return
        changes = changes.within(self.span)
        if changes.timestamps and min(changes.timestamps) <= self.after:
            changes = changes.pick([i for i, ts in enumerate(changes.timestamps) if ts > self.after])
        if len(changes):
            self.live_all(changes, changes.size())

    def live_all(self, changes: Changes, size: int) -> None:
        """What was committed just now, all of it inside the span and after `after`; `size` as `Changes.size` says."""
        if self.phase in _SILENT or self._overflowed:
            return  # before `open` it will be in the snapshot
        if not self.befores and changes.befores is not None:
            changes = msgspec.structs.replace(changes, befores=None)
            size = changes.size()
        if self.bytes + size > self.budget_bytes or self._account.bytes + size > self._account.limit:
            self._overflow()
            return
        if self.phase is FeedPhase.SCANNING:
            self._live.append((changes, size))
            self._live_bytes += size
        else:
            self._out.append((changes, size))
        self._charge(size)
        level("feeds.registration_bytes", self.bytes, self.budget_bytes)
        level("feeds.session_bytes", self._account.bytes, self._account.limit)

    def resolve(self, ts: Timestamp) -> None:
        """Everything at or below `ts` is in the buffer or taken."""
        if self.phase is not FeedPhase.LIVE or ts <= self._resolved:
            return
        self._resolved = ts
        if self._out and isinstance(self._out[-1][0], Resolved):
            self._out[-1] = Resolved(ts), EVENT_SIZE_MIN
        else:
            self._append(Resolved(ts))

    def end(self, reason: EndReason, detail: str = "", *, floor: Timestamp = MIN) -> None:
        """The last word. What is buffered stays to be taken; after half a history nothing is known to be whole."""
        if self.phase is FeedPhase.ENDED:
            return
        self._forget_live()
        self.phase = FeedPhase.ENDED
        self._append(Ended(reason, self._resolved, detail, floor))

    # --- what goes out ---------------------------------------------------------------------------------------------

    def pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._out)

    def take(self, *, bytes_max: int) -> list[Event]:
        """The next events, at least one if there is any, and then as many as fit. Blocks that touch come as one."""
        taken: list[Event] = []
        blocks: list[Changes] = []
        size = 0
        while self._out:
            event, cost = self._out[0]
            if size and size + cost > bytes_max:
                break
            self._out.popleft()
            size += cost
            if isinstance(event, Changes):
                blocks.append(event)
                continue
            if blocks:
                taken.append(joined(blocks))
                blocks = []
            taken.append(event)
            if isinstance(event, Resolved):
                self._taken = event.ts
        if blocks:
            taken.append(joined(blocks))
        self._charge(-size)
        return taken

    def close(self) -> None:
        """The consumer is gone: what is buffered goes too."""
        self._out.clear()
        self._live, self._live_bytes = [], 0
        self._charge(-self.bytes)
        self.phase = FeedPhase.ENDED

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        return f"{self.phase.value} after={self.after} resolved={self._resolved} buffered={self.bytes}"

    def _append(self, event: Event) -> None:
        size = size_of(event)
        self._out.append((event, size))
        self._charge(size)

    def _charge(self, size: int) -> None:
        self.bytes += size
        self._account.bytes += size

    def _forget_live(self) -> None:
        self._charge(-self._live_bytes)
        self._live, self._live_bytes = [], 0

    def _overflow(self) -> None:
        """The live stream does not fit. Never leave anything out: end, and say where to go on."""
        if self.phase is FeedPhase.SCANNING:
            probe("feeds.overflow_in_catch_up")
            self._overflowed = True
            self._forget_live()
            return
        probe("feeds.slow_consumer")
        self._out.clear()
        self._charge(-self.bytes)
        self._resolved = self._taken
        self.end(EndReason.SLOW_CONSUMER, "the consumer takes less than the range writes")
