"""What is closed stays closed, everywhere and for ever (I-09, I-10, I-11, I-12), watched with global knowledge.

The watchers share one *ledger*: every promise (range, index, ts) that any node ever published by the side transport, in
the step in which it did so. A promise says that each command after `index` writes above ts; it is never taken back:

    ts  ▲                    ┌── (9, 140)
        │         ┌──────────┘                  promised to a replica that has applied index 7: 120
        │    ┌────┘ (6, 120)                    binding the command with index 9:               120
        └────┴──(4, 100)──────────────► index   binding the command with index 10:              140

    I-09   by index, nothing goes back: the state of a replica; what commands carry, which is at or above every promise
           for a lower index; the right half of a split; the right side of a merge, whose closed timestamp must live on as a
           read floor; and what a node believes of a range, also where a snapshot takes the place of its replica, and
           where it is stopped in good order and started again. After a crash it knows what it knew at its last flush
    I-10   a command writes above all that was closed before it: by commands, by promises, by the range that was absorbed.
           A command that a replica must refuse for that (`BELOW_CLOSED`) should not have been proposed. And the other way
           round: no promise is made that a command further on in the log has already broken
    I-11   what is published lies at or below the policy's target, below every write still under way, and before the end
           of the lease less the clocks' error
    I-12   a replica believes no more than its own state and the promises for indexes that it has applied

A state is the same on every replica at the same position (I-06), so what concerns states is judged at the first apply.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter, lt
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp, add_seconds
from slackwater.closedts.driver.schemes import Schemes
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.policy import target, write_age_s
from slackwater.codec.layout import split_version
from slackwater.protocol.log.commands import NO_LAI, LeaseTrigger, MergeTrigger, SplitTrigger
from slackwater.replica.apply import ApplyVerdict
from slackwater.replica.state import decode_state, state_key
from slackwater.runtime.seam import Family
from slackwater.sim.oracles.replication import _Watcher
from slackwater.sim.oracles.stopping import stopped_lives
from slackwater.sim.scenarios.cluster_plan import cluster_of
from slackwater.storage.batch import decode_batch
from slackwater.storage.intents import decode_intent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slackwater.closedts.closable import NodeLease
    from slackwater.closedts.log_driven.sender import Sender as GroupSender
    from slackwater.closedts.policy import ClosingPolicy, Terms
    from slackwater.closedts.publisher import Publisher
    from slackwater.closedts.store_wide.sender import Sender as StoreSender
    from slackwater.model.ids import RangeId
    from slackwater.protocol.log.commands import Command
    from slackwater.replica.driver import Replica
    from slackwater.replica.driver.context import ReplicaContext
    from slackwater.replica.driver.store import Store
    from slackwater.replica.propose import Flight
    from slackwater.replica.state import RangeState
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.sim.world import World

NEVER_BACK = ("closed", "lai", "read_floor", "gc_threshold", "txn_floor")
_marks = attrgetter(*NEVER_BACK)
ABSORBED_KEPT_MAX = 64


def listen(world: World, site: str, look: Callable[..., None]) -> None:
    """Look at a tap, after what looked there before."""
    before = world.taps.get(site)

    def both(*facts: object) -> None:
        assert before is not None
        before(*facts)
        look(*facts)

    world.taps[site] = look if before is None else both


def store_of(world: World, node: str) -> Store | None:
    """The store of a node that runs."""
    found = cluster_of(world).nodes.get(node)
    return None if found is None or found.member is None else found.member.store


def name_of(context: ReplicaContext) -> str:
    """What the world calls the node."""
    name: str = context.runtime.name  # type: ignore[attr-defined] # a SimRuntime
    return name


class Stairs:
    """The promises for one range that matter: index and timestamp both increasing."""

    __slots__ = ("lais", "times")

    def __init__(self) -> None:
        self.lais: list[int] = []
        self.times: list[int] = []

    def add(self, lai: int, ts: int) -> bool:
        """Take a promise; False when one for the same or a lower index says as much."""
        at = bisect_right(self.lais, lai)
        if at and self.times[at - 1] >= ts:
            return False
        if at and self.lais[at - 1] == lai:
            at -= 1
            self.times[at] = ts
        else:
            self.lais.insert(at, lai)
            self.times.insert(at, ts)
        end = at + 1
        while end < len(self.times) and self.times[end] <= ts:
            end += 1
        del self.lais[at + 1 : end], self.times[at + 1 : end]
        return True

    def upto(self, lai: int) -> int:
        """The highest timestamp promised for an index at or below `lai`."""
        at = bisect_right(self.lais, lai)
        return self.times[at - 1] if at else MIN

    @property
    def highest(self) -> int:
        """The highest timestamp promised at all."""
        return self.times[-1] if self.times else MIN


class Ledger(_Watcher):
    """Every promise of the side transport. Breaks no rule itself; the others look things up here."""

    name = "I-10"

    def __init__(self) -> None:
        self._stairs: dict[RangeId, Stairs] = {}
        self._writes: dict[RangeId, tuple[list[int], list[int]]] = {}

    def attach(self, world: World) -> None:
        """Before all others: what they look up must be there."""
        super().attach(world)
        listen(world, "closedts.published", self._published)

    def of(self, range_id: RangeId) -> Stairs:
        """The promises for a range."""
        known = self._stairs.get(range_id)
        if known is None:
            known = self._stairs[range_id] = Stairs()
        return known

    def allowed(self, state: RangeState) -> int:
        """What a replica in that state may believe."""
        return max(state.closed, self.of(state.descriptor.range_id).upto(state.lai))

    def applied(self, event: ApplyEvent) -> None:
        """Note which index wrote from where on."""
        if not event.first:
            return
        lais, lowest = self._writes.setdefault(event.after.descriptor.range_id, ([], []))
        for command, verdict in event.outcomes:
            if verdict is ApplyVerdict.ACCEPTED and command.min_write_ts:
                lais.append(command.lai)
                lowest.append(command.min_write_ts)

    def _published(self, sender: GroupSender | StoreSender, now: Timestamp, terms: Terms, lease: NodeLease) -> None:
        for range_id, lai, ts, _ in sender.promises():
            if not self.of(range_id).add(lai, ts):
                continue
            lais, lowest = self._writes.get(range_id, ((), ()))
            broken = [w for w in lowest[bisect_right(lais, lai) :] if w <= ts]
            if broken:
                text = f"n{sender.node_id} promised r{range_id} closed at {ts} after {lai}, but {broken[0]} was written since"
                self.violated("promised-too-late", text)


class _Belief(NamedTuple):
    """What a node believed of a range when it was last asked."""

    life: int
    lai: int
    ts: Timestamp


class NeverBack(_Watcher):
    """I-09."""

    name = "I-09"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._carried: dict[RangeId, tuple[int, int]] = {}
        self._believed: dict[tuple[str, RangeId], _Belief] = {}
        self._noted: dict[str, dict[RangeId, _Belief]] = {}
        self._durable: dict[str, dict[RangeId, _Belief]] = {}
        """What a node believed when it last wrote that down, and when that became durable: no crash takes it away."""

    def attach(self, world: World) -> None:
        """Listen to what replicas believe as well."""
        super().attach(world)
        listen(world, "closedts.believed", self._believes)
        listen(world, "store.dropped", self._dropped)
        listen(world, "store.noted", self._note)
        listen(world, "store.flushed", self._flushed)

    def _believes(self, replica: Replica, ts: Timestamp) -> None:
        if replica.stopped or replica.retired or replica.failure is not None:
            return  # it serves nothing any more: this binds no reader
        name, range_id, lai = name_of(replica.context), replica.state.descriptor.range_id, replica.state.lai
        known, life = self._believed.get((name, range_id)), self.world.machines[name].incarnation
        if known is not None and not self._remembers(name, known.life, life):
            known = self._durable.get(name, {}).get(range_id)
        if known is not None and ts < known.ts and lai >= known.lai:
            since = "" if life == known.life else ", restarted since"
            text = f"{name} r{range_id} believed {known.ts} to be closed and now only {ts}, at index {lai}{since}"
            self.violated("believed-went-back", text)
        self._believed[name, range_id] = _Belief(life, lai, ts)

    def _remembers(self, name: str, before: int, now: int) -> bool:
        """Whether every life of a node from one to the other ended in good order."""
        return all((name, life) in stopped_lives(self.world) for life in range(before, now))

    def _note(self, store: Store) -> None:
        """A node has written down what its replicas believe.

        A replica that is quarantined since the node came back from a crash has said nothing in this life, and of what it
        believed in the one before it, only what was durable is written down again.
        """
        name = name_of(store.context)
        life, durable = self.world.machines[name].incarnation, self._durable.get(name, {})
        noted: dict[RangeId, _Belief] = {}
        for range_id in store.replicas:
            belief = self._believed.get((name, range_id))
            if belief is not None and not self._remembers(name, belief.life, life):
                belief = durable.get(range_id)
            if belief is not None:
                noted[range_id] = belief
        self._noted[name] = noted

    def _flushed(self, store: Store) -> None:
        name = name_of(store.context)
        self._durable[name] = self._noted.get(name, {})

    def _dropped(self, store: Store, range_id: RangeId) -> None:
        """The next replica of that range on this node is another one."""
        name = name_of(store.context)
        self._believed.pop((name, range_id), None)
        for known in (self._noted, self._durable):
            known.get(name, {}).pop(range_id, None)

    def applied(self, event: ApplyEvent) -> None:
        """States and what commands carry move on only; splits and merges hand on what was closed."""
        before, after = event.before, event.after
        if any(map(lt, _marks(after), _marks(before))):
            what = [what for what in NEVER_BACK if getattr(after, what) < getattr(before, what)]
            text = f"{event.node} r{after.descriptor.range_id} moved {' and '.join(what)} back at {event.position}"
            self.violated("went-back", text, before=before.status(), after=after.status())
        lai, sequence = before.lai, before.lease.sequence
        for command, verdict in event.outcomes:
            if command.lease_sequence == sequence and (command.lai == NO_LAI or command.lai > lai):
                self._handed_on(event, command)
            if verdict is ApplyVerdict.ACCEPTED:
                lai = max(lai, command.lai)
                self._divided(event, command)
                if isinstance(command.trigger, LeaseTrigger):
                    sequence = command.trigger.lease.sequence

    def _handed_on(self, event: ApplyEvent, command: Command) -> None:
        """A command carries at least what was closed by those before it."""
        if not event.first or command.lai == NO_LAI:
            return
        range_id = event.before.descriptor.range_id
        sequence, carried = self._carried.get(range_id, (0, MIN))
        least = max(event.before.closed, self._ledger.of(range_id).upto(command.lai - 1))
        if sequence == command.lease_sequence:
            least = max(least, carried)
        if command.closed < least:
            text = f"r{range_id}: the command with index {command.lai} closes {command.closed}; {least} was closed before it"
            self.violated("carried-went-back", text, position=event.position, lease=command.lease_sequence)
        self._carried[range_id] = (command.lease_sequence, max(command.closed, least))

    def _divided(self, event: ApplyEvent, command: Command) -> None:
        trigger = command.trigger
        if isinstance(trigger, SplitTrigger):
            raw = event.batch.writes[Family.LOCAL].get(state_key(trigger.right.range_id))
            left = self._ledger.of(event.before.descriptor.range_id).upto(command.lai - 1)
            least = max(event.before.closed, left)
            if raw is not None and decode_state(raw).closed < least:
                text = f"{event.node} r{trigger.right.range_id} starts closed at {decode_state(raw).closed}, its left at {least}"
                self.violated("split-reopened", text)
        elif isinstance(trigger, MergeTrigger):
            store = store_of(self.world, event.node)
            right = None if store is None else store.replicas.get(trigger.right.range_id)
            if right is None:
                return
            kept, had = max(event.after.closed, event.after.read_floor), self._ledger.allowed(right.state)
            if had > kept:
                text = (
                    f"{event.node} r{trigger.right.range_id} was closed at {had} when r{event.after.descriptor.range_id} took "
                    f"it over, which may write above {kept}"
                )
                self.violated("merge-reopened", text)


class AboveClosed(_Watcher):
    """I-10."""

    name = "I-10"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._absorbed: dict[RangeId, list[tuple[bytes, bytes, int]]] = {}

    def applied(self, event: ApplyEvent) -> None:
        """New versions and intents lie above what was closed before them."""
        if not event.first:
            return
        range_id, closed = event.before.descriptor.range_id, int(event.before.closed)
        stairs = self._ledger.of(range_id)
        for command, verdict in event.outcomes:
            if verdict is ApplyVerdict.BELOW_CLOSED:
                text = f"r{range_id}: a command at index {command.lai} was proposed to write at {command.min_write_ts}"
                self.violated("proposed-below-closed", f"{text}, and had to be refused", closed=closed)
            if verdict is not ApplyVerdict.ACCEPTED:
                continue
            if command.min_write_ts:
                self._above(event, command, max(closed, stairs.upto(command.lai - 1)))
            closed = max(closed, command.closed)
            if isinstance(command.trigger, MergeTrigger):
                self._absorb(event, command.trigger)

    def _above(self, event: ApplyEvent, command: Command, closed: int) -> None:
        range_id, lowest = event.after.descriptor.range_id, command.min_write_ts
        if lowest <= closed:
            text = f"{event.node} r{range_id} applied a write at {lowest} at or below closed {closed}"
            self.violated("below-closed", text, position=event.position, index=command.lai)
        for start, end, ts in self._absorbed.get(range_id, ()):
            for key, written in written_by(command) if lowest <= ts else ():
                if start <= key < end and written <= ts:
                    text = f"{event.node} r{range_id} wrote {key!r} at {written}, which was closed at {ts} before the merge"
                    self.violated("below-absorbed", text, position=event.position)

    def _absorb(self, event: ApplyEvent, trigger: MergeTrigger) -> None:
        """What was closed for the keys of the right side binds its new owner, and passes on with its own past."""
        right = trigger.right
        ts = max(trigger.frozen.closed, self._ledger.of(right.range_id).highest)
        mine = self._absorbed.setdefault(event.after.descriptor.range_id, [])
        mine += [(right.start, right.end, ts), *self._absorbed.pop(right.range_id, ())]
        del mine[:-ABSORBED_KEPT_MAX]


def written_by(command: Command) -> Iterator[tuple[bytes, int]]:
    """Keys and timestamps of the versions and intents that a command puts."""
    writes = decode_batch(command.effects).writes
    for stored, value in writes[Family.DATA].items():
        if value is not None:
            yield split_version(stored)
    for key, value in writes[Family.LOCK].items():
        if value is not None:
            yield key, decode_intent(value).ts


class PublishedClosing(_Watcher):
    """I-11."""

    name = "I-11"

    def __init__(self) -> None:
        self._known: dict[tuple[GroupSender | StoreSender, ClosingPolicy], Timestamp] = {}

    def attach(self, world: World) -> None:
        """Listen to both ways of publishing."""
        super().attach(world)
        listen(world, "closedts.published", self._by_transport)
        listen(world, "propose.flushed", self._by_command)

    def _by_transport(self, sender: GroupSender | StoreSender, now: Timestamp, terms: Terms, lease: NodeLease) -> None:
        store = self._store_with(sender)
        fresh: list[tuple[ClosingPolicy, Timestamp]] = []
        last: ClosingPolicy | None = None  # ranges of one group share one policy, and a policy is slow to hash
        known = MIN
        for range_id, lai, ts, policy in sender.promises():
            if policy is not last:
                last, known = policy, self._known.get((sender, policy), MIN)
            replica = None if store is None else store.replicas.get(range_id)
            if replica is not None and replica.pipeline.buffer.in_flight:
                self._under_way(replica, lai, ts)
            if ts > known:
                if not fresh or fresh[-1][0] is not policy:
                    fresh.append((policy, ts))
                if replica is not None:
                    self._inside(replica.context, replica.state, ts)
        for policy, ts in fresh:
            self._known[(sender, policy)] = ts
            aim = target(policy, now, terms)
            if aim is None or ts > aim:
                self.violated("over-target", f"n{sender.node_id} published {ts} for {policy.status()}; wanted is {aim}")

    def _store_with(self, sender: GroupSender | StoreSender) -> Store | None:
        for _, node in cluster_of(self.world).up():
            store = node.member.store if node.member else None
            transport = store.context.transport if store else None
            if isinstance(transport, Schemes) and sender in (transport.log_driven.sender, transport.store_wide.sender):
                return store
        return None

    def _under_way(self, replica: Replica, lai: int, ts: Timestamp) -> None:
        for proposal in replica.pipeline.buffer._waiting.values():
            if 0 < proposal.min_write_ts <= ts and not 0 < proposal.lai <= lai:
                text = f"{name_of(replica.context)} promised {ts} after {lai} with a write at {proposal.min_write_ts} under way"
                self.violated("over-evaluating", text, range_id=replica.state.descriptor.range_id)

    def _by_command(
        self, context: ReplicaContext, state: RangeState, flight: Flight[object], before: Timestamp
    ) -> None:
        if flight.closed <= before:
            return
        self._inside(context, state, flight.closed)
        store = store_of(self.world, name_of(context))
        replica = None if store is None else store.replicas.get(state.descriptor.range_id)
        if replica is None or context.transport is None:
            return
        aim, asked = self._aim(replica, context.transport), replica.closing._at
        if flight.closed > max(aim, asked):
            where = f"{name_of(context)} r{state.descriptor.range_id}"
            self.violated("over-target", f"{where} closes {flight.closed}; wanted is {aim}, asked for {asked}")

    def _aim(self, replica: Replica, transport: Publisher) -> int:
        """How far a command may close by itself, under whichever schemes close its range."""
        closing, now, terms = replica.closing, replica.context.clock.physical(), transport.terms()
        aims = [MIN]
        if closing.closes_by(Scheme.LOG_DRIVEN):
            aims.append(target(closing.policy(), now, terms) or MIN)
        if closing.closes_by(Scheme.MAX_WRITE_AGE) and (age_s := write_age_s(closing.policy(), terms)):
            aims.append(add_seconds(now, -age_s))
        if closing.closes_by(Scheme.STORE_WIDE):
            aims.append(transport.promised(replica.state.descriptor.range_id))
        return max(aims)

    def _inside(self, context: ReplicaContext, state: RangeState, ts: Timestamp) -> None:
        """Before the end of the lease less the clocks' error, by what this node knows of its own lease."""
        lease = state.lease
        end = int(lease.expiration)
        if lease.by_epoch:
            record = context.liveness.own()
            if record is None or record.epoch != lease.epoch:
                return  # the lease ended in this very step
            end = record.expiration
        if ts >= end - (context.clock.max_offset_us << LOGICAL_BITS):
            where = f"{name_of(context)} r{state.descriptor.range_id}"
            self.violated("outside-lease", f"{where} closes {ts}; its lease {lease.status()} ends at {end}")


class NotTooEarly(_Watcher):
    """I-12."""

    name = "I-12"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def attach(self, world: World) -> None:
        """Listen to what replicas believe."""
        super().attach(world)
        listen(world, "closedts.believed", self._believes)

    def _believes(self, replica: Replica, ts: Timestamp) -> None:
        allowed = self._ledger.allowed(replica.state)
        if ts > allowed:
            where = f"{name_of(replica.context)} r{replica.state.descriptor.range_id}"
            text = (
                f"{where} takes {ts} for closed at index {replica.state.lai}; up to there only {allowed} was promised"
            )
            self.violated("used-too-early", text)
