"""Processor time of another process, to the nanosecond: `/proc/PID/stat` counts in hundredths of a second."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def cpu_s(pid: int) -> float:
    """What all threads of a process that still run have used so far, in seconds."""
    spent_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            spent_ns += int((thread / "schedstat").read_text().split()[0])
    return spent_ns / 1e9
