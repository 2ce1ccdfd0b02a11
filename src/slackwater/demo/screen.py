"""Lines, tables and a progress line on the terminal. Plain text everywhere else: nothing moves in a file."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Check(NamedTuple):
    """Something that had to hold, whether it did, and the figure that says so."""

    name: str
    held: bool
    figure: str


class Screen:
    """Where the demo talks."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._moves = sys.stdout.isatty()
        self._step = 0

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def step(self, title: str) -> None:
        """A new part begins."""
        self._step += 1
        print(f"\n[{self.seconds:5.1f} s] {self._step}. {title}", flush=True)

    def say(self, text: str) -> None:
        """One line."""
        print(f"    {text}", flush=True)

    def progress(self, text: str) -> None:
        """A line that the next one replaces; only where somebody watches."""
        if self._moves:
            print(f"\r    {text:<100}", end="\r", flush=True)

    def clear(self) -> None:
        """End a progress line."""
        if self._moves:
            print(" " * 110, end="\r", flush=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as they need to be."""
        lines = [list(head), *(list(row) for row in rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
        for number, line in enumerate(lines):
            self.say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
            if number == 0:
                self.say("  ".join("─" * width for width in widths))

    def summary(self, checks: Sequence[Check]) -> None:
        """All checks, and the verdict."""
        self.step("What held")
        self.table(
            ["", "check", "figure"], [["✓" if check.held else "✗", check.name, check.figure] for check in checks]
        )
        broken = sum(not check.held for check in checks)
        verdict = "every check held" if not broken else f"{broken} of {len(checks)} checks did NOT hold"
        print(f"\n{verdict} ({self.seconds:.0f} s)", flush=True)
