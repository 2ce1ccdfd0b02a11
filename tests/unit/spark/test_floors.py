"""What an application wrote is known to all its processes, and to no other application."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.spark import floors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "_own", {})
    monkeypatch.delenv(floors.LOCAL_DIRECTORIES, raising=False)


def test_the_highest_counts_for_each_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for directories in ("", f"{tmp_path},/nowhere"):
        monkeypatch.setenv(floors.LOCAL_DIRECTORIES, directories)
        assert floors.floor("one") == MIN
        for ts, highest in ((5, 5), (7, 7), (6, 7), (MAX, MAX)):
            floors.told("one", Timestamp(ts))
            assert floors.floor("one") == highest
        floors.told("a/b", Timestamp(3))
        assert (floors.floor("a/b"), floors.floor("a_c"), floors.floor("one")) == (3, MIN, MAX)
    monkeypatch.setenv(floors.LOCAL_DIRECTORIES, str(tmp_path / "gone"))
    assert floors.floor("a/b") == 3, "without a directory: what this process knows itself"


def test_processes_of_an_application_share_it_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys; from slackwater.spark import floors\n"
        "for ts in range(int(sys.argv[1]), 4000, 8): floors.told('c', ts); assert floors.floor('c') >= ts"
    )
    environ = {**os.environ, floors.LOCAL_DIRECTORIES: str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", program, str(n)], env=environ) for n in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert floors.floor("c") == MIN
    monkeypatch.setenv(floors.LOCAL_DIRECTORIES, str(tmp_path))
    assert floors.floor("c") == 3994


def test_a_damaged_file_is_no_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(floors.LOCAL_DIRECTORIES, str(tmp_path))
    floors.told("c", Timestamp(9))
    (file,) = (tmp_path / "slackwater").iterdir()
    for text in (b"", b"nonsense", b"9" * 25):
        file.write_bytes(text)
        assert floors.floor("c") == MIN
    floors.told("c", Timestamp(4))
    assert floors.floor("c") == 4
