"""`slackwater bench`: run benchmarks and print each figure beside its peer and its goal.

The benchmarks live in `bench/` of the source checkout, not in the installed package: they need peers (PostgreSQL,
gRPC) that installing a database should not bring along. Each figure is a ratio to a peer measured in the same run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import msgspec

from slackwater.errors import UsageError

CHECKOUT = Path(__file__).resolve().parents[3]


def main(argv: list[str]) -> int:
    """Run the named benchmarks (all without names)."""
    names = _available()
    parser = argparse.ArgumentParser(
        prog="slackwater bench",
        description="Measure, as ratios to peers and physical limits measured in the same run.",
        epilog="example: slackwater bench storage codec --json | jq .ratio",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(names)} (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test, not a measurement")
    options = parser.parse_args(argv)
    unknown = [n for n in options.names if n not in names]
    if unknown:
        raise UsageError(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(names)}")
    for name in options.names or names:
        if not options.json:
            print(f"\n{name}", flush=True)
        for figure in _load(name).run(quick=options.quick):
            print(msgspec.json.encode(figure).decode() if options.json else _line(figure), flush=True)
    return 0


def _available() -> list[str]:
    folder = CHECKOUT / "bench"
    if not folder.is_dir():
        raise UsageError("benchmarks run from a source checkout; clone the repository and use `make bench`")
    return sorted(
        p.stem for p in folder.glob("*.py") if p.stem not in {"__init__", "harness"} and not p.stem.startswith("_")
    )


def _load(name: str) -> Any:
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    try:
        return importlib.import_module(f"bench.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(f"benchmark {name} needs {error.name}; `make bench` installs it") from error


def _line(figure: Any) -> str:
    goal = ""
    if figure.goal is not None:
        sign = "≥" if figure.better == "higher" else "≤"
        goal = f"  goal {sign} {figure.goal:g} {'met' if figure.met else 'MISSED'}"
    error = "" if figure.error is None else f" ± {figure.error:.3f}"
    return (
        f"  {figure.metric:<44} {figure.value:>14,.1f} {figure.unit:<10} "
        f"{figure.ratio:>8.{2 if figure.error is None else 3}f}{error} × {figure.peer} ({figure.peer_value:,.1f}){goal}"
    )
