"""Which column a name means: Spark's habit is to ignore case, a table's names keep it.

    asked      columns of the table     means
    id         id, ID                   id: a name that is there as it is written is that column
    Id         id                       id
    Id         id, ID                   an error: write it as it is in the table

With `spark.sql.caseSensitive` only the first row holds. Of Spark's settings only tasks are told, so it is a task that refuses
(`demand_exact`), before it reads or writes anything. Pure, but for that question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CASE_SENSITIVE = "spark.sql.caseSensitive"


def meant(asked: Iterable[str], there: Iterable[str], *, table: str) -> dict[str, str]:
    """The column that each name means, in the order asked; refuses unknown names, and two for one column."""
    known = list(there)
    by_lower: dict[str, list[str]] = {}
    for name in known:
        by_lower.setdefault(name.lower(), []).append(name)
    found: dict[str, str] = {}
    for name in asked:
        own = [name] if name in known else by_lower.get(name.lower(), [])
        if not own:
            raise UsageError(f"table {table} has no column {name!r}; its columns are {', '.join(known)}")
        if len(own) > 1:
            raise UsageError(f"{name!r} may be {' or '.join(own)} of table {table}; write it as it is in the table")
        if name in found or own[0] in found.values():
            raise UsageError(f"column {own[0]} of table {table} is named twice", columns=list(asked))
        found[name] = own[0]
    return found


def demand_exact(names: Mapping[str, str], *, table: str) -> None:
    """In a task: refuse names that differ in case from the table's, if Spark is set to mind it."""
    from pyspark import TaskContext

    different = [f"{asked} for {own}" for asked, own in names.items() if asked != own]
    context = TaskContext.get()
    if different and context is not None and (context.getLocalProperty(CASE_SENSITIVE) or "").lower() == "true":
        raise UsageError(
            f"{CASE_SENSITIVE} is true, and table {table} has no column of these names: {', '.join(different)}; write them "
            "as they are in the table"
        )
