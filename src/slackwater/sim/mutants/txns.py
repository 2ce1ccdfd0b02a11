"""Planted bugs of transactions: stale reads, commits told too early or made too late, intents that are left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.routing.outcome import read_only
from slackwater.sim.faults import FaultKind
from slackwater.sim.mutants.patch import BODY, Patch
from slackwater.sim.scenario import PlantedBug, plant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.protocol.range.requests import Request, Result
    from slackwater.txn.coordinator import Transaction


async def answer_from_memory(txn: Transaction, requests: Sequence[Request], **limits: int) -> list[Result]:
    """M29: answer reads with what an earlier epoch of the transaction was told."""
    told: dict[Request, Result] = vars(txn).setdefault("told", {})
    if read_only(requests) and all(request in told for request in requests):
        return [told[request] for request in requests]
    results = await txn._seen(requests, **limits)
    told.update(zip(requests, results, strict=True))
    return results


plant(
    PlantedBug(
        "M29",
        "a transaction that is run again answers its reads from the first attempt",
        play="cluster",
        # A list that is written back as the first attempt read it lacks what others have appended since: their reads no
        # longer hold (I-18), and what they were told is there is gone (I-03).
        expected=("I-18", "I-03"),
        patches=(
            Patch(
                "slackwater.txn.coordinator:Transaction._do",
                "return await self._seen(requests, max_keys=max_keys, max_bytes=max_bytes)",
                """
from slackwater.sim.mutants.txns import answer_from_memory
return await answer_from_memory(self, requests, max_keys=max_keys, max_bytes=max_bytes)
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-NO-REFRESH",
        "move a transaction's reads up without looking whether they still hold",
        play="cluster",
        expected=("I-18",),
        patches=(Patch("slackwater.txn.refresh:refresh", "requests_for(reads, after=state.read_ts, upto=upto)", "[]"),),
    )
)
plant(
    PlantedBug(
        "X-NO-UNCERTAINTY",
        "ignore values that may precede the read: an uncertainty interval of zero",
        play="cluster",
        expected=("I-19",),
        patches=(
            Patch("slackwater.txn.state:TxnState._begin", "Timestamp(now + self._max_offset)", "now"),
            Patch("slackwater.replica.evaluate_data:uncertain_upto", BODY, "return 0"),
        ),
    )
)
plant(
    PlantedBug(
        "X-NO-COMMIT-WAIT",
        "acknowledge what was written or read in the future before its time has come",
        play="policies",
        expected=("I-19",),
        patches=(
            Patch("slackwater.txn.context:TxnContext.wait_past", BODY, "return"),
            Patch(
                "slackwater.txn.context:TxnContext.acknowledged",
                'assert self.passed(ts), "a commit is told once its time has come (I-19)"',
                "pass",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-SETTLE-EARLY",
        "a gateway that is asked what became of a commit answers before the commit's time has come",
        play="gateways",
        expected=("I-19",),
        patches=(Patch("slackwater.txn.settle:settle", "await context.acknowledged(pushed.resolution.ts)", "None"),),
    )
)
plant(
    PlantedBug(
        "X-UNBOUNDED",
        "finished transactions queue for resolution without bound",
        play="leases",
        expected=("I-31",),
        settings={"txn.resolve_queue_max": 1, "txn.resolve_concurrency": 1},
        patches=(Patch("slackwater.txn.finish:Finisher.enqueue", "self._queued >= self._queue_max", "False"),),
    )
)
plant(
    PlantedBug(
        "X-NO-CLEANUP",
        "intents and records of coordinators that died are never cleaned up",
        play="cluster",
        expected=("I-21",),
        faults=frozenset({FaultKind.CLIENT_CRASH}),
        patches=(Patch("slackwater.server.queues.txns:TxnQueue.process", "not visit.leading", "True"),),
    )
)
