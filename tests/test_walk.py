"""The page about the way of a request is written by `scripts/walk.py`, and its figures can be taken again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.integration
def test_the_walk_can_be_taken_and_its_page_names_every_path():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "walk.py"), "--json"], check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    assert set(told) == {"walks", "code"}
    page = (ROOT / "docs" / "walk.md").read_text()
    for name, walk in told["walks"].items():
        assert 0 < walk["modules"] <= walk["calls"]
        assert walk["path"], name
        assert f"## {name}" in page
    assert told["walks"]["upsert"]["path"][0] == "client/sync.py:upsert"
    assert told["code"]["functions"] > 1000
