"""Every node's copy of the zones, and what follows from it for closing.

    range 1  system("config", …) ── announced, and polled ──► ZoneFollower ──► PolicyBook ──► every replica's `Closing.policy`
                                                              ├──► the side transport asks every range again
                                                              └──► `zones`: how long history is kept, for garbage collection

Configuration is a wish, not a promise: nothing that is served depends on when a node learns of it. A node that has read none
yet closes by the cluster's lag, and collects nothing. The system's own keys always lag, by the cluster's setting: leases and the
index of ranges must not wait for the future, and no record has a say in that.

Code that hears of a change (the feed of announcements on `zones_span()`, `server.announcements`) calls `nudge`, and the copy is
read at once. It is read every `span_config.poll_interval` as well, because announcements get lost (pitfall 44).

A lead is made for the round trip to the furthest follower of a range. Round trips wander, so they are smoothed and count in
steps with hysteresis (`closedts.policy.rtt_step`), and steps are only looked at when the configuration is.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from slackwater.closedts.policy import ClosingPolicy, SpanPolicies, rtt_step
from slackwater.codec.layout import KV as KV_PREFIX
from slackwater.config.zones import PolicyKind, ZoneConfig, Zones, factor_of
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.protect.zone_changes import read_zones
from slackwater.runtime.sync import Event, timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from slackwater.closedts.policy import PolicyBook
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId
    from slackwater.replica.driver import Store
    from slackwater.server.member import Member
    from slackwater.settings import Settings

SYSTEM_POLICY = ClosingPolicy()
"""Of the keys below `layout.KV`, whatever records say."""
READ_TIMEOUT_S = 4.0
"""The copy is read again soon anyway."""


class ZoneFollower:
    """One node's copy."""

    def __init__(
        self,
        *,
        book: PolicyBook,
        read: Callable[[], Awaitable[Zones]],
        settings: Settings,
        round_trips_s: Callable[[], Mapping[NodeId, float]],
        changed: Callable[[], None],
    ) -> None:
        self.zones = Zones()
        """The copy, with what garbage collection must know of it."""
        self.reads = 0
        self._book = book
        self._read = read
        self._settings = settings
        self._round_trips_s = round_trips_s
        self._changed = changed
        self._steps: dict[NodeId, int] = {}
        self._nudged = Event()

    @property
    def configs(self) -> list[ZoneConfig]:
        """The records alone."""
        return [zone.config for zone in self.zones.records]

    def nudge(self) -> None:
        """The configuration may have changed: read it now."""
        self._nudged.set()

    async def known(self) -> list[ZoneConfig]:
        """The copy; made now if there is none yet."""
        if not self.reads:
            await self.read()
        return self.configs

    def factor(self, descriptor: RangeDescriptor) -> int:
        """How many replicas a range is to have; 0 while the configuration has not been read."""
        default = int(self._settings["range.replication_factor"])
        return factor_of(self.configs, descriptor, default=default) if self.reads else 0

    async def run(self) -> None:
        """Read, for as long as the node lives."""
        while True:
            try:
                await self.read()
            except SlackwaterError:
                probe("span_config.read_failed")  # what was known stays in force
            with suppress(TimeoutError):
                async with timeout(self._settings["span_config.poll_interval"]):
                    await self._nudged.wait()
            self._nudged.clear()

    async def read(self) -> None:
        """Read it once, and have it obeyed."""
        zones = await self._read()
        steps = {n: rtt_step(rtt_s, before=self._steps.get(n)) for n, rtt_s in self._round_trips_s().items()}
        self.reads += 1
        if zones.read_at < self.zones.read_at:
            return  # a later read overtook this one
        before, self.zones = self.configs, zones.since(self.zones)
        configs = self.configs
        if configs != before or (steps != self._steps and any(c.policy is PolicyKind.LEAD for c in configs)):
            self._steps = steps
            self._book.replace(policies_of(configs, rtt_step=max(steps.values(), default=0)), steps=steps)
            self._changed()
            probe("span_config.changed")

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"span config reads={self.reads} records={len(self.configs)} rtt_steps={self._steps}"


def policies_of(configs: Sequence[ZoneConfig], *, rtt_step: int) -> SpanPolicies:
    """Which policy holds where; leads are made for a round trip of that step."""

    def stepped(config: ZoneConfig) -> ClosingPolicy | None:
        if config.policy is None:
            return None
        return (
            ClosingPolicy(PolicyKind.LEAD, 0, rtt_step)
            if config.policy is PolicyKind.LEAD
            else ClosingPolicy(config.policy, config.duration_ms)
        )

    rest = next((c for c in configs if c.is_rest), ZoneConfig())
    default = None if rest.policy is None else ClosingPolicy(rest.policy, rest.duration_ms)
    named = [(c.start, c.end, p) for c in configs if not c.is_rest and (p := stepped(c)) is not None]
    users = [(max(start, KV_PREFIX), end, policy) for start, end, policy in named if end > KV_PREFIX]
    return SpanPolicies([(b"", KV_PREFIX, SYSTEM_POLICY), *users], default=default)


def zone_follower(member: Member) -> ZoneFollower:
    """The copy of one node."""
    return ZoneFollower(
        book=member.policies,
        read=partial(read_zones, member.kv, timeout=READ_TIMEOUT_S),
        settings=member.settings,
        round_trips_s=member.hook.round_trips_s,
        changed=partial(_touch_all, member.store),
    )


def _touch_all(store: Store) -> None:
    """Have the side transport ask every range again."""
    if store.context.transport is not None:
        store.context.transport.touch_all()
