"""Changes the code of a named function for the length of a run, by its syntax tree.

    Patch("slackwater.replica.apply:verdict", "command.lai <= state.lai", "False")

`old` is an expression, or one or more statements in a row, as they stand in the function; layout and comments do not matter.
`new` takes their place. Where both are expressions an expression is replaced, else statements are. `old=BODY` replaces
everything but the docstring. What `new` names must be known where the function is, or be imported by `new`.

A patch that does not find its function, or does not find `old` exactly once, raises `UsageError` and nothing is changed: a
mutant that changes nothing would prove nothing. The changed code keeps its file and line numbers. The function keeps its
identity too, so whatever refers to it, by whichever name, runs the changed code. A name that is not known there fails as well.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import functools
import importlib
import inspect
import textwrap
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType

    AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef

T = TypeVar("T", bound=ast.AST)

BODY = ""
_FACTORY, _CHANGED = "_factory_of_changed", "_changed_function"
_changed: set[str] = set()  # targets of patches in force: one process runs one simulation at a time


class Patch(NamedTuple):
    """One change of one function."""

    target: str
    """`module:function` or `module:Class.method`."""
    old: str
    new: str


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Apply patches, several to one function in their order, and take them back at the end."""
    by_target: dict[str, list[Patch]] = {}
    for patch in patches:
        by_target.setdefault(patch.target, []).append(patch)
    if again := _changed.intersection(by_target):
        raise UsageError(f"already changed by another planted bug: {', '.join(sorted(again))}")
    functions = {target: function_at(target) for target in by_target}
    made = {target: _recompiled(functions[target], chosen) for target, chosen in by_target.items()}
    before = {target: function.__code__ for target, function in functions.items()}
    for target, code in made.items():
        functions[target].__code__ = code
    _changed.update(by_target)
    try:
        yield
    finally:
        _changed.difference_update(by_target)
        for target, code in before.items():
            functions[target].__code__ = code


def function_at(target: str) -> FunctionType:
    """The plain function behind a name, without what decorates it."""
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"a planted bug changes {target}, which does not exist; move its patch along") from error
    if isinstance(found, property | functools.cached_property):
        found = found.fget if isinstance(found, property) else found.func
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise UsageError(f"a planted bug changes {target}, which is no function but a {type(found).__name__}")
    return found


def _recompiled(function: FunctionType, patches: list[Patch]) -> CodeType:
    """The code of a function with patches applied to its source."""
    lines, first = inspect.getsourcelines(function)
    module = ast.parse(textwrap.dedent("".join(lines)))
    (definition,) = module.body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    definition.name = _CHANGED  # its own name may be that of a global it uses
    for patch in patches:
        _apply(definition, patch)
    ast.increment_lineno(module, first - 1)
    # What the function closes over, such as the class that `super()` needs, are the parameters of a function around it.
    closed_over = function.__code__.co_freevars
    around = ast.parse(f"def {_FACTORY}({', '.join(closed_over)}): return {_CHANGED}")
    (factory,) = around.body
    assert isinstance(factory, ast.FunctionDef)
    factory.body.insert(0, definition)
    ast.fix_missing_locations(around)
    flags = __future__.annotations.compiler_flag
    compiled = compile(around, function.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
    code = _inner(_inner(compiled, _FACTORY), _CHANGED)
    if code.co_freevars != closed_over:
        raise UsageError(f"a patch of {patches[0].target} changes what the function closes over")
    known = function.__globals__.keys() | vars(builtins).keys()
    if unknown := {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"} - known:
        raise UsageError(f"a patch of {patches[0].target} uses names that are not known there: {sorted(unknown)}")
    return code.replace(co_name=function.__code__.co_name, co_qualname=function.__code__.co_qualname)


def _inner(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if inspect.iscode(c) and c.co_name == name)


# --- finding and replacing ------------------------------------------------------------------------------------------


def _apply(definition: AnyFunction, patch: Patch) -> None:
    if patch.old == BODY:
        start = 0 if ast.get_docstring(definition) is None else 1
        definition.body[start:] = [_placed(each, definition.body[-1]) for each in _statements(patch.new)]
        return
    old, new = _expression(patch.old), _expression(patch.new)
    if old is not None and new is not None:
        found = _replace_expression(definition, ast.dump(old), new)
    else:
        found = _replace_statements(definition, _shape(_statements(patch.old)), _statements(patch.new))
    if found != 1:
        raise UsageError(
            f"{patch.target} holds {found} times, not once, what a planted bug changes; change its patch along",
            old=patch.old,
        )


def _expression(source: str) -> ast.expr | None:
    try:
        return ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        return None


def _statements(source: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(source)).body


def _shape(statements: list[ast.stmt]) -> list[str]:
    return [ast.dump(statement) for statement in statements]


def _replace_expression(definition: ast.AST, wanted: str, new: ast.expr) -> int:
    found = 0
    for node in ast.walk(definition):
        for name, value in ast.iter_fields(node):
            values = value if isinstance(value, list) else [value]
            for i, each in enumerate(values):
                if isinstance(each, ast.expr) and ast.dump(each) == wanted:
                    found += 1
                    placed = _placed(new, each)
                    if isinstance(value, list):
                        value[i] = placed
                    else:
                        setattr(node, name, placed)
    return found


def _replace_statements(definition: ast.AST, wanted: list[str], new: list[ast.stmt]) -> int:
    found = 0
    for node in list(ast.walk(definition)):
        for _, value in ast.iter_fields(node):
            if not isinstance(value, list) or not all(isinstance(each, ast.stmt) for each in value):
                continue
            for i in reversed(range(len(value) - len(wanted) + 1)):
                if _shape(value[i : i + len(wanted)]) == wanted:
                    found += 1
                    value[i : i + len(wanted)] = [_placed(each, value[i]) for each in new]
    return found


def _placed(new: T, where: ast.expr | ast.stmt) -> T:
    """A tree that seems to stand where another stood."""
    for node in ast.walk(new):
        if isinstance(node, ast.expr | ast.stmt):
            ast.copy_location(node, where)
    return new
