"""Looks after a node's doors: tells whom it refused, and keeps its certificates in force.

    refused                  a peer or a call was refused: who and why. A few lines a second at most; the rest is counted
    certificates.loaded      new files are in force, from the next connection on; connections of revoked ones are ended
    certificates.unusable    the files on disk do not load; those in force stay
    certificates.expiring    less than `tls.expiry_warning` is left: said once a day

Certificates are looked at every `tls.reload_interval`, and at once on SIGHUP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import AccessDenied

if TYPE_CHECKING:
    from slackwater.runtime.credentials import Credentials
    from slackwater.server.journal import Journal
    from slackwater.server.node import Node

INTERVAL_S = 1.0
TOLD_MAX = 4
"""Refusals told one by one in one look; more are only counted."""
ERROR_CHARS_MAX = 300


class Doors:
    """What was last seen at the doors of a node."""

    def __init__(self, node: Node, journal: Journal, credentials: Credentials | None) -> None:
        self._node = node
        self._journal = journal
        self._credentials = credentials
        self._refused = 0
        self._looked_ns = node.runtime.clock.monotonic_ns()
        self._told_problem = ""
        self._told: set[str] = set()

    async def run(self) -> None:
        """Look for as long as the process lives."""
        while True:
            self.look()
            await self._node.runtime.clock.sleep(INTERVAL_S)

    def look(self) -> None:
        """Write what happened since the last look."""
        self._look_at_refusals()
        clock, credentials = self._node.runtime.clock, self._credentials
        if credentials is None:
            return
        if (clock.monotonic_ns() - self._looked_ns) / 1e9 >= self._node.settings["tls.reload_interval"]:
            self._reload(credentials, anyway=False)
        self._look_at_terms(credentials)

    def reload(self) -> None:
        """SIGHUP: look at the files now."""
        if self._credentials is None:
            self._journal.info("signal", signal="SIGHUP", hint="there are no certificates to load (--insecure)")
        else:
            self._reload(self._credentials, anyway=True)

    def _reload(self, credentials: Credentials, *, anyway: bool) -> None:
        self._looked_ns = self._node.runtime.clock.monotonic_ns()
        if credentials.look(anyway=anyway):
            error = AccessDenied("the certificate was revoked; ask the operator for another")
            ended = self._node.server.end_revoked(credentials.revoked, error)
            ended += self._node.dialer.end_revoked(credentials.revoked, error)
            self._journal.info("certificates.loaded", revoked=len(credentials.revoked), connections_ended=ended)
        if credentials.problem and (anyway or credentials.problem != self._told_problem):
            self._journal.error(
                "certificates.unusable", error=credentials.problem, hint="the former ones stay in force"
            )
        self._told_problem = credentials.problem

    def _look_at_refusals(self) -> None:
        server = self._node.server
        total = sum(server.refused_total.values())
        fresh, self._refused = total - self._refused, total
        told = min(fresh, TOLD_MAX, len(server.refusals))
        for peer, error in list(server.refusals)[len(server.refusals) - told :]:
            self._journal.warn("refused", peer=peer, kind=type(error).__name__, error=error.message[:ERROR_CHARS_MAX])
        if fresh > told:
            self._journal.warn("refused", more=fresh - told, hint="slackwater_rpc_refused_total counts all of them")

    def _look_at_terms(self, credentials: Credentials) -> None:
        now_s = self._node.runtime.clock.wall_ns() / 1e9
        within_days = self._node.settings["tls.expiry_warning"]
        found = {text for term in credentials.terms if (text := term.warning(now_s, within_days=within_days))}
        for text in sorted(found - self._told):
            self._journal.warn("certificates.expiring", warning=text)
        self._told = found
