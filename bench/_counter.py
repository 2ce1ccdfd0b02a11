r"""How a benchmark's process learns when a consumer in another process has got its events.

    benchmark ── "50000\n" ──► consumer        wait for so many more
              ◄── "8123.456\n" ──              the monotonic time at which the last of them came; the clock is the machine's
              ── "hold\n" ──►                  take nothing more, until …
              ── "go\n" ──►                    … this: what was committed meanwhile comes now

What comes before it is asked for counts too: the question may come while the events do.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

CHECKOUT = Path(__file__).resolve().parents[1]
WAIT_SECONDS_MAX = 120.0


class Counter:
    """Events that have come, and the questions about them. Events and questions come from two threads."""

    def __init__(self) -> None:
        self.going = threading.Event()
        """Whether events are to be taken; who takes them waits for it."""
        self.going.set()
        self._came = 0
        self._last = 0.0
        self._asked = 0
        self._changed = threading.Condition()

    def add(self, events: int, now: float) -> None:
        """So many came at `now`."""
        with self._changed:
            self._came += events
            self._last = now
            self._changed.notify_all()

    def listen(self, lines: IO[str]) -> None:
        """Answer and obey until the lines end. A question is answered by a thread of its own: "go" may come behind it."""
        for line in lines:
            if line == "hold\n":
                self.going.clear()
            elif line == "go\n":
                self.going.set()
            else:
                self._asked += int(line)
                threading.Thread(target=self._answer, args=(self._asked,), daemon=True).start()

    def _answer(self, asked: int) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self._came >= asked, WAIT_SECONDS_MAX)
            print(self._last if done else f"only {self._came} of {asked} events came", flush=True)


class ConsumerProcess:
    """A consumer in a process of its own."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=CHECKOUT, stdin=pipe, stdout=pipe, text=True)

    @property
    def pid(self) -> int:
        """Of the consumer."""
        return self._process.pid

    def hold(self) -> None:
        """It takes nothing more."""
        self._say("hold")

    def go(self) -> None:
        """It takes what there is."""
        self._say("go")

    def expect(self, events: int) -> None:
        """Ask it to say when so many more events have come."""
        self._say(str(events))

    def came(self) -> float:
        """When the last of those came; waits for it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or line.startswith("only"):
            raise RuntimeError(f"the consumer did not get its events: {line or 'it has ended; its error is above'}")
        return float(line)

    def stop(self) -> None:
        """End it and wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
