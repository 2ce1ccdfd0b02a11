"""Style is a test: what ruff and mypy cannot see."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from slackwater.errors import SlackwaterError
from slackwater.settings import SETTINGS
from slackwater.sim.mutants import applied
from slackwater.sim.mutants.patch import function_at
from slackwater.sim.scenario import PLANTED, load

load()
ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
"""A file over this has two nouns. It was 500, and nouns were torn apart to stay under it; assertions add lines to whole ones."""
WRITTEN = {ROOT / "src" / "slackwater" / "client" / "sync.py"}
"""Written by a script from several files, each of which is held to the limit."""
INVARIANTS = re.findall(r"^\| (I-\d\d) \| .* \| (.+) \|$", (ROOT / "docs" / "invariants.md").read_text(), re.MULTILINE)
KINDS = {rule: kinds for rule, kinds in INVARIANTS if re.fullmatch(r"(\*planned\*: )?[AWHLM]( [AWHLM])*", kinds)}
"""By rule, how it is checked; other tables of the page repeat the rules."""
IN_SIM = ROOT / "src" / "slackwater" / "sim"
PRODUCTION = tuple(path for path in SOURCES if not path.is_relative_to(IN_SIM))
WATCHERS = (
    *(path for path in SOURCES if path.is_relative_to(IN_SIM) and not path.is_relative_to(IN_SIM / "mutants")),
    ROOT / "src" / "slackwater" / "feeds" / "validate.py",  # the simulator's consumers run it
)


@cache
def told(paths: tuple[Path, ...]) -> frozenset[str]:
    """The rules that string constants of these files name, docstrings apart."""
    found: set[str] = set()
    for path in paths:
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                found.update(re.findall(r"\bI-\d\d\b", node.value))
    return frozenset(found)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_source_file_is_tidy(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{path}: a module starts with a docstring that says what it is for"
    assert path in WRITTEN or text.count("\n") <= FILE_LINES_MAX, (
        f"{path}: over {FILE_LINES_MAX} lines; two nouns in one file?"
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{path}:{node.lineno} {node.name} has {lines} lines"
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text), f"{path}: finish it or file it"


def test_every_invariant_named_in_code_is_in_the_table() -> None:
    for path in SOURCES:
        for rule in set(re.findall(r"\bI-\d\d\b", path.read_text())):
            assert rule in KINDS, f"{path} names {rule}, which docs/invariants.md does not list"


@pytest.mark.parametrize(("rule", "kinds"), sorted(KINDS.items()))
def test_every_invariant_has_a_check_and_an_oracle_or_is_planned(rule: str, kinds: str) -> None:
    if kinds.startswith("*planned*"):
        return
    if "A" in kinds:
        assert rule in told(PRODUCTION), f"{rule}: no check in production code names it"
    if {"W", "H", "L"} & set(kinds):
        assert rule in told(WATCHERS), f"{rule}: no oracle of the simulator names it"
    if "M" in kinds:
        assert any(rule in path.read_text() for path in (ROOT / "tests" / "property").glob("*.py")), rule


def test_every_setting_is_read_somewhere() -> None:
    read = "".join(path.read_text() for path in PRODUCTION if path.name != "settings.py")
    unread = [setting.name for setting in SETTINGS if f'"{setting.name}"' not in read]
    assert not unread, "nothing reads these settings; remove them, or heed them"


def test_every_setting_is_documented_and_sane() -> None:
    for s in SETTINGS:
        assert s.safe[0] <= s.default <= s.safe[1], s.name
        assert s.help.endswith("."), s.name


def test_error_tree_drawing_names_every_error() -> None:
    import slackwater.errors as errors

    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, SlackwaterError):
            assert name in drawn, f"{name} is missing from the drawing in errors.py"


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_every_planted_bug_still_finds_what_it_changes(name: str) -> None:
    """When this fails because you changed a function: change the patch in `sim/mutants/` along with it."""
    codes = [function_at(patch.target).__code__ for patch in PLANTED[name].patches]
    assert codes, f"{name} changes nothing"
    with applied([name]):
        changed = [function_at(patch.target).__code__ for patch in PLANTED[name].patches]
    assert all(before != after for before, after in zip(codes, changed, strict=True))
    assert codes == [function_at(patch.target).__code__ for patch in PLANTED[name].patches], "not taken back"
