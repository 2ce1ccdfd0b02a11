"""Decides how fast the calls of one peer are read: a peer whose calls are mostly refused is read more slowly.

    spent      1    a call that is refused for what it is: it does not decode, names no method, breaks a rule of usage
               w    a call of a method that declares a weight, such as a split or a lease transfer
    regained   `rpc.refused_per_s` a second, up to `BURST_S` seconds' worth

A peer with nothing left is not read until it has regained what it lacks. Every call is answered all the same, so a peer
learns what is wrong with it, but at a pace that leaves the node to others. A peer is the bearer of a certificate, whatever
number of connections it has; without certificates it is a connection.

What is no misuse spends nothing: conflicts, retries, rows that break a constraint, a wrong replica, an overloaded node. A
node passes on what clients ask of it, mistakes included, on a connection that all its clients share; so of a node only what
no node sends counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import (
    AccessDenied,
    DecodeError,
    EntryTooLarge,
    InvalidSetting,
    ProtocolError,
    UnknownSetting,
    UsageError,
)

if TYPE_CHECKING:
    from slackwater.runtime.access import Certificate

BURST_S = 4.0
"""A peer may use up so many seconds' worth at once: a person's mistakes, a test of a whole API, come in bursts."""
HOLD_S_MIN, HOLD_S_MAX = 0.01, 0.5
"""A peer is held for at least a timer's worth, and hears something well before it takes this node for dead."""
PEERS_MAX = 4096
_NEVER_OF_A_NODE = (ProtocolError, AccessDenied)
_MISUSES = (ProtocolError, AccessDenied, EntryTooLarge, UnknownSetting, InvalidSetting)


class Patience:
    """What is left to one peer."""

    __slots__ = ("_at_ns", "_left", "_most", "_per_s")

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._most = per_s * BURST_S
        self._left = self._most
        self._at_ns = 0

    def spend(self, weight: float, now_ns: int) -> float:
        """Take what a call costs; how many seconds not to read its peer, 0 when it has something left."""
        regained = (now_ns - self._at_ns) / 1e9 * self._per_s
        self._left = min(self._most, self._left + regained) - weight
        self._at_ns = now_ns
        if self._left >= 0:
            return 0.0
        self._left = max(self._left, -HOLD_S_MAX * self._per_s)  # what is longer ago than a hold is forgiven
        return max(HOLD_S_MIN, -self._left / self._per_s)


class PatienceByPeer:
    """The patience that a server has with each of its peers."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._known: dict[tuple[str, str], Patience] = {}

    def of(self, certificate: Certificate | None) -> Patience:
        """The one of a certificate's bearer; a new one for a connection without certificates."""
        if certificate is None:
            return Patience(self._per_s)
        who = (certificate.role, certificate.name)
        found = self._known.pop(who, None) or Patience(self._per_s)
        self._known[who] = found
        if len(self._known) > PEERS_MAX:
            del self._known[next(iter(self._known))]
        return found


def is_misuse(error: BaseException, *, of_node: bool) -> bool:
    """Whether a call was refused for what it is, so that sending it again would be refused again."""
    if type(error) is DecodeError:
        return True
    if of_node:
        return isinstance(error, _NEVER_OF_A_NODE)
    return type(error) is UsageError or isinstance(error, _MISUSES)
