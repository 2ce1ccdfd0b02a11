"""Real processes under a bank, kills, and ranges that never stop splitting and merging; run by hand, for minutes.

    python -m tests.integration.stress --log sqlite --seconds 240
    python -m tests.integration.stress --log nats --seconds 240 --keep /tmp/run

    clients     8, transfers and audits of `bank.py`, all night
    reshaper    splits or merges somewhere in the accounts every moment, beside the cluster's own queues
    faults      kill -9, pause, a long absence, a blackout, a log server (`test_cluster_bank.Faults`)
    watchdog    after `--stall` seconds without a commit every node writes its state and tasks to its journal

At the end the whole history is judged and all replicas are compared, as in the test. What this adds to the test is the
rate of merges, and that stalls can be looked into: the directory stays if `--keep` names one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from slackwater.errors import SlackwaterError
from slackwater.log.nats_server import LocalNats
from slackwater.runtime import run
from slackwater.runtime.clock import RealClock
from slackwater.server.remote import connect
from tests.integration.bank import Bank, account
from tests.integration.cluster import Processes, client_settings, merge, split, spread
from tests.integration.digests import digests
from tests.integration.test_cluster_bank import ACCOUNTS, CLIENTS, PATIENCE_S, Faults

RESHAPE_PAUSE_S = 0.3
STALL_TOLD_S = 2.5


class Reshaper:
    """Splits and merges without end."""

    def __init__(self, seed: int, *, pause: float) -> None:
        self.random = random.Random(seed)
        self.pause = pause
        self.done: dict[str, int] = {}
        self.stopping = False

    async def run(self, remote) -> None:
        while not self.stopping:
            work = self.random.choice([split, merge])
            try:
                await work(remote, account(self.random.randrange(ACCOUNTS)))
                name = work.__name__
            except SlackwaterError as error:
                name = f"{work.__name__}: {type(error).__name__}"
            self.done[name] = self.done.get(name, 0) + 1
            await asyncio.sleep(self.random.uniform(0, 2 * self.pause))


class Watchdog:
    """Tells when nothing commits any more, and has every node say what it waits for. A blackout is no stall."""

    def __init__(self, bank: Bank, cluster: Processes, faults: Faults, *, stall: float, began: float) -> None:
        self.bank, self.cluster, self.faults = bank, cluster, faults
        self.stall, self.began = stall, began
        self.stalls: list[tuple[float, str]] = []
        """Seconds without a commit, longer than STALL_TOLD_S, and what was done to the cluster when they began."""

    async def run(self) -> None:
        seen, since, told, cause = self.bank.done, time.monotonic(), False, ""
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            if self.bank.done != seen or self.faults.current == "blackout":
                if now - since > STALL_TOLD_S:
                    self.stalls.append((round(now - since, 1), cause))
                if told:
                    say(self.began, f"going on after {now - since:.1f} s")
                seen, since, told, cause = self.bank.done, now, False, self.faults.current
            elif now - since > self.stall and not told:
                told = True
                at = time.strftime("%H:%M:%S", time.gmtime())
                say(self.began, f"no commit for {now - since:.1f} s after {cause or 'nothing'}; {at}")
                for index in range(len(self.cluster.addresses)):
                    if self.cluster.running(index):
                        self.cluster.dump(index)


def say(began: float, text: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)


async def stress(cluster: Processes, faults: Faults, options: argparse.Namespace) -> list[str]:
    began = time.monotonic()
    await cluster.make()
    await cluster.wait_live()
    async with connect(cluster.addresses, settings=client_settings()) as remote:
        bank = Bank(accounts=ACCOUNTS, seed=options.seed)
        for n in range(1, 6):
            await split(remote, account(n * ACCOUNTS // 6))
        await spread(remote, cluster)
        await bank.load(remote)
        reshaper = Reshaper(options.seed, pause=options.pause)
        side = [asyncio.ensure_future(reshaper.run(remote))]
        side += [
            asyncio.ensure_future(bank.client(remote, n, timeout=PATIENCE_S[n % len(PATIENCE_S)]))
            for n in range(CLIENTS)
        ]
        dog = Watchdog(bank, cluster, faults, stall=options.stall, began=began)
        watch = asyncio.ensure_future(dog.run())
        try:
            if options.calm:
                await asyncio.sleep(options.seconds)
            else:
                await faults.run(options.seconds, remote)
            await cluster.wait_live()
            await bank.progress(CLIENTS)
        finally:
            reshaper.stopping = True
            bank.stopping.set()
            watch.cancel()
            await asyncio.gather(*side)
            say(began, f"{bank.summary()}\n          faults {faults.done}\n          reshaped {reshaper.done}")
            say(began, f"stalls {sorted(dog.stalls, reverse=True)[:10]}")
        problems = bank.judge(await bank.versions(remote))
        copies = await digests(remote)
        problems += [f"replicas differ: {at}" for at, different in copies.items() if len(different) > 1]
        say(began, f"judged: {len(problems)} problems, {len(copies)} ranges")
        return problems


async def main(options: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        directory = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        servers = None
        url = f"sqlite://{directory}/log.db"
        if options.log == "nats":
            servers = await stack.enter_async_context(LocalNats(directory / "nats", servers=3, clock=RealClock()))
            url = servers.url(stream="bank")
        cluster = await stack.enter_async_context(Processes(directory, nodes=3, log_url=url))
        problems = await stress(cluster, Faults(cluster, options.seed, servers=servers), options)
        for problem in problems[:20]:
            print(problem)
        return 1 if problems else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", choices=["sqlite", "nats"], default="sqlite")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFF)
    parser.add_argument("--pause", type=float, default=RESHAPE_PAUSE_S, help="mean seconds between reshapings")
    parser.add_argument("--stall", type=float, default=4.0, help="seconds without a commit that are worth a dump")
    parser.add_argument("--calm", action="store_true", help="no faults, only splits and merges")
    parser.add_argument("--keep", default="", help="a directory for stores and journals that stays")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(run(main(parse(sys.argv[1:]))))
