"""Walks three requests through the running code and writes down the way they take: `make walk`, or `--json`.

    upsert      one row, `db.upsert` on a node in this process
    partition   one part of a table as a Spark task reads it, the second time
    changes     the resolved timestamp of a table, then its changes up to it

Every Python call inside the package is counted, in whichever thread. Other work of the node runs beside the request, so each
walk is taken many times and the shortest counts. A change of folder is a call in another folder of the package than the call
before it; the few files beside the folders (errors, hooks, settings) are passed over.

Beside the walks stand measures of the code itself: how long functions are, how many names are given twice, how many
assertions guard the core. Both are written to docs/walk.md, so that a reader sees them get better or worse.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import slackwater

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(slackwater.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "walk.md"
ROUNDS = 40
WARM_UPS = 10
ROWS = 2000
CORE = ("replica", "closedts", "txn", "storage", "log", "catalog")
BEFORE = "e7f67d1"
"""The code that the measures of today are held against."""
TABLES = {"modules_of_folders": "modules of", "assertions_per_100_functions_of": "assertions per 100 functions of"}
GOALS = {
    "upsert": {"calls": 330, "folder_changes": 80},
    "partition": {"calls": 400},
}


class Step(NamedTuple):
    """One call."""

    file: str
    function: str


class Walk:
    """Counts the calls of one request."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._known: dict[str, str | None] = {}

    def seen(self, frame: Any, event: str, argument: object) -> None:
        """A function was called, or returned: for `sys.setprofile`."""
        if event != "call":
            return
        name = frame.f_code.co_filename
        if name not in self._known:
            path = Path(name)
            self._known[name] = str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else None
        file = self._known[name]
        if file is not None:
            self.steps.append(Step(file, frame.f_code.co_name))

    @property
    def folder_changes(self) -> int:
        """How often a call is in another folder than the call before it."""
        folders = [folder for step in self.steps if (folder := _folder(step.file))]
        return sum(one != other for one, other in itertools.pairwise(folders))


def _folder(file: str) -> str:
    """The folder of the package that a file is in, however deep; "" for the few files beside the folders."""
    first, *rest = Path(file).parts
    return first if rest else ""


def walk(request: Callable[[], object], loop: Callable[[Callable[[], object]], object]) -> Walk:
    """The shortest of many walks of one request. `loop` runs a function in the thread of the node's loop."""
    for _ in range(WARM_UPS):
        request()
    best: Walk | None = None
    for _ in range(ROUNDS):
        taken = Walk()
        loop(partial(sys.setprofile, taken.seen))
        sys.setprofile(taken.seen)
        request()
        sys.setprofile(None)
        loop(partial(sys.setprofile, None))
        if best is None or len(taken.steps) < len(best.steps):
            best = taken
    assert best is not None
    return best


def walks() -> dict[str, Walk]:
    """All three, on a node of this process."""
    with tempfile.TemporaryDirectory() as directory, slackwater.open(directory) as db:

        def loop(function: Callable[[], object]) -> object:
            async def call() -> object:
                return function()

            return db._loop.run(call())

        db.create_table("t", {"id": "int8", "name": "text", "n": "int8"}, primary_key=["id"])
        db.upsert("t", [{"id": i, "name": f"row {i}", "n": i} for i in range(ROWS)])
        row = {"id": 7, "name": "seven", "n": 7}
        found = {"upsert": walk(lambda: db.upsert("t", [row]), loop)}
        at = db.close_now("t")
        (part, *_) = db.partitions("t", at=at)
        found["partition"] = walk(lambda: list(db.read_partition(part, at=at)), loop)
        after = db.close_now("t")
        db.upsert("t", [{"id": i, "name": "new", "n": i} for i in range(10)])
        db.close_now("t")
        found["resolved"] = walk(lambda: db.resolved("t"), loop)
        upto = db.resolved("t")
        (part, *_) = db.partitions("t", at=upto)  # as a stream plans each of its batches
        found["read_changes"] = walk(lambda: list(db.read_changes(part, after=after, upto=upto)), loop)
    return found


def figures(taken: Walk) -> dict[str, int]:
    """What the table holds of one walk."""
    return {
        "modules": len({step.file for step in taken.steps}),
        "folders": len({folder for step in taken.steps if (folder := _folder(step.file))}),
        "calls": len(taken.steps),
        "folder_changes": taken.folder_changes,
    }


# --- the code itself -------------------------------------------------------------------------------------------------


