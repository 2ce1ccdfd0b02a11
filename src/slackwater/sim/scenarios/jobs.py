"""A play for durable jobs: nodes that die, stop and are paused while they hold claims, and users who pause, resume and cancel.

    nodes     run jobs of type `steps`: each step leaves an effect that names the claim; the first makes a thing that the job owns
    clients   make such jobs, steer them at any moment, and work on jobs of their own with a lease (type `application`); they
              stage rows, publish them, drop them, or leave them to their fate (type `staged write`)

Pauses are what this play is for: a node that stands still for longer than its liveness record lasts loses its claims, and comes
back in the middle of a step. Judged by I-36.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import ClaimLost, RetryableError, UsageError
from slackwater.hooks import probe
from slackwater.jobs import JobType
from slackwater.model.ids import Small
from slackwater.model.jobs import JobProgress, Owned
from slackwater.protocol.client.jobs import JobReply
from slackwater.runtime.access import NODES_AND_OPERATORS
from slackwater.runtime.rpc.method import Method
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following
from slackwater.sim.oracles.jobs import FencedJobs, effect_key, fenced_jobs, owned_key
from slackwater.sim.oracles.versions import VersionsOracle
from slackwater.sim.scenario import Play, draw_scenario, register
from slackwater.sim.scenarios.cluster import SETTLE_S, Traffic, _oracles
from slackwater.sim.scenarios.cluster_plan import COPIES_MAX, ClusterPlan, _splits, cluster_of
from slackwater.sim.scenarios.cluster_worker import operation
from slackwater.sim.scenarios.gateways_work import session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.client.database import AsyncDatabase
    from slackwater.jobs import RunningJob
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.node import Node
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenario import Oracle, Scenario, Workload
    from slackwater.sim.scenarios.cluster_worker import Worker
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import World
    from slackwater.txn import Transaction

SETTINGS = {
    "clock.max_offset": 0.25,
    "liveness.duration": 1.2,
    "liveness.heartbeat_interval": 0.3,
    "lease.duration": 1.5,
    "rpc.heartbeat_interval": 0.2,
    "rpc.heartbeat_timeout": 1.0,
    "drain.timeout": 2.0,
    "jobs.poll_interval": 1.0,
    "jobs.retry_pause_min": 0.1,
    "jobs.retry_pause_max": 2.0,
    "jobs.lease_duration": 2.0,
    "jobs.running_max": 4,
    "staging.ttl": 4.0,
}
STALLS = frozenset({FaultKind.PAUSE, FaultKind.KILL, FaultKind.STOP, FaultKind.CLIENT_PAUSE})
STEPS_MAX = 6
UNDO = 1_000
END = 1_001
RANGES = 4
THING = "thing"
STAGED_TABLE = "staged"
TYPE = "steps"


class MakeSteps(msgspec.Struct, frozen=True):
    """Make a job of some steps."""

    steps: Small
    name: str
    trouble: Small
    """One step in so many meets an error; 0: none."""


MAKE: Method[MakeSteps, JobReply] = Method("sim.make_job", MakeSteps, JobReply, callers=NODES_AND_OPERATORS)


class StepsDone(msgspec.Struct, frozen=True):
    """The checkpoint of such a job."""

    done: int = 0
    claim: int = 0


class Steps:
    """Does the steps of a job on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def resume(self, job: RunningJob) -> None:
        """Step by step, each with time in between for something to happen."""
        wanted, number = job.payload(MakeSteps), job.ticket.number
        rng, clock = self._node.runtime.rng, self._node.runtime.clock
        for step in range(job.checkpoint(StepsDone).done, wanted.steps):
            await clock.sleep(rng.below(400) / 1000)
            if wanted.trouble and rng.below(wanted.trouble) == 0:
                raise RetryableError("not now") if rng.below(4) else UsageError("not ever")

            async def work(txn: Transaction, step: int = step) -> JobProgress:
                await txn.put(effect_key(job.job.id, step), str(number).encode())
                owns = (Owned(THING, str(job.job.id)),) if step == 0 else ()
                if owns:
                    await txn.put(owned_key(job.job.id), b"here")
                if rng.below(2) == 0:  # a step that takes its time: others claim, pause and cancel meanwhile
                    await clock.sleep(rng.below(2500) / 1000)
                said = msgspec.json.encode(StepsDone(step + 1, number)).decode()
                return JobProgress(checkpoint=said, fraction=(step + 1) / wanted.steps, owns=owns)

            await job.step(work)

        async def last(txn: Transaction) -> None:
            await txn.put(effect_key(job.job.id, END), str(number).encode())

        await job.succeed(last)

    async def revert(self, job: RunningJob) -> None:
        """One step."""
        await self._node.runtime.clock.sleep(self._node.runtime.rng.below(400) / 1000)

        async def work(txn: Transaction) -> None:
            await txn.put(effect_key(job.job.id, UNDO), str(job.ticket.number).encode())

        await job.step(work)


async def _release(txn: Transaction, ref: str) -> None:
    await txn.delete(owned_key(int(ref)))


