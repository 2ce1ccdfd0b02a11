"""`slackwater refetch`: an operator says which replica is wrong where the nodes cannot tell."""

from __future__ import annotations

import argparse

import msgspec

from slackwater.cli.calling import calling
from slackwater.errors import UsageError
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.node.admin import REFETCH, RefetchReply, RefetchRequest
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments

DIGITS_MAX = 9
TIMEOUT_S = 60.0
EXAMPLES = """\
examples:
  slackwater status                                   says where replicas differ, and how many versions each holds
  slackwater refetch r7 --node n2                     n2's replica of r7 is wrong: fetch it anew from n1 or n3
"""


def main(argv: list[str]) -> int:
    """Discard one replica of a range; its node fetches it anew."""
    parser = argparse.ArgumentParser(
        prog="slackwater refetch",
        description="Discard one replica of a range and have its node fetch it anew from a healthy replica.\n\n"
        "Refused when no other node has one. What the discarded replica alone held is gone: compare first.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("range", metavar="RANGE", help="the range's number, as `slackwater ranges` shows it: 7 or r7")
    parser.add_argument("--node", required=True, metavar="NODE", help="whose replica is wrong: 2 or n2")
    add_client_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    options = parser.parse_args(argv)
    reply = run(_refetch(options))
    if options.json:
        print(msgspec.json.encode(reply).decode())
    else:
        print(
            f"n{reply.node_id} fetches its replica of r{reply.range_id} anew; `slackwater ranges` shows when it is back"
        )
    return 0


def _number(text: str, prefix: str, what: str) -> int:
    number = text.removeprefix(prefix)
    if not (number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX):
        raise UsageError(f"name a {what} by its number: 7 or {prefix}7", given=text)
    return int(number)


async def _refetch(options: argparse.Namespace) -> RefetchReply:
    request = RefetchRequest(RangeId(_number(options.range, "r", "range")), NodeId(_number(options.node, "n", "node")))
    async with calling(options) as dialer:
        return await dialer.call(options.host, REFETCH, request, timeout=TIMEOUT_S)
