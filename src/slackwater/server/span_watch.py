"""Every node's copy of the span configuration, and what follows from it for closing.

    range 1  system("config", …) ── announced, and polled ──► SpanWatch ──► PolicyBook ──► every replica's `Closing.policy`
                                                              └──► the side transport asks every range again

Whoever hears of a change (the feed of announcements on `config_span()`, `server.announcements`) calls `nudge`, and the copy is
read at once. It is read every `span_config.poll_interval` as well, because announcements get lost (pitfall 44).

A lead is made for the round trip to the furthest follower of a range. Round trips wander, so they are smoothed and count in
steps with hysteresis (`closedts.policy.rtt_step`), and steps are only looked at when the configuration is.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.closedts.policy import Kind, rtt_step
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.runtime.sync import Event, timeout
from slackwater.server.span_config import factor_of, policies_of, read_configs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slackwater.closedts.policy import PolicyBook
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId
    from slackwater.replica.driver import Store, SystemKv
    from slackwater.server.node import Node
    from slackwater.server.span_config import SpanConfig
    from slackwater.settings import Settings


class SpanWatch:
    """One node's copy."""

    def __init__(
        self,
        *,
        book: PolicyBook,
        system: SystemKv,
        settings: Settings,
        round_trips_s: Callable[[], Mapping[NodeId, float]],
        changed: Callable[[], None],
    ) -> None:
        self.configs: list[SpanConfig] = []
        self.reads = 0
        self._book = book
        self._system = system
        self._settings = settings
        self._round_trips_s = round_trips_s
        self._changed = changed
        self._steps: dict[NodeId, int] = {}
        self._nudged = Event()

    def nudge(self) -> None:
        """The configuration may have changed: read it now."""
        self._nudged.set()

    async def known(self) -> list[SpanConfig]:
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
        configs = await read_configs(self._system)
        steps = {n: rtt_step(rtt_s, before=self._steps.get(n)) for n, rtt_s in self._round_trips_s().items()}
        self.reads += 1
        if configs != self.configs or (steps != self._steps and any(c.policy is Kind.LEAD for c in configs)):
            self.configs, self._steps = configs, steps
            self._book.replace(policies_of(configs, rtt_step=max(steps.values(), default=0)), steps=steps)
            self._changed()
            probe("span_config.changed")

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"span config reads={self.reads} records={len(self.configs)} rtt_steps={self._steps}"


def span_watch(node: Node, store: Store) -> SpanWatch:
    """The copy of a node that belongs to a cluster."""

    def changed() -> None:
        if store.context.transport is not None:
            store.context.transport.touch_all()

    return SpanWatch(
        book=store.context.policies,
        system=node.system,
        settings=node.settings,
        round_trips_s=node.hook.round_trips_s,
        changed=changed,
    )
