"""`slackwater drain` and `slackwater decommission`: take a node out of service, for a while or for good."""

from __future__ import annotations

import argparse

import msgspec

from slackwater.cli.calling import calling
from slackwater.errors import UsageError
from slackwater.model.ids import NodeId
from slackwater.protocol.node.admin import (
    DECOMMISSION,
    DRAIN,
    DecommissionReply,
    DecommissionRequest,
    DrainReply,
    DrainRequest,
)
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments

NODE_DIGITS_MAX = 9
TIMEOUT_S = 660.0
"""Above the longest `drain.timeout`."""

DRAIN_EXAMPLES = """\
examples:
  slackwater drain --host db1.example:7400 --certs /etc/slackwater && systemctl stop slackwater
"""
DECOMMISSION_EXAMPLES = """\
examples:
  slackwater decommission 3 --host db1.example:7400 --certs /etc/slackwater
  until slackwater decommission 3 --host db1.example:7400; do sleep 5; done      wait until n3 is empty, then stop it
"""


def drain_main(argv: list[str]) -> int:
    """Hand over the leases of one node. Exit status 1 when some are left."""
    options = _parse(
        "drain",
        "Hand every lease of one node over to others and keep it from getting new ones, before it is stopped.\n\n"
        "It serves on; a restart ends the draining. (SIGTERM drains too.)",
        DRAIN_EXAMPLES,
        argv,
    )
    reply = run(_drain(options))
    if options.json:
        print(msgspec.json.encode(reply).decode())
    else:
        print(f"n{reply.node_id} is draining; leases left: {reply.leases_left}")
    return 1 if reply.leases_left else 0


def decommission_main(argv: list[str]) -> int:
    """Mark a node as leaving for good. Exit status 1 while it still holds replicas."""
    options = _parse(
        "decommission",
        "Mark a node as leaving for good: its replicas move to other nodes by and by.\n\n"
        "Repeat the command to see what is left; its exit status is 0 once nothing is.",
        DECOMMISSION_EXAMPLES,
        argv,
        node=True,
    )
    reply = run(_decommission(options))
    if options.json:
        print(msgspec.json.encode(reply).decode())
    else:
        print(
            f"n{reply.node_id} is leaving; replicas left: {len(reply.replicas_left)}, leases left: {reply.leases_left}"
        )
    return 1 if reply.replicas_left else 0


def _parse(name: str, description: str, examples: str, argv: list[str], *, node: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"slackwater {name}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if node:
        parser.add_argument("node", metavar="NODE", help="the node's number, as `slackwater status` shows it: 3 or n3")
    add_client_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    return parser.parse_args(argv)


async def _drain(options: argparse.Namespace) -> DrainReply:
    async with calling(options) as dialer:
        return await dialer.call(options.host, DRAIN, DrainRequest(), timeout=TIMEOUT_S)


async def _decommission(options: argparse.Namespace) -> DecommissionReply:
    number = options.node.removeprefix("n")
    if not (number.isascii() and number.isdigit() and len(number) <= NODE_DIGITS_MAX):
        raise UsageError("name a node by its number, as `slackwater status` shows it", node=options.node)
    async with calling(options) as dialer:
        request = DecommissionRequest(NodeId(int(number)))
        return await dialer.call(options.host, DECOMMISSION, request, timeout=TIMEOUT_S)
