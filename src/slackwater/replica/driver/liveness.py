"""Signs of life: this node's heartbeat, what it knows of others, and ending the epoch of a dead one.

Every node renews `{node, epoch, expiration}` in range 1 by conditional put. The epoch is what leases hang on:

    heartbeat ok          expiration moves on, epoch stays: every lease under it stays valid
    expired               any node may raise the epoch, by conditional put against the very record it saw expire;
                          after that no heartbeat can revive the old epoch, so its end is known for good (I-07)
    heartbeat refused     another node raised our epoch: all our leases are gone; go on under the new one

A restarted node waits until the record of its former life has expired before it starts a new epoch: only then is it sure
that nothing served before the restart lies above what it will write. A graceful stop ends its own epoch, so the
next start does not wait. What is not known is `None`: neither live nor dead.

A record also names the *life* of the process that runs as the node: a number that every start draws anew and writes to its
store first. So two processes with one node id, one of them started from a copy of the other's store, cannot both be it:

    the record names a life that the store never had   the node has lived on elsewhere since the store was copied: refuse
    the record goes on being renewed while this        the other process runs: refuse
      process waits for it to expire
    our own record comes to name another life          the other process began after ours had expired: stop
    a peer says that our record names a life that      as in the first line, where this process can read neither the record
      the store never had                                nor the log of range 1, which the other process has trimmed

Leases name the life they were given to as well (`Lease.life`), for range 1's does not hang on a record. Where the other
process leads range 1, the record cannot be read from here: requests for it would come to this very process. But its lease is
in the log, and says as much: it was extended after this process began.

A record is of use to its own node until its expiration less the clocks' error. A record always lasts so long that it is of
use (`replica.lease.lasts_s`), and a node renews it at least twice in that time, whatever `liveness.heartbeat_interval` says:
with settings that do not fit each other it would lose the use of all its leases between any two heartbeats.

Records of others are announced (`server.announcements`) when they are written. While announcements come, they are read only
every `feed.poll_interval`; when they do not, with every heartbeat.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Protocol

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, seconds_between
from slackwater.codec.layout import prefix_end, system
from slackwater.errors import ConditionFailed, NodeFenced, SlackwaterError, UnavailableError, UsageError
from slackwater.hooks import buggify, probe
from slackwater.model.descriptors import Epoch, Lease, Liveness
from slackwater.model.ids import NodeId
from slackwater.replica.lease import lasts_s
from slackwater.runtime.sync import Event
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.clock import HybridClock
    from slackwater.runtime.seam import Runtime
    from slackwater.settings import Settings

RENEWALS_SEEN_MAX = 3
"""Renewals of a record that a starting node waits out: the last ones of its former life may still be on their way."""
EXTENDED_LENGTHS = 3
"""A lease that lasts for so many lengths has been extended."""
DEAF_INTERVALS = 2
"""Heartbeats during which no announcement came, not even this node's own, after which records are read."""
MARK_TRIES_MAX = 16
assert RENEWALS_SEEN_MAX >= 2, "one late renewal of a former life fences nothing"
assert EXTENDED_LENGTHS > 1, "a lease this long was extended"
assert DEAF_INTERVALS >= 2, "one announcement that was lost does not make a node read all records"
assert describe("liveness.duration").default - describe("clock.max_offset").default > (
    2 * describe("liveness.heartbeat_interval").default
), "a record is renewed twice while it is of use"

_decoder = msgspec.msgpack.Decoder(Liveness)
_encoder = msgspec.msgpack.Encoder()


