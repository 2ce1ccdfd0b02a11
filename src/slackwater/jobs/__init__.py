"""Durable jobs: long work that outlives the process that does it.

A job is one row of `system.jobs`, which every client reads like any table. A node claims it under its liveness epoch, an
application outside of the cluster (a Spark driver) with a lease that it renews. The claimant works from the checkpoint on and
writes further checkpoints; when it is gone, another takes the job over and goes on from there.

    create ──► row: type, payload ──► claim 1 by n2 ── checkpoint ── checkpoint ── n2 is lost
                                                                                      │ its epoch ends
                                      claim 2 by n1 ◄─────────────────────────────────┘
                                        └─ from the last checkpoint ──► succeeded; what the job owned is released with it

Rules
    I-36  Every change by a claimant is made in a transaction that compares the number of its claim: a claimant that was paused
          over a take-over changes nothing. A job ends once. What it owns (protections, staged rows) is released in the
          transaction that ends it, whichever way it ends.

What the work must be like. A step is a transaction (`RunningJob.step`) and happens once. Everything outside of steps may happen
twice or late: after a take-over two claimants can run at the same time for a while, and only one of them can write.

Where things are. Pure: `record` (rows and keys), `transitions` (what may happen to a job). Awaiting: `store` (transactions),
`running` (what a resumer is given), `driver` (one node: look, claim, run, stop). `registry` is what other layers add to: types of
jobs with their resumers, kinds of owned things with their release, which it awaits.
"""

from slackwater.jobs.driver import Jobs
from slackwater.jobs.registry import JobType, JobTypes, Resumer
from slackwater.jobs.running import RunningJob

__all__ = ["JobType", "JobTypes", "Jobs", "Resumer", "RunningJob"]
