"""Protecting, releasing and listing, inside a transaction of the caller's.

    protect    zones of the spans ──► deadline of the transaction = ts + shortest ttl        too late: `TooLate`, nothing written
               meta row           ──► limits; version + 1, totals                             over a limit: `LimitReached`
               rows and spans
    release    the record and its spans; meta row: version + 1, totals                       no such record: `NotFound`

What other records keep already can be protected again at any age (`uncovered`): by the time garbage collection stops seeing the
one, it sees the other. So a consumer that comes back to history which only its former protection kept can go on from there.

Every error is raised before anything was written, so the transaction remains usable. A protection holds once the transaction has
committed; until then, and if it does not, nothing is protected. The caller sees to the release, or gives an expiry, or has a
reconciler (`slackwater.protect.reconcile`) that finds out when the owner is gone.

To protect a table is to protect what it takes to read it at that time: its rows, its descriptors, its name, and its zone
(`decoding`, pitfall 38).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MAX, MIN, Timestamp, add_seconds, show
from slackwater.codec.layout import KEY_MAX, KEY_MIN, table_span
from slackwater.errors import LimitReached, NotFound, TooLate, UsageError
from slackwater.hooks import probe
from slackwater.model.protection import (
    OWNED_BY_FEED,
    OWNED_BY_JOB,
    RECORD_ID_BYTES,
    Kept,
    Metadata,
    Mode,
    Record,
    State,
    kept_in,
)
from slackwater.model.retention import still_there
from slackwater.model.spans import Span, SpanSet
from slackwater.protect import rows
from slackwater.protect.zone_changes import zones_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from slackwater.clock.hlc import HybridClock
    from slackwater.runtime.seam import Rng
    from slackwater.settings import Settings
    from slackwater.txn.coordinator import Transaction

RECORDS_MAX, SPANS_MAX = "protected_timestamp.records_max", "protected_timestamp.spans_max"
PER_OWNER_MAX = "protected_timestamp.records_per_owner_max"
_BY_OWNER = {OWNED_BY_FEED: " by change feeds", OWNED_BY_JOB: " by jobs"}
SPANS_SHARE_MAX = 0.5
"""Of all spans that may be protected, by one client: a table takes about four."""
META_TYPE_CHARS_MAX = 64
META_BYTES_MAX = 4096
"""Of what identifies a record's owner: every node keeps all of it in memory."""


