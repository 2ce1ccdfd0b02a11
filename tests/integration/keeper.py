"""A consumer of a change feed in a process of its own, to be killed: keeps what is resolved and the token, and nothing else.

python -m tests.integration.keeper URL FILE TABLE…

FILE is replaced as a whole, with every batch: `{"resolved": …, "token": …, "rows": {"table/key": {"commit": row or null}}}`.
Rows above `resolved` are in memory only, and go with the process. Started again, it goes on from the token in the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import slackwater

INTERVAL_S = 0.2


def load(path: Path) -> dict[str, Any]:
    """What a keeper has kept."""
    return json.loads(path.read_text()) if path.exists() else {"resolved": 0, "token": None, "rows": {}}


def table_of(kept: dict[str, Any], name: str) -> dict[int, dict[str, Any]]:
    """A table, as the newest versions that were kept make it."""
    newest = {place: versions[max(versions, key=int)] for place, versions in kept["rows"].items()}
    return {row["id"]: row for place, row in newest.items() if row is not None and place.startswith(f"{name}/")}


def main(url: str, file: str, tables: list[str]) -> None:
    """Follow for ever."""
    path = Path(file)
    kept, memory = load(path), {}
    with slackwater.connect(url) as db:
        for batch in db.changes(tables, after=kept["token"], resolved=INTERVAL_S):
            for row in batch.data.to_pylist() if batch.kind == "rows" else ():
                values = {name: value for name, value in row.items() if not name.startswith("_")}
                place = memory.setdefault(f"{batch.table}/{row['id']}", {})
                place[str(row["_commit_ts"])] = None if row["_op"] == "delete" else values
            for place, versions in memory.items():
                for commit in [commit for commit in versions if int(commit) <= batch.resolved]:
                    kept["rows"].setdefault(place, {})[commit] = versions.pop(commit)
            kept["resolved"], kept["token"] = int(batch.resolved), batch.token
            aside = path.with_suffix(".tmp")
            aside.write_text(json.dumps(kept))
            aside.replace(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
