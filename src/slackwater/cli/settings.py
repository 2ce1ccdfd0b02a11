"""`slackwater settings`: the table of every tunable, and those that the cluster has set for all its nodes.

slackwater settings [PATTERN]           what there is; asks no node
slackwater settings show | set | unset  what is in force everywhere, whatever nodes were started with
"""

from __future__ import annotations

import argparse

import msgspec

from slackwater.cli.calling import CALL_TIMEOUT_S, calling
from slackwater.errors import UsageError
from slackwater.protocol.node.config import CHANGE_SETTING, READ_SETTINGS, ChangeSetting, SettingsRequest
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments
from slackwater.settings import SETTINGS, Settings, describe

VERBS = ("show", "set", "unset")
TEXT = """\
set and unset change a running cluster: every node obeys within a moment, whatever it was started with, until `unset`.
show prints what was set so. Under TLS all three take an operator's certificate (`slackwater cert create-operator`).

examples:
  slackwater settings closed_timestamp                         what can be set about closed timestamps
  slackwater settings set closed_timestamp.target_duration 1   followers are 1 s behind instead of 3 s, at once
  slackwater settings set closed_timestamp.target_duration 0   nothing is closed any more
  slackwater settings unset closed_timestamp.target_duration   as the nodes were started
  slackwater settings set closed_timestamp.scheme store-wide   choices are set and shown by name
  slackwater settings show --host 127.0.0.1:7401
"""


def main(argv: list[str]) -> int:
    """Print the settings table, or look at and change what holds for the cluster."""
    return _cluster(argv) if argv and argv[0] in VERBS else _table(argv)


def _table(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="slackwater settings",
        usage="slackwater settings [-h] [--json] [PATTERN]\n       slackwater settings {show,set,unset} [--host HOST:PORT] …",
        description="List every setting: default, unit, allowed range, meaning. Or set one on all nodes of a cluster.",
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "pattern", nargs="?", default="", metavar="PATTERN", help="only settings whose name contains this"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per setting")
    options = parser.parse_args(argv)
    chosen = [s for s in SETTINGS if options.pattern in s.name]
    for setting in chosen:
        if options.json:
            print(msgspec.json.encode(setting).decode())
            continue
        bounds = " | ".join(setting.names) or f"{setting.safe[0]:g} … {setting.safe[1]:g}"
        print(f"{setting.name} = {setting.show(setting.default)}   [{bounds}]")
        print(f"    {setting.help}")
    if not chosen:
        raise UsageError(f"no setting has {options.pattern!r} in its name; `slackwater settings` lists all")
    return 0


def _cluster(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="slackwater settings", epilog=TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    show = verbs.add_parser("show", help="what was set for the whole cluster")
    change = verbs.add_parser("set", help="set a value on every node")
    unset = verbs.add_parser("unset", help="let every node go by what it was started with")
    for verb in (change, unset):
        verb.add_argument("name", metavar="NAME", help="of a setting; `slackwater settings` lists them")
    change.add_argument("value", metavar="VALUE", help="in the setting's unit, or the name of a choice")
    for verb in (show, change, unset):
        add_client_arguments(verb)
        verb.add_argument("--json", action="store_true", help="print one JSON object: names and values")
    options = parser.parse_args(argv)
    values = run(_do(options))
    if options.json:
        print(msgspec.json.encode(values).decode())
        return 0
    known = {setting.name: setting for setting in SETTINGS}
    for name, value in sorted(values.items()):
        print(f"{name} = {known[name].show(value) if name in known else f'{value:g}'}")
    if not values:
        print("nothing is set for the whole cluster; nodes go by what they were started with")
    return 0


async def _do(options: argparse.Namespace) -> dict[str, float]:
    """Do it; returns what is set afterwards."""
    value: float | None = None
    if options.verb == "set":
        value = describe(options.name).parse(options.value)
        Settings().set(options.name, value)  # what is wrong is said before a node is asked
    async with calling(options) as dialer:
        if options.verb == "show":
            reply = await dialer.call(options.host, READ_SETTINGS, SettingsRequest(), timeout=CALL_TIMEOUT_S)
        else:
            change = ChangeSetting(options.name, value)
            reply = await dialer.call(options.host, CHANGE_SETTING, change, timeout=CALL_TIMEOUT_S)
    return reply.values
