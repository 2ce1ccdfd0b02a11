"""The README's three nodes by hand, line by line as a stranger pastes them, and the cluster lives through the kill.

Only the directory and the ports are others: two such tests may run at a time, and 7401 may be taken.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from slackwater.runtime.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
TITLE = "## Three nodes by hand"
LASTS_S = 150
USES = """
import sys, slackwater
with slackwater.connect("slackwater://" + sys.argv[1], timeout=30) as db:
    db.create_table("things", {"id": "int8", "name": "text"}, primary_key=["id"])
    for n in range(20):
        db.upsert("things", [{"id": n, "name": f"thing {n}"}])
    print("rows", sum(1 for n in range(20) if db.get("things", n) is not None))
"""


def block() -> list[str]:
    """The indented lines below the title."""
    text = (ROOT / "README.md").read_text().partition(TITLE)[2].partition("\n## ")[0]
    lines = re.findall(r"^    .*$", text, re.MULTILINE)
    return textwrap.dedent("\n".join(lines)).splitlines()


@pytest.mark.integration
def test_three_nodes_by_hand_survive_what_the_page_does_to_them(tmp_path: Path) -> None:
    lines = block()
    assert lines[-1].startswith("kill $(cat n2.pid n3.pid)"), lines
    assert any(line.startswith("kill -9 $(cat n1.pid)") for line in lines), lines
    (tmp_path / "uses.py").write_text(USES)
    used = f"{sys.executable} {tmp_path}/uses.py 127.0.0.1:7402"
    script = "\n".join([*lines[:-1], used, lines[-1], "wait"])
    ports = free_ports(3)
    home = tmp_path / "three"
    script = script.replace("/tmp/three", str(home)).replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
    script = script.replace("740$i", "${ports[$i]}")
    for number, port in enumerate(ports, start=1):
        script = script.replace(f"740{number}", str(port))
    script = f"ports=(0 {' '.join(map(str, ports))})\n{script}\n"
    try:
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=LASTS_S)
        said = f"{script}\n{done.stdout}\n{done.stderr}\n" + "\n".join(
            f"--- {log.name}\n{log.read_text()}" for log in sorted(home.glob("*.log"))
        )
        assert "rows 20" in done.stdout, said
        assert "stopped" in (home / "n2.log").read_text(), said
    finally:
        for pid_file in home.glob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
