"""Every order of a few operations, a lease transfer, a split, a merge and what nodes tell each other, on the pure core.

Each program is a start and `DEPTH` steps, cut where a step is not possible; afterwards everything arrives everywhere.
The world judges itself (`core_world`). A planted bug must be found by the same enumeration, or by a named program where
it lies deeper; otherwise the enumeration proves nothing.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from slackwater.closedts.kinds import Scheme
from slackwater.errors import InvariantViolation
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


OF_SCHEME = {
    Scheme.STORE_WIDE: ("write", "evaluate", "index", *STEPS[1:], "lose"),
    Scheme.MAX_WRITE_AGE: ("write", "evaluate", "index", "empty", *STEPS[3:]),
}
"""Under the other schemes commands also wait for their index over a heartbeat, heartbeats are lost, and commands are empty."""
BEATS = ("apply_all", "tick", "tick", "deliver")
"""A heartbeat closes what the one before it aimed at."""


def begin(start: str, *, lag_s: float = 0.5, scheme: Scheme = Scheme.LOG_DRIVEN) -> CoreWorld:
    world = CoreWorld(lag_s=lag_s, scheme=scheme)
    quiet = {Scheme.STORE_WIDE: BEATS, Scheme.MAX_WRITE_AGE: ("apply_all", "empty", "apply_all")}.get(scheme, QUIET)
    for name in " ".join(STARTS[start]).replace(" ".join(QUIET), " ".join(quiet)).split():
        assert world.step(name) or scheme is not Scheme.LOG_DRIVEN, name
    return world


def explore(
    world: CoreWorld, depth: int, program: tuple[str, ...] = (), *, steps: tuple[str, ...] = STEPS
) -> Iterator[tuple[str, ...]]:
    """Run every possible program from here; yields each that was run to its end."""
    frozen = pickle.dumps(world, protocol=5)
    for name in steps:
        if name == "write" and program.count("write") == WRITES_MAX:
            continue
        branch: CoreWorld = pickle.loads(frozen)
        longer = (*program, name)
        try:
            if not branch.step(name):
                continue
            if len(longer) < depth:
                yield from explore(branch, depth, longer, steps=steps)
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


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("scheme", OF_SCHEME)
def test_the_older_schemes_keep_the_same_promise(scheme: Scheme, start: str) -> None:
    met: set[str] = set()
    served = 0
    for program in explore(begin(start, scheme=scheme), DEPTH - 1, steps=OF_SCHEME[scheme]):
        met.update(program)
        served += 1
    assert served > 100, "the enumeration must reach something"
    assert met >= {"write", "transfer"}


def test_a_follower_under_each_scheme_serves_what_was_closed() -> None:
    for scheme in Scheme:
        world = begin("idle", scheme=scheme)
        assert all(node.served[key] for node in world.nodes.values() for key in node.served), scheme


@pytest.mark.parametrize(("bug", "start"), [("M08", "idle"), ("X-UNNAMED", "idle")])
def test_planted_bugs_of_the_store_wide_scheme_are_found(bug: str, start: str) -> None:
    with applied([bug]), pytest.raises((Broken, InvariantViolation), match=r"I-09|I-10|I-11"):
        for _ in explore(begin(start, scheme=Scheme.STORE_WIDE), DEPTH, steps=OF_SCHEME[Scheme.STORE_WIDE]):
            pass
