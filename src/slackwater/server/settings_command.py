"""`slackwater settings`: the table of every tunable."""

from __future__ import annotations

import argparse

import msgspec

from slackwater.settings import SETTINGS


def main(argv: list[str]) -> int:
    """Print the settings table."""
    parser = argparse.ArgumentParser(
        prog="slackwater settings", description="List every setting: default, unit, allowed range, meaning."
    )
    parser.add_argument("pattern", nargs="?", default="", help="only settings whose name contains this")
    parser.add_argument("--json", action="store_true", help="one JSON object per setting")
    options = parser.parse_args(argv)
    chosen = [s for s in SETTINGS if options.pattern in s.name]
    for setting in chosen:
        if options.json:
            print(msgspec.json.encode(setting).decode())
            continue
        print(f"{setting.name} = {setting.default:g} {setting.unit}   [{setting.safe[0]:g} … {setting.safe[1]:g}]")
        print(f"    {setting.help}")
    return 0 if chosen else 1
