"""The schemes of closing, which of them a range may be closed by, and which of them a node runs.

    LOG_DRIVEN      2020 (seed 000)  commands carry closed timestamps; idle ranges close in groups, beside the log
    STORE_WIDE      2018 (seed 002)  one minimum proposal timestamp per store, told in heartbeats with an index per range
    MAX_WRITE_AGE   2017 (seed 001)  commands carry how old a write may be; idle ranges write empty commands

`closed_timestamp.scheme` says which one a cluster uses. It reaches the nodes at different moments, so every node tells its
peers which one it has heard of, and **runs** its own and those of all live peers: it publishes by each of them and
listens to each. A promise stays true for ever and the higher of two true promises is true (I-13), so nothing has to be
agreed upon, in no direction of a migration; when all have moved, one scheme is left.

Not every document has words for every range. What one cannot close is left to the log-driven scheme:

    STORE_WIDE      only leases that hang on an epoch, and only the cluster's own lag: there is one timestamp per store
    MAX_WRITE_AGE   no lead: an age is never negative. (Ranges that close nothing write no empty commands, either)
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from slackwater.config.zones import PolicyKind
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.closedts.policy import ClosingPolicy


class Scheme(enum.IntEnum):
    """A way of closing. The numbers are those of the setting, and of updates on the wire."""

    LOG_DRIVEN = 0
    STORE_WIDE = 1
    MAX_WRITE_AGE = 2

    @property
    def label(self) -> str:
        """The name by which it is set and shown."""
        return self.name.lower().replace("_", "-")


DEFAULT = frozenset({Scheme.LOG_DRIVEN})

assert tuple(scheme.label for scheme in Scheme) == describe("closed_timestamp.scheme").names, (
    "a setting names each scheme"
)


def scheme_of(number: float) -> Scheme:
    """The scheme that a setting or a peer names; one that this release does not know counts as the default."""
    try:
        return Scheme(int(number))
    except ValueError:
        return Scheme.LOG_DRIVEN


assert {scheme_of(-1), scheme_of(describe("closed_timestamp.scheme").default)} == DEFAULT, (
    "a scheme that is not known counts as the one by which a cluster closes that was told nothing"
)


def running(own: Scheme, peers: Iterable[Scheme]) -> frozenset[Scheme]:
    """The schemes a node runs: its own, and those of its live peers that have not moved yet, or have moved already."""
    return frozenset({own, *peers})


def can_close(scheme: Scheme, policy: ClosingPolicy, *, by_epoch: bool) -> bool:
    """Whether a scheme has words for ranges of that kind."""
    assert policy.duration_ms >= 0, "a lag is not negative"
    if scheme is Scheme.STORE_WIDE:
        return by_epoch and policy.kind is PolicyKind.LAG and not policy.duration_ms
    return scheme is Scheme.LOG_DRIVEN or policy.kind is PolicyKind.LAG


def closing_schemes(run: frozenset[Scheme], policy: ClosingPolicy, *, by_epoch: bool) -> frozenset[Scheme]:
    """The schemes that close a range with that policy and kind of lease on a node that runs `run`."""
    assert run, "a node runs one scheme at least"
    able = frozenset(scheme for scheme in run if can_close(scheme, policy, by_epoch=by_epoch))
    return able or DEFAULT
