"""Golden scripts of the side transport: `tests/scripts/closedts/side_transport_*.txt`.

Times are in seconds. Two kinds of verbs: those of one sender with its streams (range, tick, write, stream …), and those
of a follower that applies late (cluster, put, delay, side-transport, read, deliver).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import Timestamp, from_us
from slackwater.closedts.log_driven.receiver import Receiver
from slackwater.closedts.log_driven.sender import Sender
from slackwater.closedts.policy import ClosingPolicy
from slackwater.closedts.waiting import Gate, gate
from slackwater.config.zones import PolicyKind
from slackwater.errors import NotLeaseholder
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.closedts.update import Update
from tests import golden
from tests.unit.closedts.transport_world import TERMS, FakeRange, at, lease

if TYPE_CHECKING:
    from pathlib import Path

POLICIES = {
    "lag": ClosingPolicy(),
    "lead": ClosingPolicy(PolicyKind.LEAD, rtt_step=7),
    "off": ClosingPolicy(PolicyKind.OFF),
}


def seconds(text: str) -> str:
    """Timestamps in a line, as seconds."""
    return re.sub(r"\b\d{9,}\b", lambda m: f"{int(m.group()) / from_us(1_000_000):g}", text)


def number(name: str) -> int:
    return int(name.lstrip("rn"))


class Runner:
    """One sender, a receiver per follower."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.sender = Sender(NodeId(1), self.incarnation)
        self.ranges: dict[str, FakeRange] = {}
        self.receivers: dict[str, Receiver] = {}
        self.streams: dict[str, tuple[int, int | None]] = {}
        self.log: list[tuple[str, int]] = []
        self.applied = 0
        self.delayed: set[int] = set()

    # --- a sender and its streams ------------------------------------------------------------------------------------

    def do_range(self, *names: str, lai: str, policy: str = "lag") -> None:
        for name in names:
            made = FakeRange(self.sender, number(name), policy=POLICIES[policy])
            made.lai = LeaseAppliedIndex(int(lai))
            self.ranges[name] = made

    def do_tick(self, now: str, times: str = "1", busy: str = "", epoch: str = "", upto: str = "1000000") -> None:
        refused = {name: self.ranges[name].refuses for name in filter(None, busy.split(","))}
        for name in refused:
            self.ranges[name].refuses = CannotClose.PROPOSALS_IN_FLIGHT
        for n in range(int(times)):
            self.sender.tick(at(float(now) + n), TERMS, None if epoch == "none" else lease(float(upto)))
        for name, before in refused.items():
            self.ranges[name].refuses = before

    def do_write(self, name: str) -> str:
        return seconds(f"{name} writes above {self.ranges[name].write() - 1}")

    def do_refuse(self, name: str, reason: str) -> None:
        self.ranges[name].refuses = CannotClose[reason]
        self.sender.touch(self.ranges[name].id)

    def do_why(self, *names: str) -> str:
        lines = []
        for name in names:
            refusal = self.sender.refusal(self.ranges[name].id)
            lines.append(f"{name} {f'{refusal.reason.value} since {refusal.since}' if refusal else 'closes'}")
        return seconds("\n".join(lines))

    def do_policy(self, name: str, policy: str) -> None:
        self.ranges[name].own_policy = POLICIES[policy]
        self.sender.touch(self.ranges[name].id)

    def _receiver(self, follower: str) -> Receiver:
        receiver = self.receivers.setdefault(follower, Receiver())
        for made in self.ranges.values():
            receiver.records.watch(made.id)
        return receiver

    def do_connect(self, follower: str) -> None:
        self.streams[follower] = (self._receiver(follower).attach(NodeId(1)), None)

    def do_stream(self, follower: str, show: str = "") -> str:
        receiver = self._receiver(follower)
        if follower not in self.streams:
            self.do_connect(follower)
        token, seq = self.streams[follower]
        updates = self.sender.after(seq)
        for update in updates:
            if not receiver.receive(token, update):
                return f"{follower} ends the stream at #{update.seq}"
            seq = update.seq
        self.streams[follower] = (token, seq)
        if show == "count":
            return f"{len(updates)} updates, {sum(u.full for u in updates)} full"
        return seconds("\n".join(u.status() for u in updates) or "nothing to send")

    def do_lose(self, follower: str) -> str:
        token, seq = self.streams[follower]
        lost = self.sender.after(seq)[0]
        self.streams[follower] = (token, lost.seq)
        return f"#{lost.seq} is lost"

    def do_restart(self) -> None:
        self.incarnation += 1
        self.sender = Sender(NodeId(1), self.incarnation)

    def do_closed(self, follower: str, name: str, applied: str) -> str:
        status = self._receiver(follower).status(self.ranges[name].id, LeaseAppliedIndex(int(applied)))
        return seconds(f"{follower} {status}")

    # --- a follower that applies late --------------------------------------------------------------------------------

    def do_cluster(self, nodes: str, range: str, lease: str) -> None:  # noqa: A002 - the script's word
        self.apply_subscriber = Receiver()
        self.apply_subscriber.records.watch(RangeId(1))
        self.seq = 2
        self.token = self.apply_subscriber.attach(NodeId(1))

    def do_put(self, node: str, k: str, at: str) -> None:
        self.log.append((k, int(at)))

    def do_delay(self, link: str, entry: str) -> None:
        self.delayed.add(int(entry))

    def do_side_transport(self, node: str, closed: str, lai: str) -> str:
        members = [(RangeId(1), LeaseAppliedIndex(int(lai)), 1)]
        groups = [(1, Timestamp(int(closed)))]
        update = Update(NodeId(1), 1, self.seq, full=self.seq == 2, groups=groups, members=members)
        assert self.apply_subscriber.receive(self.token, update)
        self.seq += 1
        return self._follower_status()

    def do_deliver(self, link: str, entry: str) -> str:
        self.delayed.discard(int(entry))
        while self.applied < len(self.log) and self.applied + 1 not in self.delayed:
            self.applied += 1
        return self._follower_status()

    def do_read(self, node: str, k: str, at: str) -> str:
        applied = LeaseAppliedIndex(self.applied)
        closed = self.apply_subscriber.closed_for(RangeId(1), applied)
        if gate(required=Timestamp(int(at)), closed=closed, wait_ms=0) is not Gate.SERVE:
            waiting = self.apply_subscriber.waiting_for(RangeId(1), applied)
            hint = f"; waiting for lai {waiting.lai}" if waiting else ""
            message = f"not closed: {at} > {closed}{hint}"
            raise NotLeaseholder(message)
        found = max((ts for key, ts in self.log[: self.applied] if key == k and ts <= int(at)), default=None)
        return f'{node} {k} = "{found}"'

    def _follower_status(self) -> str:
        return f"n2 {self.apply_subscriber.status(RangeId(1), LeaseAppliedIndex(self.applied))}"


SCRIPTS = [path for path in golden.scripts("closedts") if path.stem.startswith("side_transport_")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
