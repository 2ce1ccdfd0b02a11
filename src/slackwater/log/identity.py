"""Is this the log the store was built on?

A store remembers the identity of its log and the position up to which it applied it. A log that was deleted and created
again starts its positions afresh: applying it from a remembered position would skip entries in silence (L-6). So the
first thing a store does is ask, and the only answer to a mismatch is to refuse to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import LogIdentityMismatch

if TYPE_CHECKING:
    from slackwater.log.contract import LogIdentity, OrderedLog


def check_identity(log: OrderedLog, expected: LogIdentity) -> None:
    """Raise `LogIdentityMismatch` unless `log` is the incarnation expected.

    Only kind and incarnation count: a log that was moved to another path or host is still the same log.
    """
    actual = log.identity()
    if (actual.kind, actual.incarnation) != (expected.kind, expected.incarnation):
        raise LogIdentityMismatch(
            "this is not the log the store was built on: its positions mean something else. Point the store at the "
            "right log, or restore the store from a backup",
            expected=str(expected),
            actual=str(actual),
        )
