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

import argparse
import difflib
import importlib
import json
import os
import sys
from typing import NamedTuple

from slackwater.errors import SlackwaterError


class CliCommand(NamedTuple):
    """Where a subcommand lives, and its line in the help."""

    target: str
    help: str


COMMANDS: dict[str, CliCommand] = {
    "start": CliCommand("slackwater.cli.start:main", "run one node"),
    "init": CliCommand("slackwater.cli.init:main", "make a new cluster of a started node"),
    "status": CliCommand("slackwater.cli.status:status_main", "list the nodes of a cluster"),
    "ranges": CliCommand("slackwater.cli.status:ranges_main", "list the ranges of a cluster and their replicas"),
    "frontier": CliCommand(
        "slackwater.cli.frontier:main", "explain how far ranges are closed and resolved, and what holds them"
    ),
    "tables": CliCommand("slackwater.cli.schema:tables_main", "list the tables of a cluster"),
    "describe": CliCommand("slackwater.cli.schema:describe_main", "show a table: columns, indexes, checks, changes"),
    "leases": CliCommand(
        "slackwater.cli.schema:leases_main", "show which nodes write by which version of a table, and what waits"
    ),
    "alter": CliCommand("slackwater.cli.schema:alter_main", "change columns, checks or the name of a table"),
    "index": CliCommand("slackwater.cli.schema:index_main", "build or drop a secondary index"),
    "jobs": CliCommand("slackwater.cli.jobs:main", "list, pause, resume and cancel durable jobs, and wait for them"),
    "changefeed": CliCommand(
        "slackwater.cli.changefeed:main", "follow tables into files, with markers of what is final"
    ),
    "drain": CliCommand("slackwater.cli.drain:drain_main", "hand over a node's leases before it is stopped"),
    "decommission": CliCommand("slackwater.cli.drain:decommission_main", "take a node out of service for good"),
    "refetch": CliCommand(
        "slackwater.cli.refetch:main", "discard a wrong replica and fetch it anew from a healthy one"
    ),
    "recover": CliCommand("slackwater.cli.recover:main", "make a cluster again from surviving stores"),
    "kv": CliCommand("slackwater.cli.kv:main", "read and write plain keys, for trying and debugging"),
    "nats": CliCommand("slackwater.cli.nats:main", "run a local NATS JetStream to use as the log, for trying"),
    "demo": CliCommand(
        "slackwater.demo.command:main", "a shop on three nodes: see follower reads, feeds and Spark at work"
    ),
    "cert": CliCommand("slackwater.cli.cert:main", "create certificates"),
    "bench": CliCommand("slackwater.cli.bench:main", "measure throughput and latency against peers in the same run"),
    "sim": CliCommand("slackwater.sim.command:main", "run the deterministic simulator: seeds, replay, planted bugs"),
    "zone": CliCommand(
        "slackwater.cli.zone:main",
        "say how long history is kept, what is closed and how many replicas there are, by table",
    ),
    "protect": CliCommand("slackwater.cli.protect:protect_main", "keep history of tables from being collected"),
    "release": CliCommand("slackwater.cli.protect:release_main", "let a protection go"),
    "protections": CliCommand(
        "slackwater.cli.protect:list_main", "list what is kept from being collected, for whom, and its size"
    ),
    "settings": CliCommand("slackwater.cli.settings:main", "list every setting with its default, unit and range"),
    "version": CliCommand("slackwater.cli.main:print_version", "print the version"),
}


GROUPS = {
    "run a cluster": ("start", "init", "drain", "decommission", "cert", "nats"),
    "look at one": ("status", "ranges", "frontier", "tables", "describe", "leases", "jobs", "protections", "settings"),
    "use and steer it": ("alter", "index", "changefeed", "kv", "zone", "protect", "release", "refetch", "recover"),
    "try and prove it": ("demo", "sim", "bench", "version"),
}


def print_version(argv: list[str]) -> int:
    """`slackwater version`."""
    from slackwater import __version__

    parser = argparse.ArgumentParser(
        prog="slackwater version", description="Print the version.", epilog="example: slackwater version --json"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    options = parser.parse_args(argv)
    print(json.dumps({"version": __version__}) if options.json else f"slackwater {__version__}")
    return 0


def usage() -> str:
    """The top-level help text."""
    width = max(map(len, COMMANDS))
    lines = [
        "usage: slackwater COMMAND [options]",
        "",
        "A replicated table store that knows which times are finished.",
    ]
    for title, names in GROUPS.items():
        lines += ["", title, *(f"  {name:<{width}}  {COMMANDS[name].help}" for name in names)]
    lines += ["", "`slackwater COMMAND --help` explains each with examples. To see it all at work: slackwater demo"]
    return "\n".join(lines)


def unknown(name: str) -> str:
    """What to say to a command that is none."""
    near = difflib.get_close_matches(name, COMMANDS, n=2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"slackwater: there is no command {name!r}; {hint}`slackwater --help` lists all"


def said(error: SlackwaterError) -> str:
    """An error in one line for people: without facts that the message has told already."""
    facts = {k: v for k, v in error.facts.items() if k != "sent" and str(v) not in error.message}
    told = ", ".join(f"{name}={value!r}" for name, value in facts.items())
    return " ".join(f"{error.message} ({told})".split() if told else error.message.split())


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
        print(unknown(name), file=sys.stderr)
        return 2
    module, _, function = command.target.partition(":")
    try:
        return int(getattr(importlib.import_module(module), function)(rest))
    except SlackwaterError as error:
        print(f"slackwater {name}: {said(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `slackwater ranges | head`: the reader has gone, and that is no error
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - or the interpreter complains when it flushes
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        what = "; name a directory" if isinstance(error, FileExistsError | NotADirectoryError) else ""
        print(f"slackwater {name}: {where}{error.strerror or error}{what}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
