"""A range made again from the log alone, where every entry since the cluster's beginning is still there.

    what the cluster began with        r3 [/kv, max)
    log of r3, from its first entry    ── writes ── split at m: r4 ──╮      later entries of r3's log are not needed
    log of r4, from its first entry                                  ╰── writes ── … ── head

Any replica that applies the same entries to the same beginning is the same (I-06), so nothing here decides anything: it is
`apply_packet`, into an engine of its own, and the result is installed like a snapshot from another node. What is not
certain is refused: entries that were trimmed, a merge on the way (the other side's history would be needed up to its
freeze), a range that is frozen at the end (it may be part of its neighbour by now), and commands under a lease whose
beginning was not met, which would mean that entries before them are missing.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from slackwater.errors import HistoryIncomplete, LogTrimmed, UnavailableError
from slackwater.hooks import probe
from slackwater.protocol.log.commands import ComplaintTrigger, decode_packet
from slackwater.replica.apply import Absorbed, Created, apply_packet
from slackwater.replica.driver.stored import stored_states
from slackwater.replica.snapshot import send_parts
from slackwater.runtime.sync import timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slackwater.log.contract import Entry, OrderedLog
    from slackwater.model.ids import Position, RangeId
    from slackwater.protocol.log.commands import Packet
    from slackwater.protocol.node.snapshots import SnapshotPart
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import Engine, Runtime

STALLED_S = 30.0
"""How long a log that has more is waited for."""


class RangeHistory:
    """The range that begins at a key, as the log makes it."""

    def __init__(self, engine: Engine, log: OrderedLog, runtime: Runtime, *, start: bytes, bytes_max: int) -> None:
        """`engine` holds what the cluster began with and belongs to this object from here on."""
        self._engine = engine
        self._log = log
        self._runtime = runtime
        self._start = start
        self._bytes_left = bytes_max
        self.state = next(s for s in stored_states(engine) if s.descriptor.contains(start))

    async def advance(self) -> RangeState:
        """Apply everything that is in the log now; the state at its head. Raises `HistoryIncomplete` where that cannot be."""
        while True:
            range_id = self.state.descriptor.range_id
            head = await self._log.head(range_id)
            if self.state.position >= head:
                break
            await self._read(range_id, head)
        state = self.state
        if state.descriptor.start != self._start:
            raise self._incomplete("no entry of the log makes a range that begins where the lost one does")
        if state.frozen is not None:
            raise self._incomplete("it is frozen, and may have been merged into its left neighbor")
        assert state.descriptor.contains(self._start), "the range that was lost"
        return state

    async def parts(self) -> AsyncIterator[SnapshotPart]:
        """The range as a stream, as another node would send it."""
        frozen = self._engine.snapshot(once=True)
        try:
            for part in send_parts(frozen, self.state):
                yield part
                await self._runtime.clock.sleep(0)
        finally:
            frozen.close()

    async def _read(self, range_id: RangeId, head: Position) -> None:
        """Apply one range's log up to `head`, or to the split that made the range that is looked for."""
        try:
            async with aclosing(self._log.tail(range_id, after=self.state.position)) as batches:  # type: ignore[type-var]
                while self.state.descriptor.range_id == range_id and self.state.position < head:
                    async with timeout(STALLED_S):
                        entries = await anext(batches)
                    await self._runtime.offload(self._apply, entries)
        except LogTrimmed as error:
            raise self._incomplete("the log was trimmed and no longer reaches back to its beginning") from error
        except TimeoutError:
            raise UnavailableError(f"the log of r{range_id} does not deliver what it has; try again") from None

    def _apply(self, entries: list[Entry]) -> None:
        for position, payload in entries:
            self._bytes_left -= len(payload)
            if self._bytes_left < 0:
                raise self._incomplete(
                    "its log is longer than range.rebuild_log_bytes allows to be replayed; raise that"
                )
            packet = decode_packet(payload)
            self._check_leases(packet)
            assert position > self.state.position, "entries are applied in their order (I-04)"
            applied = apply_packet(self.state, position, packet)
            if any(isinstance(event, Absorbed) for event in applied.aftermath):
                raise self._incomplete("it, or a range that it was split from, has absorbed another one by a merge")
            self._engine.write(applied.batch)
            self.state = applied.state
            assert self.state.position == position, "the state is that of the last entry (I-06)"
            for event in applied.aftermath:
                if isinstance(event, Created) and event.state.descriptor.contains(self._start):
                    probe("history.split")
                    self.state = event.state
                    return

    def _check_leases(self, packet: Packet) -> None:
        """A lease applies before the commands that are proposed under it, unless entries are missing."""
        for command in packet.commands:
            if command.lease_sequence > self.state.lease.sequence and not isinstance(command.trigger, ComplaintTrigger):
                raise self._incomplete("entries of its log are missing: a command is under a lease that was never made")

    def _incomplete(self, why: str) -> HistoryIncomplete:
        at = self.state
        return HistoryIncomplete(why, range_id=at.descriptor.range_id, position=at.position, start=self._start)
