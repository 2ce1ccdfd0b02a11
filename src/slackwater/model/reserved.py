"""Names of columns that a table may not have, because feeds, change reads, Spark and the archive add columns of those names.

    _op _commit_ts _txn _version _before               changes of rows (`codec.changes_arrow`)
    _change_type _commit_version _commit_timestamp     the same in Spark's words, and metadata (`spark.change_rows`)
    _begin _end                                        the archive

Reserved are also all names that begin with `_change_`, `_commit_`, `_from` or `_to`, and all of these in any case, because Spark
does not tell `_Op` from `_op`. This is the one list: what adds a column takes its name from here, and what makes or changes
a table asks `is_reserved`.
"""

from __future__ import annotations

OP, COMMIT_TS, TXN, VERSION, BEFORE = "_op", "_commit_ts", "_txn", "_version", "_before"
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
BEGIN, END = "_begin", "_end"

FEED_COLUMNS = (OP, COMMIT_TS, TXN, VERSION, BEFORE)
CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
ARCHIVE_COLUMNS = (BEGIN, END)
RESERVED_COLUMNS = frozenset((*FEED_COLUMNS, *CHANGE_COLUMNS, *ARCHIVE_COLUMNS))
RESERVED_PREFIXES = ("_change_", "_commit_", "_from", "_to")


def is_reserved(name: str) -> bool:
    """Whether no table may have a column of this name."""
    folded = name.casefold()
    return folded in RESERVED_COLUMNS or folded.startswith(RESERVED_PREFIXES)
