"""What closing costs a write, measured in two ways that do not share a weakness.

    pairs   the same writes with closing on and off, in many short slices in turns (on off, off on, …) on the same two nodes.
            Processor time, collector off. The figure is the median of the pairs' ratios, with its standard error: on a
            shared machine single slices differ by ten percent and more, which is five times what is looked for
    steps   how often each step of closing is taken per write (counted under load), times what it costs (the fastest of
            many rounds on the same objects, with the arguments of the last real call), beside the processor time of one
            write (the fastest slice). Says little about caches, and is the same on a busy machine

`steps` is the stricter of the two: it counts the tracker, the touching of idle ranges and the check before applying, which
a node pays for with closing off as well.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.closedts.tracker import BucketTracker
from slackwater.codec.layout import kv
from slackwater.replica.driver.closing import Closing
from slackwater.replica.driver.pipeline import Pipeline
from slackwater.replica.propose import ProposalBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.server.member import Member

WRITERS = 32
KEYS = [kv(b"w%d" % n) for n in range(WRITERS)]
BATCHES_PER_SLICE = 2
COLLECT_EVERY = 50
TURNS, ROUNDS = 500, 20


class Cost(NamedTuple):
    """Writes per second of processor time with closing on and off; the median ratio of pairs, and its standard error."""

    on: float
    off: float
    ratio: float
    error: float


async def paired(first: Member, second: Member, *, pairs: int, lag_s: float) -> Cost:
    """On beside off, slice by slice."""

    async def piece(seconds: float) -> float:
        for node in (first, second):
            node.settings.set("closed_timestamp.target_duration", seconds)
        await _write(first, 1)
        return await _slice_s(first)

    ons, offs = [], []
    gc.collect()
    gc.disable()
    try:
        for turn in range(pairs + 5):
            if turn % COLLECT_EVERY == 0:
                gc.collect()
            order = (lag_s, 0.0) if turn % 2 else (0.0, lag_s)
            took = {seconds: await piece(seconds) for seconds in order}
            ons.append(took[lag_s])
            offs.append(took[0.0])
    finally:
        gc.enable()
    ratios = [off / on for on, off in zip(ons[5:], offs[5:], strict=True)]
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    return Cost(1 / statistics.median(ons), 1 / statistics.median(offs), middle, 1.2533 * spread / len(ratios) ** 0.5)


async def _write(node: Member, batches: int) -> None:
    for _ in range(batches):
        await asyncio.gather(*(node.kv.put(key, b"v") for key in KEYS))


async def _slice_s(node: Member) -> float:
    """Seconds of processor time per write."""
    begin = time.process_time()
    await _write(node, BATCHES_PER_SLICE)
    return (time.process_time() - begin) / (BATCHES_PER_SLICE * WRITERS)


class Steps:
    """Counts the steps of closing while writes go on, and remembers what each was last called with."""

    METHODS = (
        (BucketTracker, "track"), (BucketTracker, "untrack"), (ProposalBuffer, "close"), (Closing, "waking"),
        (Closing, "catch_up"), (Closing, "check"), (Closing, "applied"), (Pipeline, "_targets"),
    )  # fmt: skip

    def __init__(self, node: Member, key: bytes) -> None:
        replica = node.store.holding(key)
        assert replica is not None
        self._node = node
        self._replica = replica
        self.counts: Counter[str] = Counter()
        self._last: dict[str, tuple[Any, ...]] = {}

    async def count(self, batches: int) -> None:
        """Write, and count."""
        before = []
        for cls, name in self.METHODS[:-1]:
            real = getattr(cls, name)
            before.append((cls, name, real))
            setattr(cls, name, self._counted(name, real))
        pipeline: Any = self._replica.pipeline
        targets = pipeline._targets
        pipeline._targets = self._counted("_targets", lambda _=None: targets())
        try:
            await _write(self._node, batches)
        finally:
            pipeline._targets = targets
            for cls, name, real in before:
                setattr(cls, name, real)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            self.counts[name] += 1
            if name == "check":  # a generator can be looked at once
                args = (args[0], list(args[1]))
            if name != "_targets":
                self._last[name] = (*args[1:], named)
            return real(*args, **named)

        return counted

    def per_write_s(self, writes: int) -> float:
        """Seconds that the steps of one write take together."""
        closing, buffer = self._replica.closing, self._replica.pipeline.buffer
        tracker, now, run = buffer.tracker, self._node.clock.now(), self._last["check"][0]

        def visit() -> None:
            tracker.untrack(tracker.track(now))

        costs: dict[str, Callable[[], object]] = {
            "track": visit,
            "close": lambda: buffer.close(target=now, limit=buffer.assigned_closed),
            "waking": closing.waking,
            "catch_up": closing.enter,
            "check": lambda: closing.check(run),
            "applied": closing.applied,
            "_targets": closing.targets,
        }
        return sum(_fastest_s(step) * self.counts[name] / writes for name, step in costs.items())


def _fastest_s(step: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time()
        for _ in range(TURNS):
            step()
        best = min(best, (time.process_time() - begin) / TURNS)
    return best


async def steps(node: Member, *, slices: int) -> tuple[float, float]:
    """Seconds of processor time per write: of closing's own steps, and of all."""
    await _write(node, 5)
    whole = min([await _slice_s(node) for _ in range(slices)])
    counter, batches = Steps(node, KEYS[0]), 20
    await counter.count(batches)
    return counter.per_write_s(batches * WRITERS), whole
