"""The examples of README.md and docs/client.md run, and print what the pages say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
PAGES = ["README.md", "docs/client.md"]


def run_page(page: Path, names: dict[str, object]) -> int:
    """Run every `>>>` of a page in order; returns how many there were."""
    example = doctest.DocTestParser().get_doctest(page.read_text(), names, page.name, str(page), 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append)
    assert result.failed == 0, "".join(said)
    return result.attempted


@pytest.mark.integration
@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(ROOT / name, {}) > 3
