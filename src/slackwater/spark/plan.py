"""What one `load()` reads: decided once, by one process, before any task runs.

    load() ──► DataSource.__init__ ──► Plan(table, T) ──pickled──► planner, every task, every retry

Spark makes a data source object once per `load()`, ships it everywhere, and plans its partitions once; all actions on that
DataFrame, all attempts of all tasks and all its uses in a self-join see this plan. So the timestamp is chosen here and
nowhere else. A new `load()` chooses anew. It is pinned before anything is planned: what it reads is not collected while the
application lives (`pins.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock import timestamp as tsm
from slackwater.clock.timestamp import Timestamp, show
from slackwater.errors import UsageError
from slackwater.model.schema import TableSchema
from slackwater.spark.connection import database, freeze_heap
from slackwater.spark.floors import floor
from slackwater.spark.options import Options, ReadFrom

if TYPE_CHECKING:
    from slackwater.client import Database

BEGINNING = Timestamp(tsm.MIN + 1)
"""Before every version: the start of `earliest`."""


class Plan(msgspec.Struct, frozen=True):
    """A table at a time, and how it was asked for."""

    options: Options
    table: TableSchema
    at: Timestamp
    """The snapshot's timestamp; for changes, where they end."""
    since: Timestamp = tsm.MIN
    """When the table was made; known for changes."""
    to_close: bool = False
    """Whether followers have yet to close the snapshot's timestamp: it is what this application wrote a moment ago."""

    @property
    def db(self) -> Database:
        """This process's connection; only workers of Spark's ask for it."""
        found = database(self.options)
        freeze_heap()
        return found


def make_plan(options: Options) -> Plan:
    """Choose the timestamp and look the table up as it was then."""
    db = database(options)
    if options.changes:
        return _plan_changes(db, options)
    snapshot = db.snapshot(
        as_of=options.as_of,
        max_staleness=options.max_staleness,
        tables=[options.table],
        read_from=options.read_from.value,
        wait=options.wait,
    )
    to_close = options.as_of is None and not snapshot.by_followers and options.read_from is ReadFrom.FOLLOWER
    return Plan(options, snapshot.table(options.table), snapshot.timestamp, to_close=to_close)


def _plan_changes(db: Database, options: Options) -> Plan:
    history = db.history(options.table)
    since = history.versions[0].modified
    upto = options.upto if options.upto is not None else max(since, resolved(db, options.table))
    return Plan(options, history.latest.schema, Timestamp(upto), since)


def resolved(db: Database, table: str, known: Timestamp = tsm.MIN) -> Timestamp:
    """Where changes of a table may end: it is finished up to there, and what this application wrote is in it.

    Resolved timestamps lag some seconds. If that is behind what this application wrote, the present is closed, unless an
    earlier answer (`known`) is far enough.
    """
    found = Timestamp(max(known, db.resolved([table])))
    return found if found >= floor(db.cluster_id) else db.close_now([table])


def changes_after(plan: Plan) -> Timestamp:
    """Where a batch read of changes begins."""
    start = plan.options.start
    if start is None or start.word == "latest":
        raise UsageError(
            "a batch of changes needs a start: startingVersion (a number or earliest) or startingTimestamp"
        )
    after = BEGINNING if start.after is None else max(BEGINNING, start.after)
    if after > plan.at:
        end = show(plan.at)
        raise UsageError(
            f"the changes asked for begin after their end, {end}; is the start in the future?", after=after
        )
    return after
