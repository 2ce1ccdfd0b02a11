"""A node as a process: what a start does that meets damage halfway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from slackwater.errors import DamageError
from slackwater.runtime.seam import Engine, Family
from slackwater.server import process
from slackwater.server.process import StartOptions, serve
from slackwater.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_start_that_meets_damage_opens_its_store_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[bool] = []

    async def run(options: StartOptions, settings: Settings, runtime: Any, engine: Engine, *rest: Any) -> int:
        whole = not (tmp_path / "n1" / "engine.damaged-1").exists()
        starts.append(whole)
        if not whole:
            return 0
        batch = engine.batch()
        batch.put(Family.DATA, b"k", b"v")
        engine.write(batch)
        await engine.flush()
        snapshot = engine.snapshot()
        cursor = snapshot.cursor(Family.DATA, start=b"", end=b"\xff")  # noqa: F841 - held by this frame, as a scan would
        source = engine.source(Family.DATA)  # type: ignore[attr-defined]
        walk = source.items()
        next(walk)
        raise DamageError("a block of this store cannot be read")

    monkeypatch.setattr(process, "_run", run)
    options = StartOptions(store=tmp_path / "n1", listen="127.0.0.1:0", insecure=True)
    assert asyncio.run(serve(options, Settings())) == 0
    assert starts == [True, False], "the second start found the damaged engine moved aside"
