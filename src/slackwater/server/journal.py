"""What a node says while it runs: one line per event, for people and for `grep`.

    2026-11-15T21:50:00.123456Z INFO  serving node=n1 address=127.0.0.1:7400 cluster=3c295496c60c788f ranges=3
    2026-11-15T21:50:04.007001Z WARN  lease.lost range=r3 to=n2

time, level, event, then facts as `name=value` in the order they were given. A value with blanks is quoted; a line never
contains a line break. For machines the same lines are JSON objects (`--log-format json`):

    {"time":"2026-11-15T21:50:04.007001Z","level":"warn","event":"lease.lost","range":"r3","to":"n2"}

Lines below the level asked for are not written. Lines go to stderr at once: what a killed process had to say is there.
"""

from __future__ import annotations

import enum
import json
import sys
from typing import TYPE_CHECKING, TextIO

from slackwater.clock.timestamp import from_us, show

if TYPE_CHECKING:
    from slackwater.runtime.seam import Clock

LINE_CHARS_MAX = 4096
"""A longer line is cut: one fact must not fill a disk."""
RESERVED = frozenset({"time", "level", "event"})
"""Fields of every JSON line; a fact of such a name gets an underscore behind it."""


class Level(enum.IntEnum):
    """How much a line matters."""

    DEBUG = 0
    INFO = 1
    WARN = 2
    ERROR = 3


class Format(enum.Enum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


class Journal:
    """Writes lines; one per process."""

    def __init__(
        self,
        clock: Clock,
        *,
        to: TextIO | None = None,
        form: Format = Format.TEXT,
        level: Level = Level.INFO,
    ) -> None:
        self._clock = clock
        self._to = to
        self._form = form
        self._level = level

    def debug(self, event: str, **facts: object) -> None:
        """Write an event that matters only when a cause is looked for."""
        self._write(Level.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        """Something happened."""
        self._write(Level.INFO, event, facts)

    def warn(self, event: str, **facts: object) -> None:
        """Write an event that an operator may have to look at."""
        self._write(Level.WARN, event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Something ended that should not have."""
        self._write(Level.ERROR, event, facts)

    def _write(self, level: Level, event: str, facts: dict[str, object]) -> None:
        if level < self._level:
            return
        time = show(from_us(self._clock.wall_ns() // 1_000))
        line = _json(time, level, event, facts) if self._form is Format.JSON else _text(time, level, event, facts)
        print(line, file=self._to or sys.stderr, flush=True)


def _text(time: str, level: Level, event: str, facts: dict[str, object]) -> str:
    parts = [time, f"{level.name:<5}", event, *(f"{name}={_show(value)}" for name, value in facts.items())]
    return " ".join(parts)[:LINE_CHARS_MAX]


def _json(time: str, level: Level, event: str, facts: dict[str, object]) -> str:
    """The same facts with their types; a text that alone would fill the line is cut, so that the line stays JSON."""
    line: dict[str, object] = {"time": time, "level": level.name.lower(), "event": event}
    for name, value in facts.items():
        plain = value if isinstance(value, bool | int | float) else str(value)[: LINE_CHARS_MAX // 2]
        line[f"{name}_" if name in RESERVED else name] = plain
    return json.dumps(line, separators=(",", ":"))


def _show(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & {" ", '"', "="} else json.dumps(text)
