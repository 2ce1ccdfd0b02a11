"""A sampling profiler for a server process: where its processor time goes, by function.

Every millisecond of processor time the kernel sends SIGPROF and the handler notes the stack of the main thread, which
runs the loop. Time inside C (RocksDB, msgspec, the loop itself) counts for the Python function that called it. Unlike
cProfile this costs nothing per call, so it does not make small functions look worse than they are.

    sampler = Sampler(); sampler.start(); ...; sampler.stop(); print(sampler.top(10))
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

INTERVAL_SECONDS = 0.001
DEPTH_MAX = 64


class Sampler:
    """Stacks of the main thread, counted."""

    def __init__(self) -> None:
        self.stacks: Counter[tuple[str, ...]] = Counter()

    def start(self) -> None:
        """Begin; only in the main thread."""
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)

    def stop(self) -> None:
        """End."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _note(self, _: int, frame: FrameType | None) -> None:
        stack: list[str] = []
        while frame is not None and len(stack) < DEPTH_MAX:
            code = frame.f_code
            stack.append(f"{_module(code.co_filename)}:{code.co_qualname}")
            frame = frame.f_back
        self.stacks[tuple(reversed(stack))] += 1

    def folded(self) -> str:
        """One line per stack, as flame graph tools read them."""
        return "\n".join(f"{';'.join(stack)} {count}" for stack, count in self.stacks.most_common())

    def top(self, count: int) -> str:
        """The functions most often on top of the stack, with how often they were anywhere on it."""
        own: Counter[str] = Counter()
        within: Counter[str] = Counter()
        for stack, times in self.stacks.items():
            own[stack[-1]] += times
            for name in set(stack):
                within[name] += times
        total = sum(own.values()) or 1
        lines = [f"{total} samples", "  self  total  function"]
        lines += [f"{n / total:6.1%} {within[name] / total:6.1%}  {name}" for name, n in own.most_common(count)]
        lines += ["", "  total  function (with what it calls)"]
        lines += [f" {n / total:6.1%}  {name}" for name, n in within.most_common(3 * count)]
        return "\n".join(lines)


def _module(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    for root in ("slackwater", "bench"):
        if root in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(root) :])
    return parts[-1]
