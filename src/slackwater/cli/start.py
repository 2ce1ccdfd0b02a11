"""`slackwater start`: run one node."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NoReturn

from slackwater.codec.arrow import leave_pandas_out
from slackwater.errors import UsageError
from slackwater.model.locality import locality_of
from slackwater.runtime.real import run
from slackwater.runtime.tcp import format_address, parse_address
from slackwater.server.arguments import DEFAULT_ADDRESS, address_of, addresses_of, settings_of
from slackwater.server.journal import Format, Level
from slackwater.server.process import UNFINISHED, StartOptions, serve

HTTP_PORT_ABOVE = 80
_SECRET = re.compile(r"(?<=//)\S*@")
PORT_MAX = 65535

DESCRIPTION = """\
Run one node: a store in DIR, served on HOST:PORT, until SIGTERM or SIGINT.

The first start of an empty store makes no cluster yet. Either make one with `slackwater init`, or let the node join the
cluster of any of the --join addresses. Later starts go on from what is in DIR; give them the same --join and --log.
All nodes of a cluster share one log.

A store is refused with a log other than its own or one that ends before what the store has applied, and if another
process runs as its node, from a copy of the store.
"""
EXAMPLES = """\
examples:
  one node for trying things out
    slackwater start --store /tmp/n1 --insecure
    slackwater init

  three nodes on one machine, over one log file
    slackwater start --store n1 --listen 127.0.0.1:7401 --log sqlite:log.db --insecure --join 127.0.0.1:7401,127.0.0.1:7402
    slackwater start --store n2 --listen 127.0.0.1:7402 --log sqlite:log.db --insecure --join 127.0.0.1:7401,127.0.0.1:7402
    slackwater start --store n3 --listen 127.0.0.1:7403 --log sqlite:log.db --insecure --join 127.0.0.1:7401,127.0.0.1:7402
    slackwater init --host 127.0.0.1:7401

  across machines
    NATS='ca=/etc/nats/ca.crt&cert=/etc/nats/node.crt&key=/etc/nats/node.key&auth=/etc/nats/auth'
    slackwater start --store /var/lib/slackwater --listen 0.0.0.0:7400 --advertise db1.example:7400 --certs /etc/slackwater \\
      --join db1.example:7400,db2.example:7400 --locality region=eu,zone=a \\
      --log "nats+tls://db1.example:4222,db2.example:4222,db3.example:4222/?stream=slackwater&replicas=3&sync_always=1&$NATS"
"""


def main(argv: list[str]) -> int:
    """Parse, check, run."""
    options = _parser().parse_args(argv)
    if options.certs is not None and options.insecure:
        raise UsageError("--certs and --insecure exclude each other")
    if (options.store / UNFINISHED).exists():
        raise UsageError(f"the store in {options.store} is not whole; run `slackwater recover apply` into it again")
    start = StartOptions(
        store=options.store,
        listen=address_of(options.listen),
        advertise=address_of(options.advertise) if options.advertise else "",
        join=addresses_of(options.join),
        log_url=options.log,
        locality=locality_of(options.locality),
        certs=options.certs,
        insecure=options.insecure,
        pid_file=options.pid_file,
        http=http_address(options.http, listen=options.listen),
        http_asked=bool(options.http),
        log_format=Format(options.log_format),
        log_level=Level[options.log_level.upper()],
    )
    leave_pandas_out()
    return run(serve(start, settings_of(options.set)))


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the command line without the passwords in it."""

    def error(self, message: str) -> NoReturn:
        super().error(_SECRET.sub("…@", message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="slackwater start",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", type=Path, required=True, metavar="DIR", help="data directory; created if missing")
    parser.add_argument(
        "--listen", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help=f"where to serve (default {DEFAULT_ADDRESS})"
    )
    parser.add_argument(
        "--advertise", default="", metavar="HOST:PORT", help="where others reach this node, if elsewhere"
    )
    parser.add_argument(
        "--join", default="", metavar="H:P,H:P", help="some nodes of the cluster; this one may be among them"
    )
    parser.add_argument(
        "--log", default="", metavar="URL", help="sqlite:PATH, nats://… or nats+tls://… (default: a file in DIR)"
    )
    parser.add_argument("--locality", default="", metavar="T=V,…", help="where the node is, e.g. region=eu,zone=a")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting; see `slackwater settings`"
    )
    parser.add_argument("--certs", type=Path, metavar="DIR", help="certificates made by `slackwater cert`")
    parser.add_argument("--insecure", action="store_true", help="no certificates; loopback only")
    parser.add_argument("--pid-file", type=Path, metavar="FILE", help="write the process id here while running")
    parser.add_argument(
        "--http",
        default="",
        metavar="HOST:PORT",
        help="where to serve /metrics and /health (default: 80 above the port of --listen, so 7480); none: nowhere",
    )
    parser.add_argument(
        "--log-format", choices=[f.value for f in Format], default="text", help="lines for people or JSON for machines"
    )
    parser.add_argument(
        "--log-level", choices=[v.name.lower() for v in Level], default="info", help="leave out lines that matter less"
    )
    return parser


def http_address(said: str, *, listen: str) -> str:
    """Where to serve HTTP: as said, or beside the node's own address; empty for nowhere."""
    if said == "none":
        return ""
    if said:
        return address_of(said)
    host, port = parse_address(listen)
    return format_address(host, port + HTTP_PORT_ABOVE if 0 < port <= PORT_MAX - HTTP_PORT_ABOVE else 0)