class ProtectionCatalog:
    """The list of protections, as a transaction sees it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def list(self, txn: Transaction) -> State:
        """All of it, as of the transaction."""
        state = await rows.read_state(txn, read_at=txn.state.read_ts)
        return msgspec.structs.replace(state, metadata=self._with_limits(state.metadata))

    async def get_metadata(self, txn: Transaction) -> Metadata:
        """The one row that every change writes: an equal version means an equal list."""
        return self._with_limits(await rows.read_metadata(txn))

    def _with_limits(self, metadata: Metadata) -> Metadata:
        return msgspec.structs.replace(
            metadata, records_max=int(self._settings[RECORDS_MAX]), spans_max=int(self._settings[SPANS_MAX])
        )


class ProtectionStore:
    """Makes and releases protections."""

    def __init__(
        self,
        *,
        clock: HybridClock,
        settings: Settings,
        rng: Rng,
        decoding: Callable[[int], Iterable[Span]] = lambda _table_id: (),
    ) -> None:
        """`decoding` names the spans, besides its rows, that it takes to read a table at an earlier time."""
        self._clock = clock
        self._settings = settings
        self._rng = rng
        self._decoding = decoding

    async def protect(
        self,
        txn: Transaction,
        ts: Timestamp,
        mode: Mode,
        meta_type: str,
        meta: bytes,
        *,
        spans: Sequence[Span] = (),
        tables: Sequence[int] = (),
        expires: Timestamp = MIN,
        user: str = "",
    ) -> bytes:
        """Protect `ts` in spans, or in tables with all that it takes to decode them; returns the record's id.

        Sets the deadline of the transaction: it commits before `ts` could have been collected, or not at all.
        """
        wanted = self._wanted(spans, tables)
        self._check(ts, meta_type, meta, wanted, expires)
        await self._set_deadline(txn, ts, mode, wanted)
        metadata = await rows.read_metadata(txn)
        changed = Metadata(metadata.version + 1, metadata.records + 1, metadata.spans + len(wanted))
        self._check_limits(changed)
        if user:
            records = (await rows.read_state(txn, read_at=txn.state.read_ts)).records
            self._check_share(user, meta_type, [record for record in records if record.user == user], len(wanted))
        record_id = self._rng.bytes(RECORD_ID_BYTES)
        record = Record(record_id, ts, mode, meta_type, meta, wanted, expires, txn.state.read_ts, user)
        await rows.write_metadata(txn, changed)
        await rows.write_record(txn, record)
        await rows.write_spans(txn, record)
        return record_id

    async def release(self, txn: Transaction, record_id: bytes) -> Record:
        """Let what a record protects be collected; returns it. `NotFound` leaves the transaction usable."""
        record = await self.get(txn, record_id)
        metadata = await rows.read_metadata(txn)
        await rows.write_metadata(
            txn, Metadata(metadata.version + 1, metadata.records - 1, metadata.spans - len(record.spans))
        )
        await rows.delete_record(txn, record)
        return record

    async def renew(self, txn: Transaction, record_id: bytes, *, expires: Timestamp) -> None:
        """Let a record expire later, or never (MIN)."""
        await self._replace(txn, msgspec.structs.replace(await self.get(txn, record_id), expires=expires))

    async def move(self, txn: Transaction, record_id: bytes, ts: Timestamp) -> None:
        """Let a record of mode AFTER keep only what is live at `ts` or later. It never moves back."""
        record = await self.get(txn, record_id)
        if record.mode is not Mode.AFTER:
            raise UsageError(
                "only a protection of all that comes after a time can move; make another one", id=record_id
            )
        if ts > record.ts:
            await self._replace(txn, msgspec.structs.replace(record, ts=ts))

    async def get(self, txn: Transaction, record_id: bytes) -> Record:
        """One record."""
        record = await rows.read_record(txn, record_id) if len(record_id) == RECORD_ID_BYTES else None
        if record is None:
            raise NotFound(
                "no protection has this id: it was released, has expired, or never was",
                id=record_id[:RECORD_ID_BYTES].hex(),
            )
        return record

    async def _replace(self, txn: Transaction, record: Record) -> None:
        metadata = await rows.read_metadata(txn)
        await rows.write_metadata(txn, msgspec.structs.replace(metadata, version=metadata.version + 1))
        await rows.write_record(txn, record)

    # --- checks, all before the first write

    def _wanted(self, spans: Sequence[Span], tables: Sequence[int]) -> tuple[Span, ...]:
        wanted = list(spans)
        for table_id in tables:
            wanted.append(table_span(table_id))
            wanted += self._decoding(table_id)
        return tuple(SpanSet(wanted))

    def _check(self, ts: Timestamp, meta_type: str, meta: bytes, wanted: Sequence[Span], expires: Timestamp) -> None:
        now = self._clock.now()
        if ts > now:
            raise UsageError(
                f"{show(ts)} is in the future; only what has happened can be protected", timestamp=ts, now=now
            )
        if expires != MIN and expires <= now:
            raise UsageError(f"a protection that expires at {show(expires)} has expired already", expires=expires)
        if not wanted:
            raise UsageError("name at least one span or table to protect")
        for span in wanted:
            if span.start < KEY_MIN or span.end > KEY_MAX:
                raise UsageError("a span to protect lies inside the key space", start=span.start, end=span.end)
        if not 1 <= len(meta_type) <= META_TYPE_CHARS_MAX or len(meta) > META_BYTES_MAX:
            raise UsageError(
                f"a protection has a type of 1 to {META_TYPE_CHARS_MAX} characters and at most {META_BYTES_MAX} bytes about"
                " its owner"
            )

    async def _set_deadline(self, txn: Transaction, ts: Timestamp, mode: Mode, wanted: Sequence[Span]) -> None:
        """Let the transaction commit before `ts` could have been collected where no other record keeps it, or raise."""
        zones, now = await zones_in(txn), max(txn.state.read_ts, txn.state.write_ts)
        allowance, rest = zones.allowance(wanted), list(wanted)
        if allowance.deadline(ts) <= now:
            rest = uncovered((await rows.read_state(txn, read_at=txn.state.read_ts)).records, ts, mode, wanted)
        if not rest:
            probe("protect.covered")
            return
        deadline = zones.allowance(rest).deadline(ts)
        if deadline <= now:
            probe("protect.too_late")
            earliest = max(allowance.floor, add_seconds(txn.state.write_ts, -allowance.gc_ttl_s))
            raise TooLate(
                f"what was live at {show(ts)} may be collected already: history is kept for {allowance.gc_ttl_s:g} s here;"
                f" protect a time after {show(Timestamp(earliest))}",
                timestamp=ts,
                earliest=earliest,
            )
        txn.deadline = deadline if txn.deadline is None else min(txn.deadline, deadline)

    def _check_limits(self, changed: Metadata) -> None:
        for what, count, setting in (("records", changed.records, RECORDS_MAX), ("spans", changed.spans, SPANS_MAX)):
            limit = int(self._settings[setting])
            if count > limit:
                raise LimitReached(
                    f"this would make {count} protected {what}, and there may be {limit} ({setting}); release some, or"
                    " raise the limit",
                    limit=limit,
                )

    def _check_share(self, user: str, meta_type: str, own: Sequence[Record], spans: int) -> None:
        """Refuse one more record, of so many spans, to a client that holds as many as one may: the rest are for others.

        What is kept for its change feeds, and for its jobs, is counted by itself: a client that has pinned much is not cut off
        from its feeds, and can change its tables.
        """
        by = _BY_OWNER.get(meta_type, "")
        held = sum(_BY_OWNER.get(record.meta_type, "") == by for record in own)
        limit = int(self._settings[PER_OWNER_MAX])
        if held >= limit:
            probe("protect.owner_limit")
            raise LimitReached(
                f"{user} holds {held} protections{by}, and one client may hold {limit}"
                f" ({PER_OWNER_MAX}); release some, or have an operator raise the limit",
                limit=limit,
            )
        of_all, most = (
            sum(len(record.spans) for record in own) + spans,
            int(self._settings[SPANS_MAX] * SPANS_SHARE_MAX),
        )
        if of_all > most:
            probe("protect.owner_spans_limit")
            raise LimitReached(
                f"this would make {of_all} protected spans of {user}, and one client may hold {most}, half of {SPANS_MAX};"
                " release some, or have an operator raise the limit",
                limit=most,
            )


def uncovered(records: Iterable[Record], ts: Timestamp, mode: Mode, wanted: Iterable[Span]) -> list[Span]:
    """The spans of which the records do not keep all that a protection of `ts` would.

    Why the others need no deadline. A collector that does not see the new record has read the list before its commit: so it saw
    the record that covers it, or that one was made in time for this collector. It never touches what either of them needs.
    """
    after = mode is Mode.AFTER
    known = list(records)
    return [s for s in wanted if not still_there(MAX, kept_in(known, s), Kept(s.start, s.end, ts, after))]
