"""A consumer of a change feed in a process of its own: reads and counts, and prints what it was asked for.

`python -m bench._feed_reader ADDRESS`: follows the plain key space from now on, prints one line once it is live, and
when its standard input ends, one JSON line: events seen, bytes, and the lags of its resolved timestamps in seconds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from slackwater.clock.timestamp import seconds_between
from slackwater.feeds.client import Checkpoint, FeedClient
from slackwater.feeds.links import RpcLinks
from slackwater.model.layout import KV, prefix_span
from slackwater.runtime import run
from slackwater.server.remote import connect
from slackwater.settings import Settings

CHECKOUT = Path(__file__).resolve().parents[1]


class ReaderProcess:
    """A consumer in a process of its own."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "bench._feed_reader", address]
        self._process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != b"live":
            raise RuntimeError("the reader did not start; its error is above")

    def stop(self) -> dict[str, object]:
        """End it; what it saw."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        line = self._process.stdout.readline()
        self._process.wait()
        report: dict[str, object] = json.loads(line)
        return report


async def follow(address: str) -> None:
    """Read until standard input ends."""
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with connect([address]) as remote:
        client = FeedClient(
            sender=remote.sender,
            links=RpcLinks(remote.dialer, remote.book.resolve),
            runtime=remote.runtime,
            settings=Settings(),
            scope=remote.scope.child("feeds"),
        )
        events = size = 0
        lags: list[float] = []
        began = remote.clock.now()
        live = False
        async with client.watch([prefix_span(KV)], after=began) as feed:
            while True:
                taking = asyncio.ensure_future(anext(feed))
                await asyncio.wait([ended, taking], return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    break
                event = taking.result()
                if isinstance(event, Checkpoint):
                    if event.moved:
                        lags.append(seconds_between(event.resolved, remote.clock.now()))
                    if not live and event.resolved > began:
                        live = True
                        print("live", flush=True)
                else:
                    events += len(event)
                    size += event.size()
    print(json.dumps({"events": events, "bytes": size, "lags": lags}), flush=True)


if __name__ == "__main__":
    run(follow(sys.argv[1]))
