"""`slackwater changefeed` as people run it: killed, told to stop, resumed; the files are those of a run that never stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import slackwater
from slackwater.clock.timestamp import show
from slackwater.feeds.files import DirectoryWriter, final, resolved_upto
from tests.integration.cluster import Processes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
PATIENCE_S = 60.0


def changefeed(*words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "slackwater.server.cli", "changefeed", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def content(root: Path) -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path in DirectoryWriter(root).paths()}


def wait_for_files(root: Path, count: int) -> None:
    """Until so many data files are final."""
    deadline = time.monotonic() + PATIENCE_S
    while len(final(DirectoryWriter(root).paths() if root.exists() else [])) < count:
        assert time.monotonic() < deadline, f"{sorted(content(root))[-5:]}"
        time.sleep(0.05)


def test_stopped_killed_and_resumed(tmp_path):
    settings = {"closed_timestamp.target_duration": 0.3}

    async def main() -> None:
        cluster = Processes(tmp_path, nodes=1, log_url=f"sqlite://{tmp_path}/log.db", settings=settings)
        async with cluster:
            await cluster.make()
            await asyncio.to_thread(story, cluster.addresses[0], tmp_path)

    asyncio.run(main())


def story(address: str, tmp_path: Path) -> None:
    with slackwater.connect(f"slackwater://{address}") as db:
        db.create_table("orders", {"id": "int8", "what": "text"}, primary_key=["id"])
        db.upsert("orders", [{"id": i, "what": "old"} for i in range(50)])
        into = tmp_path / "out"
        asked = ("orders", "--resolved", "100ms", "--host", address, "--diff")
        endings = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
        for turn, number in enumerate(endings):
            feed = changefeed(*asked, "--into", str(into))
            try:
                wait_for_files(into, 3 * turn + 1)
                for step in range(3):
                    db.upsert("orders", [{"id": 100 * turn + step, "what": f"new {turn}"}])
                    wait_for_files(into, 3 * turn + step + 2)
                feed.send_signal(number)
                said, error = feed.communicate(timeout=PATIENCE_S)
            finally:
                feed.kill()
                feed.wait()
            if number is not signal.SIGKILL:
                assert feed.returncode == 0, error
                assert "the same command goes on" in said
        db.delete("orders", [0, 1])
        until = show(db.now())
        finished(changefeed(*asked, "--into", str(into), "--until", until))
        begin = DirectoryWriter(into).config()
        assert begin is not None
        straight = tmp_path / "straight"
        cursor = ("--cursor", str(int(begin.after)), "--initial-scan", "yes")
        finished(changefeed(*asked, "--into", str(straight), "--until", until, *cursor))
        assert content(into) == content(straight)
        assert show(resolved_upto(content(into))) == until
        refused = changefeed(*asked, "--format", "json", "--into", str(into))
        _, error = refused.communicate(timeout=PATIENCE_S)
        assert refused.returncode == 1
        assert "another directory" in error


def finished(feed: subprocess.Popen) -> None:
    _, error = feed.communicate(timeout=PATIENCE_S)
    assert feed.returncode == 0, error
