"""What a running stream does about a table that changes: where its batches end, and when it has to be started again.

A query was analysed for the columns of one version, that of its start; Spark has no way to give a running query others. Rows of
every version, older or newer, are read as rows of that one: columns meet by id.

    fail (default)   a batch ends before a change that the query does not know; the next one fails: start the query again
    additive         changes that leave the columns it reads as they are (columns added, others dropped) are passed by;
                     anything else (a column it reads dropped, renamed or widened, the table renamed or emptied) is as with fail

Started again, the query knows the newest version and goes on from its checkpoint.

A table that is emptied has its rows elsewhere from then on, so every batch lies on one side of that moment, also of a query that
knows of it: what was written before comes first. The rows that went are not sent as deletes. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import Timestamp, show
from slackwater.errors import UsageError
from slackwater.spark.offsets import batch_end
from slackwater.spark.options import Evolution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableDescriptor, TableHistory


def end_before_changes(
    history: TableHistory,
    known: TableSchema,
    read: Sequence[str],
    policy: Evolution,
    *,
    after: Timestamp,
    upto: Timestamp,
) -> Timestamp:
    """Where a batch that begins after `after` may end, at most at `upto`; raises when it cannot go past a change.

    `known` is the version that the query was analysed for, and `read` are the columns of it that it reads.
    """
    emptied = {version.version for version in history.emptied()}
    for version in history.visible_changes():
        if version.modified <= after or version.modified > upto:
            continue
        news = version.version > known.version and not (
            policy is Evolution.ADDITIVE and version.version not in emptied and keeps(version, known, read)
        )
        if not news and version.version not in emptied:
            continue
        end = batch_end(Timestamp(version.modified - 1))
        if end > after:
            return end
        if news:
            raise restart_needed(version, known, was_emptied=version.version in emptied)
    return upto


def keeps(version: TableDescriptor, known: TableSchema, read: Sequence[str]) -> bool:
    """Whether the columns that a query reads are in a later version what they are in the one it knows."""
    if version.dropped or version.name != known.name:
        return False
    for column in map(known.column, read):
        now = version.schema.by_id(column.id)
        if now is None or (now.name, now.type) != (column.name, column.type):
            return False
    return True


def restart_needed(version: TableDescriptor, known: TableSchema, *, was_emptied: bool) -> UsageError:
    """The error of a query that has delivered everything before a change which it cannot go past."""
    what = f"has other columns (version {version.version}; this query knows version {known.version})"
    if version.dropped:
        return UsageError(
            f"table {known.name} was dropped at {show(version.modified)}; everything before was delivered"
        )
    if was_emptied:
        what = "was emptied, and its rows do not come as deletes"
    elif version.name != known.name:
        what = f"is called {version.name}"
    return UsageError(
        f"since {show(version.modified)} table {known.name} {what}; everything before was delivered: start the query again, with"
        " the same checkpoint, to go on. With schemaEvolution=additive a query goes on by itself past changes that leave the"
        " columns it reads as they are",
        timestamp=version.modified,
    )
