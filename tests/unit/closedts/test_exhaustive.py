"""Every order of a few operations, a lease transfer, a split, a merge and the side transport, on the pure core.

Each program is a start and `DEPTH` steps, cut where a step is not possible; afterwards everything arrives everywhere.
The world judges itself (`core_world`). A planted bug must be found by the same enumeration, or by a named program where
it lies deeper; otherwise the enumeration proves nothing.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from slackwater.sim.mutants import applied
from tests.unit.closedts.core_world import Broken, CoreWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = ("write", "tick", "deliver", "apply1", "apply2", "transfer", "move_right", "split", "freeze", "thaw", "merge")
DEPTH = 5
WRITES_MAX = 3

QUIET = ("apply_all", "tick", "deliver")
STARTS = {
    "fresh": (),
    "idle": ("write", *QUIET),
    "split": ("write", *QUIET, "split", *QUIET),
    "frozen": ("split", *QUIET, "write", *QUIET, "freeze"),
    "right side elsewhere, frozen": ("split", *QUIET, "move_right", "apply_all", "write", *QUIET, "freeze"),
}


def begin(start: str, *, lag_s: float = 0.5) -> CoreWorld:
    world = CoreWorld(lag_s=lag_s)
    for name in STARTS[start]:
        assert world.step(name), name
    return world


def explore(world: CoreWorld, depth: int, program: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Run every possible program from here; yields each that was run to its end."""
    frozen = pickle.dumps(world, protocol=5)
    for name in STEPS:
        if name == "write" and program.count("write") == WRITES_MAX:
            continue
        branch: CoreWorld = pickle.loads(frozen)
        longer = (*program, name)
        try:
            if not branch.step(name):
                continue
            if len(longer) < depth:
                yield from explore(branch, depth, longer)
            else:
                branch.drain()
                yield longer
        except Broken as error:
            if not any("program" in note for note in getattr(error, "__notes__", ())):
                error.add_note(f"program: {' '.join(longer)}")
            raise


MEETS = {"write", "tick", "deliver", "transfer"}
"""What every start must meet, in every order that is possible from there; and then what it is for."""


@pytest.mark.parametrize(
    ("start", "also"),
    [
        ("fresh", {"split"}),
        ("idle", {"split", "move_right"}),
        ("split", {"move_right", "freeze"}),
        ("frozen", {"move_right", "thaw", "merge"}),
        ("right side elsewhere, frozen", {"move_right", "thaw", "merge"}),
    ],
)
def test_no_node_ever_applies_a_write_below_what_it_served(start: str, also: set[str]) -> None:
    met: set[str] = set()
    count = 0
    for program in explore(begin(start), DEPTH):
        met.update(program)
        count += 1
    assert count > 500, "the enumeration must reach something"
    assert met >= MEETS | also


@pytest.mark.parametrize(("bug", "start"), [("M04", "idle"), ("M06", "fresh"), ("M09", "idle")])
def test_planted_bugs_are_found(bug: str, start: str) -> None:
    with applied([bug] if bug else []), pytest.raises(Broken, match=r"I-09|I-10"):
        for _ in explore(begin(start), DEPTH):
            pass


MERGE_AFTER_TRANSFER = ("apply_all", "move_right", "apply_all", "merge", "apply_all", "write", "apply_all")
"""The right side is frozen, then its lease moves, then the left side takes it over and writes (pitfall 4)."""


@pytest.mark.parametrize("bug", ["", "M01"])
def test_a_lease_that_moves_while_frozen_closes_nothing(bug: str) -> None:
    with applied([bug] if bug else []):
        # With a long lag only the start of the lease could have closed anything.
        world = begin("right side elsewhere, frozen", lag_s=100.0)
        for name in MERGE_AFTER_TRANSFER[:-1]:
            assert world.step(name), name
        if bug:
            with pytest.raises(Broken, match="I-10"):
                world.step(MERGE_AFTER_TRANSFER[-1])
        else:
            assert world.step(MERGE_AFTER_TRANSFER[-1])
