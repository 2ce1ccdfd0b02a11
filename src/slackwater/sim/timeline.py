r"""What happened when, for people: as text, and as a page with a column for every machine.

    t=12.031   n2      begin pause(n2)
    t=12.400   c1      #17 bank
    t=12.518   op      #9 transfer of b'\x04reg/02'

An event belongs to the first machine it names; what names none belongs to the world.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.sim.run import Result

WORLD = "world"
_EVENT = re.compile(r"^t=([0-9.]+) (.*)$", re.DOTALL)
_MACHINE = re.compile(r"\b(n\d+|c\d+|op)\b")
_STYLE = """
body { font: 13px/1.4 system-ui, sans-serif; margin: 2em }
table { border-collapse: collapse }
td, th { border: 1px solid #ddd; padding: 2px 6px; vertical-align: top }
th { position: sticky; top: 0; background: #f4f4f4 }
td.t { text-align: right; font-variant-numeric: tabular-nums; color: #666 }
.fault { background: #fdecea } .end { background: #eef7ee } .last { background: #ffd2cc; font-weight: bold }
"""


def rows(result: Result) -> list[tuple[str, str, str]]:
    """(seconds, machine, text) of every event, and the verdict last."""
    found = []
    for event in result.events:
        match = _EVENT.match(event)
        if match is not None:
            machine = _MACHINE.search(match[2])
            found.append((match[1], machine[1] if machine else WORLD, match[2]))
    if not result.passed:
        found.append((f"{result.sim_seconds:.3f}", WORLD, f"{result.oracle} {result.summary}"))
    return found


def text(result: Result) -> str:
    """One line per event."""
    return "\n".join(f"t={at:>9}  {machine:<6} {what}" for at, machine, what in rows(result))


def page(result: Result) -> str:
    """A page on its own: time runs down, machines stand side by side."""
    events = rows(result)
    machines = {machine for _, machine, _ in events} - {WORLD}
    columns = [*sorted(machines, key=lambda name: (name[0] != "n", name)), WORLD]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("t", *columns))
    lines = []
    for i, (at, machine, what) in enumerate(events):
        last = i == len(events) - 1 and not result.passed
        kind = "last" if last else "fault" if what.startswith("begin ") else "end" if what.startswith("end ") else ""
        cells = "".join(
            f'<td class="{kind}">{html.escape(what)}</td>' if name == machine else "<td></td>" for name in columns
        )
        lines.append(f'<tr><td class="t">{at}</td>{cells}</tr>')
    title = f"seed {result.job.seed} · {html.escape(result.oracle or 'passed')}"
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        f"<p>{html.escape(result.summary)}</p><p>{html.escape(result.scenario)}</p>"
        f"<table><tr>{head}</tr>{''.join(lines)}</table>\n"
    )
