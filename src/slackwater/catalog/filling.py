"""Filling an index as a task that may be given away: to this node (`bulk_fill`), and later to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from slackwater.model.indexes import Index
from slackwater.model.tables import TableHistory

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.spans import Span


class FillTask(msgspec.Struct, frozen=True):
    """An index to be filled, by the version of its table that is the newest."""

    history: TableHistory
    index: Index


class Filled(NamedTuple):
    """A part of a span that is done: its end, and rows."""

    upto: bytes
    rows: int


class ReadRun(NamedTuple):
    """Rows of one timestamp whose entries are ready to be written."""

    task: FillTask
    at: Timestamp
    filled: Filled
    """What is done once they are written."""
    entries: Any
    """As the runner keeps them."""


class BackfillRunner(Protocol):
    """Fills an index for rows of a span, run by run; the next run may be read while one is written."""

    async def read(self, task: FillTask, span: Span, *, rows: int) -> ReadRun:
        """Read about `rows` rows from the beginning of `span`; they reach to its end when `upto` says so.

        `SchemaChanged` when the table has a newer version than the task.
        """
        ...

    async def write(self, run: ReadRun) -> None:
        """Write the entries of a run. `SchemaChanged` as above; then nothing was written."""
        ...
