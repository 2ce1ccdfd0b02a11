"""`slackwater cert`: the certificates of a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from slackwater.runtime.certs import LEAF_DAYS, create_ca, create_client, create_node, create_operator, revoke

EXAMPLES = """\
examples:
  slackwater cert create-ca --certs certs                       once per cluster; keep certs/ca.key away from the nodes
  slackwater cert create-node --certs certs db1.example 10.0.0.1   every name and address the node is dialed by
  slackwater cert create-node --certs certs --id 3 db9.example  n3 has moved: only n3 may show it, wherever it is
  slackwater cert create-operator --certs certs root            for `slackwater init`, `status`, `settings`, `kv`, …
  slackwater cert create-client --certs certs ann               for applications: tables, snapshots, feeds; no more
  slackwater cert create-node --certs certs --replace db1.example   renew it, and copy it over: nodes notice by themselves
  slackwater cert revoke --certs certs certs/client.ann.crt     writes certs/ca.crl: copy it to every node

Copy ca.crt, node.crt and node.key to each node; ca.crt and client.NAME.* to each client.
"""


def main(argv: list[str]) -> int:
    """Create an authority, or the pair of a node, an operator or a client."""
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
    node.add_argument("--id", type=int, default=0, metavar="N", help="only for node N, as `slackwater status` shows it")
    operator = kinds.add_parser("create-operator", help="create an operator's pair: may run the cluster")
    client = kinds.add_parser("create-client", help="create a client's pair: may use tables")
    for each in (operator, client):
        each.add_argument("name", metavar="NAME", help="the user; becomes the common name")
    gone = kinds.add_parser("revoke", help="add certificates to the list of those that are refused")
    gone.add_argument(
        "which", nargs="+", metavar="FILE|SERIAL", help="a certificate, or its serial number (hexadecimal)"
    )
    for each in (authority, node, operator, client, gone):
        each.add_argument("--certs", type=Path, required=True, metavar="DIR", help="where the files are kept")
    for each in (node, operator, client):
        each.add_argument("--replace", action="store_true", help="replace an existing pair, to renew it")
        each.add_argument("--days", type=int, default=LEAF_DAYS, help=f"how long it lasts (default {LEAF_DAYS})")
    options = parser.parse_args(argv)
    for path in _create(options):
        print(path)
    return 0


def _create(options: argparse.Namespace) -> list[Path]:
    """Do it; the files written."""
    if options.kind == "create-ca":
        certificate = create_ca(options.certs)
        return [certificate, certificate.with_suffix(".key")]
    if options.kind == "revoke":
        return [revoke(options.certs, options.which)]
    if options.kind == "create-node":
        files = create_node(
            options.certs, options.hosts, node_id=options.id, days=options.days, replace=options.replace
        )
    else:
        create = create_operator if options.kind == "create-operator" else create_client
        files = create(options.certs, options.name, days=options.days, replace=options.replace)
    return [files.certificate, files.key]