def know(node: Node) -> None:
    """Let a node run such jobs, and make them for clients."""
    node.job_types.add(JobType(TYPE, Steps(node)))
    node.job_types.releases[THING] = _release

    async def make(request: MakeSteps, context: Context) -> JobReply:
        jobs = node.here().jobs
        payload = msgspec.json.encode(request).decode()
        timeout = context.remaining()
        return JobReply(
            await jobs.create(TYPE, description="steps", payload=payload, name=request.name, timeout=timeout)
        )

    node.server.handle(MAKE, make)


class Jobbing:
    """Nodes that know the type, and what recovered means: every job has ended that should."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """Nodes learn the type whenever they begin."""
        cluster_of(world).on_node.append(know)

    def unsettled(self, world: World) -> str | None:
        """Jobs that should go on and have not ended, and rows that were staged for one that has."""
        for job in fenced_jobs(world).open_jobs():
            return f"job {job.id} ({job.type}) is {job.status.value}, claimed by {job.claimed_by or 'no node'}: {job.error}"
        left = fenced_jobs(world).staged()
        return f"{left} staged chunks were left behind" if left else None

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged by oracles."""
        return ()


@operation("job")
async def _make(me: Worker, timeout: float) -> None:
    addresses = list(me.cluster.addresses.values())
    address = addresses[me.draw.below(len(addresses))]
    request = MakeSteps(1 + me.draw.below(STEPS_MAX), me.unique().decode(), me.draw.pick((0, 4, 8)))
    made = await me.client.dialer.call(address, MAKE, request, timeout=timeout)
    probe("jobs.play_made")
    me.cluster.world.facts.setdefault("jobs", []).append(made.job.id)


@operation("steer")
async def _steer(me: Worker, timeout: float) -> None:
    known = me.cluster.world.facts.get("jobs", [])
    if not known:
        return
    job_id = known[-1 - me.draw.below(min(4, len(known)))]
    jobs = session(me.client, me.cluster, timeout_s=timeout).jobs
    await me.draw.pick((jobs.pause, jobs.resume, jobs.resume, jobs.resume, jobs.cancel))(job_id)
    probe("jobs.play_steered")


@operation("apply")
async def _apply(me: Worker, timeout: float) -> None:
    db = session(me.client, me.cluster, timeout_s=timeout)
    if me.client.claim is None:
        await _claim(me, db)
        return
    claim, what = me.client.claim, me.draw.below(8)
    try:
        if what == 0:
            await claim.give_up()
        elif what == 1:
            await claim.succeed()
        elif what == 2:
            await claim.fail("not ever")
        else:
            said = {"claim": claim.number, "at": me.unique().decode()}
            await claim.work(checkpoint=said)
            return
    except ClaimLost:
        probe("jobs.play_lost")
    me.client.claim = None


@operation("stage")
async def _stage(me: Worker, timeout: float) -> None:
    db, row = session(me.client, me.cluster, timeout_s=timeout), {"id": me.draw.below(8), "v": me.unique().decode()}
    facts = me.cluster.world.facts
    if not facts.get("staged table"):
        with suppress(UsageError):  # another was quicker, or an answer was lost
            await db.create_table(STAGED_TABLE, {"id": "int8", "v": "text"}, primary_key="id")
        facts["staged table"] = True
        return
    deadline = db._gateways.deadline()
    part = await db.staging(STAGED_TABLE)
    await part.add([row])
    ref, fate = await part.finish(), me.draw.below(4)
    if fate == 0:
        probe("jobs.play_left_staged")  # its lease runs out
    elif fate == 1:
        await db.drop_staged([ref])
    else:
        await db.publish(STAGED_TABLE, [ref], timeout=deadline.remaining())
        probe("jobs.play_published")


async def _claim(me: Worker, db: AsyncDatabase) -> None:
    name = me.client.runtime.name
    waiting = await db.jobs.list(status=("pending", "running"), kind="application")
    if waiting and me.draw.chance(1, 2):
        me.client.claim = await db.jobs.claim(me.draw.pick(waiting).id, application=name)
        return
    me.client.claim = await db.jobs.start("by a client", application=name)
    me.cluster.world.facts.setdefault("jobs", []).append(me.client.claim.job.id)


def _plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    draw = tape.stream("cluster")
    return ClusterPlan(
        ranges=RANGES,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(draw, RANGES),
        workloads=("job", "steer", "apply", "apply", "stage", "bank"),
        think_mean_ns=NS // 4,
        operator_mean_ns=draw.between(NS, 4 * NS),
        merges=False,
        moves=False,
        rolling=tape.stream("cluster/rolling").chance(1, 4),
    )


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 4), clients=(3, 5), duration_s=duration_s)
    settings = {name: value for name, value in drawn.settings.items() if name.startswith("jobs.")}
    return replace(drawn, settings={**SETTINGS, **settings}, faults=drawn.faults | STALLS)


def _workloads() -> list[Workload]:
    return [Traffic(_plan), Jobbing(), following.Advances()]


def _with_fenced() -> list[Oracle]:
    oracles = _oracles()
    versions = next(oracle for oracle in oracles if isinstance(oracle, VersionsOracle))
    return [*oracles, FencedJobs(versions)]


register(
    Play(
        name="jobs",
        summary="3-4 nodes that run durable jobs and are paused, killed and stopped under them; users steer, applications claim",
        draw=_draw,
        workloads=_workloads,
        oracles=_with_fenced,
        settle_s=SETTLE_S,
    )
)