class SystemKv(Protocol):
    """The store as its own machinery uses it: small records, no transaction."""

    async def get(self, key: bytes) -> bytes | None:
        """Read one record."""
        ...

    async def put(self, key: bytes, value: bytes) -> None:
        """Write one record."""
        ...

    async def conditional_put(self, key: bytes, value: bytes, *, expected: bytes | None) -> None:
        """Raises `ConditionFailed` with `actual` in its facts."""
        ...

    async def scan(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Read the records of [start, end)."""
        ...

    async def increment(self, key: bytes, by: int) -> int:
        """Add to a counter; returns its new value."""
        ...


class Lives(Protocol):
    """The lives of this node's process that its store knows of."""

    life: int
    """Of this process."""

    def knows(self, life: int) -> bool:
        """Whether a process that ran on this very store had that life."""
        ...


class Unnamed:
    """No life at all: for stores that are never copied, such as those of tests."""

    life = 0

    def knows(self, life: int) -> bool:
        """Every record is its own."""
        return True


def _standing(record: Liveness) -> tuple[Epoch, bool, bool]:
    """What may change what others do about a node; its expiration changes all the time."""
    return record.epoch, record.draining, record.decommissioning


def liveness_key(node: NodeId) -> bytes:
    """Where a node's record lives."""
    return system("liveness", node.to_bytes(4, "big"))


def liveness_span() -> tuple[bytes, bytes]:
    """All records."""
    prefix = system("liveness")[:-2]
    return prefix, prefix_end(prefix)


assert liveness_span()[0] < liveness_key(NodeId(1)) < liveness_key(NodeId((1 << 32) - 1)) < liveness_span()[1], (
    "the record of every node lies in the span that is read"
)


class NodeLiveness:
    """This node's liveness and its view of the others'. Implements `LivenessView`."""

    def __init__(
        self,
        node_id: NodeId,
        runtime: Runtime,
        clock: HybridClock,
        settings: Settings,
        kv: SystemKv,
        *,
        trusted: Callable[[], None],
        lives: Lives | None = None,
        first_lease: Callable[[], Lease | None] = lambda: None,
    ) -> None:
        self.node_id = node_id
        self.registered = Event()
        """Set once this process has its node's record, and no other process can."""
        self._lives = lives or Unnamed()
        self._first_lease = first_lease
        self._began_at = clock.now()
        self._renewals_seen = 0
        self._waited_for = MIN
        self._heard_life = 0
        """The life that a peer last said this node's record names."""
        self.draining = False
        self._runtime = runtime
        self._clock = clock
        self._settings = settings
        self._kv = kv
        self._trusted = trusted
        self._own: Liveness | None = None
        self._left = False
        self._ended = Epoch(0)
        """The last epoch this node gave up by itself: it is never relied on again, whatever is still on its way."""
        self._known: dict[NodeId, Liveness] = {}
        self._relied_on = Epoch(0)
        """The epoch of this node that leases were last looked after in."""
        self.on_news: Callable[[], None] = lambda: None
        """Called when a node was first heard of, began another life, expired, or said that it stops or leaves."""
        self.lease_s: Callable[[], float] = lambda: 0.0
        """How long after a record's expiration leases on descriptors that hang on it count; written with each heartbeat."""
        self.on_own: Callable[[Liveness], None] = lambda record: None
        """Called with this node's record whenever it is known to be in the store."""
        self.heartbeats_failed = 0
        self._live: frozenset[NodeId] = frozenset()
        self._heard_at = MIN
        self.refreshed_at = MIN
        """When all records were last read: no node is declared dead on older news."""

    # --- the view ---------------------------------------------------------------------------------------------------

    def get(self, node: NodeId) -> Liveness | None:
        """The newest known record of a node."""
        return self._known.get(node)

    def hear_of_life(self, life: int) -> None:
        """Note which life this node's record names, as a peer knows it; the next heartbeat judges it."""
        if life:
            self._heard_life = life

    def own(self, now: Timestamp | None = None) -> Liveness | None:
        """This node's record while it is live by its own clock, at the reading `now` or at a new one; None otherwise."""
        own = self._own
        return own if own is not None and (self._clock.peek() if now is None else now) < own.expiration else None

    def all(self) -> list[Liveness]:
        """Every known record, by node."""
        return [self._known[n] for n in sorted(self._known)]

    # --- heartbeats --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Begin a new epoch, then heartbeat and look at the others for as long as the node lives."""
        while not await self._attempt(self._begin):
            await self._runtime.clock.sleep(self._interval / 4)
        while True:
            await self._runtime.clock.sleep(self._interval)
            self._notice_expired()
            if buggify("liveness.lose_heartbeat"):
                continue
            if await self._attempt(self._heartbeat) and not self._well_informed():
                await self._attempt(self.refresh)

    @property
    def _duration(self) -> float:
        """Seconds that a record lasts after a heartbeat."""
        return lasts_s(self._settings["liveness.duration"], max_offset_us=self._clock.max_offset_us)

    @property
    def _interval(self) -> float:
        """Seconds between heartbeats: as set, but twice at least while a record is of use."""
        of_use = self._duration - self._clock.max_offset_us / 1e6
        assert of_use > 0, "a record is of use before its stasis"
        return min(self._settings["liveness.heartbeat_interval"], of_use / 2)

    def _well_informed(self) -> bool:
        """Whether the heartbeats of all nodes are announced here, and were read not long ago: then they need not be read now."""
        now = self._clock.peek()
        deaf_s, unread_s = seconds_between(self._heard_at, now), seconds_between(self.refreshed_at, now)
        return deaf_s < DEAF_INTERVALS * self._interval and unread_s < self._settings["feed.poll_interval"]

    def _notice_expired(self) -> None:
        """Call `on_news` when a record has expired, which is not announced: idle ranges get another leader sooner."""
        now = self._clock.peek()
        live = frozenset(node for node, record in self._known.items() if record.live_at(now))
        gone, self._live = self._live - live, live
        if gone:
            probe("liveness.noticed_expired")
            self.on_news()

    async def _attempt(self, step: Callable[[], object]) -> bool:
        try:
            # A clock that its peers prove wrong must not keep leases alive (I-01).
            self._trusted()
            self._check_lease()
            await step()  # type: ignore[misc]
        except NodeFenced:
            raise
        except SlackwaterError:
            self.heartbeats_failed += 1
            probe("liveness.heartbeat_failed")
            return False
        return True

    async def _begin(self) -> None:
        """Start a new epoch, once no node can rely on the former one any longer."""
        raw = await self._kv.get(liveness_key(self.node_id))
        if raw is None:
            await self._write(None, Liveness(self.node_id, Epoch(1), MIN))
            await self.refresh()
            self.on_news()
            return
        record = _decoder.decode(raw)
        self._check_ours(record)
        now = self._clock.now()
        if record.live_at(now):
            probe("liveness.wait_for_former_life")
            # Not all of it at once: whether another process renews it meanwhile is soon to be seen.
            await self._runtime.clock.sleep(min(seconds_between(now, record.expiration) + 0.001, self._interval))
            raise UnavailableError("the record of this node's former life has not expired yet")
        await self._write(raw, record.next_epoch())
        await self.refresh()
        self.on_news()  # leases of the former life are to be acquired anew, also where there is no other node to hear of

    def _check_lease(self) -> None:
        """Raise if another process leads range 1 as this node; only while this one has no use of the node's record."""
        lease, known = self._first_lease(), self._known.get(self.node_id)
        if not self._lives.knows(self._heard_life) or (known is not None and not self._lives.knows(known.life)):
            raise self._fenced("was started in another process, from another copy of this store")  # as was announced
        if self.own() is not None or lease is None or lease.holder != self.node_id:
            return
        if lease.life in (0, self._lives.life):
            return
        offset_us = self._clock.max_offset_us
        longest_s = lasts_s(self._settings["lease.duration"], max_offset_us=offset_us) + 2 * offset_us / 1e6
        # Others may hand a lease to our former life as long as its record is live, and their settings may differ; and a copy
        # may take the lease, only to read in the record that it is one. A process that has extended its lease again and
        # again, to a lease's length after its clock, has the record; has it done so since we had it, it still runs.
        extended = seconds_between(lease.start, lease.expiration) > EXTENDED_LENGTHS * longest_s
        since = max(self._began_at, known.expiration if self.registered.is_set() and known is not None else MIN)
        if extended and add_seconds(lease.expiration, -longest_s) > since:
            raise self._fenced("leads range 1 in another process, from another copy of this store")

    def _check_ours(self, record: Liveness) -> None:
        """Raise unless the record was last written on behalf of this store, by a process that has ended."""
        if not self._lives.knows(record.life):
            raise self._fenced("has run from another copy of this store since this one was made")
        if record.life not in (0, self._lives.life) and record.expiration > self._waited_for > MIN:
            self._renewals_seen += 1
            if self._renewals_seen >= RENEWALS_SEEN_MAX:
                raise self._fenced("runs in another process, from another copy of this store")
        self._waited_for = record.expiration

    def _fenced(self, what: str) -> NodeFenced:
        return NodeFenced(
            f"n{self.node_id} {what}; end this process and go on with the other one. To make another node, start with an "
            "empty store",
            node_id=self.node_id,
        )

    async def _heartbeat(self) -> None:
        if self._left:
            return
        own = self._own
        if own is None:
            await self._begin()
            return
        known = _encoder.encode(own)
        try:
            await self._write(known, own)
        except ConditionFailed as refused:
            actual = refused.facts.get("actual")
            if isinstance(actual, bytes) and actual != known and _decoder.decode(actual) == own:
                await self._write(actual, own)  # an older version of this program marked it, in other bytes
            else:
                self._adopt(actual)

    def _adopt(self, actual: object) -> None:
        """Go on from the record that is there: another node wrote it, or the answer to one of our own writes was lost."""
        if not isinstance(actual, bytes):
            self._own = None
            return
        record = _decoder.decode(actual)
        probe("liveness.adopted")
        if record.life not in (0, self._lives.life):
            self._own = None
            raise self._fenced(
                "was started in another process, from another copy of this store, while this one was cut off"
            )
        self._trust(record)

    def _trust(self, record: Liveness) -> None:
        """Our record is what the store holds: rely on it from now on, unless we are leaving."""
        assert record.node_id == self.node_id, "a node relies on its own record"
        self._own = None if self._left or record.epoch <= self._ended else record
        self.registered.set()
        self._known[self.node_id] = record
        self.on_own(record)
        if self.own() is not None and record.epoch != self._relied_on:
            # Another node has ended the epoch before: idle ranges have no lease since, and no request tells of it.
            self._relied_on = record.epoch
            self.on_news()

    async def _write(self, expected: bytes | None, base: Liveness) -> None:
        """Replace our record by `base`, renewed: of its epoch, and with what was promised under earlier ones."""
        assert base.epoch > 0, "epochs begin at 1"
        if self._left:
            raise UnavailableError("this node is stopping and renews nothing")
        record = msgspec.structs.replace(
            base,
            expiration=add_seconds(self._clock.now(), self._duration),
            draining=self.draining,
            life=self._lives.life,
        )
        # What was handed out under this epoch counts as long as it did, also when leases are made shorter.
        lease_ms = max(
            round(self.lease_s() * 1000), ceil(seconds_between(record.expiration, base.promised_upto) * 1000)
        )
        record = msgspec.structs.replace(record, lease_ms=lease_ms)
        assert record.expiration > self._clock.peek(), "a record lasts"
        await self._kv.conditional_put(liveness_key(self.node_id), _encoder.encode(record), expected=expected)
        self._trust(record)

    async def refresh(self) -> None:
        """Read the records of all nodes."""
        now = self._clock.now()
        for _, raw in await self._kv.scan(*liveness_span()):
            self._learn(_decoder.decode(raw))
        self.refreshed_at = now

    def heard(self, raw: bytes) -> None:
        """Take a record as it was announced; late or repeated announcements do no harm."""
        self._heard_at = self._clock.peek()
        if raw:
            self._learn(_decoder.decode(raw))

    def _learn(self, record: Liveness) -> None:
        known = self._known.get(record.node_id)
        # An equal one may have been marked by an operator since.
        if known is None or (record.epoch, record.expiration) >= (known.epoch, known.expiration):
            assert known is None or record.epoch >= known.epoch, "ended epochs never come back (I-07)"
            self._known[record.node_id] = record
            if known is None or _standing(known) != _standing(record):
                self.on_news()

    async def _replace(self, record: Liveness, new: Liveness) -> None:
        """Write a record in place of the one that is known; `ConditionFailed` when there is another.

        The same record may be there in other bytes: an older version of this program writes fewer fields.
        """
        key, known = liveness_key(record.node_id), _encoder.encode(record)
        try:
            await self._kv.conditional_put(key, _encoder.encode(new), expected=known)
        except ConditionFailed as refused:
            actual = refused.facts.get("actual")
            if not isinstance(actual, bytes) or actual == known or _decoder.decode(actual) != record:
                raise
            probe("liveness.other_bytes")
            await self._kv.conditional_put(key, _encoder.encode(new), expected=actual)

    async def end_epoch(self, record: Liveness) -> Liveness:
        """Raise the epoch of an expired node. Fails when its record has changed since, for better or worse."""
        if record.live_at(self._clock.now()):
            raise UnavailableError(f"n{record.node_id} has not expired; its epoch cannot be ended")
        ended = record.next_epoch()
        try:
            assert ended.epoch > record.epoch, "ended epochs never come back (I-07)"
            await self._replace(record, ended)
        except ConditionFailed as refused:
            actual = refused.facts.get("actual")
            if isinstance(actual, bytes):
                self._learn(_decoder.decode(actual))
            known = self._known.get(record.node_id)
            if known is not None and known.epoch > record.epoch:
                return known
            raise UnavailableError(f"n{record.node_id} came back to life") from refused
        self._learn(ended)  # unless its node has renewed it in the meantime
        return ended

    async def drain(self) -> None:
        """Say in our record that we are about to stop: no leases, no new replicas, please."""
        self.draining = True
        await self._heartbeat()

    async def mark_decommissioning(self, node: NodeId) -> None:
        """Note in a node's record that it is leaving for good: the allocator moves everything off it."""
        for _ in range(MARK_TRIES_MAX):
            raw = await self._kv.get(liveness_key(node))
            if raw is None:
                raise UsageError(f"there is no node n{node}; `slackwater status` lists the nodes")
            record = _decoder.decode(raw)
            if record.decommissioning:
                self._learn(record)
                return
            marked = msgspec.structs.replace(record, decommissioning=True)
            try:
                await self._kv.conditional_put(liveness_key(node), _encoder.encode(marked), expected=raw)
            except ConditionFailed:
                continue  # a heartbeat came between
            self._learn(marked)
        raise UnavailableError(f"the record of n{node} kept changing; try again")

    async def leave(self, *, horizon: Callable[[], Timestamp] = lambda: MIN) -> None:
        """Stop gracefully: end our own epoch, so that no other node waits for us and our next start does not wait either.

        From here on this node trusts no lease of its own, so the epoch may end before the record would have expired. It
        must be a new epoch: a record of the same one that expires earlier than the one others know looks old to them.

        `horizon` is what was closed or served under it. It may lie in the future, and a node that takes a lease once the
        epoch has ended writes above its clock and above `Liveness.ended_at`, no higher: so that future has to come first.
        (Its clock alone would not do. It may be behind ours, and the record may have come to it by the log, without a stamp.)
        It lies below the end of our record, which is why nothing of this concerns an epoch that expires.
        """
        self._left = True
        await self._end_own(horizon, draining=True)
        assert self._own is None, "a node that has left relies on no epoch of its own (I-07)"

    async def step_down(self, *, horizon: Callable[[], Timestamp]) -> None:
        """Give every lease up by ending our own epoch; heartbeats begin another one when they are allowed again.

        If the record cannot be written, it expires: it is neither relied on nor renewed from here on.
        """
        if self._own is not None:
            self._ended = self._own.epoch
        await self._end_own(horizon, draining=self.draining)
        assert self._own is None or self._own.epoch > self._ended, "an epoch that was given up is not relied on (I-07)"

    async def _end_own(self, horizon: Callable[[], Timestamp], *, draining: bool) -> None:
        own, self._own = self._own, None
        while own is not None and (now := self._clock.now()) <= (last := min(horizon(), own.expiration)):
            probe("liveness.leave_waits")
            await self._runtime.clock.sleep(seconds_between(now, last) + 1e-6)
        for _ in range(MARK_TRIES_MAX):
            if own is None:
                return
            ended = Timestamp(max(MIN, min(own.expiration, self._clock.now())))
            gone = msgspec.structs.replace(own.next_epoch(), expiration=ended, draining=draining, ended_at=ended)
            assert gone.epoch > own.epoch, "ended epochs never come back (I-07)"
            assert gone.expiration <= own.expiration, "an epoch that is ended does not last longer"
            try:
                await self._replace(own, gone)
            except ConditionFailed as refused:  # a heartbeat of ours was still under way, or this node was marked
                actual = refused.facts.get("actual")
                found = _decoder.decode(actual) if isinstance(actual, bytes) else None
                own = found if found is not None and found.epoch == own.epoch else None
            else:
                return

    def status(self) -> str:
        """One line for logs and the console."""
        now = self._clock.peek()
        parts = [f"n{r.node_id}:{'live' if r.live_at(now) else 'expired'}@{r.epoch}" for r in self.all()]
        return f"liveness own={'yes' if self.own() else 'no'} " + " ".join(parts)
