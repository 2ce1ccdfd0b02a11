"""What the simulator may switch on inside production code: probes, buggify sites, taps and levels.

All are inert in production: `probe`, `tap` and `level` do nothing, `buggify` answers False. The simulator installs
its own functions for the length of a run (one process, one thread, one run at a time), so pure cores can call these
without being handed a runtime.

    probe("closedts.update_ahead_of_applied")   this odd branch was reached; the simulator counts it
    if buggify("propose.flush_early"): ...      do the legal but unlikely thing now
    tap("replica.serving", self, now)           this happens now; an oracle with global knowledge may look
    level("rpc.calls", 12, 64)                  a queue or cache holds 12 of at most 64; the simulator keeps the highest
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


_probe: Callable[[str], None] | None = None
_buggify: Callable[[str], bool] | None = None
_tap: Callable[..., None] | None = None
_level: Callable[[str, float, float], None] | None = None


def probe(site: str) -> None:
    """Mark that an odd branch was reached. Does nothing in production."""
    if _probe is not None:
        _probe(site)


def buggify(site: str) -> bool:
    """Whether to take the unlikely path here. Always False in production."""
    return _buggify is not None and _buggify(site)


def tap(site: str, *facts: object) -> None:
    """Show an oracle of the simulator what happens at this very step. Does nothing in production."""
    if _tap is not None:
        _tap(site, *facts)


def level(name: str, size: float, bound: float) -> None:
    """Report how full a bounded queue or cache is after it grew: above its bound it breaks I-31. Does nothing in production."""
    if _level is not None:
        _level(name, size, bound)


def install(
    *,
    probe: Callable[[str], None] | None = None,
    buggify: Callable[[str], bool] | None = None,
    tap: Callable[..., None] | None = None,
    level: Callable[[str, float, float], None] | None = None,
) -> None:
    """Switch hooks on for a simulation run; `install()` with no arguments switches all of them off."""
    global _probe, _buggify, _tap, _level  # one process, one run: see the module docstring
    _probe = probe
    _buggify = buggify
    _tap = tap
    _level = level
