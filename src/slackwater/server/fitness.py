"""Whether this node should lead anything: it gives its leases up when it can be of no use with them.

    store       its store has refused writes, or could not make them durable, for `STORE_PATIENCE_NS`
    reach       a majority of the nodes cannot call it, and told it so (`reach.py`)
    clock       judged by `clock.OffsetMonitor` and `clock.StepGuard`: such a node serves nothing and renews nothing; its leases
                run out, because by its clock it cannot end them itself

    fit ──reason──► stepping down ──────────────────────────────► unfit ──no reason──► fit
                    no heartbeats; its epoch is ended, if range 1    serves nothing        heartbeats begin a new epoch
                    can be reached; its lease of range 1 is released

Giving up is this node's own act (unknown ⇒ do not declare dead): another node takes over because the epoch was ended by its
owner, or has expired since its owner stopped renewing it. Both are safe, whatever the reason was worth.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, add_seconds, seconds_between
from slackwater.errors import AccessDenied, AmbiguousResult, ClockError, SlackwaterError, UnavailableError
from slackwater.hooks import probe
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.model.ids import NodeId
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, NO_LAI, Command, ComplaintTrigger, Packet, encode_packet
from slackwater.protocol.node import services
from slackwater.replica.lease import lasts_s
from slackwater.routing.parallel import in_parallel
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.sync import timeout
from slackwater.server.peers import ASKED_AT_ONCE_MAX
from slackwater.server.reach import Reach

if TYPE_CHECKING:
    from slackwater.replica.driver import Replica
    from slackwater.runtime.rpc.method import Context
    from slackwater.runtime.rpc.server import RpcServer
    from slackwater.server.member import Member

STORE_PATIENCE_NS = 500_000_000
"""A store may refuse for a moment."""
STEP_S = 0.5
"""How long each step of giving up may take. One that takes longer would be about as fast as expiry."""
CALLS_PER_WINDOW = 2
"""A call that takes longer than this part of a window has failed."""


class Fitness:
    """The reasons against this node, and what it does about them."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._clock = member.runtime.clock
        self._scope = member.scope.child("fitness")
        self.reach = Reach(member.node_id)
        self.unfit = False
        """Whether leases were given up; no request is served meanwhile."""
        self.times = 0
        """How often this node gave its leases up since it started. For metrics."""

    # --- what is known ----------------------------------------------------------------------------------------------

    def reasons(self) -> list[str]:
        """Why this node should lead nothing now, apart from its clock."""
        now_ns = self._clock.monotonic_ns()
        found = []
        writes = self._member.store.context.writes
        since_ns = writes.failing_since_ns
        if since_ns is not None and now_ns - since_ns >= STORE_PATIENCE_NS:
            found.append(f"its store cannot be written: {writes.error}")
        cut_off = self.reach.why_cut_off(now_ns=now_ns, window_ns=self._window_ns)
        if cut_off:
            found.append(cut_off)
        return found

    def check_serving(self) -> None:
        """Raise while this node serves nothing: to callers that is a refusal, and they ask another replica (I-01, I-35)."""
        if self.unfit:
            why = "; ".join(self._member.node.why_unfit()) or "it is recovering"
            raise UnavailableError(f"n{self._member.node_id} leads nothing now: {why}")
        try:
            self._member.node.check_clock()
        except ClockError as error:
            raise UnavailableError(f"n{self._member.node_id} does not serve: {error.message}", **error.facts) from error

    def check_heartbeat(self) -> None:
        """Raise while this node must not renew its liveness: it can be of no use with what hangs on it (I-35)."""
        self._member.node.check_clock()
        if reasons := self.reasons():
            raise UnavailableError(f"n{self._member.node_id} does not renew its liveness: {'; '.join(reasons)}")
        if self.unfit:
            raise UnavailableError(f"n{self._member.node_id} has just given its leases up")

    @property
    def _window_ns(self) -> int:
        member = self._member
        return int(lasts_s(member.settings["liveness.duration"], max_offset_us=member.clock.max_offset_us) * 1e9)

    def _members(self) -> set[NodeId]:
        """Nodes that count: not those that are leaving, nor those that are known to have been gone for long."""
        liveness = self._member.liveness
        now, dead_after = self._member.clock.peek(), self._member.settings["liveness.dead_after"]
        counted = (
            r for r in liveness.all() if not r.decommissioning and seconds_between(r.expiration, now) < dead_after
        )
        return {self._member.node_id, *(record.node_id for record in counted)}

    # --- asking and telling -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to call the others, and to judge this node."""
        self._scope.spawn(self._keep_calling(), name="reach")
        self._scope.spawn(self._keep_fit(), name="step down")

    async def close(self) -> None:
        """End both."""
        await self._scope.close()

    async def _keep_calling(self) -> None:
        """Call every other node with each heartbeat; complain of those that do not answer."""
        while True:
            members = self._members()
            self.reach.forget(members)
            # A node that can read no records still knows addresses, and a peer can tell it whether it is a copy.
            peers = members if len(members) > 1 else self._member.book.nodes
            works = [partial(self._call, peer) for peer in sorted(peers) if peer != self._member.node_id]
            await in_parallel(self._scope, works, limit=ASKED_AT_ONCE_MAX, name="reach")
            with suppress(SlackwaterError, TimeoutError):
                await self._complain(members)
            await self._clock.sleep(self._member.settings["liveness.heartbeat_interval"])

    async def _call(self, peer: NodeId) -> None:
        began_ns = self._clock.monotonic_ns()
        address = self._member.book.resolve(peer)
        if address is None:
            return  # it cannot be called, which says nothing about it
        seconds = self._window_ns / 1e9 / CALLS_PER_WINDOW
        try:
            reply = await self._member.dialer.call(
                address, services.REACH, self._statement(peer), timeout=seconds, node_id=peer
            )
        except SlackwaterError:
            self.reach.called(peer, began_ns=began_ns, answered=False)
            return
        self.reach.called(peer, began_ns=began_ns, answered=True)
        if not reply.knows_you:
            probe("fitness.greeted")
            with suppress(SlackwaterError):
                await self._member.book.greet(address)
        if reply.node_id == peer:
            self._told(reply)
            # Believed only in an answer from an address that this node chose itself: it ends this process.
            self._member.liveness.hear_of_life(reply.your_life)

    def serve(self, server: RpcServer) -> None:
        """Answer `node.reach`."""
        server.handle_sync(services.REACH, self._on_reach)

    def _on_reach(self, statement: services.ReachStatement, context: Context) -> services.ReachStatement:
        """A peer calls: note what it says, and say the same of this node.

        Without certificates any process on this machine may call in the name of a node, and one forged statement would take all
        leases from this one. Then only what nodes answer at their own addresses is believed, and that is enough: a node that
        cannot be called hears of it in the answers to its own calls.
        """
        if context.roles is ANYBODY:
            probe("fitness.unproven_statement")
        elif context.node_id != statement.node_id:
            raise AccessDenied("a node says what it misses itself, not what others do", node_id=statement.node_id)
        else:
            self._told(statement)
        return self._statement(statement.node_id)

    def _told(self, said: services.ReachStatement) -> None:
        now_ns = self._clock.monotonic_ns()
        self.reach.told(said.node_id, said.misses, said.cut_off, now_ns=now_ns)

    def _statement(self, to: NodeId) -> services.ReachStatement:
        now_ns, window_ns = self._clock.monotonic_ns(), self._window_ns
        record = self._member.liveness.get(to)
        return services.ReachStatement(
            self._member.node_id,
            self.reach.misses(now_ns=now_ns, window_ns=window_ns),
            self.reach.cut_off(self._members(), now_ns=now_ns, window_ns=window_ns),
            0 if record is None else record.life,
            to in self._member.book.nodes,
        )

    async def _complain(self, members: set[NodeId]) -> None:
        """Tell the holder of range 1 through the log that a majority misses it: no record can be renewed without it."""
        replica = self._first_range()
        holder = replica.state.lease.holder if replica is not None else NodeId(0)
        now_ns, window_ns = self._clock.monotonic_ns(), self._window_ns
        cut_off = self.reach.cut_off(members, now_ns=now_ns, window_ns=window_ns)
        if replica is None or holder not in cut_off:
            return
        probe("fitness.complaint")
        missed_by = self.reach.missed_by(holder, now_ns=now_ns, window_ns=window_ns)
        trigger = ComplaintTrigger(self._member.node_id, holder, tuple(missed_by), self._member.clock.now())
        command = Command(
            command_id=self._member.runtime.rng.bytes(COMMAND_ID_BYTES),
            lease_sequence=replica.state.lease.sequence,
            lai=NO_LAI,
            closed=MIN,
            min_write_ts=MIN,
            trigger=trigger,
        )
        async with timeout(self._window_ns / 1e9):
            await self._member.log.append(FIRST_RANGE, [encode_packet(Packet(FIRST_RANGE, [command]))])

    def complained(self, complaint: ComplaintTrigger) -> None:
        """A complaint was read in the log. Old ones, as after a restart, say nothing about now."""
        oldest = add_seconds(self._member.clock.peek(), -self._window_ns / 1e9)
        if complaint.holder == self._member.node_id and complaint.at >= oldest:
            self.reach.complained(complaint.by, complaint.missed_by, now_ns=self._clock.monotonic_ns())

    def _first_range(self) -> Replica | None:
        return self._member.store.replicas.get(FIRST_RANGE)

    # --- giving up --------------------------------------------------------------------------------------------------

    async def _keep_fit(self) -> None:
        while True:
            against = self.reasons()
            if against and not self.unfit:
                probe("fitness.step_down")
                await self._step_down()
            elif not against and self.unfit:
                probe("fitness.fit_again")
                self.unfit = False
            await self._clock.sleep(self._member.settings["liveness.heartbeat_interval"] / 2)

    async def _step_down(self) -> None:
        """End this node's epoch and its lease of range 1; then serve nothing.

        Epochs are ended in range 1. So where this node can still serve that, its own lease of it goes last; and first where it
        cannot, for want of a store.
        """
        writes = self._member.store.context.writes
        steps = [self._release_first_range, self._end_epoch]
        try:
            # By a wrong clock it cannot be told when what was served has become the past: then leases only run out.
            self._member.node.check_clock()
            for step in steps if writes.failing_since_ns is not None else reversed(steps):
                with suppress(SlackwaterError, TimeoutError):
                    async with timeout(STEP_S):
                        await step()
        except ClockError:
            probe("fitness.clock_is_wrong_too")
        finally:
            self.unfit = True
            self.times += 1
            if writes.failing_since_ns is not None:
                self._abandon_commands()

    async def _end_epoch(self) -> None:
        await self._member.liveness.step_down(horizon=self._member.store.horizon)

    async def _release_first_range(self) -> None:
        replica = self._first_range()
        if replica is not None:
            await replica.release_lease()

    def _abandon_commands(self) -> None:
        """End the waits for commands to be applied here: they will not be, and other replicas know the outcome."""
        error = AmbiguousResult("the store of this node cannot be written; another replica knows the outcome")
        for replica in self._member.store.replicas.values():
            replica.leasing.abandon()
            replica.pipeline.stop(error)
