"""What ranges in tests answer when only the log-driven scheme closes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.kinds import Scheme

if TYPE_CHECKING:
    from slackwater.closedts.closable import CountedBy
    from slackwater.protocol.closedts.frontier import CannotClose


class LogDriven:
    """The part of `Closable` that the log-driven scheme never asks for."""

    def closes_by(self, scheme: Scheme) -> bool:
        return scheme is Scheme.LOG_DRIVEN

    def count_by(self, counted: CountedBy | None) -> None:
        """Nothing is counted."""

    def lease_start(self) -> Timestamp:
        return MIN

    def propose_empty(self) -> CannotClose | None:
        raise AssertionError("no scheme here proposes empty commands")
