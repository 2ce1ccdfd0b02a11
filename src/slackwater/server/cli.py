"""The `slackwater` command. Each subcommand is loaded only when it is called, so `--help` is instant.

    slackwater start --store DIR        run one node
    slackwater init                     make a new cluster
    slackwater bench NAME… [--json]     measure, as ratios to peers in the same run
    slackwater sim --seeds N [--json]   run the deterministic simulator
    slackwater version

A subcommand is a module function `main(argv) -> int`, named here by a string: the composition root may reach every
layer, but only when asked to.
"""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple

from slackwater.errors import SlackwaterError


class Command(NamedTuple):
    """Where a subcommand lives, and its line in the help."""

    target: str
    help: str


COMMANDS: dict[str, Command] = {
    "start": Command("slackwater.server.start_command:main", "run one node"),
    "init": Command("slackwater.server.init_command:main", "make a new cluster of a started node"),
    "status": Command("slackwater.server.status_command:status_main", "list the nodes of a cluster"),
    "ranges": Command(
        "slackwater.server.status_command:ranges_main", "list the ranges of a cluster and their replicas"
    ),
    "frontier": Command(
        "slackwater.server.frontier_command:main", "explain how far ranges are closed and resolved, and what holds them"
    ),
    "changefeed": Command(
        "slackwater.server.changefeed_command:main", "follow tables into files, with markers of what is final"
    ),
    "drain": Command("slackwater.server.drain_command:drain_main", "hand over a node's leases before it is stopped"),
    "decommission": Command("slackwater.server.drain_command:decommission_main", "take a node out of service for good"),
    "kv": Command("slackwater.server.kv_command:main", "read and write plain keys, for trying and debugging"),
    "nats": Command("slackwater.server.nats_command:main", "run a local NATS JetStream to use as the log, for trying"),
    "demo": Command(
        "slackwater.demo.command:main", "a shop on three nodes: see follower reads, feeds and Spark at work"
    ),
    "cert": Command("slackwater.server.cert_command:main", "create certificates"),
    "bench": Command(
        "slackwater.server.bench_command:main", "measure throughput and latency against peers in the same run"
    ),
    "sim": Command("slackwater.sim.command:main", "run the deterministic simulator: seeds, replay, planted bugs"),
    "span-config": Command(
        "slackwater.server.span_config_command:main", "give a span of keys its own closing policy or replicas, online"
    ),
    "settings": Command(
        "slackwater.server.settings_command:main", "list every setting with its default, unit and range"
    ),
    "version": Command("slackwater.server.cli:print_version", "print the version"),
}


def print_version(argv: list[str]) -> int:
    """`slackwater version`."""
    from slackwater import __version__

    print(f"slackwater {__version__}")
    return 0


def usage() -> str:
    """The top-level help text."""
    width = max(map(len, COMMANDS))
    lines = [
        "usage: slackwater COMMAND [options]",
        "",
        "A table store that knows which times are finished.",
        "",
        "commands:",
    ]
    lines += [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    lines += ["", "`slackwater COMMAND --help` explains each with examples."]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Entry point: dispatch, and turn our errors into one line and an exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0
    name, *rest = argv
    if name == "--version":
        name = "version"
    command = COMMANDS.get(name)
    if command is None:
        print(f"slackwater: there is no command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    module, _, function = command.target.partition(":")
    try:
        return int(getattr(importlib.import_module(module), function)(rest))
    except SlackwaterError as error:
        print(f"slackwater {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
