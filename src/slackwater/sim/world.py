"""The simulated world: hosts with nodes and clients on them, and everything they can ask for.

    World
    ├── loop, tape, settings            one order, one source of chance
    ├── net, log                        shared by all
    ├── machines  n1 n2 …  c1 c2 …      each: clock, disk (survive crashes) and at most one incarnation
    │     └── incarnation               a domain of the loop + a root TaskScope + a SimRuntime
    └── events, probes                  what happened, for the report

A machine is given `boot`, an async function of its runtime: the whole program of that node or client. The world knows
nothing else about it. What the nemesis can do to a machine:

    crash      power cut: the incarnation's steps stop where they are, no `finally` block runs, unflushed writes are
               lost up to a drawn prefix, peers hear nothing
    kill       the process dies, the kernel resets its connections; the engine loses the same, for it has no log
    start      the next incarnation boots from the disk
    pause      no steps for a while; timers and messages wait (a collector's pause, a suspended VM)
    slow       every step is delayed by a drawn time
    stop       the program is asked to end itself (`Machine.stopper`); the scenario judges how it did

A program that ends with `StorageError` or `ClockError` has stopped itself, as it should when its disk or its clock
fails: the supervisor starts it again. Any other exception out of `boot` is a failure of the run (I-31); a broken
`invariant` is reported under its own rule. One that ends with `NodeFenced`, because another machine has a copy of its store,
is switched off for good.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater import hooks
from slackwater.errors import ClockError, InvariantViolation, NodeFenced, StorageError
from slackwater.replica.lease import lasts_s
from slackwater.runtime.access import NODE_NAME, Certificate
from slackwater.runtime.tasks import Scope
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.clocks import Shadow, SimClock
from slackwater.sim.disk import SimDisk
from slackwater.sim.edits import NO_EDITS, Edits
from slackwater.sim.handles import NS, Domain, SimHandle
from slackwater.sim.log import SimLog
from slackwater.sim.loop import SimLoop
from slackwater.sim.net import NodeNet, SimNet
from slackwater.sim.schedule import SchedulePolicy, scheduler_for

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from slackwater.log.contract import OrderedLog
    from slackwater.runtime.seam import Clock, Disk, Family, Net, Rng
    from slackwater.settings import Settings
    from slackwater.sim.faults import InjectedFault
    from slackwater.sim.tape import Tape, TapeStream
    from slackwater.storage.memory import MemoryDisk

T = TypeVar("T")

OFFLOAD_MIN_NS, OFFLOAD_MEAN_NS = 20_000, 200_000
SUPERVISOR_NS_MIN, SUPERVISOR_NS_MAX = NS // 2, 5 * NS
FAIL_STOP = (StorageError, ClockError)
EVENTS_MAX = 20_000
STOP_TASK = "stop"
AFTERMATH_NS = NS // 10
HEALTHY_REST_NS = NS
"""How long a machine that was asked to stop is off at most, once the world is well."""


class OracleFailure(Exception):
    """An oracle says no."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


