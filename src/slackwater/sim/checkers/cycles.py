"""Cycles in a dependency graph, and what kind of anomaly each one is.

Nodes are transactions, numbered from 0. An edge A → B says that A comes before B in every serial order that explains
what was seen:

    ww   B made the version after A's          rw   B made the version after the one A read
    wr   B read the version A made             rt   A returned before B was invoked

A cycle means that no serial order exists. The kinds are Adya's, strongest first:

    G0         only ww                 dirty write
    G1c        ww and wr               circular information flow
    G-single   exactly one rw          lost update, read skew, fuzzy read
    G2         two or more rw          write skew and the rest

`-realtime` is added when the cycle needs rt edges. The search first peels away every node that is on no cycle (Kahn:
one pass, and for a healthy history the only one), splits the rest into strongly connected components (Tarjan), and
in each component looks for the strongest kind, then for a short cycle of that kind by breadth-first search.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WW, WR, RW, RT = 0, 1, 2, 3
EDGE_NAMES = ("ww", "wr", "rw", "rt")

STARTS_MAX = 512
"""Starting points tried when looking for the shortest cycle of a component; more only makes the cycle shorter."""

Edges = list[list[int]]
"""Outgoing edges per node; each is `target << 2 | kind`."""


class Cycle(NamedTuple):
    """A cycle as (from, edge kind, to) steps, and its class."""

    kind: str
    steps: list[tuple[int, int, int]]


def find_cycles(edges: Edges) -> list[Cycle]:
    """One classified cycle for each strongly connected component."""
    return [_classify(set(component), edges) for component in components(_on_cycles(edges), edges)]


def _on_cycles(edges: Edges) -> list[int]:
    """Nodes left after repeatedly removing those that nothing points at."""
    indegree = [0] * len(edges)
    for out in edges:
        for edge in out:
            indegree[edge >> 2] += 1
    ready = [node for node, count in enumerate(indegree) if not count]
    for node in ready:  # grows while it is walked
        for edge in edges[node]:
            target = edge >> 2
            indegree[target] -= 1
            if not indegree[target]:
                ready.append(target)
    return [node for node, count in enumerate(indegree) if count] if len(ready) < len(edges) else []


def components(nodes: list[int], edges: Edges, kinds: frozenset[int] = frozenset((WW, WR, RW, RT))) -> list[list[int]]:
    """Strongly connected components of two or more of `nodes`, along edges of `kinds` (Tarjan without recursion)."""
    inside = set(nodes)
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    found: list[list[int]] = []
    for root in nodes:
        if root in order:
            continue
        work = [(root, 0)]
        while work:
            node, place = work.pop()
            if place == 0:
                order[node] = low[node] = len(order)
                path.append(node)
                on_path.add(node)
            out = edges[node]
            while place < len(out):
                target = out[place] >> 2
                place += 1
                if out[place - 1] & 3 not in kinds or target not in inside:
                    continue
                if target not in order:
                    work += [(node, place), (target, 0)]
                    break
                if target in on_path:
                    low[node] = min(low[node], order[target])
            else:
                _close(node, order, low, path, on_path, found)
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
    return found


def _close(
    node: int, order: dict[int, int], low: dict[int, int], path: list[int], on_path: set[int], found: list[list[int]]
) -> None:
    """All of `node`'s edges are walked: if it is the root of a component, take the component off the path."""
    if low[node] != order[node]:
        return
    component = [path.pop()]
    while component[-1] != node:
        component.append(path.pop())
    on_path.difference_update(component)
    if len(component) > 1:
        found.append(component)


def _classify(component: set[int], edges: Edges) -> Cycle:
    for clocked, suffix in ((frozenset[int](), ""), (frozenset((RT,)), "-realtime")):
        for kinds, name in ((frozenset((WW,)), "G0"), (frozenset((WW, WR)), "G1c")):
            steps = _shortest(component, edges, kinds | clocked)
            if steps:
                return Cycle(name + suffix, steps)
        steps = _with_one_rw(component, edges, frozenset((WW, WR)) | clocked)
        if steps:
            return Cycle("G-single" + suffix, steps)
        steps = _shortest(component, edges, frozenset((WW, WR, RW)) | clocked)
        if steps:
            return Cycle("G2" + suffix, steps)
    raise AssertionError("a strongly connected component has a cycle")


def _shortest(component: set[int], edges: Edges, kinds: frozenset[int]) -> list[tuple[int, int, int]]:
    best: list[tuple[int, int, int]] = []
    for part in components(sorted(component), edges, kinds):
        inside = set(part)
        for start in part[:STARTS_MAX]:
            steps = _path(start, start, inside, edges, kinds)
            if steps and (not best or len(steps) < len(best)):
                best = steps
    return best


def _with_one_rw(component: set[int], edges: Edges, kinds: frozenset[int]) -> list[tuple[int, int, int]]:
    best: list[tuple[int, int, int]] = []
    for node in sorted(component):
        for edge in edges[node]:
            if edge & 3 == RW and edge >> 2 in component:
                back = _path(edge >> 2, node, component, edges, kinds)
                if back and (not best or len(back) + 1 < len(best)):
                    best = [(node, RW, edge >> 2), *back]
        if len(best) == 2:
            break  # no cycle is shorter
    return best


def _path(start: int, goal: int, inside: set[int], edges: Edges, kinds: frozenset[int]) -> list[tuple[int, int, int]]:
    """The shortest path of one or more edges from `start` to `goal`."""
    came: dict[int, tuple[int, int, int]] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for edge in edges[node]:
            target, kind = edge >> 2, edge & 3
            if kind not in kinds or target not in inside or target in came:
                continue
            came[target] = (node, kind, target)
            if target == goal:
                return _unwind(came, start, goal)
            queue.append(target)
    return []


def _unwind(came: dict[int, tuple[int, int, int]], start: int, goal: int) -> list[tuple[int, int, int]]:
    steps = [came[goal]]
    while steps[-1][0] != start:
        steps.append(came[steps[-1][0]])
    steps.reverse()
    return steps
