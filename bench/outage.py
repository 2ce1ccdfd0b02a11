"""How long writes stop when something dies or is cut off: real processes, the clock of an application.

    kill, stop, drain, term    of the node that holds the leases of the rows and of range 1, the worst to lose
    unreachable                its port says nothing any more (in), or neither it to others (both), log intact
    full disk                  its store is on a file system that has no room left
    nats follower, leader      kill -9 of a server of the log that does not lead, or does lead, the stream

Each figure is the longest time that any writer went without an acknowledged write, from the fault on; `own` figures are of
clients whose gateway is the very node. The peer is the liveness duration that was set: what a cluster that knows a death by
silence alone cannot beat; for the log's servers, how long the stream itself gave no answer in the same run: NATS elects
another leader after 4 to 9 s, which cannot be set. `bench._outage` says how it is measured.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import nats
import nats.errors

from bench._links import CLIENTS
from bench._load import disk
from bench._outage import NODES, SYSTEM_RANGES, Nodes, Writer, writing
from bench.harness import Figure, figure
from slackwater.log.nats_server import LocalNats
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.runtime import run as run_main
from slackwater.runtime.clock import RealClock
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    Fault = Callable[[Nodes, int], Awaitable[None]]

CALM_S = 4.0
"""Writers run this long before the fault."""
WATCHED_S = 20.0
FULL_BYTES = 48 << 20
GOALS = {
    "kill": 3.0,
    "stop": 5.0,
    "drain": 0.3,
    "term": 0.3,
    "unreachable": 10.0,
    "full": 10.0,
    "nats follower": 0.5,
    "nats leader": 3.0,
}
"""Goals in seconds, by kind of outage."""


class Outage(NamedTuple):
    """The longest time without an acknowledged write."""

    others_s: float
    own_s: float
    """Of clients whose gateway was the very node."""
    log_s: float = 0.0
    """How long the log itself gave no answer, where that was measured."""


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures; `quick`: one round each over a sqlite log, without NATS."""
    rounds = 1 if quick else 3
    for name, fault in FAULTS.items():
        if name != "stop":
            yield from _figures(name, [run_main(_sqlite(fault)) for _ in range(rounds)])
    yield from _figures("full", [run_main(_full()) for _ in range(rounds)])
    if quick:
        return
    yield from _figures("stop", [run_main(_nats(_stop)) for _ in range(rounds)])
    for name, leads in (("nats follower", False), ("nats leader", True)):
        yield from _figures(name, [run_main(_nats_server(leads=leads)) for _ in range(rounds)])


def _figures(name: str, rounds: list[Outage]) -> Iterator[Figure]:
    goal_s = GOALS[name.partition(" (")[0]]
    peer, limit = "liveness.duration", Settings()["liveness.duration"]
    if name.startswith("nats"):
        peer, limit = "the stream itself takes none", max(found.log_s for found in rounds)
    for metric, worst in (
        (name, max(found.others_s for found in rounds)),
        (f"{name}, own clients", max(found.own_s for found in rounds)),
    ):
        if metric == name or not name.startswith("nats"):
            yield figure("outage", metric, worst, "s", peer=peer, peer_value=limit, goal=goal_s / limit, better="lower")


async def _kill(nodes: Nodes, victim: int) -> None:
    nodes.signal(victim, signal.SIGKILL)


async def _stop(nodes: Nodes, victim: int) -> None:
    nodes.signal(victim, signal.SIGSTOP)


async def _term(nodes: Nodes, victim: int) -> None:
    nodes.signal(victim, signal.SIGTERM)


async def _drain(nodes: Nodes, victim: int) -> None:
    await nodes.drain(victim)


async def _cut_in(nodes: Nodes, victim: int) -> None:
    nodes.links.cut({(by, victim) for by in (CLIENTS, *range(NODES)) if by != victim})


async def _cut_both(nodes: Nodes, victim: int) -> None:
    others = [index for index in range(NODES) if index != victim]
    nodes.links.cut({(by, victim) for by in (CLIENTS, *others)} | {(victim, to) for to in others})


FAULTS: dict[str, Fault] = {
    "kill": _kill,
    "stop": _stop,
    "drain": _drain,
    "term": _term,
    "unreachable (in)": _cut_in,
    "unreachable (both)": _cut_both,
}


