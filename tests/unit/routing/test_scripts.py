"""Golden scripts of the range cache, the division of batches, and routes: `tests/scripts/routing/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.errors import UsageError
from slackwater.model.descriptors import Generation, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.txns import Resolution, TxnStatus
from slackwater.protocol.range import requests
from slackwater.routing.range_cache import RangeCache
from slackwater.routing.route import Route
from slackwater.routing.split import divide, take
from tests import golden

if TYPE_CHECKING:
    from pathlib import Path


def descriptor(name: str, span: str, gen: str, on: str) -> RangeDescriptor:
    start, end = span.encode().split(b"-")
    nodes = tuple(NodeId(int(n)) for n in on.split(","))
    return RangeDescriptor(RangeId(int(name[1:])), start, end, nodes, Generation(int(gen)))


def show(d: RangeDescriptor | None) -> str:
    return f"r{d.range_id} [{d.start.decode()}, {d.end.decode()}) gen={d.generation}" if d else "unknown"


def show_request(request: requests.Request) -> str:
    name = type(request).__name__
    match request:
        case requests.PutRows(keys=keys):
            return f"{name} {' '.join(k.decode() for k in keys)}"
        case requests.ResolveIntents(keys=keys, spans=spans):
            return (
                f"{name} {' '.join([*(k.decode() for k in keys), *(f'{s.decode()}-{e.decode()}' for s, e in spans)])}"
            )
        case requests.Scan(start, end) | requests.ReverseScan(start, end) | requests.DeleteRange(start, end):
            return f"{name} {start.decode()}-{end.decode()}"
        case requests.Get(key) | requests.Put(key=key):
            return f"{name} {key.decode()}"
    return name


def parse(words: tuple[str, ...]) -> requests.Request:
    verb, *args = words
    keys = [a.encode() for a in args]
    if verb in ("scan", "reverse-scan", "delete-range"):
        start, end = keys[0].split(b"-")
        kind = {"scan": requests.Scan, "reverse-scan": requests.ReverseScan, "delete-range": requests.DeleteRange}[verb]
        return kind(start, end)
    if verb == "rows":
        return requests.PutRows(keys, [b"v"] * len(keys))
    if verb == "resolve":
        spans = tuple(tuple(k.split(b"-")) for k in keys if b"-" in k)
        points = tuple(k for k in keys if b"-" not in k)
        return requests.ResolveIntents(Resolution(b"x" * 16, 0, TxnStatus.ABORTED), keys=points, spans=spans)  # type: ignore[arg-type]
    if verb == "end":
        return requests.EndTxn(commit=True)
    return {"get": requests.Get(keys[0]), "put": requests.Put(keys[0], b"v")}[verb]


class Runner:
    """Verbs: cache, insert, evict, lookup, below, learn, forget, show; ask, divide, walk; route, next, refused."""

    def __init__(self) -> None:
        self.cache = RangeCache(entries_max=100)
        self.known: dict[str, RangeDescriptor] = {}
        self.batch: list[requests.Request] = []
        self.route = Route(list, by_follower=False)

    # --- the cache

    def do_cache(self, entries: str) -> None:
        self.cache = RangeCache(entries_max=int(entries))

    def do_insert(self, name: str, span: str, gen: str, on: str = "1,2,3") -> str:
        made = self.known[name] = descriptor(name, span, gen, on)
        return f"{show(made)}: {'kept' if self.cache.insert(made) else 'refused, something newer is there'}"

    def do_evict(self, name: str, gen: str = "") -> None:
        known = self.known[name]
        self.cache.evict(
            known
            if not gen
            else RangeDescriptor(known.range_id, known.start, known.end, known.replicas, Generation(int(gen)))
        )

    def do_lookup(self, *keys: str) -> str:
        return "\n".join(f"{key}: {show(self.cache.lookup(key.encode()))}" for key in keys)

    def do_below(self, *keys: str) -> str:
        return "\n".join(f"below {key}: {show(self.cache.lookup_below(key.encode()))}" for key in keys)

    def do_learn(self, name: str, node: str) -> None:
        self.cache.learn_leaseholder(self.known[name], NodeId(int(node[1:])))

    def do_forget(self, name: str, node: str) -> None:
        self.cache.forget_leaseholder(self.known[name].range_id, NodeId(int(node[1:])))

    def do_show(self) -> str:
        lines = []
        for start in self.cache._starts:
            d = self.cache._by_start[start]
            holder = self.cache.leaseholder(d.range_id)
            lines.append(f"{show(d)} lease={f'n{holder}' if holder else '?'}")
        return "\n".join(lines) or "empty"

    # --- division

    def do_ask(self, *words: str) -> None:
        self.batch.append(parse(words))

    def do_divide(self, home: str = "") -> str:
        talk = divide(self.batch, home=home.encode())
        asked = []
        try:
            key = next(talk)
            while True:
                asked.append(key.decode())
                found = self.cache.lookup(key)
                if found is None:
                    raise UsageError("no range", key=key)
                key = talk.send(found)
        except StopIteration as done:
            division = done.value
        self.batch = []
        lines = [f"located: {' '.join(asked)}"]
        for share in division.shares:
            what = ", ".join(show_request(r) for r in share.requests)
            lines.append(f"r{share.descriptor.range_id} (first {share.first_index}): {what}")
        places = [
            "+".join(f"r{division.shares[s].descriptor.range_id}.{at}" for s, at in where) for where in division.places
        ]
        lines.append(f"results from: {' | '.join(places)}")
        return "\n".join(lines)

    def do_walk(self) -> str:
        (request,) = self.batch
        self.batch = []
        lines = []
        rest: requests.Request | None = request
        while rest is not None:
            back = isinstance(rest, requests.ReverseScan)
            found = self.cache.lookup_below(rest.end) if back else self.cache.lookup(rest.start)
            assert found is not None
            piece, rest = take(rest, found, home=b"")
            lines.append(f"r{found.range_id}: {show_request(piece)}")
        return "\n".join(lines)

    # --- routes

    def do_route(self, *nodes: str, follower: str = "no", first: str = "n0") -> None:
        candidates = [NodeId(int(n[1:])) for n in nodes]
        self.route = Route(lambda: candidates, by_follower=follower == "yes", first=NodeId(int(first[1:])))

    def do_next(self) -> str:
        node = self.route.next()
        return "the round is over" if node is None else f"try n{node}{' as follower' if self.route.by_follower else ''}"

    def do_refused(self, node: str, hint: str = "n0") -> str:
        self.route.refused(NodeId(int(node[1:])), hint=NodeId(int(hint[1:])))
        return self.route.status()


@pytest.mark.parametrize("path", golden.scripts("routing"), ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
