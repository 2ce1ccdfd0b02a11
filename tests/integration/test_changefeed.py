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
from slackwater.changefeed.files import CONFIG_NAME, DirectoryWriter, final, read_path, resolved_upto
from slackwater.clock.timestamp import show
from tests.integration.cluster import Processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
PATIENCE_S = 60.0


def changefeed(*words: str, file_bytes_max: int = 0) -> subprocess.Popen:
    """The command; with `file_bytes_max` as on a full disk: a file that grows beyond cannot be written."""
    command = [sys.executable, "-m", "slackwater.cli.main", "changefeed", *words]
    if file_bytes_max:
        command = ["prlimit", f"--fsize={file_bytes_max}", *command]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def content(root: Path) -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path in DirectoryWriter(root).paths()}


def wait_for_files(root: Path, count: int) -> None:
    """Until so many data files are final."""
    deadline = time.monotonic() + PATIENCE_S
    while len(final(DirectoryWriter(root).paths() if root.exists() else [])) < count:
        assert time.monotonic() < deadline, f"{sorted(content(root))[-5:]}"
        time.sleep(0.05)


def on_one_node(tmp_path: Path, *stories: Callable[[str, Path], None]) -> None:
    settings = {"closed_timestamp.target_duration": 0.3}

    async def main() -> None:
        cluster = Processes(tmp_path, nodes=1, log_url=f"sqlite://{tmp_path}/log.db", settings=settings)
        async with cluster:
            await cluster.make()
            for story in stories:
                await asyncio.to_thread(story, cluster.addresses[0], tmp_path)

    asyncio.run(main())


def test_stopped_killed_out_of_room_and_resumed(tmp_path):
    on_one_node(tmp_path, story, out_of_room)


def out_of_room(address: str, tmp_path: Path) -> None:
    """The disk is full: one clear error, and what was final stays; with room again the same command goes on."""
    with slackwater.connect(f"slackwater://{address}") as db:
        db.create_table("notes", {"id": "int8", "what": "text"}, primary_key=["id"])
        db.upsert("notes", [{"id": i, "what": "small"} for i in range(5)])
        into = tmp_path / "tight"
        asked = ("notes", "--resolved", "100ms", "--host", address, "--format", "json")
        feed = changefeed(*asked, "--into", str(into), file_bytes_max=16 << 10)
        wait_for_files(into, 1)
        before = content(into)
        db.upsert("notes", [{"id": i, "what": "x" * 200} for i in range(1000)])
        said, error = feed.communicate(timeout=PATIENCE_S)
        assert feed.returncode == 1, (said, error)
        assert len(error.strip().splitlines()) == 1, error
        assert "could not be written (File too large); make room" in error
        assert content(into).items() >= before.items(), "what was final is as it was"
        assert not [path for path in content(into) if read_path(path) is None and path != CONFIG_NAME], "no half files"
        until = show(db.now())
        finished(changefeed(*asked, "--into", str(into), "--until", until))
        begin = DirectoryWriter(into).config()
        assert begin is not None
        cursor = ("--cursor", str(int(begin.after)), "--initial-scan", "yes")
        finished(changefeed(*asked, "--into", str(tmp_path / "roomy"), "--until", until, *cursor))
        assert content(into) == content(tmp_path / "roomy")


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
