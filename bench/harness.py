"""What every benchmark shares: figures, their goals, and how to time fairly on a noisy machine.

A benchmark is a module `bench/NAME.py` with `run(*, quick: bool) -> Iterator[Figure]`. Each figure is a ratio to a peer
or a physical limit measured in the same run, because machines differ. `slackwater bench NAME --json` prints one JSON
object per figure.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured figure beside its peer. `ratio` is value / peer_value; `better` says which way is good."""

    bench: str
    metric: str
    value: float
    unit: str
    peer: str
    peer_value: float
    ratio: float
    goal: float | None = None
    better: str = "higher"
    error: float | None = None
    """Standard error of the ratio, where it was estimated."""

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached; None without a goal."""
        if self.goal is None:
            return None
        return self.ratio >= self.goal if self.better == "higher" else self.ratio <= self.goal


def figure(
    bench: str,
    metric: str,
    value: float,
    unit: str,
    *,
    peer: str,
    peer_value: float,
    goal: float | None = None,
    better: str = "higher",
    error: float | None = None,
) -> Figure:
    """A figure with its ratio computed."""
    ratio = value / peer_value if peer_value else float("inf")
    return Figure(
        bench=bench,
        metric=metric,
        value=value,
        unit=unit,
        peer=peer,
        peer_value=peer_value,
        ratio=ratio,
        goal=goal,
        better=better,
        error=error,
    )


def rate(work: Callable[[], int], *, rounds: int = 5) -> float:
    """Items per second: the median over rounds of a function that returns how many items it handled."""
    work()  # warm-up
    rates = []
    for _ in range(rounds):
        gc.collect()
        begin = time.perf_counter()
        items = work()
        rates.append(items / (time.perf_counter() - begin))
    return statistics.median(rates)


def interleaved(works: dict[str, Callable[[], int]], *, rounds: int = 5) -> dict[str, float]:
    """Rates of several contestants measured in turns, so that noise hits all of them alike; medians."""
    rates: dict[str, list[float]] = {name: [] for name in works}
    for name in works:
        works[name]()
    for _ in range(rounds):
        for name, work in works.items():
            gc.collect()
            begin = time.perf_counter()
            items = work()
            rates[name].append(items / (time.perf_counter() - begin))
    return {name: statistics.median(r) for name, r in rates.items()}


def progress(text: str) -> None:
    """Say how far a long benchmark is, where it does not mix with its figures."""
    print(text, file=sys.stderr, flush=True)
