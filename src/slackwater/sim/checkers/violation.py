"""What a checker hands back: one broken rule, told to a person, with the facts for a machine.

A checker never raises because the history is bad (it raises `UsageError` when the *recording* is bad, for example when
a workload appends the same element twice). It returns a list; an empty list means that nothing was found. The simulator
prints `summary`, keeps `evidence` in the failure artifact, and the shrinker asks only whether the same `oracle` and
`kind` still fail.
"""

from __future__ import annotations

from typing import Any

import msgspec

TEXT_KEY_MAX = 40
"""Longer keys and values are cut in prose; the evidence keeps them whole."""


class Violation(msgspec.Struct, frozen=True):
    """One broken rule."""

    oracle: str
    """The invariant's ID in the design, such as `I-18`."""
    kind: str
    """The class of anomaly, such as `G-single` or `partial-commit`."""
    summary: str
    """One paragraph for a person."""
    evidence: dict[str, Any]
    """The facts: numbers, keys and whole records; `msgspec.json.encode` can write all of it."""
    conclusive: bool = True
    """False when the checker gave up at a bound: not proof of a bug, but not a pass either."""

    def __str__(self) -> str:
        return f"{self.oracle} {self.kind}: {self.summary}"


def show(data: bytes | None) -> str:
    """A key or value as a person would write it."""
    if data is None:
        return "nothing"
    cut = data[:TEXT_KEY_MAX]
    more = "…" if len(data) > TEXT_KEY_MAX else ""
    if cut.isascii() and cut.decode("ascii").isprintable():
        return f"'{cut.decode('ascii')}{more}'"
    return f"0x{cut.hex()}{more}"
