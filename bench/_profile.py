"""Profile the server under load: `python -m bench._profile put|get|rows [CLIENTS] [SECONDS] [feed]`.

Prints operations per second and the processor time that server and client spend per operation, which a busy machine
disturbs far less than it disturbs rates; then where the server's time went (`bench._sampler`). The stacks are written to
`profile.folded` in the current directory, for a flame graph. With `feed`, a consumer follows what is written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow

from bench._cluster import PROFILE, ServerProcess
from bench._cpu import cpu_s
from bench._feed_reader import ReaderProcess
from bench._load import disk, throughput
from bench.codec import MIXED, mixed_rows
from slackwater.codec.arrow import arrow_schema
from slackwater.codec.layout import kv as kv_key
from slackwater.codec.rows import RowCodec
from slackwater.runtime import run
from slackwater.server.remote import connect_kv

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.txn.kv import KV

pa: Any = pyarrow
BLOCK_ROWS = 20_000


def client_of(kind: str, kv: KV) -> Callable[[int], Awaitable[object]]:
    """One operation of the kind, by its number."""
    template = pa.RecordBatch.from_pylist(mixed_rows(BLOCK_ROWS), schema=arrow_schema(MIXED))
    codec = RowCodec(MIXED)
    blocks = count()

    async def put(number: int) -> None:
        await kv.put(kv_key(b"%08d" % (number * 7919 % 20_000)), b"v" * 90)

    async def get(number: int) -> None:
        await kv.get(kv_key(b"%08d" % (number * 7919 % 20_000)))

    async def rows(number: int) -> None:
        first = next(blocks) * BLOCK_ROWS  # rows that are new, always
        ids = pa.array(range(first, first + BLOCK_ROWS), pa.int64())
        keys, values = codec.encode_batch(template.set_column(0, template.schema.field(0), ids))
        await kv.put_rows(keys, values)

    return {"put": put, "get": get, "rows": rows}[kind]


async def main(directory: Path, kind: str, clients: int, seconds: float, *, feed: bool) -> None:
    """Run the load and print the profile."""
    os.environ[PROFILE] = str(directory / "profile")
    server = ServerProcess(directory / "node", f"sqlite://{directory}/log.db")
    try:
        async with connect_kv([server.address]) as kv:
            one = client_of(kind, kv)
            reader = ReaderProcess(server.address) if feed else None
            if reader is not None:
                await asyncio.to_thread(reader.begin)
            await throughput([one] * clients, seconds=1.0)
            server.toggle_profile()
            theirs, ours, begin = cpu_s(server.pid), cpu_s(os.getpid()), time.perf_counter()
            rate = await throughput([one] * clients, seconds=seconds)
            count = rate * (time.perf_counter() - begin) * (BLOCK_ROWS if kind == "rows" else 1)
            server_us = (cpu_s(server.pid) - theirs) / count * 1e6
            client_us = (cpu_s(os.getpid()) - ours) / count * 1e6
            server.toggle_profile()
            if reader is not None:
                reader.end()
                reader.stop()
            print(
                f"{kind}, {clients} clients: {count / seconds:.0f}/s,"
                f" processor time per operation: server {server_us:.1f} us, client {client_us:.1f} us"
            )
    finally:
        server.stop()
    print((directory / "profile.top").read_text())
    shutil.copy(directory / "profile", "profile.folded")


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        run(
            main(
                place,
                sys.argv[1] if len(sys.argv) > 1 else "put",
                int(sys.argv[2]) if len(sys.argv) > 2 else 256,
                float(sys.argv[3]) if len(sys.argv) > 3 else 5.0,
                feed=sys.argv[4:] == ["feed"],
            )
        )
    finally:
        shutil.rmtree(place)
