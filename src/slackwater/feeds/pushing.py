"""Old transactions hold a resolved timestamp back: what a feed does about them, and about ranges that close nothing.

    every `feed.push_interval`, for each attached range
        intents older than `feed.push_after` ── PushTxn above now ──► PENDING      cannot commit below: go on
                                                                      COMMITTED    resolve its intents: the event comes
                                                                      ABORTED      resolve its intents
                                                                      ABORTED, ambiguous ─► Barrier ─► see `resolved.py`
        closed lags far behind ── LeaseInfo(by_holder) ──► a replica takes the lease, and closes again (pitfall 12)

A push on behalf of a feed wins over all others (it counts as older than all) and never aborts a transaction that lives: it
only moves it up, and the transaction refreshes its reads (pitfall 14). Each transaction is pushed again only after it has
been holding things back for as long once more.

Barriers of one round are one command. The answer names the range in which the barrier applied: should this one have been
absorbed meanwhile, an index of another range proves nothing, and the push is repeated.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, seconds_between
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.protocol.range.requests import Barrier, LeaseInfo, Passed, Pushed, PushTxn, ResolveIntents
from slackwater.routing.parallel import in_parallel
from slackwater.txn.resolving import resolve_span

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from slackwater.feeds.attached import Attached
    from slackwater.feeds.driver import NodeFeeds
    from slackwater.feeds.rangefeed import Resolve
    from slackwater.model.txns import Intent
    from slackwater.runtime.seam import TaskScope
    from slackwater.txn.context import TxnContext

TIMEOUT_S = 5.0
AT_ONCE_MAX = 16
KEYS_PER_REQUEST = 200
RESOLVES_MAX = 1_024
"""Outcomes that wait to be resolved; those beyond are found again by the next push."""
LAG_TARGETS = 2
LAG_SLACK_S = 3.0
"""A range whose closed timestamp lags by more than twice its target and this is looked after."""


class FeedPusher:
    """The asking side of a node's feeds."""

    def __init__(self, feeds: NodeFeeds, txn_context: TxnContext, scope: TaskScope) -> None:
        self._feeds = feeds
        self._txn_context = txn_context
        self._scope = scope
        self._resolves: list[Resolve] = []
        self._barriers: dict[int, tuple[Attached, list[bytes]]] = {}

    def resolve(self, effect: Resolve) -> None:
        """The fate of a transaction is known: its intents will be resolved with the next round."""
        if len(self._resolves) < RESOLVES_MAX:
            self._resolves.append(effect)

    def need_barrier(self, attached: Attached, txn_id: bytes) -> None:
        """An abort is to be believed only after a barrier."""
        known = self._barriers.setdefault(attached.range_id, (attached, []))
        if known[0] is not attached:
            self._barriers[attached.range_id] = known = (attached, [])
        known[1].append(txn_id)

    async def run(self) -> None:
        """Push for as long as the node lives, while there are consumers."""
        txn_context = self._txn_context
        while True:
            await self._feeds.until_busy()
            await txn_context.runtime.clock.sleep(txn_context.settings["feed.push_interval"])
            works: list[Callable[[], Coroutine[Any, Any, None]]] = []
            for attached in list(self._feeds.attached.values()):
                works += self._round(attached)
            await self._do(works)
            barriers, self._barriers = self._barriers, {}
            await self._do([partial(self._barrier, attached, txns) for attached, txns in barriers.values()])
            resolves, self._resolves = self._resolves, []
            await self._do([partial(self._resolve, effect) for effect in resolves])

    async def _do(self, works: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        if works:
            await in_parallel(self._scope, works, limit=AT_ONCE_MAX, name="feeds push")

    def _round(self, attached: Attached) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        settings, feed, now = self._txn_context.settings, attached.feed, self._txn_context.clock.now()
        if feed.over or feed.idle:
            return []
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [
            partial(self._push, attached, intent)
            for intent in feed.to_push(now=now, older_than_s=settings["feed.push_after"])
        ]
        target = settings["closed_timestamp.target_duration"]
        if target and seconds_between(feed.resolved.closed, now) > LAG_TARGETS * target + LAG_SLACK_S:
            works.append(partial(self._nudge, attached))
        return works

    async def _push(self, attached: Attached, intent: Intent) -> None:
        above = self._txn_context.clock.now()
        request = PushTxn(pushee=intent, pusher_start=MIN, pusher_id=b"", above=above, abort=False)
        try:
            answer = await self._txn_context.ask([request], deadline=self._txn_context.deadline(TIMEOUT_S))
        except SlackwaterError:
            probe("feeds.push_failed")
            return
        pushed = answer.results[0]
        if isinstance(pushed, Pushed) and not attached.feed.over:
            probe("feeds.pushed_" + pushed.resolution.status.name.lower())
            self._feeds.follow(attached, attached.feed.pushed(pushed.resolution, ambiguous=pushed.ambiguous))

    async def _barrier(self, attached: Attached, txn_ids: list[bytes]) -> None:
        lai = None
        try:
            answer = await self._txn_context.ask(
                [Barrier()], deadline=self._txn_context.deadline(TIMEOUT_S), at=attached.feed.span.start
            )
            passed = answer.results[0]
            if isinstance(passed, Passed) and passed.range_id == attached.range_id:
                lai = passed.lai
        except SlackwaterError:
            probe("feeds.barrier_failed")
        if not attached.feed.over:
            applied = attached.replica.state.lai
            self._feeds.follow(attached, attached.feed.barrier_proposed(txn_ids, lai, applied=applied))

    async def _resolve(self, effect: Resolve) -> None:
        if len(effect.keys) > KEYS_PER_REQUEST:
            try:
                last = effect.keys[-1] + b"\x00"
                await resolve_span(
                    self._txn_context, effect.outcome, effect.keys[0], last, timeout=TIMEOUT_S, awaited=True
                )
            except SlackwaterError:
                probe("feeds.resolve_failed")
            return
        for at in range(0, len(effect.keys), KEYS_PER_REQUEST):
            request = ResolveIntents(effect.outcome, keys=tuple(effect.keys[at : at + KEYS_PER_REQUEST]))
            try:
                await self._txn_context.ask([request], deadline=self._txn_context.deadline(TIMEOUT_S))
            except SlackwaterError:
                probe("feeds.resolve_failed")
                return

    async def _nudge(self, attached: Attached) -> None:
        """Ask the leaseholder of a range that closes nothing: where no replica has the lease, the one that is asked takes it."""
        probe("feeds.nudged")
        try:
            await self._txn_context.ask(
                [LeaseInfo(by_holder=True)], deadline=self._txn_context.deadline(TIMEOUT_S), at=attached.feed.span.start
            )
        except SlackwaterError:
            probe("feeds.nudge_failed")
