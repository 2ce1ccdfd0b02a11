"""Counts how often the work of a write calls into the code of feeds, in a server process.

Every call of a Python function is looked at (`sys.setprofile`). It counts when its code is in `slackwater/feeds` and some
caller of it is the write path of a range of users: executing a batch, or applying entries of the log. What feeds do at their
own times, such as publishing, belongs to no write; and a node follows the system's own ranges by a feed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import slackwater.feeds
from slackwater.codec.layout import KV

if TYPE_CHECKING:
    from types import FrameType

    from slackwater.replica.driver import Replica

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
        if code.co_qualname == WRITE_PATH[-1] and _of_users(frame):
            self.writes += 1
        if not code.co_filename.startswith(FEEDS):
            return
        caller = frame.f_back
        while caller is not None:
            if caller.f_code.co_qualname in WRITE_PATH:
                self.feeds += _of_users(caller)
                return
            caller = caller.f_back


def _of_users(frame: FrameType) -> bool:
    """Whether the replica whose method this is has keys of users."""
    replica: Replica = frame.f_locals["self"]
    return replica.state.descriptor.start >= KV
