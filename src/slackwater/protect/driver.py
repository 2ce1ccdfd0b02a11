"""A node's copy of the protections, kept fresh by asking one row.

    read at R     ┌─ meta row, as of R ─┐
                  │ same version        └──► the list has not changed: it holds as of R too        one small read
                  │ another version     ───► records and spans as of the same R                    three small reads

The copy is read every `protected_timestamp.refresh_interval`, and at once when it is asked to be newer (`refresh`): by garbage
collection, when a zone or a lease is younger than the copy.

Reads are at one MVCC timestamp R: whatever commits later commits above R, because a read leaves its mark where it read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import SlackwaterError
from slackwater.hooks import probe, tap
from slackwater.model.protection import UNKNOWN
from slackwater.protect import rows
from slackwater.runtime.sync import Lock

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.protection import Record, State
    from slackwater.model.spans import Span
    from slackwater.protocol.range.requests import Rows
    from slackwater.settings import Settings
    from slackwater.txn.kv import KV

READ_TIMEOUT_S = 10.0


class AsOf:
    """Reads at one timestamp."""

    def __init__(self, kv: KV, ts: Timestamp) -> None:
        self._kv = kv
        self._ts = ts

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of a key, or None."""
        return await self._kv.get(key, ts=self._ts, timeout=READ_TIMEOUT_S)

    async def scan(self, start: bytes, end: bytes, /, *, max_keys: int = 0) -> Rows:
        """Keys and values of `[start, end)` in order."""
        return await self._kv.scan(start, end, max_keys=max_keys, ts=self._ts, timeout=READ_TIMEOUT_S)


class PollingTracker:
    """Implements `Tracker` by polling."""

    def __init__(self, kv: KV, *, settings: Settings) -> None:
        self._kv = kv
        self._settings = settings
        self._state = UNKNOWN
        self._reading = Lock()
        self.polls = 0
        """Reads of the meta row."""
        self.full_reads = 0
        """Reads of everything."""

    @property
    def state(self) -> State:
        """All of it, as of `state.read_at`."""
        return self._state

    def protected(self, span: Span) -> tuple[list[Record], Timestamp]:
        """The records that need history in `span`, and the MVCC timestamp as of which that is the whole list."""
        return self._state.over(span), self._state.read_at

    async def refresh(self, *, after: Timestamp) -> None:
        """Make sure that the copy was read above `after`; raises if it cannot be read."""
        async with self._reading:
            if self._state.read_at > after:
                return  # another caller that waited for the same turn has read it
            context = self._kv.context
            await context.wait_past(after)
            await self._read(context.clock.now())

    async def run(self) -> None:
        """Poll, for as long as the node lives."""
        while True:
            try:
                await self.refresh(after=self._state.read_at)
            except SlackwaterError:
                probe("protect.read_failed")  # what was known stays known, as of then
            await self._kv.context.runtime.clock.sleep(self._settings["protected_timestamp.refresh_interval"])

    async def _read(self, at: Timestamp) -> None:
        reader, known = AsOf(self._kv, at), self._state
        self.polls += 1
        metadata = await rows.read_metadata(reader)
        if known is UNKNOWN or metadata.version != known.metadata.version:
            self.full_reads += 1
            state = await rows.read_state(reader, read_at=at)
        else:
            state = type(known)(known.metadata, known.records, at)
        self._state = state
        tap("protect.read", state)

    def status(self) -> str:
        """One line for logs and scripts."""
        state = self._state
        return (
            f"protections records={len(state.records)} version={state.metadata.version} read_at={state.read_at}"
            f" polls={self.polls} full={self.full_reads}"
        )
