"""Patches of planted bugs: what they change, and that they refuse to change nothing."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.errors import UsageError
from slackwater.sim.mutants.patch import BODY, Patch, patched

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = __name__


class Base:
    def greet(self) -> str:
        return "base"


class Child(Base):
    def greet(self) -> str:
        """Greets."""
        word = super().greet()
        if word:
            return word + " child"
        return ""

    @property
    def size(self) -> int:
        return 3

    @staticmethod
    def twice(n: int) -> int:
        return n + n

    async def later(self, n: int) -> int:
        await asyncio.sleep(0)
        return n


def wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        return function(*args)

    return around


@wraps
def decorated(n: int) -> int:
    return n * 2 + n * 2


def greet() -> str:
    return Child().greet()


alias = Child.greet


def test_an_expression_is_replaced_whatever_its_layout() -> None:
    with patched([Patch(f"{HERE}:Child.greet", "word   + ' child'", "word + ' changed'")]):
        assert greet() == "base changed"
        assert alias(Child()) == "base changed", "the function is changed, not one of its names"
        assert Child.greet.__doc__ == "Greets."
    assert greet() == "base child"


def test_statements_are_replaced_and_super_still_works() -> None:
    with patched(
        [Patch(f"{HERE}:Child.greet", "return ''", "return 'empty'"), Patch(f"{HERE}:Base.greet", BODY, "return ''")]
    ):
        assert greet() == "empty"
    assert greet() == "base child"


def test_properties_static_methods_coroutines_and_decorated_functions() -> None:
    patches = [
        Patch(f"{HERE}:Child.size", "3", "4"),
        Patch(f"{HERE}:Child.twice", "n + n", "n"),
        Patch(f"{HERE}:Child.later", "await asyncio.sleep(0)", "n += 1"),
        Patch(f"{HERE}:decorated", "return n * 2 + n * 2", "return 0"),
    ]
    with patched(patches):
        assert (Child().size, Child.twice(5), decorated(1)) == (4, 5, 0)
        assert asyncio.run(Child().later(1)) == 2
    assert (Child().size, Child.twice(5), decorated(1)) == (3, 10, 4)


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (Patch(f"{HERE}:Child.greet", "word - 1", "word"), "0 times, not once"),
        (Patch(f"{HERE}:decorated", "n * 2", "n"), "2 times, not once"),
        (Patch(f"{HERE}:Child.gone", "a", "b"), "does not exist"),
        (Patch("slackwater.no_such_module:function", "a", "b"), "does not exist"),
        (Patch(f"{HERE}:HERE", "a", "b"), "no function"),
        (Patch(f"{HERE}:Child.size", "3", "no_such_name"), "not known there"),
    ],
)
def test_what_has_moved_fails_loudly_and_changes_nothing(patch: Patch, why: str) -> None:
    with pytest.raises(UsageError, match=why), patched([Patch(f"{HERE}:Base.greet", BODY, "return 'x'"), patch]):
        pass
    assert Base().greet() == "base"


def test_a_function_is_not_changed_twice_at_a_time() -> None:
    change = [Patch(f"{HERE}:Base.greet", BODY, "return 'x'")]
    with patched(change), pytest.raises(UsageError, match="already changed"), patched(change):
        pass
    assert Base().greet() == "base"


def test_it_is_taken_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), patched([Patch(f"{HERE}:Base.greet", BODY, "return 'x'")]):
        raise ZeroDivisionError
    assert Base().greet() == "base"
