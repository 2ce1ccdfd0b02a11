"""`python -m tests.fuzz --seconds 60`: a siege of three real nodes; exit status 1 when anything broke."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import slackwater
from slackwater.protocol.node.services import STATUS, StatusRequest
from slackwater.server.remote import connect
from tests.fuzz.judge import Beside, Bystander, bystanding, given_up, resident_mb, tracebacks
from tests.fuzz.shapes import Shapes, Words, methods
from tests.fuzz.siege import Siege
from tests.integration.cluster import Processes, client_settings, dialing, spread

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).parent / "corpus"
CONNECTIONS = 8
NODES = 3
UNPACED = {"rpc.refused_per_s": 1e9}
SETTINGS = {"queue.check_interval": 2.0, "storage.block_cache_bytes": 8 << 20}
ATTACKERS_NICE = 10
"""Those who attack have machines of their own; here they take the processor that nodes and the bystander leave."""
MEMORY_GROWTH_MB_MAX = 40.0
"""What the block cache (8 MB here), requests under way and the jobs that fuzzed calls made may take."""


async def main(args: argparse.Namespace) -> dict[str, object]:
    """Build, besiege, judge."""
    args.seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = {**SETTINGS, **(UNPACED if args.unpaced else {})}
        cluster = Processes(directory, nodes=NODES, log_url=f"sqlite://{directory}/log.db", settings=settings)
        async with cluster:
            await cluster.make()
            async with connect(cluster.addresses, settings=client_settings()) as remote:
                await spread(remote, cluster)
            report = await besiege(args, cluster, directory)
            report["crashes"] = tracebacks(directory)
            report["given_up"] = given_up(directory)
            if args.keep:
                shutil.copytree(
                    directory, args.keep, ignore=shutil.ignore_patterns("engine", "*.sock"), dirs_exist_ok=True
                )
    return report


async def besiege(args: argparse.Namespace, cluster: Processes, directory: Path) -> dict[str, object]:
    """The siege itself, beside a bystander."""
    url = "slackwater://" + ",".join(cluster.addresses)
    async with slackwater.aconnect(url, timeout=20) as db:
        bystander = Bystander(db)
        await bystander.prepare()
        await db.create_table("fuzz", {"id": "int8", "s": "text"}, primary_key=["id"])
        await db.upsert("fuzz", [{"id": i, "s": f"row {i}"} for i in range(50)])
        before = await bystander.still()
        shapes = Shapes(args.seed, await words(db, cluster))
        ids = frozenset(range(1, 200))
        avoid = dict.fromkeys(("admin.drain", "admin.decommission", "store.quarantine", "node.hello"), ids)
        siege = Siege(shapes, methods(), avoid=avoid, rate=args.rate / CONNECTIONS)
        for address in cluster.addresses:
            await siege.replay(address, kept())
        pids = [process.pid for process in cluster._processes if process]
        end = time.monotonic() + args.seconds

        def going_on() -> bool:
            return time.monotonic() < end and siege.sent < args.frames

        async with bystanding(url, quiet_s=args.quiet) as beside, asyncio.TaskGroup() as group:
            os.nice(args.nice)
            cpu = cpu_s(pids)
            end = time.monotonic() + args.seconds
            for index in range(CONNECTIONS):
                address = cluster.addresses[index % NODES]
                group.create_task(
                    siege.attack(address, node_id=index % 2 * (1 + index % NODES), noisy=index < 2, going_on=going_on)
                )
            warm = group.create_task(memory_after_warming_up(pids, siege, args))
            seen = await besieged_until(going_on, beside)
            took_s = args.seconds - (end - time.monotonic())
            cores = {name: round((after - cpu[name]) / took_s, 2) for name, after in cpu_s(pids).items()}
        memory = {pid: (warm.result().get(pid, 0.0), resident_mb(pid)) for pid in pids}
        same = await bystander.still() == before
        whole = await all_serving(cluster)
    return {
        "seed": args.seed,
        "unpaced": args.unpaced,
        "frames": siege.sent,
        "answered": siege.answered,
        "reconnects": siege.reconnects,
        "seconds": round(args.seconds - max(0.0, end - time.monotonic()), 1),
        "errors": dict(siege.errors.most_common(12)),
        "bystander_p99_quiet_ms": round(beside.quiet["p99"] * 1000, 2),
        "bystander_p99_siege_ms": round(seen["p99"] * 1000, 2),
        "bystander_p50_ms": [round(beside.quiet["p50"] * 1000, 2), round(seen["p50"] * 1000, 2)],
        "bystander_refused": seen["refused"],
        "cores": cores,
        "samples": {k: v for k, v in siege.samples.items() if "StorageError" in k or "SlackwaterError" in k},
        "bystander_rounds": [beside.quiet["rounds"], seen["rounds"]],
        "slow": seen["slow"],
        "memory_mb": [[round(a), round(b)] for a, b in memory.values()],
        "still_table_same": same,
        "not_serving": whole,
        "recent": [frame.hex() for frame in list(siege.recent)[-3:]],
    }


async def besieged_until(going_on: Callable[[], bool], beside: Beside) -> dict[str, Any]:
    """What the bystander saw until the siege was over."""
    while going_on():
        await asyncio.sleep(0.05)
    return await beside.stop()


async def memory_after_warming_up(pids: list[int], siege: Siege, args: argparse.Namespace) -> dict[int, float]:
    """What each process holds after a fifth of the siege: caches are full by then."""
    end = time.monotonic() + args.seconds / 5
    while time.monotonic() < end and siege.sent < args.frames / 5:
        await asyncio.sleep(0.2)
    return {pid: resident_mb(pid) for pid in pids}


def cpu_s(pids: list[int]) -> dict[str, float]:
    """Processor time so far: of the nodes, of those who attack, and of all processes of this machine."""
    ticks = os.sysconf("SC_CLK_TCK")
    nodes = sum(sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) for pid in pids)
    whole = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    busy = sum(whole[:8]) - whole[3] - whole[4]
    return {"nodes": nodes / ticks, "attackers": time.process_time(), "machine": busy / ticks}


async def words(db: slackwater.AsyncDatabase, cluster: Processes) -> Words:
    """What means something here: ranges, nodes, keys of the table that may be hurt, recent times."""
    now = int(db.now())
    async with dialing() as dialer:
        reply = await dialer.call(cluster.addresses[0], STATUS, StatusRequest(), timeout=10)
    ranges = sorted(r.descriptor.range_id for r in reply.replicas)
    generations = [r.descriptor.generation for r in reply.replicas]
    fuzz = next(t for t in await db.tables() if t.name == "fuzz")
    prefix = b"\x05" + fuzz.table_id.to_bytes(4, "big") + b"\x00\x01"
    keys = [prefix, prefix + b"\xff", b"\x04zz\x00\x01", b"\x04fuzz\x00\x01"]
    keys += [prefix + bytes([0x80, 0, 0, 0, 0, 0, 0, n]) for n in range(3)]
    return Words(
        keys=keys,
        names=["fuzz_a", "fuzz_b", "id", "s"],
        numbers=[*ranges, *generations, fuzz.table_id, 1, 2, 3],
        times=[now, now - (5_000_000 << 10), now + (400_000 << 10)],
    )


async def all_serving(cluster: Processes) -> list[str]:
    """Replicas that do not serve, after they were given a moment to heal."""
    failed: list[str] = []
    async with dialing() as dialer:
        for _ in range(60):
            failed = []
            for address in cluster.addresses:
                reply = await dialer.call(address, STATUS, StatusRequest(), timeout=10)
                failed += [
                    f"n{reply.node_id} r{r.descriptor.range_id}: {r.failure}" for r in reply.replicas if r.failure
                ]
            if not failed:
                break
            await asyncio.sleep(1)
    return failed


def kept() -> list[bytes]:
    """Frames that once crashed a handler."""
    return [bytes.fromhex(path.read_text().strip()) for path in sorted(CORPUS.glob("*.hex"))]


def verdict(report: dict[str, object]) -> list[str]:
    """What broke."""
    broken = []
    if report["crashes"]:
        broken.append(f"{sum(report['crashes'].values())} tracebacks")  # type: ignore[union-attr]
    if not report["still_table_same"] or report["not_serving"]:
        broken.append("the cluster is not the same afterwards")
    growth = max((b - a for a, b in report["memory_mb"]), default=0)  # type: ignore[union-attr]
    if growth > MEMORY_GROWTH_MB_MAX:
        broken.append(f"memory grew by {growth} MB")
    if report["given_up"] and not report["unpaced"]:  # else nodes may well be too busy to answer each other
        broken.append("nodes gave their leases up")
    if report["bystander_refused"]:
        broken.append("the bystander was refused")
    return broken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quiet", type=float, default=5, help="seconds to measure the bystander alone")
    parser.add_argument("--frames", type=int, default=10**9, help="stop after this many")
    parser.add_argument(
        "--rate", type=float, default=0, help="frames a second over all connections; 0: as many as are answered"
    )
    parser.add_argument(
        "--unpaced", action="store_true", help="nodes read peers whose calls are refused as fast as others"
    )
    parser.add_argument(
        "--nice", type=int, default=ATTACKERS_NICE, help="how far those who attack give way to the others"
    )
    parser.add_argument("--keep", type=Path, default=None, help="copy the journals there")
    parser.add_argument("--seed", type=int, default=None)
    chosen = parser.parse_args()
    result = asyncio.run(main(chosen))
    result["broken"] = verdict(result)
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["broken"] else 0)
