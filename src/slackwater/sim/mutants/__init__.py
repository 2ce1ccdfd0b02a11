"""Planted bugs: deliberate defects that prove that the oracles can see.

Each module here holds the bugs of one subject. A bug names the play that runs it, the oracles that must find it, and its
patches: which expression or statement of which function is replaced (`patch`). They are applied for the length of a run,
in whichever process runs it, and nothing in production code knows of them.

    closing       closed timestamps: proposals, leases, splits and merges, side transport
    leases        two leaseholders, lost timestamp caches, clocks, nodes that should give their leases up
    replication   commands applied twice or late, lost acknowledgements, snapshots, stops, short reads
    txns          refreshes, uncertainty, commit-wait, clean-up
    feeds         resolved timestamps, resuming, sinks
    catalog       leases on versions of tables, deadlines of what is written by them
    jobs          claims that do not fence, things that outlive their job
    collecting    what may be collected: bounds, copies of protections, leases
    clients       timeouts and session floors
    protections   timestamps protected too late, or without what it takes to decode them
    columns       segments that show what rows do not
    kernel        bugs of the small `kernel` play, which tests the simulator itself

Where an assertion would stop the code before an oracle can see anything, the bug switches the assertion off as well: what is to
be proven is that the oracle sees.

A patch whose code has moved fails when it is applied; `tests/test_tidy.py` applies all of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slackwater.sim.mutants.patch import patched

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def load() -> None:
    """Import every module here; each puts its planted bugs on the shelf."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        importlib.import_module(f"{__name__}.{module.name}")


@contextmanager
def applied(names: Iterable[str]) -> Iterator[None]:
    """Run the body of the `with` statement with the planted bugs of these names in the code."""
    from slackwater.sim.scenario import find_planted  # which imports the plays, and they the whole product

    with patched(patch for name in names for patch in find_planted(name).patches):
        yield
