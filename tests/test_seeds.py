"""docs/seeds.md names every requirement once, and only code, tests and decisions that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "seeds.md"
ROWS = 249
STATUSES = ("done", "partly", "different", "planned")
CELL = re.compile(r"(?<!\\)\|")
SYMBOL = re.compile(r"`slackwater((?:\.\w+)+):([\w.]+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)(?:\[(\w+)\])?`")
DECISION = re.compile(r"\]\((decisions/[^)]+\.md)\)")
QUOTED = re.compile(r"`(?:slackwater\.|tests/)[^`]*`")


class Row(NamedTuple):
    """One requirement of a source document."""

    number: int
    status: str
    code: str
    test: str
    remark: str

    @property
    def text(self) -> str:
        return f"{self.code} {self.test} {self.remark}"


def _rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in CELL.split(line)[1:-1]]
        if len(cells) == 7 and cells[0].isdigit():
            number, _, _, status, code, test, remark = cells
            found.append(Row(int(number), status, code, test, remark))
    return found


TABLE = _rows()
each_row = pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.number))


@cache
def _functions(path: str) -> frozenset[str]:
    """The names of the test functions in a file."""
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_requirement_appears_exactly_once_and_in_order() -> None:
    assert [row.number for row in TABLE] == list(range(1, ROWS + 1))


def test_the_counts_on_the_page_are_those_of_its_rows() -> None:
    text = PAGE.read_text()
    documents = re.findall(r"^\| (\d{3}) \| \*.*\| (\d+)–(\d+) \|", text, re.MULTILINE)
    documents.append(("all", "1", str(ROWS)))
    assert len(documents) == 6
    for name, first, last in documents:
        part = [row.status for row in TABLE if int(first) <= row.number <= int(last)]
        counts = [part.count(status) for status in STATUSES]
        line = f"| {name} | {' | '.join(map(str, counts))} | {len(part)} |"
        assert line in text, f"the table of counts should have this line: {line}"


@each_row
def test_symbols_tests_and_decisions_exist(row: Row) -> None:
    assert row.status in STATUSES
    for module, path in SYMBOL.findall(row.text):
        attrgetter(path)(import_module(f"slackwater{module}"))
    for path, name, parameter in TEST.findall(row.text):
        assert name in _functions(path), f"{path} has no {name}"
        if name == "test_script":
            assert list((ROOT / "tests" / "scripts").glob(f"*/{parameter}.txt")), f"there is no script {parameter}"
    for path in DECISION.findall(row.text):
        assert (PAGE.parent / path).is_file(), path
    for quoted in QUOTED.findall(row.text):
        assert SYMBOL.fullmatch(quoted) or TEST.fullmatch(quoted), f"write {quoted} as module:symbol or file::test"


@each_row
def test_a_status_names_what_bears_it_out(row: Row) -> None:
    if row.status == "done":
        assert SYMBOL.search(row.code), "a row that is done names its code"
        assert TEST.search(row.test), "a row that is done names a test that fails without it"
    if row.status == "different":
        assert DECISION.search(row.remark), "a row that is deliberately different names its decision"
    if row.status == "partly":
        assert row.remark, "a row that is partly done says what is missing"
    if row.status == "planned":
        assert not row.code, "code that exists belongs to a row that is partly done"
