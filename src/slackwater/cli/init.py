"""`slackwater init`: make a new cluster, once, and wait until it can lose a node.

    listen ──► init ──► others join ──► every range has its replicas
               once     at most a few seconds after one another; each is named

A new cluster has one replica of everything, on its first node, until others have joined and fetched theirs. That takes a second
or two. If the first node is killed before, the cluster is lost until it is started again, so this command does not return
before; `--no-wait` does.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slackwater.cli.calling import CALL_TIMEOUT_S, calling
from slackwater.cli.status import ASK_TIMEOUT_S, ask_all
from slackwater.errors import ConnectionLost, SlackwaterError
from slackwater.protocol.node.services import (
    INIT,
    REPORT,
    STATUS,
    InitReply,
    InitRequest,
    ReplicaStatus,
    ReportRequest,
    StatusRequest,
)
from slackwater.runtime.clock import RealClock
from slackwater.runtime.real import run
from slackwater.runtime.tcp import NO_LISTENER
from slackwater.server.arguments import add_client_arguments
from slackwater.server.replication import RangeReplicas, count_replicas

if TYPE_CHECKING:
    from slackwater.model.descriptors import NodeDescriptor
    from slackwater.runtime.rpc.dialer import Dialer

WAIT_S, PAUSE_S = 15.0, 0.2
JOIN_GRACE_S = 5.0
"""A node that was started with others to join waits this long for the next one."""
ALONE_GRACE_S = 1.0
REPLICATED_S = 120.0
EXAMPLES = """\
examples:
  slackwater init
  slackwater init --host db1.example:7400 --certs /etc/slackwater --cluster-id orders
"""


def main(argv: list[str]) -> int:
    """Ask a node to become the first of a new cluster."""
    parser = argparse.ArgumentParser(
        prog="slackwater init",
        description="Make one started node with an empty store and an empty log the first of a new cluster.\n\n"
        "The others join it by themselves; the command returns when they have, and every range has its replicas, or when no\n"
        f"other node has joined for {JOIN_GRACE_S:g} seconds. A second init is refused.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_client_arguments(parser)
    parser.add_argument(
        "--cluster-id", default="", metavar="NAME", help="a name for the cluster (default: a random one)"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=WAIT_S,
        metavar="SECONDS",
        help=f"for a node that has just been started to listen (default {WAIT_S:g})",
    )
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="return at once, not when the other nodes have joined and every range has its replicas",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    options = parser.parse_args(argv)
    run(_main(options))
    return 0


async def _main(options: argparse.Namespace) -> None:
    reply = await _init(options)
    if options.json:
        print(msgspec.json.encode(reply).decode(), flush=True)
    else:
        print(f"cluster {reply.cluster_id} made; its first node is n{reply.node_id} at {options.host}", flush=True)
    if options.no_wait:
        return
    async with calling(options) as dialer:
        said = await _WaitingNote(dialer, options.host, expects=reply.joins).done()
    print(said, file=sys.stderr if options.json else sys.stdout, flush=True)


async def _init(options: argparse.Namespace) -> InitReply:
    clock = RealClock()
    deadline_ns = clock.monotonic_ns() + int(options.wait * 1e9)
    while True:
        try:
            async with calling(options) as dialer:
                return await dialer.call(options.host, INIT, InitRequest(options.cluster_id), timeout=CALL_TIMEOUT_S)
        except ConnectionLost as error:
            if NO_LISTENER not in error.message or clock.monotonic_ns() >= deadline_ns:
                raise
        await clock.sleep(PAUSE_S)


class _WaitingNote:
    """Follows a new cluster until it is replicated, or no other node joins. Progress goes to standard error."""

    def __init__(self, dialer: Dialer, host: str, *, expects: bool) -> None:
        self._dialer = dialer
        self._host = host
        self._clock = RealClock()
        self._grace_s = JOIN_GRACE_S if expects else ALONE_GRACE_S
        self._seen: dict[int, str] = {}
        self._news_ns = self._clock.monotonic_ns()
        self._told = ""

    async def done(self) -> str:
        """Return what the cluster has come to."""
        begin_ns = self._clock.monotonic_ns()
        while True:
            await self._clock.sleep(PAUSE_S)
            nodes = await self._nodes()
            counted = await self._counted(nodes)
            now_ns = self._clock.monotonic_ns()
            if counted and all(one.wanted and one.answered >= one.wanted for one in counted):
                return f"every range has {max(one.wanted for one in counted)} replicas on {len(nodes)} nodes"
            quiet = now_ns - self._news_ns > self._grace_s * 1e9
            short = [one for one in counted if not one.wanted or one.answered < min(one.wanted, len(nodes))]
            if quiet and counted and not short:
                return _few(len(nodes), max(one.wanted for one in counted))
            if now_ns - begin_ns > REPLICATED_S * 1e9:
                listed = ", ".join(map(str, short)) or "the nodes do not answer"
                return f"not replicated after {REPLICATED_S:g} s ({listed}): stop no node yet; `slackwater status` shows more"
            self._tell("replicas: " + ", ".join(map(str, counted)))

    async def _nodes(self) -> list[NodeDescriptor]:
        try:
            report = await self._dialer.call(self._host, REPORT, ReportRequest(), timeout=CALL_TIMEOUT_S)
        except SlackwaterError:
            return []
        for node in sorted(report.nodes, key=lambda node: node.node_id):
            if node.node_id not in self._seen:
                self._seen[node.node_id] = node.address
                self._news_ns = self._clock.monotonic_ns()
                if len(self._seen) > 1:
                    self._tell(f"n{node.node_id} at {node.address} has joined")
        return report.nodes

    async def _counted(self, nodes: list[NodeDescriptor]) -> list[RangeReplicas]:
        async def ask(address: str) -> list[ReplicaStatus]:
            return (await self._dialer.call(address, STATUS, StatusRequest(), timeout=ASK_TIMEOUT_S)).replicas

        answers = await ask_all([partial(ask, node.address) for node in nodes])
        return count_replicas(replica for answer in answers for replica in answer or ())

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._told = line
            print(line, file=sys.stderr, flush=True)


def _few(nodes: int, wanted: int) -> str:
    if nodes == 1:
        return "no other node has joined: there is one replica of everything, on this node, until others do"
    return (
        f"{nodes} nodes have joined: every range has {min(nodes, wanted)} of the {wanted} replicas that are asked for"
    )
