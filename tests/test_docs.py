"""What the documentation and comments refer to exists."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SYMBOL = re.compile(r"`(slackwater(?:\.\w+)+:[\w.]+)`")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
SYMBOLS = sorted({(page.name, symbol) for page in PAGES for symbol in SYMBOL.findall(page.read_text())})
WRITTEN = sorted(
    [*PAGES, *ROOT.glob("*.md"), *(p for top in ("src", "tests", "bench") for p in (ROOT / top).rglob("*.py"))]
)
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")
DECISIONS = {path.name[:3]: path for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}


@pytest.mark.parametrize(("page", "symbol"), SYMBOLS)
def test_documented_symbol_exists(page: str, symbol: str) -> None:
    module, _, path = symbol.partition(":")
    attrgetter(path)(import_module(module))


def test_pages_name_symbols_at_all() -> None:
    assert len(SYMBOLS) > 10


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    for target, _ in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_every_pitfall_that_is_referred_to_is_on_its_page() -> None:
    known = re.findall(r"^(\d+)\. ", (ROOT / "docs" / "pitfalls.md").read_text(), re.MULTILINE)
    assert known == [str(number + 1) for number in range(len(known))]
    for path in WRITTEN:
        for number in re.findall(r"\b[Pp]itfalls? (\d+)", path.read_text()):
            assert number in known, f"{path} refers to pitfall {number}"


def test_every_decision_that_is_referred_to_has_a_record() -> None:
    for path in WRITTEN:
        for number in re.findall(r"\bdecisions?[ /](0\d\d)\b", path.read_text()):
            assert number in DECISIONS, f"{path} refers to decision {number}"


def test_the_index_of_decisions_lists_each_once_with_its_title_and_date() -> None:
    lines = (ROOT / "docs" / "decisions" / "README.md").read_text().splitlines()
    listed = sorted(line for line in lines if line.startswith("| [0"))
    expected = []
    for number, path in sorted(DECISIONS.items()):
        first = path.read_text().split("\n", 1)[0]
        found = re.fullmatch(rf"# {number} · (.+) \((\d{{4}}-\d\d-\d\d)\)", first)
        assert found, f"{path.name} begins with {first!r}; write `# {number} · Title (date)`"
        expected.append(f"| [{number}]({path.name}) | {found[1]} | {found[2]} |")
    assert listed == expected


def test_the_architecture_page_names_every_layer_in_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "Layers")
    built = [[name for name in layer.split(" | ") if not name.startswith("(")] for layer in layers]
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in re.findall(r"^\| `.*", page, re.MULTILINE)]
    assert rows == [names for names in built if names]
