"""Tells the journal what changed at a node: members, leases, reads that failed, what was quarantined, replicas that differ.

It looks once a second and writes only differences, so an idle node is silent and a busy one says at most a few lines a
second, whatever happens to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.server.journal import Journal
    from slackwater.server.node import Node

INTERVAL_S = 1.0
LEASES_TOLD_MAX = 16
"""Lease changes named one by one in one look; more are only counted."""


class JournalWatch:
    """What was last seen of a node."""

    def __init__(self, node: Node, journal: Journal) -> None:
        self._node = node
        self._journal = journal
        self._live: dict[NodeId, tuple[bool, int]] = {}
        self._leases: dict[RangeId, int] = {}
        self._quarantined: dict[RangeId, str] = {}
        self._questions: dict[RangeId, str] = {}
        self._lost: dict[RangeId, str] = {}
        self._incidents = 0
        self._columns_damaged = 0
        self._unfit: list[str] = []

    async def run(self) -> None:
        """Look for as long as the node lives."""
        node = self._node
        await node.ready.wait()
        self._journal.info(
            "serving",
            node=f"n{node.node_id}",
            cluster=node.identity.cluster_id,
            address=node.address,
            ranges=len(node.here().store.replicas),
        )
        while True:
            self.look()
            await node.runtime.clock.sleep(INTERVAL_S)

    def look(self) -> None:
        """Write what changed since the last look."""
        self._look_at_nodes()
        self._look_at_leases()
        self._look_at_damage()
        self._look_at_failures()
        self._look_at_fitness()

    def _look_at_nodes(self) -> None:
        now = self._node.clock.peek()
        for record in self._node.here().liveness.all():
            seen = (record.live_at(now), record.epoch)
            if self._live.get(record.node_id) != seen:
                self._live[record.node_id] = seen
                say = self._journal.info if seen[0] else self._journal.warn
                say(
                    "node.live" if seen[0] else "node.expired",
                    node=f"n{record.node_id}",
                    epoch=record.epoch,
                    draining=record.draining,
                )

    def _look_at_leases(self) -> None:
        store = self._node.here().store
        now = {range_id: int(replica.state.lease.holder) for range_id, replica in store.replicas.items()}
        changed = sorted(r for r in now.keys() | self._leases.keys() if now.get(r) != self._leases.get(r))
        for range_id in changed[:LEASES_TOLD_MAX]:
            holder, before = now.get(range_id), self._leases.get(range_id)
            self._journal.info("lease", range=f"r{range_id}", holder=_name(holder), before=_name(before))
        if len(changed) > LEASES_TOLD_MAX:
            self._journal.info("leases", changed=len(changed))
        self._leases = now

    def _look_at_damage(self) -> None:
        """Reads that failed, and questions that only an operator can answer. A replica may be well again by now."""
        store = self._node.here().store
        for incident in store.damage.incidents:
            if incident.number > self._incidents:
                event = "storage.damage" if incident.damage else "storage.read_failed"
                self._journal.error(event, range=f"r{incident.range_id}", why=incident.why)
        self._incidents = store.damage.read_errors
        columns = store.context.columns
        if columns.damaged > self._columns_damaged:
            files = columns.damaged - self._columns_damaged
            self._journal.warn("columns.damaged", files=files, why=columns.damage, doing="makes them again")
        self._columns_damaged = columns.damaged
        questions = self._node.here().queues.context.open_questions()
        for range_id, question in questions.items():
            if self._questions.get(range_id) != question:
                self._journal.error("replicas.differ", range=f"r{range_id}", why=question, act="slackwater refetch")
        lost = self._node.here().queues.context.lost
        for range_id, why in lost.items():
            if self._lost.get(range_id) != why:
                self._journal.error("range.lost", range=f"r{range_id}", why=why)
        self._lost = dict(lost)
        for range_id in self._questions.keys() - questions.keys():
            self._journal.info("replicas.settled", range=f"r{range_id}")
        self._questions = questions

    def _look_at_fitness(self) -> None:
        """Reasons are named once; their wording may change while they last."""
        reasons = self._node.why_unfit()
        if bool(reasons) != bool(self._unfit) or len(reasons) > len(self._unfit):
            if reasons:
                self._journal.error("node.unfit", why="; ".join(reasons), doing="gives its leases up")
            else:
                self._journal.info("node.fit", doing="may lead ranges again")
        self._unfit = reasons

    def _look_at_failures(self) -> None:
        store = self._node.here().store
        if store.quarantined == self._quarantined:
            return
        for range_id, why in store.quarantined.items():
            if self._quarantined.get(range_id) != why:
                self._journal.error("quarantined", range=f"r{range_id}", why=why)
        for range_id in self._quarantined.keys() - store.quarantined.keys():
            self._journal.info("recovered", range=f"r{range_id}")
        self._quarantined = dict(store.quarantined)


def _name(node_id: int | None) -> str:
    """`n3`; `-` for no node, `gone` for a replica that is not here."""
    return "gone" if node_id is None else f"n{node_id}" if node_id else "-"
