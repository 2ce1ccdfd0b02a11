"""Closed-timestamp lag over time, one line a range: an SVG drawn from what was sampled, with no library.

seconds behind ▲        ·  a node was killed
               │   ╱╲
               │──╱──╲────────── target
               └────────────────▶ seconds since the first sample
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from slackwater.errors import SlackwaterError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slackwater.client import Database

INTERVAL_S = 0.5
SAMPLES_MAX = 100_000
COLORS = ("#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#7a5195", "#00798c", "#8d6a9f", "#5c6b73")
WIDTH, HEIGHT = 860, 330
LABEL_WIDTH = 70
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 34, 44


class LagSample(NamedTuple):
    """How far the least closed live replica of a range was behind, at one moment."""

    at: float
    range_id: int
    lag: float


class Sampler:
    """Asks for the frontier twice a second, from a thread of its own; what cannot be asked is a gap."""

    def __init__(self, db: Database, tables: Sequence[str], seconds: Callable[[], float]) -> None:
        self.samples: list[LagSample] = []
        self.events: list[tuple[float, str]] = []
        self._db = db
        self._tables = list(tables)
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="frontier")

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def note(self, text: str) -> None:
        """Something happened now that explains the lines."""
        self.events.append((self._seconds(), text))

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S) and len(self.samples) < SAMPLES_MAX:
            try:
                rows = self._db.frontier(self._tables)
            except SlackwaterError:
                continue
            now = self._seconds()
            lags: dict[int, float] = {}
            for row in rows:
                lags[row.range_id] = max(lags.get(row.range_id, 0.0), row.closed_lag_s)
            self.samples += [LagSample(now, range_id, lag) for range_id, lag in sorted(lags.items())]


def draw(sampler: Sampler, path: Path, *, target_s: float) -> None:
    """Write the picture."""
    path.write_text(svg(sampler.samples, sampler.events, target_s=target_s))


def svg(samples: Sequence[LagSample], events: Sequence[tuple[float, str]], *, target_s: float) -> str:
    """The picture as text."""
    first = min((s.at for s in samples), default=0.0)
    last = max((s.at for s in samples), default=1.0)
    top = max([target_s * 1.5, *(s.lag for s in samples)]) * 1.08

    def x(at: float) -> float:
        return LEFT + (at - first) / max(last - first, 1e-9) * (WIDTH - LEFT - RIGHT)

    def y(lag: float) -> float:
        return HEIGHT - BOTTOM - lag / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">Closed timestamp: seconds behind the present, per range '
        "(its least closed replica)</text>",
    ]
    parts += _axes(top, last - first, x=lambda s: x(first + s), y=y)
    parts.append(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(target_s):.1f}" y2="{y(target_s):.1f}" stroke="#999" '
        f'stroke-dasharray="5 4"/><text x="{WIDTH - RIGHT + 6}" y="{y(target_s) + 4:.1f}" fill="#666">'
        f"target {target_s:g} s</text>"
    )
    shown = [(at, text) for at, text in events if first <= at <= last]
    for number, (at, text) in enumerate(shown):
        left = x(at) - LEFT < LABEL_WIDTH  # no room for it on the left of its line
        parts.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#c33" '
            f'stroke-dasharray="2 3"/><text x="{x(at) + (4 if left else -4):.1f}" y="{TOP + 10 + 15 * (number % 2)}" '
            f'fill="#c33" text-anchor="{"start" if left else "end"}">{text}</text>'
        )
    for number, range_id in enumerate(sorted({s.range_id for s in samples})):
        color = COLORS[number % len(COLORS)]
        line = " ".join(f"{x(s.at):.1f},{y(s.lag):.1f}" for s in samples if s.range_id == range_id)
        legend = TOP + 14 + 16 * number
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        if legend < y(target_s) - 14:
            parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{legend}" fill="{color}">r{range_id}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _axes(top: float, length: float, *, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    bottom = HEIGHT - BOTTOM
    parts = [
        f'<line x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{bottom}" stroke="black"/>',
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}" stroke="black"/>',
    ]
    step = _nice(top / 5)
    parts += [
        f'<text x="{LEFT - 8}" y="{y(n * step) + 4:.1f}" text-anchor="end">{n * step:g} s</text>'
        for n in range(int(top / step) + 1)
    ]
    step = _nice(length / 8)
    return parts + [
        f'<text x="{x(n * step):.1f}" y="{bottom + 18}" text-anchor="middle">{n * step:g} s</text>'
        for n in range(int(length / step) + 1)
    ]


def _nice(size: float) -> float:
    """The smallest of 1, 2, 5, 10, … that is not below."""
    unit = 0.1
    while True:
        for factor in (1, 2, 5):
            if unit * factor >= size:
                return unit * factor
        unit *= 10
