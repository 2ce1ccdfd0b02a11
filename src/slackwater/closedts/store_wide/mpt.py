r"""The minimum proposal timestamp of a store: which timestamp no command is under way below, and never will be.

Two timestamps with reference counts. `last` is what the latest heartbeat closed; `cur` is where new commands must lie
above. A command counts for `cur` when it is evaluated and stops counting when it has its index; if a heartbeat came in
between, that count has become `last`'s:

          0        3                                3                   0
        last      cur    commands                  last    commands    cur
          |        |       /\   \____               |       /\   \_____|__
          v        v      v  v        v              v      v  v        v v
    ------------------------x--x--------x--> time  ---------x--x----------x--> time        one heartbeat later

    heartbeat   `last` has drained: it takes the place of `cur`, count and all, and is sent; `cur` moves to the new target
                it has not: the same `last` is sent again, and `cur` stays. One slow command holds back the whole store
    rule        every command writes *above* the `cur` it entered under, so when that is sent as closed, commands that
                still count for it lie above it (I-10, I-11). Were equality let in (planted bug M08), one could lie at it

The document says in one place that the old `last` is sent and then moved, in another that it is the value most recently
sent. With the strict rule the second is sound and closes one heartbeat sooner; it is what the drawings show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import invariant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.closedts.tracker import Token, Tracker

Generation = NewType("Generation", int)
"""How many times `cur` had moved when a command entered."""


class MinProposal:
    """`last` and `cur` of one store."""

    def __init__(self) -> None:
        self.last = MIN
        self.cur = MIN
        self.last_count = 0
        self.cur_count = 0
        self.resent = 0
        """Heartbeats that could not move because a command of an earlier one was still under way."""
        self._generation = Generation(0)

    def enter(self) -> Generation:
        """A command is evaluated; it writes above `cur`."""
        self.cur_count += 1
        return self._generation

    def leave(self, entered: Generation) -> None:
        """A command has its index, or never will: it no longer holds back the timestamp it counts for now."""
        if entered == self._generation:
            self.cur_count -= 1
        else:
            invariant(entered == self._generation - 1, "I-11", entered=entered, generation=self._generation)
            self.last_count -= 1
        invariant(self.cur_count >= 0 and self.last_count >= 0, "I-11", last=self.last_count, cur=self.cur_count)

    def heartbeat(self, target: Timestamp) -> Timestamp:
        """Move on if nothing holds `last`; returns what is closed now. `cur` never goes back, whatever the target."""
        if self.last_count:
            self.resent += 1
            assert self.last <= self.cur, "what is closed lies below what is aimed at (I-09)"
            return self.last
        before = self.last
        self.last, self.last_count = self.cur, self.cur_count
        self.cur, self.cur_count = Timestamp(max(self.cur, target)), 0
        self._generation = Generation(self._generation + 1)
        invariant(self.last <= self.cur, "I-09", last=self.last, cur=self.cur)
        assert self.last >= before, "what heartbeats close never goes back (I-09)"
        return self.last

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"last={self.last}:{self.last_count} cur={self.cur}:{self.cur_count}"


class CountedTracker:
    """The tracker of one range that also counts its commands for the store. Satisfies `Tracker`.

    Commands that were inside before the counting began are not counted; the range's own bound still covers them.
    """

    def __init__(self, inner: Tracker, mpt: MinProposal) -> None:
        self.inner = inner
        self._mpt = mpt
        self._entered: dict[Token, Generation] = {}

    def track(self, ts: Timestamp) -> Token:
        """Enter a request that may write at `ts` or above."""
        token = self.inner.track(ts)
        self._entered[token] = self._mpt.enter()
        assert len(self._entered) <= self.inner.count, "what is counted is tracked"
        return token

    def untrack(self, token: Token) -> None:
        """Leave."""
        self.inner.untrack(token)
        entered = self._entered.pop(token, None)
        if entered is not None:
            self._mpt.leave(entered)

    def leave(self, tokens: Iterable[Token]) -> Timestamp | None:
        """`untrack` of each, then `lower_bound`."""
        for token in tokens:
            self.untrack(token)
        assert len(self._entered) <= self.inner.count, "what is counted for the store is tracked by its range"
        return self.inner.lower_bound()

    def lower_bound(self) -> Timestamp | None:
        """At or below every tracked timestamp; None when nothing is tracked."""
        return self.inner.lower_bound()

    @property
    def count(self) -> int:
        """Requests inside."""
        return self.inner.count

    def release(self) -> Tracker:
        """Stop counting: what is inside no longer holds the store back. Returns the tracker of the range alone."""
        for entered in self._entered.values():
            self._mpt.leave(entered)
        self._entered.clear()
        assert self._mpt.last_count >= 0, "a command leaves the store's count once"
        return self.inner
