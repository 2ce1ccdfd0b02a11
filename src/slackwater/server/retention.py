"""What a node knows of time to live, protections and dropped tables: the rules by which its leaseholders collect.

    zones        ZoneFollower.zones          ttl of a range, when that was written, and as of when the copy is complete (Z)
    protections  ProtectionTracker        records over a range, and as of when the list is complete (R)
    tables       TableCatalog.tables      when a table was dropped

Rule (seed 003; I-26). Of a range that lies in one zone, everything at or below

    target = min(R, Z) − ttl − clock.max_offset,       if R > start of the lease and R > when the zone was written

may go, but for what is protected. Any of it unknown: nothing may. Why that is enough stands in `slackwater.protect` and
`slackwater.config.zones`: a protection that is not in the list commits above R, and below its own timestamp plus the ttl.

The lease counts, because the holder before may have known less: a list that was read before the lease began may miss
a protection that the former leaseholder had honored, and whose entry a merge or a snapshot has brought here since.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, seconds_between
from slackwater.codec.layout import TABLE, split_table_key, table_span, tables_between
from slackwater.errors import DecodeError, RetryableError, SlackwaterError
from slackwater.model.protection import kept_in
from slackwater.model.spans import Span
from slackwater.replica.evaluation import Permit

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.catalog.tables import Tables
    from slackwater.config.zones import Zones
    from slackwater.model.protection import State
    from slackwater.protect.tracker import ProtectionTracker
    from slackwater.replica.state import RangeState
    from slackwater.server.member import Member
    from slackwater.settings import Settings


class NodeRetention:
    """Implements `RetentionRules` from a node's copies. Pure: newer copies are fetched by the caller first."""

    def __init__(
        self,
        *,
        zones: Callable[[], Zones],
        tracker: Callable[[], ProtectionTracker],
        tables: Callable[[], Tables],
        settings: Settings,
    ) -> None:
        self._zones = zones
        self._tracker = tracker
        self._tables = tables
        self._settings = settings

    def permit(self, state: RangeState) -> Permit:
        """What may be collected of a range now; `RetryableError` says what has to be known first."""
        zones, span = self._zones(), Span(state.descriptor.start, state.descriptor.end)
        zone = zones.of(span) if zones.known else None
        if zone is None:
            why = (
                "lies in several zones and is to be split first" if zones.known else "has a zone that is not known here"
            )
            raise RetryableError(f"r{state.descriptor.range_id} {why}; nothing is collected")
        records, read_at = self._tracker().protected(span)
        needed = max(MIN, state.lease.start, zone.written)
        if read_at <= needed:
            raise RetryableError(
                "protections were read before the lease began or the zone was written; nothing is collected",
                read_at=read_at,
                needed=needed,
            )
        back_s = zone.gc_ttl_s + self._settings["clock.max_offset"]
        target = add_seconds(Timestamp(min(read_at, zones.read_at)), -back_s)
        return Permit(target, kept_in(records, span))

    def zones(self) -> Zones:
        """The copy of zones."""
        return self._zones()

    def protections(self) -> State:
        """The copy of protections."""
        return self._tracker().state

    def ttl_s(self, state: RangeState) -> float | None:
        """For how long history of a range is kept; None while that is not known, or not one answer."""
        zones = self._zones()
        zone = zones.of(Span(state.descriptor.start, state.descriptor.end)) if zones.known else None
        return None if zone is None else zone.gc_ttl_s

    def age_s(self, now: Timestamp) -> float:
        """How old the older of the two copies is."""
        return seconds_between(Timestamp(min(self._zones().read_at, self._tracker().state.read_at)), now)

    def dropped_at(self, start: bytes, end: bytes) -> Timestamp:
        """When the table or index that [start, end) lies in was dropped, or its table emptied; MIN: it lives, or never was."""
        if not start.startswith(TABLE):
            return MIN
        try:
            table_id, index_id, _ = split_table_key(start.ljust(7, b"\x00"))
        except DecodeError:
            return MIN
        history = self._tables().by_id(table_id)
        if history is None or end > table_span(table_id).end:
            return MIN
        if history.latest.dropped:
            return history.latest.modified
        return history.gone_indexes.get(index_id, MIN) if end <= table_span(table_id, index_id).end else MIN

    def dropped_in(self, start: bytes, end: bytes) -> list[Span]:
        """The parts of [start, end) that belong to dropped tables, to dropped indexes, and to tables before they were emptied."""
        spans: list[Span] = []
        for history in self._tables().with_gone(*tables_between(start, end)):
            table_id = history.latest.table_id
            if history.latest.dropped:
                spans.append(table_span(table_id))
            else:
                spans += [table_span(table_id, index_id) for index_id in history.gone_indexes]
        return [part for s in spans if (part := s.intersect(Span(start, end))) is not None]


def node_retention(member: Member) -> NodeRetention:
    """The rules of a node, by its own copies."""
    return NodeRetention(
        zones=lambda: member.zone_follower.zones,
        tracker=lambda: member.protection_tracker,
        tables=lambda: member.catalog.tables,
        settings=member.settings,
    )


async def refresh_retention(member: Member, after: Timestamp) -> None:
    """Read zones, and then protections, anew, so that they hold as of a time above `after`."""
    with suppress(SlackwaterError):  # a table that was dropped is collected later
        await member.catalog.refresh()
    await member.zone_follower.read()
    await member.protection_tracker.refresh(after=Timestamp(max(after, member.zone_follower.zones.read_at)))
