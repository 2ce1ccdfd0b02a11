"""Counts how often the work of a write calls into the code of feeds, in a server process.

Every call of a Python function is looked at (`sys.setprofile`). It counts when its code is in `slackwater/feeds` and some
caller of it is the write path: executing a batch, or applying entries of the log. What feeds do at their own times, such as
publishing, is nobody's write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import slackwater.feeds

if TYPE_CHECKING:
    from types import FrameType

FEEDS = str(Path(slackwater.feeds.__file__).parent)
WRITE_PATH = ("Replica._execute_surely", "Replica._apply_run")


class Calls:
    """The calls of the main thread."""

    def __init__(self) -> None:
        self.writes = 0
        """Runs of entries that were applied."""
        self.feeds = 0

    def start(self) -> None:
        """Begin."""
        sys.setprofile(self._note)

    def stop(self) -> None:
        """End."""
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_qualname == WRITE_PATH[-1]:
            self.writes += 1
        if not code.co_filename.startswith(FEEDS):
            return
        caller = frame.f_back
        while caller is not None:
            if caller.f_code.co_qualname in WRITE_PATH:
                self.feeds += 1
                return
            caller = caller.f_back
