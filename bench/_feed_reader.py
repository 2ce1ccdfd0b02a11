r"""A consumer of a change feed in a process of its own: reads and counts, and prints what it was asked for.

    benchmark ── "begin\n" ──► reader        follow the plain key space from a moment ago on
              ◄── "live\n" ──                 it does
              ── "end\n" ──►                  stop
              ◄── one JSON line ──             events seen, bytes, and the lags of its resolved timestamps in seconds

`python -m bench._feed_reader ADDRESS` obeys until its standard input ends. One process for many rounds: starting one costs a
second of a processor, which the rounds beside it would notice.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import add_seconds, seconds_between
from slackwater.codec.layout import KV, prefix_span
from slackwater.feeds.client import Checkpoint, FeedClient
from slackwater.feeds.links import RpcLinks
from slackwater.runtime import run
from slackwater.server.remote import connect
from slackwater.settings import Settings

if TYPE_CHECKING:
    from slackwater.server.remote import Remote

CHECKOUT = Path(__file__).resolve().parents[1]
LOOK_BACK_S = 5.0
"""A feed begins so far back that some of it is resolved already: then it is seen to be live at once."""


class ReaderProcess:
    """A consumer in a process of its own."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "bench._feed_reader", address]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=CHECKOUT, stdin=pipe, stdout=pipe, text=True)

    def begin(self) -> None:
        """Have it follow; returns once it is live."""
        if self._ask("begin") != "live":
            raise RuntimeError("the reader did not follow; its error is above")

    def end(self) -> dict[str, object]:
        """Have it stop; what it saw."""
        report: dict[str, object] = json.loads(self._ask("end"))
        return report

    def stop(self) -> None:
        """End the process and wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def feed_client(remote: Remote) -> FeedClient:
    """What reads the feeds of a cluster from outside of it."""
    return FeedClient(
        sender=remote.sender,
        links=RpcLinks(remote.dialer, remote.book.resolve),
        runtime=remote.runtime,
        settings=Settings(),
        scope=remote.scope.child("feeds"),
    )


async def obey(address: str) -> None:
    """Until standard input ends."""
    async with connect([address]) as remote:
        client = feed_client(remote)
        while await asyncio.to_thread(sys.stdin.readline):
            await _follow(remote, client)


async def _follow(remote: Remote, client: FeedClient) -> None:
    """Follow until the next line."""
    told = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    events = size = 0
    lags: list[float] = []
    began = add_seconds(remote.clock.now(), -LOOK_BACK_S)
    live = False
    async with client.watch([prefix_span(KV)], after=began) as feed:
        while True:
            taking = asyncio.ensure_future(anext(feed))
            await asyncio.wait([told, taking], return_when=asyncio.FIRST_COMPLETED)
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
    run(obey(sys.argv[1]))
