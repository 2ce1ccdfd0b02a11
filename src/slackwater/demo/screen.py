"""Lines, tables and a line that moves, on the terminal; in a file nothing moves and nothing is colored.

    with screen.waiting("Spark starts"):      "    Spark starts … 12 s", again and again in one place, gone when it is over
        spark = started.result()

Whatever is printed meanwhile comes above that line. Colors are left out when `NO_COLOR` is set.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BOLD, DIM, GREEN, RED = "1", "2", "32", "31"
TICK_S = 0.25
_CLEAR = "\r\x1b[K"


class DemoCheck(NamedTuple):
    """Something that had to hold, whether it did, and the figure that says so."""

    name: str
    held: bool
    figure: str


class Screen:
    """Prints what the demo says, each line with the seconds since it began."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._moves = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._colors = self._moves and not os.environ.get("NO_COLOR")
        self._step = 0
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def step(self, title: str, why: str = "") -> None:
        """A new part begins: what it shows, and why that matters."""
        self._step += 1
        self._print("")
        self._print(self._in(BOLD, f"[{self.seconds:5.1f} s] {self._step}. {title}"))
        if why:
            self.say(why, style=DIM)

    def say(self, text: str, *, style: str = "") -> None:
        """One line."""
        self._print(self._in(style, f"    {text}"))

    def progress(self, text: str) -> None:
        """A line that the next one replaces; only on a terminal."""
        if self._moves:
            with self._lock:
                print(f"{_CLEAR}    {self._in(DIM, text)}", end="", flush=True)

    def clear(self) -> None:
        """End a progress line."""
        if self._moves:
            with self._lock:
                print(_CLEAR, end="", flush=True)

    @contextmanager
    def waiting(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Show that something goes on, and for how long, while a block runs."""
        done, began = threading.Event(), time.monotonic()

        def tick() -> None:
            while not done.wait(TICK_S):
                self.progress(f"{what if isinstance(what, str) else what()} … {time.monotonic() - began:.0f} s")

        ticker = threading.Thread(target=tick, daemon=True, name="screen")
        if self._moves:
            ticker.start()
        try:
            yield
        finally:
            done.set()
            if self._moves:
                ticker.join()
            self.clear()

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as they need to be."""
        lines = [list(head), *(list(row) for row in rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
        self.head(head, widths)
        for row in rows:
            self.row(row, widths)

    def head(self, head: Sequence[str], widths: Sequence[int]) -> None:
        """The top of a table whose rows come one by one."""
        self.row(head, widths)
        self.say("  ".join("─" * width for width in widths))

    def row(self, cells: Sequence[str], widths: Sequence[int]) -> None:
        """One row of a table."""
        self.say("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())

    def summary(self, checks: Sequence[DemoCheck]) -> None:
        """All checks, and the verdict."""
        self.step("What held")
        width = max((len(check.name) for check in checks), default=0)
        for check in checks:
            mark = self._in(GREEN, "✓") if check.held else self._in(RED, "✗")
            self.say(f"{mark}  {check.name:<{width}}  {check.figure}")
        broken = sum(not check.held for check in checks)
        verdict = "every check held" if not broken else f"{broken} of {len(checks)} checks did NOT hold"
        self._print("")
        self._print(self._in(RED if broken else GREEN, f"{verdict} ({self.seconds:.0f} s)"))

    def _print(self, text: str) -> None:
        with self._lock:
            print(f"{_CLEAR}{text}" if self._moves else text, flush=True)

    def _in(self, style: str, text: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if style and self._colors else text
