"""Planted bugs of durable jobs: claims that do not fence, and things that outlive the job they belong to."""

from __future__ import annotations

from slackwater.sim.mutants.patch import Patch
from slackwater.sim.scenario import PlantedBug, plant

_STORE = "slackwater.jobs.store:JobStore"

plant(
    PlantedBug(
        "X-JOB-UNFENCED",
        "a claimant that was paused over a take-over goes on writing",
        play="jobs",
        expected=("I-36",),
        patches=(
            Patch(
                "slackwater.jobs.transitions:held",
                "job.claim_number != ticket.number or not job.claimed_by",
                "job.status.ended",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-JOB-CHECKED-BEFORE",
        "the claim is compared before the transaction of a step and not in it",
        play="jobs",
        expected=("I-36",),
        patches=(
            Patch(
                f"{_STORE}.step",
                "before = to.held(await self.get(txn, ticket.job_id), ticket)",
                "before = to.held(await self.get(self._kv, ticket.job_id), ticket)",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-JOB-KEEPS",
        "a job ends and what it owns stays",
        play="jobs",
        expected=("I-36",),
        patches=(Patch(f"{_STORE}.end", "await self.types.release(txn, job)", "pass"),),
    )
)
plant(
    PlantedBug(
        "X-JOB-RELEASES-APART",
        "what a job owns is released in a transaction of its own, before the one that ends the job",
        play="jobs",
        expected=("I-36",),
        patches=(
            Patch(
                f"{_STORE}.end",
                "await self.types.release(txn, job)",
                "await self._kv.run(lambda apart: self.types.release(apart, job))",
            ),
        ),
    )
)
