"""Writes the synchronous client, src/slackwater/client/sync.py, from the asynchronous one: `make sync-client`, or `--check`.

    AsyncDatabase, AsyncSnapshot, …     signature, defaults, types, docstring     written once, by hand
                      │ this script
                      ▼
    Database, Snapshot, …               the same, and a body that waits for the twin's method

What becomes of a public method or attribute of a twin:

    async def m(…) -> T                          def m(…) -> T                return self._loop.run(self._twin.m(…))
    (async) def m(…) -> AsyncGenerator[T, None]  def m(…) -> Iterator[T]      return self._loop.iterate(self._twin.m(…))
    @asynccontextmanager m -> AsyncIterator[T]   @contextmanager m            with self._block(self._twin.m(…)) as twin: …
    def m(function: Callable[[Tx], Awaitable])   def m(function: Callable)    return self._retry(…)
    def m, @property, an annotated attribute     the same                     return self._twin.m

A twin's class in a type becomes the synchronous class; a twin that a method returns is wrapped in one. `client.blocking` holds
the few bodies that are more than a call. A test, and so the lint of `make test`, compares the committed file with what this
script writes.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "src" / "slackwater" / "client"
OUTPUT = CLIENT / "sync.py"

HEADER = '''"""The same database for programs that do not await: every method waits for its asynchronous twin.

Written by `make sync-client` (`scripts/sync_client.py`) from the asynchronous classes; do not edit it by hand.

One thread per `Database` runs the loop (`runtime.loop_thread`), so several threads of an application may share one. Streams
of record batches are ordinary iterators; one that is not read to its end is closed when it is dropped.
"""

from __future__ import annotations
'''


class Pair(NamedTuple):
    """A synchronous class and what it is made from."""

    name: str
    twins: tuple[tuple[str, str], ...]
    """(file, class); methods in this order. The last is the twin itself, the others are its bases."""
    base: str
    doc: str
    left_out: frozenset[str] = frozenset()


PAIRS = (
    Pair(
        "Transaction",
        (("transaction_schema.py", "TransactionSchema"), ("transaction.py", "AsyncTransaction")),
        "Blocking[AsyncTransaction]",
        "`AsyncTransaction`, waited for. Made by `Database.transaction` and `run`.",
        frozenset({"commit", "rollback", "restart"}),
    ),
    Pair(
        "Snapshot",
        (("snapshot.py", "AsyncSnapshot"),),
        "Blocking[AsyncSnapshot]",
        "`AsyncSnapshot`, waited for. Made by `Database.snapshot`.",
    ),
    Pair(
        "Part",
        (("staging.py", "AsyncPart"),),
        "Blocking[AsyncPart]",
        "`AsyncPart`, waited for. Made by `Database.staging`.",
    ),
    Pair(
        "JobClaim",
        (("jobs.py", "AsyncJobClaim"),),
        "Blocking[AsyncJobClaim]",
        "`AsyncJobClaim`, waited for. Made by `db.jobs.start` and `claim`.",
    ),
    Pair(
        "Jobs",
        (("jobs.py", "AsyncJobs"),),
        "Blocking[AsyncJobs]",
        "`AsyncJobs`, waited for. Made by `Database.jobs`.",
    ),
    Pair(
        "Database",
        (
            ("schema_changes.py", "SchemaOperations"),
            ("database.py", "AsyncDatabase"),
        ),
        "Session",
        "`AsyncDatabase`, waited for. Made by `slackwater.connect` and `slackwater.open`; close it, or use it in a `with`.",
        frozenset({"attempts", "change_items"}),
    ),
)
SYNC_NAMES = {twin: pair.name for pair in PAIRS for _, twin in pair.twins}


class Imports:
    """Where names come from: gathered from the twins' modules, given out for those that the output uses."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._modules: dict[str, str] = {}
        self.typing: set[str] = set()
        self.running: set[str] = set()

    def learn(self, file: str, tree: ast.Module) -> None:
        """Note the imports and definitions of a module."""
        module = f"slackwater.client.{file.removesuffix('.py')}"
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                for alias in node.names:
                    self._found.setdefault(alias.asname or alias.name, ast.unparse(_only(node, alias)))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self._found.setdefault(alias.asname or alias.name, ast.unparse(ast.Import([alias])))
        for node in tree.body:
            targets: list[str] = []
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                targets = [node.name]
            elif isinstance(node, ast.Assign):
                targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in targets:
                self._found[name] = f"from {module} import {name}"

    def use(self, node: ast.AST, *, running: bool = False) -> None:
        """The output names what this node names."""
        for name in (n.id for n in ast.walk(node) if isinstance(n, ast.Name)):
            if name in self._found and name not in (*SYNC_NAMES.values(), "T"):
                (self.running if running else self.typing).add(self._found[name])


def _only(node: ast.ImportFrom, alias: ast.alias) -> ast.ImportFrom:
    return ast.ImportFrom(node.module, [alias], node.level)


class ToSync(ast.NodeTransformer):
    """Turns types of the asynchronous client into those of the synchronous one."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A twin becomes its synchronous class."""
        return ast.Name(SYNC_NAMES.get(node.id, node.id))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """What is awaited, or comes one by one."""
        match node:
            case ast.Subscript(value=ast.Name(id="AsyncGenerator"), slice=ast.Tuple(elts=[item, _])):
                return ast.Subscript(ast.Name("Iterator"), self.visit(item))
            case ast.Subscript(value=ast.Name(id="AsyncIterator"), slice=item):
                return ast.Subscript(ast.Name("Iterator"), self.visit(item))
            case ast.Subscript(value=ast.Name(id="Awaitable"), slice=item):
                return self.visit(item)  # type: ignore[no-any-return]
        return self.generic_visit(node)


