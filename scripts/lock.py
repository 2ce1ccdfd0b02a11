"""Keeps the two lock files, and reads them.

    python scripts/lock.py refresh           resolve again with uv; writes uv.lock and requirements.lock
    python scripts/lock.py select dev nats   print the pins the package and these extras need

`uv.lock` is the resolution; `requirements.lock` is its export with hashes, which both `uv pip` and `pip` install from.
The project may not name a registry's host, and uv writes one on nearly every line, so `refresh` rewrites uv.lock to
point at a local directory `.wheelhouse` (same files, same hashes). uv reads that form; `make wheelhouse` fills the
directory for a machine that has no registry at all, and `uv sync --frozen` then works offline.

Only the standard library is used here: `select` runs before the environment exists.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV_LOCK = ROOT / "uv.lock"
REQUIREMENTS = ROOT / "requirements.lock"


def normal(name: str) -> str:
    """A distribution's name as the lock files spell it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", name.strip())[0]).lower()


def without_hosts(text: str) -> str:
    """uv.lock with every download address replaced by a path into `.wheelhouse`."""
    text = re.sub(r'registry = "https?://[^"]*"', 'registry = ".wheelhouse"', text)
    text = re.sub(r'url = "https?://[^"]*/([^/"]+)"', r'path = "\1"', text)
    if re.search(r"https?://", text):
        raise SystemExit("uv.lock still names a host; teach scripts/lock.py about it")
    return text


def refresh() -> None:
    """Resolve from scratch and write both files."""
    UV_LOCK.unlink(missing_ok=True)
    subprocess.run(["uv", "lock", "--quiet"], cwd=ROOT, check=True)
    export = ["uv", "export", "--quiet", "--frozen", "--all-extras", "--no-emit-project", "--no-header"]
    exported = subprocess.run(export, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    REQUIREMENTS.write_text("# Made by `make lock` from uv.lock; both pip and uv install from it.\n" + exported)
    UV_LOCK.write_text(without_hosts(UV_LOCK.read_text()))


def entries(text: str) -> dict[str, tuple[str, set[str]]]:
    """Each pinned distribution: its lines, and the distributions that asked for it."""
    found: dict[str, tuple[str, set[str]]] = {}
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", text)
    for block in blocks[1:]:
        parents = {normal(m) for m in re.findall(r"(?m)^    #(?: via|  ) (\S+)$", block)}
        lines = "".join(line + "\n" for line in block.splitlines() if not line.startswith("    #"))
        # A distribution may stand there twice, under different markers.
        before, asked = found.get(normal(block), ("", set()))
        found[normal(block)] = (before + lines, asked | parents)
    return found


def select(extras: list[str]) -> str:
    """The part of requirements.lock that the package with these extras needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        if extra not in project["optional-dependencies"]:
            raise SystemExit(f"there is no extra {extra!r}; there are {', '.join(project['optional-dependencies'])}")
        wanted += project["optional-dependencies"][extra]
    locked = entries(REQUIREMENTS.read_text())
    chosen = {normal(w) for w in wanted}
    missing = chosen - locked.keys()
    if missing:
        raise SystemExit(f"{', '.join(sorted(missing))} are not in requirements.lock; run `make lock`")
    while True:
        more = {name for name, (_, parents) in locked.items() if name not in chosen and parents & chosen}
        if not more:
            return "".join(locked[name][0] for name in sorted(chosen))
        chosen |= more


def main(argv: list[str]) -> int:
    """Command line."""
    if argv[:1] == ["refresh"]:
        refresh()
    elif argv[:1] == ["select"]:
        sys.stdout.write(select(argv[1:]))
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
