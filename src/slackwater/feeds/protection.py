"""A running feed keeps the history that it still needs: a protected timestamp behind its progress, moved as it goes.

    history   ────────●═══════════════●────────────────────► now
                  protected        resolved
                      └─ lag ─────────┘
    advance(resolved)     every `MOVE_INTERVAL_S` at most, the protection moves up to what was resolved at the move before
    end()                 a feed that delivered all it was asked for releases; one whose consumer went away leaves its
                          protection for `feed.protection_grace`, and the consumer's token names it
    lag > alarm_after     `alarming`: a metric and one probe, long before anything happens
    lag > expires_after   KEEP: go on protecting, whatever it costs
                          FAIL: release, and the feed ends with `FeedExpired`: history may be collected again

Protected timestamps live a layer beside this one: the feed calls `Protector`, which the server implements with them
(`slackwater.server.protection:FeedProtector`).

Why a move lags by one interval: what was sent is not what the consumer has kept. One that saves its token at least every
`MOVE_INTERVAL_S` finds all history above it, whenever it comes back within the grace time.

A protection that cannot be moved keeps more than is needed, which is safe; one that could not be made, or that was released by an
operator, is tried again, and until then `protected` is None: the feed runs, and may be told `BelowGcThreshold`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

from slackwater.clock.timestamp import MIN, Timestamp, seconds_between
from slackwater.errors import FeedExpired, NotFound, SlackwaterError
from slackwater.hooks import probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock.hlc import HybridClock
    from slackwater.model.spans import Span

MOVE_INTERVAL_S = 10.0
"""Moving a protection is a write: not at every resolved timestamp."""
ALARM_SHARE = 0.5
"""The alarm goes off when this part of the time until expiry has passed."""


class ProtectionPolicy(enum.Enum):
    """What happens to a feed that lags for too long."""

    KEEP = "keep"
    FAIL = "fail"


class Protector(Protocol):
    """Keeps history from being collected. Every call either did it or raises; none says maybe."""

    async def protect(self, spans: Sequence[Span], ts: Timestamp, *, owner: str, user: str, former: bytes) -> bytes:
        """Keep every version of `spans` above `ts`; returns the protection's name. Raises when it is too late.

        `former` is the protection that an earlier run of this feed left; it is released, if it was this user's.
        """
        ...

    async def move(self, protection: bytes, ts: Timestamp) -> None:
        """Keep only what is above `ts` from now on."""
        ...

    async def release(self, protection: bytes) -> None:
        """Keep nothing for this one any more. Of one that is gone: fine."""
        ...

    async def leave(self, protection: bytes) -> None:
        """Keep it for the grace time only: the feed has ended, and its consumer may come back."""
        ...


class FeedProtection:
    """The protection of one feed."""

    def __init__(
        self,
        protector: Protector,
        spans: Sequence[Span],
        *,
        owner: str,
        clock: HybridClock,
        user: str = "",
        policy: ProtectionPolicy = ProtectionPolicy.KEEP,
        expires_after_s: float = 0.0,
    ) -> None:
        """`expires_after_s` is `gc_protect_expires_after`; 0: never."""
        self.policy = policy
        self.resolved = MIN
        self.protected: Timestamp | None = None
        """History above this is kept; None: not known to be."""
        self.failures = 0
        self._protector = protector
        self._spans = tuple(spans)
        self._owner = owner
        self._user = user
        self._clock = clock
        self._expires_after_s = expires_after_s
        self._name: bytes | None = None
        self._former = b""
        self._next = MIN
        """Where the next move goes: what was resolved at the one before."""
        self._moved_at = MIN
        self._alarmed = False

    @property
    def name(self) -> bytes:
        """The protection's id, for the consumer's token; empty while there is none."""
        return self._name or b""

    @property
    def lag_s(self) -> float:
        """How far the feed is behind: the first-class metric."""
        return max(0.0, seconds_between(self.resolved, self._clock.peek()))

    @property
    def alarming(self) -> bool:
        """Whether an operator should look at this feed before it expires, or before what it keeps hurts."""
        return bool(self._expires_after_s) and self.lag_s > self._expires_after_s * ALARM_SHARE

    async def begin(self, ts: Timestamp, *, former: bytes = b"") -> None:
        """Protect the changes after `ts`, before anything is read; `former` is what the consumer's token names."""
        self.resolved = self._next = ts
        self._former = former
        await self._keep(ts)

    async def advance(self, resolved: Timestamp) -> None:
        """The feed has everything up to here; call it at every checkpoint, it does something now and then."""
        self.resolved = Timestamp(max(self.resolved, resolved))
        now = self._clock.peek()
        if self._moved_at == MIN or seconds_between(self._moved_at, now) >= MOVE_INTERVAL_S or self._name is None:
            await self._keep(self.resolved if self._name is None else self._next)
            self._next = self.resolved

    async def check(self) -> None:
        """Call it now and then, progress or not: raises when the feed has lagged for too long and is to fail."""
        if self.alarming and not self._alarmed:
            probe("feeds.protection_alarm")
        self._alarmed = self.alarming
        if self.policy is ProtectionPolicy.FAIL and self._expires_after_s and self.lag_s > self._expires_after_s:
            probe("feeds.protection_expired")
            await self.end(finished=True)
            raise FeedExpired(
                "the feed has lagged for longer than gc_protect_expires_after and keeps history no more; start it anew",
                lag_s=round(self.lag_s, 3),
                resolved=self.resolved,
            )

    async def end(self, *, finished: bool) -> None:
        """The feed is over: what it kept may go, at once if it is `finished`, otherwise after the grace time."""
        name, self._name, self.protected = self._name, None, None
        if name is not None:
            await (self._protector.release(name) if finished else self._protector.leave(name))

    async def _keep(self, ts: Timestamp) -> None:
        try:
            if self._name is None:
                self._name = await self._protector.protect(
                    self._spans, ts, owner=self._owner, user=self._user, former=self._former
                )
                self._former = b""
            else:
                await self._protector.move(self._name, ts)
        except NotFound:
            probe("feeds.protection_lost")
            self._name = self.protected = None
            self.failures += 1
            return
        except SlackwaterError:
            probe("feeds.protection_failed")
            self.failures += 1
            return
        self.protected = ts
        self._moved_at = self._clock.peek()

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        alarm = " ALARM" if self.alarming else ""
        return f"protected={self.protected or '-'} lag={self.lag_s:.1f}s policy={self.policy.value}{alarm}"
