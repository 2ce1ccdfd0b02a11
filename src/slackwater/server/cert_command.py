"""`slackwater cert`: the certificates of a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from slackwater.runtime.certs import create_ca, create_client, create_node

EXAMPLES = """\
examples:
  slackwater cert create-ca --certs certs                       once per cluster; keep certs/ca.key away from the nodes
  slackwater cert create-node --certs certs db1.example 10.0.0.1   every name and address the node is dialed by
  slackwater cert create-client --certs certs root              for `slackwater init`, `status`, applications

Copy ca.crt, node.crt and node.key to each node; ca.crt and client.NAME.* to each client.
"""


def main(argv: list[str]) -> int:
    """Create an authority, a node's pair or a client's pair."""
    parser = argparse.ArgumentParser(
        prog="slackwater cert",
        description="Create the certificates by which nodes and clients trust each other.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    authority = kinds.add_parser("create-ca", help="create the cluster's certificate authority")
    node = kinds.add_parser("create-node", help="create a node's pair")
    node.add_argument("hosts", nargs="+", metavar="HOST", help="a name or address the node is dialed by")
    client = kinds.add_parser("create-client", help="create a client's pair")
    client.add_argument("name", metavar="NAME", help="the user; becomes the common name")
    for each in (authority, node, client):
        each.add_argument("--certs", type=Path, required=True, metavar="DIR", help="where the files are kept")
    for each in (node, client):
        each.add_argument("--replace", action="store_true", help="replace an existing pair, to renew it")
    options = parser.parse_args(argv)
    for path in _create(options):
        print(path)
    return 0


def _create(options: argparse.Namespace) -> list[Path]:
    """Do it; the files written."""
    if options.kind == "create-ca":
        certificate = create_ca(options.certs)
        return [certificate, certificate.with_suffix(".key")]
    if options.kind == "create-node":
        files = create_node(options.certs, options.hosts, replace=options.replace)
    else:
        files = create_client(options.certs, options.name, replace=options.replace)
    return [files.certificate, files.key]
