"""The feed of one range on one replica, leader or follower alike: the apply stream in, events for consumers out.

    ApplyListener.applied ──► applied() ──► LockMap ──► UnresolvedQueue ─┐
    closed timestamps ──────► forward_closed() ──────────────────────────┴─► ResolvedTimestamp
                                   │                                             │ publish()
                                   ▼                                             ▼
                              Registration  Registration  …   each: history, then live, then resolved, then the end

It exists only while it has consumers. The first registration starts it with one scan of the range's locks; when the last one
goes, so does it. In between it holds the locks of the range in memory and the consumers' buffers, all of them bounded.

What the driver does, and in which order
    register()       ScanLocks, the first time: read the LOCK family of a snapshot taken now, hand it to `locks_scanned`
    WantSlot(id)     ask `slots.CatchUpSlots`; when it is granted, call `open(id)` and take an engine snapshot in the same
                     step; then read history into `history(id, …)` while `wants_history(id)`
    applied()        for every log entry, in order, with the closed timestamp it leaves
    publish()        now and then: puts the resolved timestamp behind everything buffered so far
    Wake(id)         something can be taken: `take(id)` and send it
    to_push()        now and then: push these transactions; answers to `pushed`; Barrier(txns): propose one, answer to
                     `barrier_proposed`

A snapshot may be *later* than the step in which the live stream was joined (then some events come twice, equal, in order),
never earlier (then some would be missing).

Changes of the range
    split          consumers inside the left part go on, the others end: their keys live in another range now
    merge          every consumer ends: the range is wider now, and the scan of locks was of the narrower one
    lease moves    nothing happens: a feed needs no lease
    removed, quarantined, replaced by a snapshot        every consumer ends; what was skipped is in history

Rules: I-22, I-23, I-24 (`docs/invariants.md`). Worked examples: `tests/scripts/feeds/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import Overloaded, UsageError, invariant
from slackwater.feeds.effects import LOCKS_TRACKED_MAX, LockMap, read_effects, with_befores
from slackwater.feeds.recent import RECENT_BYTES_DEFAULT, Recent
from slackwater.feeds.registration import BUFFER_BYTES_DEFAULT, Account, FeedPhase, Registration
from slackwater.feeds.resolved import ResolvedTimestamp
from slackwater.feeds.unresolved import UnresolvedQueue
from slackwater.hooks import level, probe
from slackwater.model.retention import complete_after
from slackwater.model.spans import Span
from slackwater.model.txns import Resolution, TxnStatus
from slackwater.protocol.feeds.events import Changes, EndReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.feeds.index import TimeIndex
    from slackwater.model.descriptors import LeaseAppliedIndex
    from slackwater.model.protection import Kept
    from slackwater.model.txns import Intent
    from slackwater.protocol.feeds.events import Event
    from slackwater.runtime.seam import Reader
    from slackwater.storage.batch import WriteBatch

_NO_VALUES: dict[bytes, bytes] = {}
REGISTRATIONS_MAX = 256
"""Consumers of one range on one replica."""


class ScanLocks(msgspec.Struct, frozen=True):
    """Read every lock of this span, from a snapshot taken now, into `locks_scanned`."""

    span: Span


class WantSlot(msgspec.Struct, frozen=True):
    """Asks for a catch-up scan of a registration."""

    registration: int


class Wake(msgspec.Struct, frozen=True):
    """Says that a registration has events to take."""

    registration: int


class Resolve(msgspec.Struct, frozen=True):
    """The fate of this transaction is known: resolve its intents on these keys, of this range only."""

    outcome: Resolution
    keys: list[bytes]


class NeedBarrier(msgspec.Struct, frozen=True):
    """Propose a barrier in this range for the sake of this transaction, and answer with `barrier_proposed`."""

    txn_id: bytes


Effect: TypeAlias = ScanLocks | WantSlot | Wake | Resolve | NeedBarrier


class CatchUpScan(msgspec.Struct, frozen=True):
    """What to read for a catch-up scan: every version of `span` with ts > `after`, intents ignored."""

    span: Span
    after: Timestamp
    befores: bool
    budget_bytes: int
    """Of its consumer."""


class RangeFeed:
    """All consumers of one range on one replica."""

    def __init__(
        self,
        span: Span,
        *,
        closed: Timestamp,
        gc_threshold: Timestamp = MIN,
        kept: tuple[Kept, ...] = (),
        locks_max: int = LOCKS_TRACKED_MAX,
        recent_bytes_max: int = RECENT_BYTES_DEFAULT,
        index: TimeIndex | None = None,
    ) -> None:
        self.span = span
        self.recent = Recent(recent_bytes_max)
        self.index = index
        """Remembers further back than `recent`, where there is one."""
        self.gc_threshold = gc_threshold
        self.kept = kept
        self.queue = UnresolvedQueue()
        self.locks = LockMap(span, self.queue, limit=locks_max)
        self.resolved = ResolvedTimestamp(self.queue, closed=closed)
        self.registrations: dict[int, Registration] = {}
        self.over = False
        """Whether this feed has ended for all consumers: the driver forgets it and makes another for the next one."""
        self._scan_asked = False
        self.wants_befores = False
        """Whether any consumer ever wanted before-images."""

    # --- consumers -------------------------------------------------------------------------------------------------

    def register(
        self,
        registration: int,
        span: Span,
        *,
        after: Timestamp,
        befores: bool = False,
        budget_bytes: int = BUFFER_BYTES_DEFAULT,
        account: Account | None = None,
        quiet: bool = False,
    ) -> list[Effect]:
        """A new consumer of every version of `span` with ts > after; `account` is what it shares with its others."""
        invariant(registration not in self.registrations, "A-feed-registration", id=registration)
        invariant(not self.over, "A-feed-over", id=registration)
        if not self.span.covers(span):
            raise UsageError("a registration lies inside its range; cut it at the range's bounds", span=span)
        if len(self.registrations) >= REGISTRATIONS_MAX:
            raise Overloaded("too many feeds on one range; share one", limit=REGISTRATIONS_MAX)
        made = Registration(span, after=after, befores=befores, budget_bytes=budget_bytes, account=account)
        made.quiet = quiet
        self.registrations[registration] = made
        level("feeds.registrations", len(self.registrations), REGISTRATIONS_MAX)
        self.wants_befores = self.wants_befores or befores
        if self._too_old(made):
            return [Wake(registration)]
        if self.queue.complete:
            return self._from_recent(registration, made) or [WantSlot(registration)]
        if self._scan_asked:
            return []
        self._scan_asked = True
        return [ScanLocks(self.span)]

    def _from_recent(self, number: int, made: Registration) -> list[Effect]:
        """Give a consumer its history from the blocks kept, if they have all of it; it is live then."""
        covered = self.recent.coverage.covers(made.span, made.after)
        if made.befores or not covered or 2 * self.recent.bytes > made.budget_bytes:
            return []
        probe("feeds.history_was_recent")
        made.open(resolved=self.resolved.value)
        made.history(self.recent.since(made.span, made.after), done=True, resolved=self.resolved.value)
        return self._wakes([number])

    def _too_old(self, registration: Registration) -> bool:
        """Whether history no longer reaches back to where the consumer stands; it is ended then."""
        # Above the threshold every version is there. Of those at it, a deletion may already be collected, so a consumer
        # that has seen less than the threshold would never hear of it.
        floor = complete_after(self.gc_threshold, self.kept, registration.span.start, registration.span.end)
        if registration.after >= floor:
            return False
        registration.end(EndReason.BELOW_GC_THRESHOLD, floor=floor)
        return True

    def open(self, registration: int) -> CatchUpScan | None:
        """The slot is granted: take the snapshot in this very step. None: it has ended meanwhile; give the slot back."""
        found = self.registrations.get(registration)
        if found is None or found.phase is not FeedPhase.WAITING or self._too_old(found):
            return None
        found.open(resolved=self.resolved.value)
        return CatchUpScan(found.span, found.after, found.befores, found.budget_bytes)

    def wants_history(self, registration: int) -> bool:
        """Whether the next block of history may be read; False also when no consumer waits for it any more."""
        found = self.registrations.get(registration)
        return found is not None and found.wants_history()

    def scanning(self, registration: int) -> bool:
        """Whether its history is still being read, at once or once there is room."""
        found = self.registrations.get(registration)
        return found is not None and found.phase is FeedPhase.SCANNING

    def history(self, registration: int, changes: Changes, *, done: bool) -> list[Effect]:
        """A block that the catch-up scan has read."""
        found = self.registrations.get(registration)
        if found is None:
            return []
        found.history(changes, done=done, resolved=self.resolved.value)
        if done:
            self.recent.coverage.scanned(found.span, found.highest)
            if self.index is not None:
                self.index.coverage.scanned(found.span, found.highest)
        return self._wakes([registration])

    def take(self, registration: int, *, bytes_max: int) -> list[Event]:
        """The next events to send; an `Ended` among them is the last, and the registration is gone with it."""
        found = self.registrations.get(registration)
        if found is None:
            return []
        events = found.take(bytes_max=bytes_max)
        if found.phase is FeedPhase.ENDED and not found.pending():
            del self.registrations[registration]
        return events

    def drop(self, registration: int) -> None:
        """The consumer is gone."""
        found = self.registrations.pop(registration, None)
        if found is not None:
            found.close()

    @property
    def remembers(self) -> bool:
        """Whether a consumer that comes back might need no scan."""
        known = self.recent.coverage.floors or (self.index is not None and self.index.coverage.floors)
        return bool(known)

    @property
    def idle(self) -> bool:
        """Whether there is no consumer: the driver then forgets this feed."""
        return not self.registrations

    # --- locks -----------------------------------------------------------------------------------------------------

    def locks_scanned(self, locks: Iterable[tuple[bytes, bytes]], *, done: bool) -> list[Effect]:
        """(key, stored intent) of the first scan. When it is done, the waiting may begin their history."""
        try:
            self.locks.scanned(locks)
        except Overloaded as error:
            return self.end_all(EndReason.TOO_MANY_LOCKS, str(error))
        if not done:
            return []
        self.locks.finish_scan()
        self.resolved.advance()
        return [WantSlot(id_) for id_, r in self.registrations.items() if r.phase is FeedPhase.WAITING]

    # --- the live stream -------------------------------------------------------------------------------------------

    def applied(
        self, batch: WriteBatch, *, closed: Timestamp, lai: LeaseAppliedIndex, reader: Reader | None = None
    ) -> list[Effect]:
        """One log entry was applied, and left this closed timestamp. `reader` is for consumers that want before-images."""
        changes, locked, unlocked, cleared = effects = read_effects(batch)
        resolved, went, moved = self.resolved, _NO_VALUES, False
        resolved.check_new(changes.timestamps, what="version")
        if locked or unlocked or cleared:
            try:
                followed = self.locks.apply(effects)
            except Overloaded as error:
                return self.end_all(EndReason.TOO_MANY_LOCKS, str(error))
            resolved.check_new(followed.fresh, what="lock")
            went, moved = followed.went, True
        woken: list[Effect] = []
        if changes.timestamps:  # a range writes inside its span, and `split` follows at once when that shrinks
            woken = self._deliver(self._completed(changes, went, reader))
        if closed > resolved.closed:
            resolved.forward_closed(closed)
            moved = True
        if resolved.in_doubt and (dead := resolved.applied(lai)):
            woken += self._clean_up(dead)
            moved = True
        if moved:
            resolved.advance()
        return woken

    def forward_closed(self, closed: Timestamp) -> None:
        """The side transport has closed more, and the index it names is applied here (I-12)."""
        self.resolved.forward_closed(closed)
        self.resolved.advance()

    def publish(self, *, quiet: bool = True) -> list[Effect]:
        """Tell every live consumer how far it has everything; those that asked for few checkpoints only with `quiet`."""
        value = self.resolved.value
        woken = []
        for id_, registration in self.registrations.items():
            if registration.phase is FeedPhase.LIVE and (quiet or not registration.quiet):
                registration.resolve(value)
                woken.append(id_)
        return self._wakes(woken)

    # --- old transactions ------------------------------------------------------------------------------------------

    def to_push(self, *, now: Timestamp, older_than_s: float) -> list[Intent]:
        """Transactions that hold the resolved timestamp back for too long, one intent each; those in doubt wait."""
        if not self.queue.complete:
            return []
        doubted = set(self.resolved.in_doubt)
        found = self.queue.to_push(now=now, older_than_s=older_than_s)
        return [intent for intent in found if intent.txn_id not in doubted]

    def pushed(self, outcome: Resolution, *, ambiguous: bool = False) -> list[Effect]:
        """What became of a pushed transaction; `ambiguous`: its record was not there to say so."""
        needs_barrier = self.resolved.pushed(outcome, ambiguous=ambiguous)
        self.resolved.advance()
        if needs_barrier:
            return [NeedBarrier(outcome.txn_id)]
        if outcome.txn_id in self.resolved.in_doubt or outcome.status is TxnStatus.PENDING:
            return []
        keys = self.locks.keys_of(outcome.txn_id)
        return [Resolve(outcome, keys)] if keys else []

    def barrier_proposed(
        self, txn_ids: list[bytes], lai: LeaseAppliedIndex | None, *, applied: LeaseAppliedIndex
    ) -> list[Effect]:
        """The index at which the barrier applies (None: it failed); `applied` is how far this replica is."""
        self.resolved.barrier_proposed(txn_ids, lai)
        dead = self.resolved.applied(applied)
        self.resolved.advance()
        return self._clean_up(dead)

    # --- changes of the range --------------------------------------------------------------------------------------

    def split(self, left: Span) -> list[Effect]:
        """The range keeps `left` only. Call it after `applied` of the entry that split it."""
        invariant(self.span.start == left.start and left.end < self.span.end, "A-feed-split", left=left)
        ended = []
        for id_, registration in self.registrations.items():
            if not left.covers(registration.span):
                registration.resolve(self.resolved.value)
                registration.end(EndReason.RANGE_SPLIT)
                ended.append(id_)
        self.span = left
        self.locks.shrink(left)
        self.resolved.advance()
        return self._wakes(ended)

    def end_all(self, reason: EndReason, detail: str = "") -> list[Effect]:
        """End every consumer: the range merged, the replica went, a snapshot replaced it."""
        self.over = True
        for registration in self.registrations.values():
            registration.resolve(self.resolved.value)
            registration.end(reason, detail)
        return self._wakes(list(self.registrations))

    def collected(self, gc_threshold: Timestamp, kept: tuple[Kept, ...] = ()) -> None:
        """History at or below this may be gone from now on, but for what is kept."""
        self.gc_threshold, self.kept = Timestamp(max(self.gc_threshold, gc_threshold)), kept

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        return f"{self.resolved.status()} locks={len(self.locks)} consumers={len(self.registrations)}"

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _completed(self, changes: Changes, went: dict[bytes, bytes], reader: Reader | None) -> Changes:
        """With transaction ids where locks told them, and with before-images where a consumer wants them."""
        if went:
            ids = [went.get(key, b"") for key in changes.keys]
            changes = msgspec.structs.replace(changes, txn_ids=ids)
        if self.wants_befores and any(
            r.befores and r.phase in (FeedPhase.SCANNING, FeedPhase.LIVE) for r in self.registrations.values()
        ):
            if reader is None:
                raise UsageError("a consumer wants before-images; pass the engine to applied()")
            changes = with_befores(changes, reader)
        return changes

    def _deliver(self, changes: Changes) -> list[Effect]:
        size, lowest, woken = changes.size(), min(changes.timestamps), list[Effect]()
        self.recent.add(changes, size)
        if self.index is not None:
            self.index.add(changes)
        for id_, registration in self.registrations.items():
            if registration.span == self.span and lowest > registration.after:
                registration.live_all(changes, size)
            else:
                registration.live(changes)
            if registration.pending():
                woken.append(Wake(id_))
        return woken

    def _clean_up(self, dead: list[bytes]) -> list[Effect]:
        """The intents of transactions that turned out to be dead: no other request may come by to remove them."""
        if not dead:
            return []
        outcomes = [Resolution(txn_id, 0, TxnStatus.ABORTED) for txn_id in dead]
        return [Resolve(outcome, self.locks.keys_of(outcome.txn_id)) for outcome in outcomes]

    def _wakes(self, ids: list[int]) -> list[Effect]:
        return [Wake(id_) for id_ in ids if (r := self.registrations.get(id_)) is not None and r.pending()]
