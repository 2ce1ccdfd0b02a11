"""Processor time of other processes, to the nanosecond: `/proc/PID/stat` counts in hundredths of a second."""

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


def family_cpu_s(pid: int) -> float:
    """The same of a process and everything that it has started and that still runs."""
    spent, children = 0.0, [pid]
    while children:
        one = children.pop()
        with suppress(FileNotFoundError, ProcessLookupError):
            spent += cpu_s(one)
            for thread in Path(f"/proc/{one}/task").iterdir():
                children += map(int, (thread / "children").read_text().split())
    return spent
