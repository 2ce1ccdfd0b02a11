"""Golden scripts: the specification of a protocol as commands and what they print.

    # Comment lines and blank lines are kept.
    put n1 k=a at=10            # a trailing comment
    !get n2 k=a at=11           # `!` expects an error; the error's class and message become the output
    ---
    the output of all commands since the last block, as recorded

A block is commands, `---`, expected output, and a blank line. A runner is any object with a method per verb
(`do_put(self, *args, **options) -> str | None`; dashes in a verb become underscores). `make rewrite-scripts` (or
`SLACKWATER_REWRITE_SCRIPTS=1`) re-records the outputs; review that diff like code.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from slackwater.errors import SlackwaterError

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT_LINES_MAX = 120


def scripts(folder: str) -> list[Path]:
    """All scripts of one folder; an empty folder is a mistake, not a pass."""
    found = sorted((SCRIPTS / folder).glob("*.txt"))
    assert found, f"no golden scripts in {SCRIPTS / folder}"
    return found


def check(path: Path, runner: object) -> None:
    """Run a script and compare, or re-record it when asked to."""
    recorded = path.read_text()
    actual = run(recorded, runner)
    if os.environ.get("SLACKWATER_REWRITE_SCRIPTS"):
        path.write_text(actual)
        return
    assert actual == recorded, f"{path} differs; if the new output is right: make rewrite-scripts\n{actual}"


def run(text: str, runner: object) -> str:
    """The script with its expected outputs replaced by the real ones."""
    lines = text.splitlines()
    assert len(lines) <= SCRIPT_LINES_MAX, f"a script has one idea and at most {SCRIPT_LINES_MAX} lines"
    out: list[str] = []
    pending: list[str] = []
    skipping = False
    for line in lines:
        if skipping:
            if line.strip():
                continue
            skipping = False
        if line == "---":
            out.append(line)
            out.extend(pending or ["ok"])
            pending, skipping = [], True
            continue
        out.append(line)
        command = re.sub(r"(^|\s)#.*$", "", line).strip()
        if command:
            pending.extend(_run_one(command, runner))
    assert not pending, "the script ends with commands that have no `---` block"
    return "\n".join(out) + "\n"


def _run_one(command: str, runner: object) -> list[str]:
    expect_error = command.startswith("!")
    verb, *words = shlex.split(command.lstrip("!"))
    method = getattr(runner, "do_" + verb.replace("-", "_"))
    options = dict(w.split("=", 1) for w in words if re.match(r"[a-z_]+=", w))
    args = [w for w in words if not re.match(r"[a-z_]+=", w)]
    try:
        result = method(*args, **options)
    except SlackwaterError as error:
        if not expect_error:
            raise AssertionError(f"{command!r} failed: {error}") from error
        return [f"Error: {type(error).__name__}: {error}"]
    assert not expect_error, f"{command!r} was expected to fail"
    return str(result).splitlines() if result is not None else []
