"""Real nodes that live and are of no use: a full disk and a port that says nothing. Others take over.

What takes how long is measured by `make bench BENCH=outage`; here it only has to happen.
"""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import pytest

from bench._links import CLIENTS
from bench._outage import NODES, Nodes, Writer, writing
from bench.outage import _fill, _victim
from slackwater.protocol.node.services import REPORT, ReportRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL_BYTES = 48 << 20
PATIENCE_S = 60.0


async def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for something that must happen, however slow the machine is."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"not in {PATIENCE_S:g} s: {what}"
        await asyncio.sleep(0.1)


async def go_on(writers: list[Writer]) -> None:
    """Every writer writes on from here."""
    before = {writer.number: len(writer.acknowledged) for writer in writers}
    await until("all writers write", lambda: all(len(w.acknowledged) > before[w.number] + 5 for w in writers))


def journal(nodes: Nodes, index: int) -> str:
    return (nodes.directory / f"n{index + 1}.journal").read_text()


@pytest.mark.integration
def test_a_leaseholder_that_nobody_can_call_is_replaced_and_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        nodes = Nodes(tmp_path, f"sqlite://{tmp_path}/log.db")
        try:
            await nodes.make()
            async with writing(nodes) as writers:
                await go_on(writers)
                victim = await _victim(nodes)
                nodes.links.cut({(by, victim) for by in (CLIENTS, *range(NODES)) if by != victim})
                await until("it knows", lambda: "node.unfit" in journal(nodes, victim))
                assert "cannot reach it" in journal(nodes, victim)
                await go_on(writers)
                nodes.links.cut(set())
                await until("it is fit again", lambda: "node.fit " in journal(nodes, victim))
                await go_on(writers)
        finally:
            await nodes.close()

    asyncio.run(story())


@pytest.mark.integration
def test_a_leaseholder_whose_disk_is_full_is_replaced(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a small file system")

    async def story() -> None:
        nodes = Nodes(tmp_path, f"sqlite://{tmp_path}/log.db", stores={0: small / "n1"})
        try:
            await nodes.make()
            async with writing(nodes) as writers:
                await go_on(writers)
                await _fill(small)
                await until("it knows", lambda: "node.unfit" in journal(nodes, 0))
                assert "store cannot be written" in journal(nodes, 0)
                report = await nodes.dialer.call(nodes.addresses[0], REPORT, ReportRequest(), timeout=10.0)
                assert any("store cannot be written" in why for why in report.unfit), report.unfit
                await go_on(writers)
        finally:
            await nodes.close()

    try:
        asyncio.run(story())
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
