"""`slackwater init`: make a new cluster, once."""

from __future__ import annotations

import argparse

import msgspec

from slackwater.errors import ConnectionLost
from slackwater.runtime.clock import RealClock
from slackwater.runtime.real import run
from slackwater.runtime.tcp import NOBODY
from slackwater.server.arguments import add_client_arguments
from slackwater.server.calling import CALL_TIMEOUT_S, calling
from slackwater.server.services import INIT, InitReply, InitRequest

WAIT_S, PAUSE_S = 15.0, 0.2
EXAMPLES = """\
examples:
  slackwater init
  slackwater init --host db1.example:7400 --certs /etc/slackwater --cluster-id orders
"""


def main(argv: list[str]) -> int:
    """Ask a node to become the first of a new cluster."""
    parser = argparse.ArgumentParser(
        prog="slackwater init",
        description="Make one started node with an empty store and an empty log the first of a new cluster. "
        "The others join it by themselves. A second init is refused.",
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
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    options = parser.parse_args(argv)
    reply = run(_init(options))
    if options.json:
        print(msgspec.json.encode(reply).decode())
    else:
        print(f"cluster {reply.cluster_id} made; its first node is n{reply.node_id} at {options.host}")
    return 0


async def _init(options: argparse.Namespace) -> InitReply:
    clock = RealClock()
    deadline_ns = clock.monotonic_ns() + int(options.wait * 1e9)
    while True:
        try:
            async with calling(options) as dialer:
                return await dialer.call(options.host, INIT, InitRequest(options.cluster_id), timeout=CALL_TIMEOUT_S)
        except ConnectionLost as error:
            if NOBODY not in error.message or clock.monotonic_ns() >= deadline_ns:
                raise
        await clock.sleep(PAUSE_S)