@asynccontextmanager
async def _directory() -> AsyncIterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="slackwater-outage-", dir=disk()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _sqlite(fault: Fault) -> Outage:
    async with _directory() as directory:
        return await _measured(Nodes(directory, f"sqlite://{directory}/log.db"), fault)


async def _measured(nodes: Nodes, fault: Fault) -> Outage:
    """Make a cluster, write, do something to it, and look on."""
    try:
        await nodes.make()
        async with writing(nodes) as writers:
            await asyncio.sleep(CALM_S)
            victim = await _victim(nodes)
            await asyncio.sleep(CALM_S / 4)
            begin = time.monotonic()
            await fault(nodes, victim)
            await asyncio.sleep(WATCHED_S)
            return _longest(writers, victim, begin)
    finally:
        await nodes.close()


def _longest(writers: list[Writer], victim: int, begin: float) -> Outage:
    end = time.monotonic()
    others = max(w.longest(begin, end) for w in writers if w.gateway != victim)
    own = max((w.longest(begin, end) for w in writers if w.gateway == victim), default=0.0)
    return Outage(others, own)


async def _victim(nodes: Nodes) -> int:
    """The node that leads the newest range, which is where the rows are; it is made to lead the first one, too."""
    holders = await nodes.holders()
    victim = holders[max(r for r in holders if r >= SYSTEM_RANGES)]
    if holders[FIRST_RANGE] != victim:
        await nodes.lead(FIRST_RANGE, victim)
    return victim


async def _full() -> Outage:
    """n1's store lies on a small file system; everything else on a large one."""
    async with _directory() as directory:
        small = directory / "small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={FULL_BYTES}", "tmpfs", str(small)], check=True)
        try:
            nodes = Nodes(directory, f"sqlite://{directory}/log.db", stores={0: small / "n1"})
            return await _measured(nodes, lambda _, __: _fill(small))
        finally:
            subprocess.run(["umount", "-l", str(small)], check=True)


async def _fill(small: Path) -> None:
    block = bytes(1 << 20)
    with (small / "filler").open("wb", buffering=0) as filler:
        while True:
            try:
                if filler.write(block) < len(block):
                    return
            except OSError:
                return


async def _nats(fault: Fault) -> Outage:
    """Over a log of its own: a frozen process may hold the lock of a sqlite file, and then stops all writers."""
    async with _directory() as directory, LocalNats(directory / "nats", servers=3, clock=RealClock()) as servers:
        return await _measured(Nodes(directory, servers.url(stream="outage")), fault)


async def _nats_server(*, leads: bool) -> Outage:
    """Kill a server; beside the writers, a bare client asks the stream itself all the time."""
    async with _directory() as directory, LocalNats(directory / "nats", servers=3, clock=RealClock()) as servers:
        begun: list[float] = []
        asking: list[asyncio.Task[None]] = []
        answers: list[float] = []

        async def fault(nodes: Nodes, victim: int) -> None:
            leader = await servers.leader_of("outage")
            assert leader is not None, "the stream has no leader before anything was done to it"
            killed = leader if leads else (leader + 1) % 3
            others = [address for index, address in enumerate(servers.addresses) if index != killed]
            asking.append(asyncio.get_running_loop().create_task(_ask_stream(others, answers)))
            await asyncio.sleep(0.5)
            begun.append(time.monotonic())
            servers.kill(killed)

        found = await _measured(Nodes(directory, servers.url(stream="outage")), fault)
        asking[0].cancel()
        marks = [begun[0], *(t for t in answers if t > begun[0])]
        return found._replace(log_s=max(later - earlier for earlier, later in pairwise(marks)))


async def _ask_stream(servers: list[str], answers: list[float]) -> None:
    """Note every moment at which the stream's leader answered."""
    client = await nats.connect(servers)
    try:
        while True:
            with suppress(nats.errors.Error, OSError):
                answer = await client.request("$JS.API.STREAM.MSG.GET.outage", b'{"seq": 1}', timeout=0.1)
                if answer.data:
                    answers.append(time.monotonic())
            await asyncio.sleep(0.02)
    finally:
        await client.close()
