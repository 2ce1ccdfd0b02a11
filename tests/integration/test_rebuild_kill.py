"""kill -9 at every step of a store's rebuild: the next start goes on, and no row is missing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import slackwater
from slackwater.runtime.ports import free_ports
from slackwater.storage.rocks import DAMAGED_FILE
from tests.integration.damage import flip_byte, sst_files

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration]

ROWS = [{"id": n, "n": n * n} for n in range(300)]
STEPS_MAX = 12
CHILD = """
import asyncio, os, signal, sys
from pathlib import Path

from slackwater.errors import DamageError
from slackwater.runtime import RealRuntime
from slackwater.server import rebuild
from slackwater.server.journal import Journal
from slackwater.storage.rocks import RocksDisk

store, number, hopeless = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "hopeless"
seen = 0

def killed(event, args):
    global seen
    if event in ("os.rename", "os.remove", "shutil.rmtree") and Path(os.fsdecode(args[0])).name.startswith(("engine", "DAMAGED")):
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

def damaged(old, new):
    raise DamageError("the store's own records are damaged")

async def main():
    runtime = RealRuntime(disk=RocksDisk(store, sleep=asyncio.sleep))
    if hopeless:
        rebuild.copy_whole = damaged  # as copying a store does whose own records cannot be read
    sys.addaudithook(killed)
    await rebuild.rebuild_if_damaged(store, "engine", runtime.disk, Journal(runtime.clock))

asyncio.run(main())
"""


def rebuilt(store: Path, number: int, how: str) -> int:
    """Rebuild a store, killed at that step; the status of the process."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(store), str(number), how], capture_output=True, text=True, check=False
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr[-2000:]
    return child.returncode


@pytest.fixture(scope="module")
def met_damage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node that has said that its store met damage, and of its log."""
    place = tmp_path_factory.mktemp("whole")
    with slackwater.open(place) as db:
        db.create_table("t", {"id": "int8", "n": "int8"}, primary_key=["id"])
        db.upsert("t", ROWS)
    (engine,) = place.rglob("engine")
    (engine / DAMAGED_FILE).write_text("a test says so\n")
    return place


@pytest.mark.parametrize("how", ["whole", "hopeless"])
def test_a_start_goes_on_where_a_rebuild_was_killed(met_damage: Path, tmp_path: Path, how: str) -> None:
    steps = 0
    for number in range(STEPS_MAX):
        place = tmp_path / str(number)
        shutil.copytree(met_damage, place)
        (engine,) = place.rglob("engine")
        steps = number
        done = rebuilt(engine.parent, number, how) == 0
        assert rebuilt(engine.parent, STEPS_MAX, how) == 0
        assert not (engine / DAMAGED_FILE).exists()
        assert (engine.parent / "engine.damaged-1").exists() == (how == "whole")
        with slackwater.open(place) as db:
            assert sorted(db.scan("t").to_pylist(), key=lambda row: row["id"]) == ROWS
        if done:
            break
    assert 2 <= steps < STEPS_MAX, "it has more steps than that"


def test_a_copy_that_an_operator_made_of_an_engine_aside_is_no_engine_aside(met_damage: Path, tmp_path: Path) -> None:
    shutil.copytree(met_damage, tmp_path / "n")
    (engine,) = (tmp_path / "n").rglob("engine")
    (engine.parent / "engine.damaged-1.bak").mkdir()
    assert rebuilt(engine.parent, STEPS_MAX, "whole") == 0
    assert (engine.parent / "engine.damaged-1").exists()


def test_a_start_that_cannot_be_says_what_to_do(met_damage: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(met_damage, store)
    for file in sst_files(store):
        flip_byte(file, 10)  # in the first block of each: of the store's own records, too
    command = [sys.executable, "-m", "slackwater.cli.main", "start", "--store", str(store), "--insecure"]
    command += ["--http", "none", "--listen", f"127.0.0.1:{free_ports(1)[0]}"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert child.returncode == 1
    last = child.stderr.strip().splitlines()[-1]
    assert "start a node with an empty store" in last
    assert "decommission this one" in last
