"""A server process for `test_rpc_processes`: prints its address, serves until it is killed.

python -m tests.integration.rpc_server LISTEN_ADDRESS [CERTS_DIRECTORY]
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from slackwater.runtime import RealRuntime, TcpNet, run
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Context, Identity, Method, RpcServer, StreamMethod
from slackwater.runtime.tls import node_files, server_context
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SETTINGS = Settings({"rpc.heartbeat_timeout": 1.0, "rpc.heartbeat_interval": 0.1, "rpc.reconnect_pause_min": 0.01})
PID = Method("pid", int, int, callers=ANYBODY)
ECHO = Method("echo", int, int, callers=ANYBODY)
HANG = Method("hang", int, int, callers=ANYBODY)
COUNT = StreamMethod("count", int, int, callers=ANYBODY)


async def _hang(request: int, context: Context) -> int:
    await asyncio.get_running_loop().create_future()
    return 0


async def _count(request: int, context: Context) -> AsyncIterator[int]:
    for n in range(request):
        yield n


async def _main(listen: str, certs: str) -> None:
    tls = server_context(node_files(Path(certs))) if certs else None
    runtime = RealRuntime(disk=cast("Any", None), net=TcpNet(SETTINGS, server_tls=tls), settings=SETTINGS)
    scope = runtime.scope("server")
    server = RpcServer(runtime, scope, identity=Identity(cluster_id="c1", node_id=1), settings=SETTINGS)
    server.handle_sync(PID, lambda *_: os.getpid())
    server.handle_sync(ECHO, lambda request, _: request)
    server.handle(HANG, _hang)
    server.handle_stream(COUNT, cast("Any", _count))
    print(await server.listen(listen), flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    run(_main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