def render() -> str:
    """The whole module, formatted."""
    imports, classes = Imports(), []
    trees = {file: ast.parse((CLIENT / file).read_text()) for pair in PAIRS for file, _ in pair.twins}
    for file, tree in trees.items():
        imports.learn(file, tree)
    for pair in PAIRS:
        lines = [f"class {pair.name}({pair.base}):", f'    """{pair.doc}"""']
        for file, twin in pair.twins:
            owner = _class(trees[file], twin)
            for member in owner.body:
                lines += _member(member, owner, pair.left_out, imports)
        classes.append("\n".join(lines))
    return _formatted(_head(imports) + "\n\n\n" + "\n\n\n".join(classes) + "\n")


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _head(imports: Imports) -> str:
    running = [
        "from contextlib import contextmanager",
        "from typing import TYPE_CHECKING, Any, TypeVar",
        "from slackwater.client.blocking import Blocking, Session",
    ]
    for pair in PAIRS:
        if "[" in pair.base:
            file, twin = pair.twins[-1]
            running.append(f"from slackwater.client.{file.removesuffix('.py')} import {twin}")
    typing = sorted({*imports.typing, "from collections.abc import Iterator"} - imports.running)
    lines = [HEADER, *running, *sorted(imports.running)]
    lines += ["", "if TYPE_CHECKING:", *(f"    {line}" for line in typing if "typing import" not in line)]
    return "\n".join([*lines, "", 'T = TypeVar("T")'])


def _member(node: ast.stmt, owner: ast.ClassDef, left_out: frozenset[str], imports: Imports) -> list[str]:
    """The lines of one method or attribute; none for what is private or left out."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
        return _attribute(node.target.id, node, owner, imports)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    if node.name.startswith("_") or node.name in left_out:
        return []
    return _method(node, imports)


def _attribute(name: str, node: ast.AnnAssign, owner: ast.ClassDef, imports: Imports) -> list[str]:
    kind = ToSync().visit(node.annotation)
    imports.use(kind)
    signature, doc = f"    def {name}(self) -> {ast.unparse(kind)}:", _doc_after(owner, node)
    return ["", "    @property", signature, f'        """{doc}"""', f"        return self._twin.{name}"]


def _doc_after(owner: ast.ClassDef, node: ast.stmt) -> str:
    """The text below an attribute."""
    found = owner.body[owner.body.index(node) + 1]
    assert isinstance(found, ast.Expr), f"{owner.name}: a public attribute has a docstring below it"
    assert isinstance(found.value, ast.Constant)
    return str(found.value.value)


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, imports: Imports) -> list[str]:
    doc, decorators = ast.get_docstring(node, clean=False), {ast.unparse(d) for d in node.decorator_list}
    assert doc is not None, f"{node.name}: a public method has a docstring"
    assert node.returns is not None
    asked = ast.unparse(node.returns)
    arguments, returns = ToSync().visit(deepcopy(node.args)), ToSync().visit(deepcopy(node.returns))
    for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
        imports.use(default, running=True)
    for argument in (*arguments.args, *arguments.kwonlyargs):
        if argument.annotation is not None:
            imports.use(argument.annotation)
    imports.use(returns)
    decorated = [f"    @{d.replace('asynccontextmanager', 'contextmanager')}" for d in sorted(decorators)]
    signature = f"    def {node.name}({ast.unparse(arguments)}) -> {ast.unparse(returns)}:"
    body = _body(node, decorators, asked)
    return ["", *decorated, signature, f'        """{doc}"""', *(f"        {line}" for line in body)]


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: set[str], asked: str) -> list[str]:
    if "property" in decorators:
        twin = f"self._twin.{node.name}"
        return [f"return {SYNC_NAMES[asked]}(self._loop, {twin})" if asked in SYNC_NAMES else f"return {twin}"]
    positional = [a.arg for a in node.args.args[1:]]
    given = ", ".join([*positional, *(f"{a.arg}={a.arg}" for a in node.args.kwonlyargs)])
    call = f"self._twin.{node.name}({given})"
    if "asynccontextmanager" in decorators:
        (made,) = (SYNC_NAMES[twin] for twin in SYNC_NAMES if f"[{twin}]" in asked)
        return [f"with self._block({call}) as twin:", f"    yield {made}(self._loop, twin)"]
    if positional == ["function"]:
        made = next(SYNC_NAMES[twin] for twin in SYNC_NAMES if twin in ast.unparse(node.args))
        retried = f"return self._retry(attempts, {made}(self._loop, attempts.tx), function)"
        return ["attempts = self._twin.attempts()", retried]
    if asked.startswith("AsyncGenerator"):
        return [f"return self._loop.iterate({call})"]
    if isinstance(node, ast.AsyncFunctionDef):
        waited = f"self._loop.run({call})"
        if asked in SYNC_NAMES:
            return [f"return {SYNC_NAMES[asked]}(self._loop, {waited})"]
        return [waited if asked == "None" else f"return {waited}"]
    return [call if asked == "None" else f"return {call}"]


def _formatted(text: str) -> str:
    """Sorted imports and the formatter's layout: the same that `make lint` demands of every file."""
    ruff = str(Path(sys.executable).parent / "ruff")
    for command in (["check", "--quiet", "--fix-only", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [ruff, *command, "--no-cache", "--stdin-filename", str(OUTPUT), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        text = done.stdout
    return text


def main() -> None:
    """Write the module, or only say whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the committed file is not current")
    chosen = parser.parse_args()
    made = render()
    if not chosen.check:
        OUTPUT.write_text(made)
    elif OUTPUT.read_text() != made:
        sys.exit(f"{OUTPUT.relative_to(ROOT)} is not what the asynchronous client says; run `make sync-client`")


if __name__ == "__main__":
    main()
