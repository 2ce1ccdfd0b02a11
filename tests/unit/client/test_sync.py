"""The synchronous client is what `scripts/sync_client.py` writes from the asynchronous one, and offers all of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slackwater.client.database import AsyncDatabase
from slackwater.client.jobs import AsyncJobClaim, AsyncJobs
from slackwater.client.snapshot import AsyncSnapshot
from slackwater.client.staging import AsyncPart
from slackwater.client.sync import Database, JobClaim, Jobs, Part, Snapshot, Transaction
from slackwater.client.transaction import AsyncTransaction

ROOT = Path(__file__).parents[3]
TWINS: list[tuple[type, type, set[str]]] = [
    (AsyncDatabase, Database, {"attempts", "change_items"}),
    (AsyncSnapshot, Snapshot, set()),
    (AsyncTransaction, Transaction, {"commit", "rollback", "restart"}),
    (AsyncPart, Part, set()),
    (AsyncJobs, Jobs, set()),
    (AsyncJobClaim, JobClaim, set()),
]


def test_the_committed_module_is_current() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "sync_client.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize(("twin", "made", "left_out"), TWINS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_public_name_of_a_twin_is_there_with_its_parameters_and_words(
    twin: Any, made: Any, left_out: set[str]
) -> None:
    names = {name for name in (*dir(twin), *twin.__annotations__) if not name.startswith("_")} - left_out
    assert names <= {name for name in dir(made) if not name.startswith("_")}
    for name in names & {name for name, _ in inspect.getmembers(twin, inspect.isfunction)}:
        asked, given = inspect.signature(getattr(twin, name)), inspect.signature(getattr(made, name))
        assert [(p.name, p.kind, p.default) for p in asked.parameters.values()] == [
            (p.name, p.kind, p.default) for p in given.parameters.values()
        ], name
        assert inspect.getdoc(getattr(twin, name)) == inspect.getdoc(getattr(made, name)), name
        assert not inspect.iscoroutinefunction(getattr(made, name)), name
