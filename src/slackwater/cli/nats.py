"""`slackwater nats`: a local NATS JetStream of one or three servers, for trying and for demos.

Prints the log URL to start nodes with, then runs until it is told to stop. Every message is synced before it is
acknowledged, as a production server for Slackwater must be set up too (`sync_interval: always`).
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from slackwater.log.nats_server import LocalNats
from slackwater.runtime import run
from slackwater.runtime.clock import RealClock
from slackwater.runtime.sync import Event, get_running_loop


def main(argv: list[str]) -> int:
    """Run the servers until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="slackwater nats",
        description="Run a local NATS JetStream (loopback only) and print the log URL for `slackwater start --log URL`.",
        epilog="example: slackwater nats --dir ./nats --servers 3",
    )
    parser.add_argument("--dir", type=Path, required=True, help="where the servers keep their data; made if missing")
    parser.add_argument("--servers", type=int, choices=(1, 3), default=3, help="how many servers (default 3)")
    parser.add_argument("--stream", default="slackwater", help="the stream that holds the log (default slackwater)")
    options = parser.parse_args(argv)
    options.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    run(_serve(options.dir, options.servers, options.stream))
    return 0


async def _serve(directory: Path, servers: int, stream: str) -> None:
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        get_running_loop().add_signal_handler(number, stop.set)
    print(f"starting {servers} server(s) in {directory} …", file=sys.stderr, flush=True)
    async with LocalNats(directory, servers=servers, clock=RealClock()) as cluster:
        print(cluster.url(stream=stream), flush=True)
        print("running; stop with Ctrl-C", file=sys.stderr, flush=True)
        await stop.wait()
