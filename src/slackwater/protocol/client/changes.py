"""The change feed of tables in the native protocol: one stream from a gateway, which a client opens again elsewhere.

    client                               gateway
    OpenChanges ───────────────────────► the tables, their spans, one feed over all of them
             ◄─ ChangesItem(tables, since, resolved, token)       first: what the tables look like, where it starts
             ◄─ ChangesItem(page, initial=True, position)         pages of the initial scan, each with its position
             ◄─ ChangesItem(rows)                                 changes as they come, per key in order
             ◄─ ChangesItem(tables)                               a table has changed; before any row that needs to know
             ◄─ ChangesItem(resolved, token, position)            what came before is whole up to here
             ◄─ ChangesItem(resolved, token, done=True)           `until`, the scan's end, or a schema change to stop at

Changes travel as they are stored (`model.changes`) and are decoded by the client: the server has the least to spare. A table as
of one timestamp travels as columns, like a scan, because replicas keep closed history so (`InitialPage`); a client that does not
ask for those gets rows. A stream that breaks is opened again, on any gateway, with the last position and the tables' ids; what
came after that position comes again.

    token       goes on from `resolved`: for the application, which may keep rows at or below `resolved` and nothing else
    position    goes on behind everything sent so far, range by range: for the client, while it runs and has all of that
"""

from __future__ import annotations

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.changes import Changes, InitialPage
from slackwater.model.ids import TableId
from slackwater.model.tables import TableHistory
from slackwater.runtime.access import CLIENTS
from slackwater.runtime.rpc.method import StreamMethod

TOKEN_PREFIX = "sw1."
"""What every resume token starts with."""
INITIAL_SCANS = ("yes", "no", "only")
SCHEMA_POLICIES = ("continue", "backfill", "stop")


class OpenChanges(msgspec.Struct, frozen=True):
    """Follow tables, by name, or by id when the client knows them already."""

    tables: tuple[str, ...] = ()
    table_ids: tuple[TableId, ...] = ()
    after: Timestamp = MIN
    """Exclusive; `MIN`: now. With an initial scan: the timestamp that is scanned."""
    token: str = ""
    """Go on from here instead."""
    initial_scan: str = "no"
    until: Timestamp = MIN
    """Inclusive; `MIN`: for ever."""
    befores: bool = False
    interval_s: float = 1.0
    """Resolved timestamps come at most this often."""
    whole: bool = False
    """Without positions: for a client that holds back what is not resolved, and lets it come again."""
    on_schema_change: str = "continue"
    expires_after_s: float = 0.0
    """A feed that lags for longer than this fails rather than keep history; 0: it keeps history for as long as it runs."""
    columns: bool = False
    """Whether pages of initial scans and backfills may come as columns."""


class ChangesItem(msgspec.Struct, frozen=True):
    """One message of the stream; what is empty says nothing."""

    rows: Changes | None = None
    initial: bool = False
    """Pages hold a table as of one timestamp: of an initial scan, or a backfill after the schema change at that time."""
    tables: tuple[TableHistory, ...] = ()
    since: Timestamp = MIN
    """With the first item: schema changes after this are news."""
    resolved: Timestamp = MIN
    token: str = ""
    position: str = ""
    done: bool = False
    page: InitialPage | None = None


CHANGES: StreamMethod[OpenChanges, ChangesItem] = StreamMethod("db.changes", OpenChanges, ChangesItem, callers=CLIENTS)
