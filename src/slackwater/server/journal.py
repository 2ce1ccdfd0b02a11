"""What a node says while it runs: one line per event, for people and for `grep`.

    2026-11-15T21:50:00.123456Z INFO  serving node=n1 address=127.0.0.1:7400 cluster=3c295496c60c788f ranges=3
    2026-11-15T21:50:04.007001Z WARN  lease.lost range=r3 to=n2

time, level, event, then facts as `name=value` in the order they were given. A value with blanks is quoted; a line never
contains a line break. Lines go to stderr at once: what a killed process had to say is there.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, TextIO

from slackwater.clock.timestamp import from_us, show

if TYPE_CHECKING:
    from slackwater.runtime.seam import Clock

LINE_CHARS_MAX = 4096
"""A longer line is cut: one fact must not fill a disk."""


class Journal:
    """Writes lines; one per process."""

    def __init__(self, clock: Clock, *, to: TextIO | None = None) -> None:
        self._clock = clock
        self._to = to

    def info(self, event: str, **facts: object) -> None:
        """Something happened."""
        self._write("INFO ", event, facts)

    def warn(self, event: str, **facts: object) -> None:
        """Something happened that somebody may have to look at."""
        self._write("WARN ", event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Something ended that should not have."""
        self._write("ERROR", event, facts)

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        parts = [show(from_us(self._clock.wall_ns() // 1_000)), level, event]
        parts += [f"{name}={_show(value)}" for name, value in facts.items()]
        line = " ".join(parts)[:LINE_CHARS_MAX]
        print(line, file=self._to or sys.stderr, flush=True)


def _show(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & {" ", '"', "="} else json.dumps(text)
