"""Protocol versions: what each side of a connection can speak, and which version a connection uses.

    n1 speaks 3 to 4 ── Hello(newest=4, oldest=3) ──►
                     ◄── Hello(newest=3, oldest=2) ── n2 speaks 2 to 3          both use 3, the highest in common

A cluster is upgraded one node at a time, so for a while both releases are in it. Each release speaks its own version and at
least the one before; every connection uses the highest that both sides speak. Where there is none in common, the greeting
ends with an error that names the side to upgrade.

What a message of the agreed version may hold is the caller's and the handler's to heed (`Peer.version`, `Context.version`). Most
changes need no new version: a field with a default, added at the end, is ignored by a peer that does not know it. A version
begins where that does not do: another meaning of a field, a method that must be there, a message that is no longer understood.
"""

from __future__ import annotations

from typing import NamedTuple

from slackwater.errors import ProtocolError


class ProtocolVersions(NamedTuple):
    """Protocol versions that one side speaks: all from `oldest` to `newest`."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"{self.newest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SUPPORTED = ProtocolVersions(oldest=1, newest=1)
"""What this release speaks."""


def agree(ours: ProtocolVersions, theirs: ProtocolVersions, *, own_name: str, peer_name: str) -> int:
    """The highest version in common; raises `ProtocolError` that says which side to upgrade when there is none."""
    if not 0 < theirs.oldest <= theirs.newest:
        raise ProtocolError(f"{peer_name} announces protocol versions that are no range", their_versions=tuple(theirs))
    common = min(ours.newest, theirs.newest)
    if common < max(ours.oldest, theirs.oldest):
        older = own_name if ours.newest < theirs.newest else peer_name
        raise ProtocolError(
            f"no protocol version in common: {own_name} speaks {ours}, {peer_name} speaks {theirs}; upgrade {older}"
        )
    return common
