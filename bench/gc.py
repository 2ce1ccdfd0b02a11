"""What garbage collection gives back: 200 000 rows that were updated 100 times, on one real node. Takes twelve minutes at most.

deep scan    seconds for a scan of the rows under 20 versions each / of a fresh table with the same rows
collected    versions per second, from the first deletion to the last, with nothing else to do; processor time for each
scan after   seconds for a scan when the last version has gone and files were compacted / of a fresh table
scan at once the same in the moment in which the last version went: compaction may be under way
disk         bytes of the store's files afterwards / those of a store that was only ever given the rows
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bench._gc_node import LONG_S, TTL_S, served
from bench.harness import figure, progress
from slackwater.errors import SlackwaterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench._gc_node import Server
    from bench.harness import Figure

DEEP = 20
COLLECTED_S_MAX = 240.0
COMPACTED_S = 10.0
"""A sweep and the compaction that it begins."""
SCANS = 5
FILL_S_MAX = 210.0
"""On a busy machine there are fewer versions, which the figures say, and not more minutes."""
TOLD_VERSIONS = 5
TOLD_S = 10.0


async def measured(*, rows: int, versions: int) -> list[Figure]:
    figures: list[Figure] = []
    async with served() as fresh, served() as old:
        began = time.perf_counter()

        def tell(text: str) -> None:
            progress(f"gc: {text}, {time.perf_counter() - began:.0f} s")

        await fresh.fill(b"t", rows, 1)
        await old.ttl(LONG_S)
        depth = await _fill(old, rows, min(DEEP, versions), tell)
        deep = await _scans(old, fresh, rows)
        figures.append(_figure(f"scan under {depth} versions", deep[0], "s", "fresh", deep[1]))
        depth += await _fill(old, rows, versions - depth, tell)
        before, _ = await old.garbage()
        await old.ttl(TTL_S)
        while (await old.garbage())[0] >= before:
            await asyncio.sleep(0.1)
        before, first, spent_s = (await old.garbage())[0], time.perf_counter(), old.cpu_s()
        await _collected(old, rows, tell)
        took_s, spent_s = time.perf_counter() - first, old.cpu_s() - spent_s
        after, _ = await old.garbage()
        at_once = await _scans(old, fresh, rows, rounds=1)
        figures.append(_figure("collected", (before - after) / took_s, "versions/s", "versions", float(before - after)))
        figures.append(_figure("collected", spent_s / (before - after) * 1e6, "us of processor time", "one", 1.0))
        figures.append(_figure("scan at once", at_once[0], "s", "fresh", at_once[1]))
        await asyncio.sleep(COMPACTED_S)
        later = await _scans(old, fresh, rows)
        figures.append(_figure(f"scan after {depth} versions", later[0], "s", "fresh", later[1], goal=1.2))
        figures.append(await _disk(old, fresh))
    return figures


async def _fill(server: Server, rows: int, versions: int, tell: Callable[[str], None]) -> int:
    """Write every row so many times, or for as long as there is time, and say how far that is; how many times it was."""
    done, until = 0, time.perf_counter() + FILL_S_MAX
    while done < versions and time.perf_counter() < until:
        more = min(TOLD_VERSIONS, versions - done)
        await server.fill(b"t", rows, more)
        done += more
        tell(f"{done} of {versions} versions written")
    return done


async def _collected(server: Server, rows: int, tell: Callable[[str], None]) -> None:
    """Wait until one version of each row is left, or a hundredth more, and say how far that is."""
    until = time.perf_counter() + COLLECTED_S_MAX
    told = time.perf_counter()
    while (left := (await server.garbage())[0]) > rows + rows // 100:
        if time.perf_counter() > until:
            raise RuntimeError(f"{left} versions are left")
        if time.perf_counter() - told >= TOLD_S:
            told = time.perf_counter()
            tell(f"{left:,} versions are left")
        await asyncio.sleep(0.1)


async def _scans(old: Server, fresh: Server, rows: int, *, rounds: int = SCANS) -> tuple[float, float]:
    """The best of some scans of either, in turns."""
    pairs = [(await old.scan_s(b"t", rows, rounds=1), await fresh.scan_s(b"t", rows, rounds=1)) for _ in range(rounds)]
    return min(p[0] for p in pairs), min(p[1] for p in pairs)


async def _disk(old: Server, fresh: Server) -> Figure:
    """Both stores stopped, so that everything is in files."""
    sizes = []
    for server in (old, fresh):
        await asyncio.to_thread(server.stop)
        sizes.append(server.disk_bytes())
    return _figure("disk after", sizes[0], "bytes", "fresh", sizes[1], goal=1.5)


def _figure(metric: str, value: float, unit: str, peer: str, peer_value: float, *, goal: float | None = None) -> Figure:
    return figure("gc", metric, value, unit, peer=peer, peer_value=peer_value, goal=goal, better="lower")


def run(*, quick: bool) -> Iterator[Figure]:
    """Every figure; `quick` is a smoke test."""
    rows, versions = (1_000, 10) if quick else (200_000, 100)
    try:
        yield from asyncio.run(measured(rows=rows, versions=versions))
    except SlackwaterError as error:
        raise SystemExit(f"gc: {error}") from error