class SimRuntime:
    """`seam.Runtime` of one incarnation, and its log."""

    def __init__(self, machine: Machine, domain: Domain) -> None:
        world = machine.world
        self.name = machine.name
        self.settings = world.settings
        self.clock: Clock = machine.clock
        self.rng: Rng = machine.rng
        self.disk: Disk = machine.disk
        self.net: Net = NodeNet(world.net, world.net.boot(machine.name, domain))
        self.log: OrderedLog = world.log.log_for(machine.name, domain)
        self._machine = machine

    def scope(self, name: str, *, on_failure: Callable[[BaseException], None] | None = None) -> Scope:
        """A root task scope; without a supervisor of its own, its failure is the machine's."""
        return Scope(name, on_failure=on_failure or self._machine.failed)

    def on_stop(self, stopper: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """How this program ends itself when it is asked to."""
        self._machine.stopper = stopper

    async def offload(self, work: Callable[..., T], *args: Any) -> T:
        """Run the work after a drawn delay, in one step."""
        await self.clock.sleep((OFFLOAD_MIN_NS + self._machine.rng.decay(OFFLOAD_MEAN_NS)) / NS)
        return work(*args)


class Machine:
    """A host with a program on it."""

    def __init__(self, world: World, name: str, boot: Callable[[SimRuntime], Coroutine[Any, Any, None]]) -> None:
        max_offset_ns = round(world.settings["clock.max_offset"] * NS)
        self.world = world
        self.name = name
        self.boot = boot
        self.clock = SimClock(world.loop, world.tape.stream(f"clock/{name}"), max_offset_ns=max_offset_ns)
        self.rng = world.tape.stream(f"rng/{name}")
        self.disk = SimDisk(world.loop, world.tape.stream(f"disk/{name}"), name=name)
        self.incarnation = 0
        self.domain: Domain | None = None
        self.runtime: SimRuntime | None = None
        self.paused = False
        self.slow_ns = 0
        self._slow_stream = world.tape.stream(f"slow/{name}")
        self._supervisor = world.tape.stream(f"supervisor/{name}")
        self.clock_broken = False
        self.gone = False  # switched off for good
        self.stopper: Callable[[], Coroutine[Any, Any, None]] | None = None  # how its program ends itself
        self.stopping = False
        self._held: list[SimHandle] = []

    @property
    def up(self) -> bool:
        """Whether an incarnation runs."""
        return self.domain is not None

    def start(self) -> None:
        """Boot the next incarnation from the disk."""
        if self.domain is not None or self.gone:
            return
        self.incarnation += 1
        loop = self.world.loop
        self.domain = loop.new_domain(f"{self.name}.{self.incarnation}")
        self.runtime = SimRuntime(self, self.domain)
        self._regate()
        loop.call_soon(self._boot, self.runtime, context=self.domain.context)

    def _boot(self, runtime: SimRuntime) -> None:
        runtime.scope(self.name).spawn(self.boot(runtime), name=f"{self.name}/main")

    def crash(self, *, kernel_lives: bool = False) -> None:
        """Power cut, or with `kernel_lives` the death of the process alone."""
        domain, self.domain, self.runtime = self.domain, None, None
        self.stopper, self.stopping = None, False
        if domain is None:
            return
        world = self.world
        world.loop.park(domain)
        world.loop.parked.extend(self._held)
        self._held = []
        self.paused = False
        world.net.crash(self.name, kernel_lives=kernel_lives)
        world.log.node_crashed(self.name)
        self.disk.crash()
        world.loop.note(f"crash {domain.name}")

    def stop(self, *, rest_ns: int, stopped: Callable[[Machine, int], None]) -> bool:
        """Ask the program to end itself, then switch the machine off and, after a rest, on again.

        `stopped` is told, while the machine is still on, how long that took; a crash on the way ends the matter.
        """
        if self.domain is None or self.stopper is None or self.stopping:
            return False
        self.stopping = True
        self.world.event(f"{self.name} is asked to stop")
        work = self._stop(self.incarnation, self.stopper, rest_ns, stopped)
        self.world.loop.call_soon(self._spawn_stop, work, context=self.domain.context)
        return True

    def _spawn_stop(self, work: Coroutine[Any, Any, None]) -> None:
        Scope(f"{self.name}/stop", on_failure=self.failed).spawn(work, name=f"{self.name}/{STOP_TASK}")

    async def _stop(
        self,
        incarnation: int,
        stopper: Callable[[], Coroutine[Any, Any, None]],
        rest_ns: int,
        stopped: Callable[[Machine, int], None],
    ) -> None:
        loop, began_ns = self.world.loop, self.world.loop.now_ns
        await stopper()
        took_ns = loop.now_ns - began_ns
        # A little later, so that what was cancelled in the last step has ended too.
        loop.call_at_ns(
            loop.now_ns + AFTERMATH_NS, self._stopped, incarnation, took_ns, rest_ns, stopped, context=loop.root.context
        )

    def _stopped(self, incarnation: int, took_ns: int, rest_ns: int, stopped: Callable[[Machine, int], None]) -> None:
        if self.incarnation != incarnation or not self.up:
            return
        self.world.event(f"{self.name} has stopped after {took_ns / NS:.3f}s")
        stopped(self, took_ns)
        self.crash(kernel_lives=True)
        rest_ns = min(rest_ns, HEALTHY_REST_NS) if self.world.healthy else rest_ns  # healed while it was stopping
        self.world.loop.call_at_ns(self.world.loop.now_ns + rest_ns, self.start)

    def leftovers(self) -> list[str]:
        """Tasks of a program that says it has ended: its own main task aside, there should be none."""
        if self.domain is None:
            return []
        names = [task.get_name() for task in self.world.loop.tasks_of(self.domain)]
        return [name for name in names if name not in (f"{self.name}/main", f"{self.name}/{STOP_TASK}")]

    def pause(self) -> None:
        """No steps until `resume`."""
        self.paused = True
        self._regate()

    def resume(self) -> None:
        """Run everything that waited."""
        self.paused = False
        self._regate()
        held, self._held = self._held, []
        for handle in held:
            self.world.loop.requeue(handle)

    def slow_down(self, mean_ns: int) -> None:
        """Delay every step by about that much; 0 for full speed."""
        self.slow_ns = mean_ns
        self._regate()

    def _regate(self) -> None:
        if self.domain is not None:
            self.domain.gate = self._hold if self.paused else self._delay if self.slow_ns else None

    def _hold(self, handle: SimHandle) -> bool:
        self._held.append(handle)
        return True

    def _delay(self, handle: SimHandle) -> bool:
        if handle.delayed:
            return False
        handle.delayed = True
        self.world.loop.requeue(handle, delay_ns=1 + self._slow_stream.decay(self.slow_ns))
        return True

    def failed(self, error: BaseException) -> None:
        """The program ended with an error: restart it, switch the machine off for good, or end the run."""
        if isinstance(error, NodeFenced) and self.name in self.world.copied:
            hooks.probe("sim.fenced")
            self.world.event(f"{self.name} is fenced: {error}")
            self.gone = True
            self.world.loop.call_soon(self.crash, context=self.world.loop.root.context)
            return
        if not isinstance(error, FAIL_STOP):
            self.world.program_failed(self, error)
            return
        hooks.probe("sim.fail_stop")
        self.world.event(f"{self.name} stopped itself: {error}")
        loop = self.world.loop
        wait_ns = self._supervisor.between(SUPERVISOR_NS_MIN, SUPERVISOR_NS_MAX)
        context = loop.root.context
        loop.call_soon(self._stop_and_restart, self.incarnation, wait_ns, context=context)

    def _stop_and_restart(self, incarnation: int, wait_ns: int) -> None:
        if self.incarnation == incarnation and self.up:
            self.crash(kernel_lives=True)
            self.world.loop.call_at_ns(self.world.loop.now_ns + wait_ns, self.start)

    def heal(self) -> None:
        """Up, awake, at full speed, with a good disk and a good clock."""
        self.disk.heal()
        self.clock.step_ns = 0
        self.slow_down(0)
        if self.paused:
            self.resume()
        self.start()


class World:
    """Everything of one run."""

    def __init__(
        self,
        tape: Tape,
        settings: Settings,
        *,
        schedule: SchedulePolicy = SchedulePolicy.UNIFORM,
        buggify: bool = True,
        edits: Edits = NO_EDITS,
    ) -> None:
        self.tape = tape
        self.settings = settings
        self.edits = edits
        self._faults_kept = None if edits.faults is None else frozenset(edits.faults)
        self._operations_kept = None if edits.operations is None else frozenset(edits.operations)
        self.loop = SimLoop(scheduler_for(schedule, tape.stream("schedule")))  # type: ignore[abstract] # the rest raises
        self.loop.crashed = self._crashed
        self.net = SimNet(self.loop, tape, settings)
        self.log = SimLog(self.loop, tape, settings)
        self.machines: dict[str, Machine] = {}
        self.nodes: list[Machine] = []
        self.clients: list[Machine] = []
        self.copied: set[str] = set()  # machines whose store another one has too: only one of each pair may stay
        self.faults: list[InjectedFault] = []
        self.shadows: list[Shadow] = []  # when a clock was beyond the bound
        self.operations: list[str] = []  # what clients and operators began, by name
        self.events: list[str] = []
        self.telling = False
        self.probes: Counter[str] = Counter()
        self.levels: dict[
            str, tuple[float, float]
        ] = {}  # the fullest each bounded queue or cache ever was, of how much
        self.healed_at_ns: int | None = None
        self.healthy = False  # True once the liveness phase has begun
        self.focus: Callable[[], str | None] = lambda: None  # a node worth isolating, such as a leaseholder
        self.calm: Callable[[], bool] = lambda: False  # while True the nemesis holds back: the scenario is being set up
        self.calm_clients: Callable[[], bool] = lambda: True  # while True clients are left alone
        self.spare: Callable[[str, Family, bytes | None], bool] = lambda _node, _family, _key: False
        """Whether a node's copy of a stored key (None: of everything) may be damaged: others have good ones."""
        self.stopped: Callable[[Machine, int], None] = lambda _machine, _took_ns: None  # judges a graceful stop
        self.spoil: Callable[[TapeStream], str | None] = lambda _draw: None  # quarantines a replica; says which
        self.taps: dict[str, Callable[..., None]] = {}  # what looks at what code shows with `hooks.tap`
        self.facts: dict[str, Any] = {}  # where workloads and oracles of one scenario meet
        self._buggify_stream = tape.stream("buggify")
        self._armed: dict[str, bool] = {}
        self._buggify = buggify

    def add_node(self, name: str, boot: Callable[[SimRuntime], Coroutine[Any, Any, None]]) -> Machine:
        """A machine that the nemesis may hurt; boots at once. It shows the certificate of a node of its name."""
        machine = self._add(name, boot, Certificate("node", NODE_NAME, (name,)))
        self.nodes.append(machine)
        return machine

    def add_copy(self, name: str, of: Machine) -> Machine:
        """A machine with a copy of what is durable on another one's disk, and the same program; boots at once.

        Both have certificates for both hosts: others would not believe that they are the node they know, otherwise.
        """
        self.copied |= {name, of.name}
        certificate = self.net.host(of.name).certificate = Certificate("node", NODE_NAME, (name, of.name))
        machine = self._add(name, of.boot, certificate, platter=of.disk.platter.copied())
        self.nodes.append(machine)
        return machine

    def add_client(
        self, name: str, boot: Callable[[SimRuntime], Coroutine[Any, Any, None]], *, role: str = "operator"
    ) -> Machine:
        """A machine that asks; the nemesis hurts it only if the scenario says so (`calm_clients`).

        `role` is what its certificate says: most use ranges directly, which takes an operator's.
        """
        machine = self._add(name, boot, Certificate(role, name))
        self.clients.append(machine)
        return machine

    def _add(
        self,
        name: str,
        boot: Callable[[SimRuntime], Coroutine[Any, Any, None]],
        certificate: Certificate,
        platter: MemoryDisk | None = None,
    ) -> Machine:
        machine = self.machines[name] = Machine(self, name, boot)
        if platter is not None:
            machine.disk.platter = platter
        self.net.host(name).certificate = certificate
        machine.start()
        return machine

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> None:
        """Start a task of the world itself: a nemesis, an operator, a watcher."""
        self.loop.call_soon(self._spawn, work, name, context=self.loop.root.context)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        Scope("world", on_failure=self.loop.fail).spawn(work, name=name)

    async def sleep_ns(self, wait_ns: int) -> None:
        """Suspend a task of the world."""
        waiter = self.loop.create_future()
        self.loop.call_at_ns(self.loop.now_ns + wait_ns, waiter.set_result, None)
        await waiter

    @property
    def seconds(self) -> float:
        """True time since the run began."""
        return self.loop.now_ns / NS

    # --- what is left out of a smaller run (`sim/edits.py`) ---------------------------------------------------------

    def allows_fault(self, name: str) -> bool:
        """Whether the strike of that name is to happen."""
        return self._faults_kept is None or name in self._faults_kept

    def allows_operation(self, actor: str, number: int) -> bool:
        """Whether an actor's operation of that number is to happen; counts it if so."""
        name = f"{actor}/{number}"
        if self._operations_kept is not None and name not in self._operations_kept:
            return False
        self.operations.append(name)
        return True

    # --- what happened ---------------------------------------------------------------------------------------------

    def event(self, text: str) -> None:
        """One line of the story; part of the trace."""
        self.loop.note(text)
        if len(self.events) < EVENTS_MAX:
            self.events.append(f"t={self.seconds:.3f} {text}")

    def story(self, text: str) -> None:
        """One line of the story that is no part of the trace: told only when it is asked for (`Job.story`)."""
        if self.telling and len(self.events) < EVENTS_MAX:
            self.events.append(f"t={self.seconds:.3f} {text}")

    def violated(self, oracle: str, kind: str, summary: str, **evidence: object) -> None:
        """An online oracle says no: the run ends here."""
        self.loop.fail(OracleFailure(Violation(oracle, kind, summary, dict(evidence))))

    def _crashed(self, domain: Domain, error: BaseException) -> None:
        """A program reported an error that was not handled, such as a crash of an RPC handler."""
        machine = self.machines.get(domain.name.partition(".")[0])
        if machine is None:
            self.loop.fail(error)
        else:
            self.program_failed(machine, error)

    def program_failed(self, machine: Machine, error: BaseException) -> None:
        """A program ended with an error that it should not have had."""
        if isinstance(error, InvariantViolation | OracleFailure):
            self.event(f"{machine.name} {error}")
            self.loop.fail(error)
            return
        text = f"{machine.name} ended with {type(error).__name__}: {error}"
        failure = OracleFailure(Violation("I-31", "unhandled-exception", text, {"machine": machine.name}))
        failure.__cause__ = error
        self.loop.fail(failure)

    # --- hooks -----------------------------------------------------------------------------------------------------

    def install_hooks(self) -> None:
        """Count probes, arm buggify sites, attach taps and levels. `hooks.install()` undoes it."""
        hooks.install(probe=self._probe, buggify=self._buggified, tap=self._tap, level=self._level)

    def _probe(self, site: str) -> None:
        self.probes[site] += 1

    def _tap(self, site: str, *facts: object) -> None:
        look = self.taps.get(site)
        if look is not None:
            look(*facts)

    def _level(self, name: str, size: float, bound: float) -> None:
        known = self.levels.get(name)
        if known is None or size > known[0]:
            self.levels[name] = (size, bound)
            if size > bound:
                text = f"{self.loop.domain.name}: {name} holds {size:g}, and its bound is {bound:g}"
                self.violated("I-31", "over-bound", text)

    def _buggified(self, site: str) -> bool:
        """Armed in a quarter of the runs, a quarter of the times; never while the world is to recover."""
        armed = self._armed.get(site)
        if armed is None:
            armed = self._armed[site] = self._buggify and self._buggify_stream.chance(1, 4)
        return armed and not self.healthy and self._buggify_stream.chance(1, 4)

    def healthy_since_ns(self, ago_ns: int) -> bool:
        """Whether the world has been well for at least so long."""
        return self.healed_at_ns is not None and self.loop.now_ns - self.healed_at_ns >= ago_ns

    def cast_shadow(self, node: Machine, step_ns: int) -> Shadow:
        """A node's clock is beyond the bound from now on."""
        longest_s = max(self.settings["liveness.duration"], self.settings["lease.duration"])
        lease_s = lasts_s(longest_s, max_offset_us=node.clock.max_offset_ns // 1000)
        shadow = Shadow(
            node.name,
            begin_ns=self.loop.now_ns,
            step_ns=step_ns,
            max_offset_ns=node.clock.max_offset_ns,
            lease_ns=round(lease_s * NS),
        )
        self.shadows.append(shadow)
        return shadow

    # --- healing ---------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No faults from here on: everything is up, connected and fast."""
        self.healthy = True
        self.healed_at_ns = self.loop.now_ns
        self.event("heal")
        for fault in self.faults:
            fault.end(self)
        self.net.heal()
        self.log.heal()
        for machine in self.machines.values():
            machine.heal()
