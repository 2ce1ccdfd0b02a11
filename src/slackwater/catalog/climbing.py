"""What the row of a schema change says: its payload, and the checkpoint from which any node goes on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog import ladder
from slackwater.catalog.ladder import Rung, Step
from slackwater.model.jobs import Job, JobProgress
from slackwater.model.spans import Span, SpanSet
from slackwater.protocol.client.schema import Change

if TYPE_CHECKING:
    from slackwater.model.tables import TableDescriptor

SCHEMA_CHANGE = "schema-change"
DONE = "done"
"""The phase of work that is done."""


class Payload(msgspec.Struct, frozen=True):
    """What such a job is to do."""

    table_id: int
    table: str
    """As it was called when the change was asked for."""
    change: Change


class Worked(msgspec.Struct, frozen=True):
    """How far the work between two versions is."""

    phase: str = ""
    """`fill`, `count`, `check`; `done`; empty before it began."""
    done: tuple[tuple[str, str], ...] = ()
    """Spans of the table that this phase is done with, in hexadecimal."""
    rows: int = 0
    at: int = 0
    """The timestamp at which rows are validated."""

    def spans(self) -> SpanSet:
        """What this phase is done with."""
        return SpanSet(Span(bytes.fromhex(start), bytes.fromhex(end)) for start, end in self.done)

    def further(self, done: SpanSet, rows: int) -> Worked:
        """The same phase, some spans further."""
        hexes = tuple((span.start.hex(), span.end.hex()) for span in done)
        assert rows >= self.rows, "work only moves on"
        further = msgspec.structs.replace(self, done=hexes, rows=rows)
        assert further.spans() == done, "a checkpoint says what is done, and no more"
        return further


class Climb(msgspec.Struct, frozen=True):
    """How far a change is."""

    rung: Rung | None = None
    """What was published last."""
    way: tuple[Step, ...] = ()
    """The steps, decided when the first is taken: the table looks different afterwards."""
    taken: int = 0
    back: bool = False
    """Whether `way` leads back."""
    worked: Worked = Worked()

    def said(self, progress: str = "", *, share: float = 0.0) -> JobProgress:
        """What the row of the job says at this point; `share` is how much of the work after the last step is done."""
        assert not self.way or 0 <= self.taken <= len(self.way), "a step of the way"
        rung = "not begun" if self.rung is None else self.rung.value
        steps = f"step {self.taken} of {len(self.way)}{' back' if self.back else ''}: {rung}"
        fraction = None if self.back or not self.way else min(0.99, (max(0, self.taken - 1) + share) / len(self.way))
        return JobProgress(
            checkpoint=msgspec.json.encode(self).decode(),
            fraction=fraction,
            progress=f"{steps}, {progress}" if progress else steps,
        )


def payload_of(job: Job) -> Payload:
    """What a schema change is to do."""
    return msgspec.json.decode(job.payload, type=Payload)


def climb_of(job: Job) -> Climb:
    """How far a schema change is."""
    return msgspec.json.decode(job.checkpoint, type=Climb)


def projected_from(change: Change, climb: Climb, now: TableDescriptor) -> TableDescriptor:
    """The table as it will be when a change that has got so far has ended."""
    way = climb.way[climb.taken :] if climb.way else ladder.steps(change, now)
    for step in way:
        now = ladder.next_record(change, step.rung, now).at(now.modified)
    return now