def measures(sources: dict[str, str]) -> dict[str, Any]:
    """Of the source, by path inside the package: functions, modules, names, assertions."""
    lengths: list[int] = []
    classes: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    guards: Counter[str] = Counter()
    declared: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for name, text in sorted(sources.items()):
        path = Path(name)
        top = path.parts[0]
        modules[str(path.parent)] += 1
        folders[top if len(path.parts) > 1 else "."] += 1
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
                functions[top] += 1
                declared[top] += _is_declaration(node)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
            elif isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and _is_assertion(node)):
                guards[top] += 1
    core = sum(functions[name] for name in CORE)
    guarding = sum(guards[name] for name in CORE)
    return {
        "functions": len(lengths),
        "function_lines_median": statistics.median(lengths),
        "function_lines_p95": statistics.quantiles(lengths, n=20)[-1],
        "modules": sum(modules.values()),
        "modules_in_largest_folder": max(modules.values()),
        "class_names_given_twice": sum(1 for count in classes.values() if count > 1),
        "assertions_in_core": guarding,
        "assertions_per_100_core_functions": round(100 * guarding / core, 1),
        "assertions_per_100_core_functions_with_a_body": round(
            100 * guarding / (core - sum(declared[name] for name in CORE)), 1
        ),
        "modules_of_folders": dict(sorted(folders.items())),
        "assertions_per_100_functions_of": {name: round(100 * guards[name] / functions[name], 1) for name in CORE},
    }


def _is_declaration(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A member of a Protocol, or an abstract method: it has no body that an assertion could stand in."""
    body = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return not body


def _is_assertion(node: ast.Call) -> bool:
    """A call of `invariant`, or the error it raises: hot paths compare in line and raise it themselves."""
    return isinstance(node.func, ast.Name) and node.func.id in ("invariant", "InvariantViolation")


def sources_now() -> dict[str, str]:
    """The package as it is here."""
    return {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}


def sources_before() -> dict[str, str]:
    """The package as it was at `BEFORE`; empty where the repository does not reach back so far."""
    folder = SOURCE.relative_to(PAGE.parent.parent)
    packed = subprocess.run(
        ["git", "archive", BEFORE, str(folder)], cwd=PAGE.parent.parent, capture_output=True, check=False
    )
    if packed.returncode:
        return {}
    found: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        for member in archive:
            inside = archive.extractfile(member)
            if inside is not None and member.name.endswith(".py"):
                found[str(Path(member.name).relative_to(folder))] = inside.read().decode()
    return found


# --- telling ---------------------------------------------------------------------------------------------------------


def code(now: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """The measures of the code as tables, beside what they were."""
    lines = ["", "## The code", "", f"| measure | at {BEFORE} | now |", "|---|---|---|"]
    flat = [name for name, value in now.items() if not isinstance(value, dict)]
    lines += [f"| {name.replace('_', ' ')} | {before[name] if before else ''} | {now[name]} |" for name in flat]
    for name, title in TABLES.items():
        was = before[name] if before else {}
        lines += ["", f"| {title} | at {BEFORE} | now |", "|---|---|---|"]
        lines += [f"| {key} | {was.get(key, '')} | {now[name].get(key, '')} |" for key in sorted({*was, *now[name]})]
    return lines


def page(found: dict[str, Walk], measured: dict[str, Any], before: dict[str, Any] | None) -> str:
    """docs/walk.md."""
    lines = [
        "# The way of a request",
        "",
        "Written by `make walk` (`scripts/walk.py` says what is counted); do not edit by hand.",
        "",
        "| path | modules | folders | Python calls | changes of folder | goal |",
        "|---|---|---|---|---|---|",
    ]
    for name, taken in found.items():
        cells = figures(taken)
        goal = ", ".join(f"{what.replace('_', ' ')} ≤ {limit}" for what, limit in GOALS.get(name, {}).items())
        lines.append(
            f"| {name} | {cells['modules']} | {cells['folders']} | {cells['calls']} | {cells['folder_changes']} | {goal} |"
        )
    lines += code(measured, before)
    for name, taken in found.items():
        lines += ["", f"## {name}", "", "```text", *steps(taken), "```"]
    return "\n".join(lines) + "\n"


def steps(taken: Walk) -> list[str]:
    """The path as `file:function` lines; a step that is repeated at once is told once."""
    told: list[str] = []
    for step in taken.steps:
        line = f"{step.file}:{step.function}"
        if not told or told[-1] != line:
            told.append(line)
    return told


def main() -> None:
    """Walk, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object and write nothing")
    chosen = parser.parse_args()
    found, measured = walks(), measures(sources_now())
    if chosen.json:
        told = {name: {**figures(taken), "path": steps(taken)} for name, taken in found.items()}
        print(json.dumps({"walks": told, "code": measured}))
        return
    old = sources_before()
    PAGE.write_text(page(found, measured, measures(old) if old else None))
    for name, taken in found.items():
        print(name, figures(taken))
    print(measured)
    print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
