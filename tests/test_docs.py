"""What the documentation names exists."""

from __future__ import annotations

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SYMBOL = re.compile(r"`(slackwater(?:\.\w+)+:[\w.]+)`")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
SYMBOLS = sorted({(page.name, symbol) for page in PAGES for symbol in SYMBOL.findall(page.read_text())})


@pytest.mark.parametrize(("page", "symbol"), SYMBOLS)
def test_documented_symbol_exists(page: str, symbol: str) -> None:
    module, _, path = symbol.partition(":")
    attrgetter(path)(import_module(module))


def test_pages_name_symbols_at_all() -> None:
    assert len(SYMBOLS) > 10
