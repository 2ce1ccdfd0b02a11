"""Jobs on real nodes: claimed once, gone on with by another node, stopped, reverted, ended, forgotten."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from slackwater.errors import AccessDenied, ClaimLost, UnavailableError, UsageError
from slackwater.jobs import transitions as to
from slackwater.jobs.record import name_key, open_span
from slackwater.model.jobs import JobProgress, Owned, Status
from slackwater.runtime.rpc.faults import unpack
from slackwater.server import metrics
from tests.unit.jobs.world import JobsCluster, know, step_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def play(story: Callable[[JobsCluster], Awaitable[None]], size: int = 1, **how) -> None:
    async def main() -> None:
        async with JobsCluster(size, **how) as cluster:
            await story(cluster)

    asyncio.run(main())


def test_a_job_is_run_once_and_what_it_owned_is_released_with_its_end() -> None:
    async def story(cluster: JobsCluster) -> None:
        made = await asyncio.gather(*(cluster.make(n % 3) for n in range(6)))
        for job in made:
            done = await cluster.until_status(job.id, "succeeded")
            assert (done.fraction, done.progress, done.owns, done.claimed_by) == (1.0, "3 of 3", (), "")
            assert done.created <= done.started <= done.finished
            assert await cluster.steps(job.id) == ["1", "1", "1"]
            assert await cluster.owned(job.id) is None
        span = open_span()
        assert (await cluster.nodes[0].kv.scan(span.start, span.end)).keys == [], "nothing is left to look through"
        assert sum(len(c.started) for c in cluster.counting) == 6

    play(story, 3)


def test_the_job_of_a_lost_node_is_gone_on_with_from_its_checkpoint_and_the_lost_one_changes_nothing() -> None:
    async def story(cluster: JobsCluster) -> None:
        first, second = cluster.counting
        second.upto = 1
        job = await cluster.make()
        await cluster.until(lambda: second.last is not None and second.last.job.fraction > 0)
        lost = second.last
        await cluster.kill(cluster.nodes[1])
        cluster.nodes[0].settings.set("jobs.running_max", 8)
        done = await cluster.until_status(job.id, "succeeded")
        assert first.started == [1], "from the checkpoint on"
        assert await cluster.steps(job.id) == ["1", "2", "2"]
        assert done.claim_number > lost.ticket.number
        lost._store = cluster.nodes[0].jobs.store  # the process comes back, with the ticket it had
        before = await cluster.steps(job.id)

        async def late(txn) -> JobProgress:
            await txn.put(step_key(job.id, 2), b"late")
            return JobProgress(checkpoint="{}")

        for work in (lost.step(late), lost.succeed(late)):
            with pytest.raises(ClaimLost, match="nothing was changed"):
                await work
        assert await cluster.steps(job.id) == before
        assert (await cluster.job(job.id)) == done

    play(story, 2, claim=(1,))


def test_a_node_that_stops_in_good_manners_gives_its_jobs_up() -> None:
    async def story(cluster: JobsCluster) -> None:
        second = cluster.counting[1]
        second.upto = 0
        job = await cluster.make()
        await cluster.until(lambda: second.last is not None)
        await cluster.nodes[1].jobs.stop()
        free = await cluster.job(job.id)
        assert (free.status, free.claimed_by, free.attempts) == (Status.PENDING, "", 0)

    play(story, 2, claim=(1,), liveness__duration=60)


def test_pause_resume_and_cancel() -> None:
    async def story(cluster: JobsCluster) -> None:
        node, counting = cluster.nodes[0], cluster.counting[0]
        counting.upto = 0
        job = await cluster.make()
        await cluster.until(lambda: counting.last is not None)
        assert (await node.jobs.ask(job.id, to.pause)).status is Status.PAUSING
        paused = await cluster.until_status(job.id, "paused")
        assert (paused.claimed_by, node.jobs.running) == ("", [])
        counting.upto = 3
        await node.jobs.look()
        assert (await cluster.job(job.id)).status is Status.PAUSED, "it is left alone"
        assert (await node.jobs.ask(job.id, to.resume)).status is Status.PENDING
        await cluster.until_status(job.id, "succeeded")
        assert await cluster.steps(job.id) != []

        counting.upto = 2
        other = await cluster.make()
        await cluster.until(lambda: counting.last.job.id == other.id and counting.last.job.fraction > 0.5)
        assert (len(await cluster.steps(other.id)), await cluster.owned(other.id)) == (2, b"kept")
        assert (await node.jobs.ask(other.id, to.cancel)).status is Status.CANCELLING
        await cluster.until_status(other.id, "cancelled")
        assert (await cluster.steps(other.id), await cluster.owned(other.id)) == ([], None)
        with pytest.raises(UsageError, match="has ended, it was cancelled"):
            await node.jobs.ask(other.id, to.cancel)

    play(story)


def test_a_job_that_is_cancelled_or_paused_before_it_runs() -> None:
    async def story(cluster: JobsCluster) -> None:
        node = cluster.nodes[0]
        node.settings.set("jobs.running_max", 0)
        one, two = await cluster.make(), await cluster.make()
        assert (await node.jobs.ask(one.id, to.cancel)).status is Status.REVERTING
        assert (await node.jobs.ask(two.id, to.pause)).status is Status.PAUSED
        node.settings.set("jobs.running_max", 8)
        await cluster.until_status(one.id, "cancelled")
        assert (await cluster.job(two.id)).status is Status.PAUSED
        assert cluster.counting[0].started == []

    play(story)


def test_errors_that_pass_are_tried_again_and_others_fail_the_job_after_it_was_reverted() -> None:
    async def story(cluster: JobsCluster) -> None:
        counting = cluster.counting[0]
        counting.fail = [UnavailableError("not now"), UnavailableError("not yet")]
        job = await cluster.make()
        done = await cluster.until_status(job.id, "succeeded")
        assert len(counting.started) == 3
        assert done.error == ""

        for error, said in (
            (UsageError("there is no such table"), "no such table"),
            (ValueError("oh"), "ValueError: oh"),
            (unpack("InvariantViolation", "x", {"rule": "I-10"}), "I-10"),  # says a peer, which ends no other node
        ):
            counting.fail = [error]
            counting.fail_revert = [ValueError("the first revert fails too")]
            job = await cluster.make()
            failed = await cluster.until_status(job.id, "failed")
            assert said in failed.error or "revert fails" in failed.error
            assert (await cluster.steps(job.id), await cluster.owned(job.id)) == ([], None)

        counting.fail = [UnavailableError("never")] * 99
        job = await cluster.make()
        failed = await cluster.until_status(job.id, "failed")
        assert failed.error == "gave up after 4 attempts without progress: never"

    play(story, jobs__attempts_max=4)


def test_a_job_has_one_name_and_belongs_to_its_creator() -> None:
    async def story(cluster: JobsCluster) -> None:
        node = cluster.nodes[0]
        node.settings.set("jobs.running_max", 0)
        made = await asyncio.gather(*(cluster.make(name="nightly/7", creator="ann") for _ in range(4)))
        assert len({job.id for job in made}) == 1
        with pytest.raises(AccessDenied, match="belongs to ann"):
            await node.jobs.ask(made[0].id, to.pause, by="bob")
        assert (await node.jobs.ask(made[0].id, to.pause, by="ann")).status is Status.PAUSED
        bad = [
            (node.jobs.create("nothing", description=""), "no jobs of type 'nothing'"),
            (node.jobs.ask(4711, to.pause), "there is no job 4711"),
            (node.jobs.ask(-1, to.cancel), "there is no job -1"),
            (node.jobs.ask(1 << 70, to.cancel), "there is no job"),
            (cluster.make(name="x" * 600), "at most 512 characters"),
        ]
        for work, said in bad:
            with pytest.raises(UsageError, match=said):
                await work

    play(story)


def test_what_this_node_does_not_know_is_left_to_nodes_that_do() -> None:
    async def story(cluster: JobsCluster) -> None:
        node = cluster.nodes[0]
        node.settings.set("jobs.running_max", 0)
        job = await cluster.make()

        async def own(txn) -> None:
            before = await node.jobs.store.get(txn, job.id)
            await node.jobs.store.write(
                txn, to.checkpointed(before, JobProgress(owns=(Owned("of tomorrow", "1"),))), before=before
            )

        await node.kv.run(own)
        node.settings.set("jobs.running_max", 8)
        await node.jobs.look()
        await node.jobs.ask(job.id, to.cancel)
        await node.jobs.look()
        assert (await cluster.job(job.id)).status is Status.REVERTING
        assert cluster.counting[0].started == []

        async def release(txn, ref) -> None:
            await txn.delete(step_key(0, 0))

        node.job_types.releases["of tomorrow"] = release
        assert (await cluster.until_status(job.id, "cancelled")).owns == ()

    play(story)


def test_a_claim_whose_answer_was_lost_is_taken_again_by_the_same_node() -> None:
    async def story(cluster: JobsCluster) -> None:
        node = cluster.nodes[0]
        node.settings.set("jobs.running_max", 0)
        job = await cluster.make()
        claimant = to.Claimant("n1", int(node.liveness.own().epoch))
        await node.kv.run(lambda txn: node.jobs.store.take(txn, job, claimant, attempts_max=9))
        node.settings.set("jobs.running_max", 8)
        assert (await cluster.until_status(job.id, "succeeded")).claim_number == 3
        assert await cluster.steps(job.id) == ["2", "2", "2"]

    play(story)


def test_an_application_keeps_its_claim_for_as_long_as_its_lease() -> None:
    async def story(cluster: JobsCluster) -> None:
        node = cluster.nodes[0]
        store = node.jobs.store
        lease = to.Claimant("spark-1", 0, store.now().replace(year=2100))
        job = await store.run(lambda txn: store.create(txn, "count", description="", claimant=lease))
        await node.jobs.look()
        assert node.jobs.running == []
        over = store.now().replace(year=2000)
        await store.run(lambda txn: store.change(txn, to.ticket_of(job), lambda j: to.renewed(j, over)))
        await cluster.until_status(job.id, "succeeded")
        with pytest.raises(ClaimLost):
            await store.run(lambda txn: store.succeed(txn, to.ticket_of(job)))

    play(story)


def test_metrics_count_what_has_not_ended_and_what_failed() -> None:
    async def story(cluster: JobsCluster) -> None:
        node, counting = cluster.nodes[0], cluster.counting[0]

        def numbers() -> dict[str, float]:
            return {
                " ".join([metric.name, *(value for _, value in sample.labels)]): sample.value
                for metric in metrics.collect(node.node)
                for sample in metric.samples
            }

        async def until(name: str, value: float) -> None:
            async with asyncio.timeout(20):
                while numbers()[name] != value:
                    await asyncio.sleep(0.01)

        assert numbers()["slackwater_jobs_failed_total"] == 0
        assert numbers()["slackwater_oldest_running_job_seconds"] == 0
        counting.upto = 1
        job = await cluster.make()
        await until("slackwater_jobs running", 1)
        assert numbers()["slackwater_oldest_running_job_seconds"] > 0
        counting.fail = [UsageError("no")]
        counting.upto = 3
        await cluster.until_status(job.id, "failed")
        await until("slackwater_jobs running", 0)
        await until("slackwater_jobs_failed_total", 1)
        assert numbers()["slackwater_oldest_running_job_seconds"] == 0

    play(story)


def test_history_is_kept_for_a_while_and_then_collected() -> None:
    async def story(cluster: JobsCluster) -> None:
        node = cluster.nodes[0]
        job = await cluster.make(name="once")
        await cluster.until_status(job.id, "succeeded")
        assert [j.id for j in await node.jobs.store.newest()] == [job.id]
        node.settings.override({"jobs.retention": 2.0})
        cluster.counting[0].upto = 0
        stays = await cluster.make()

        async with asyncio.timeout(20):
            while [j.id for j in await node.jobs.store.newest()] != [stays.id]:
                await asyncio.sleep(0.05)
        assert await node.kv.get(name_key("once")) is None
        cluster.counting[0].upto = 3
        await cluster.until_status(stays.id, "succeeded")

    play(story)


def test_a_restarted_node_takes_its_own_job_over() -> None:
    async def story(cluster: JobsCluster) -> None:
        node, counting = cluster.nodes[0], cluster.counting[0]
        counting.upto = 0
        job = await cluster.make()
        await cluster.until(lambda: counting.last is not None)
        await cluster.kill(node)
        again = await cluster.add(node.engine, 0)
        know(again)
        await cluster.until(lambda: again.liveness.own() is not None)
        done = await cluster.until_status(job.id, "succeeded")
        assert done.claim_number == 3

    play(story)
