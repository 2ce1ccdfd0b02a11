"""Would these settings lose what was acknowledged? Then refuse (`LossyLogRefused`), unless told otherwise.

What a client can see of a stream, it checks: storage, replicas, every limit that deletes messages, transforms, and
asynchronous persistence. What it cannot see on the client port is `sync_interval`: by default a NATS server
acknowledges a message that is only in the page cache and syncs every two minutes, so a power cut of all replicas, or of
the only one, takes acknowledged entries with it. Hence one of:

    monitor=host:port,...   the servers' monitoring addresses: `/varz` tells `sync_always`, and is believed. A server
                            that is down is checked the next time; at least one must answer
    sync_always=1           the operator states that every server has `sync_interval: always`
    allow_lossy=1           the operator accepts the loss

`nats_server.LocalNats` starts servers with `sync_interval: always` and gives their monitoring addresses, so what it
starts is verified.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from slackwater.errors import ConnectionLost, LossyLogRefused
from slackwater.runtime.sync import timeout

MONITOR_TIMEOUT = 5.0
MONITOR_ANSWER_BYTES_MAX = 4 << 20

_REQUIRED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("storage", ("file",), "a stream in memory is gone after a restart"),
    ("retention", ("limits",), "entries are deleted once some consumer has read them"),
    ("max_age", (0, None), "entries are deleted by age"),
    ("no_ack", (False, None), "appends are not acknowledged"),
    ("mirror", (None,), "a mirror follows another stream's sequence"),
    ("subject_transform", (None,), "entries would move to other ranges"),
    ("persist_mode", ("default", "", None), "entries are acknowledged before they are written"),
    ("sealed", (False, None), "a sealed stream takes no entries"),
)

assert len({field for field, _, _ in _REQUIRED}) == len(_REQUIRED), "a field is required to be one thing"


def stream_problems(config: dict[str, Any], *, replicas: int) -> list[str]:
    """Why this stream can lose acknowledged entries; empty if it cannot."""
    problems = [
        f"{field}={config.get(field)!r}: {why}" for field, allowed, why in _REQUIRED if config.get(field) not in allowed
    ]
    if config.get("num_replicas", 1) < replicas:
        problems.append(f"num_replicas={config.get('num_replicas', 1)}: {replicas} were asked for")
    if config.get("max_msgs_per_subject", -1) > 0:
        problems.append(f"max_msgs_per_subject={config['max_msgs_per_subject']}: old entries of a range are deleted")
    limited = [field for field in ("max_msgs", "max_bytes") if config.get(field, -1) > 0]
    if limited and config.get("discard") != "new":
        problems.append(
            f"discard={config.get('discard')!r} with {' and '.join(limited)}: old entries are deleted when full"
        )
    if config.get("sources"):
        problems.append("sources: entries of other streams would be mixed in")
    return problems


async def server_problems(monitors: list[str]) -> list[str]:
    """Which of these servers do not sync before they acknowledge."""
    problems: list[str] = []
    silent: list[ConnectionLost] = []
    for address in monitors:
        try:
            varz = await fetch_json(address, "/varz")
        except ConnectionLost as error:
            silent.append(error)
            continue
        config = varz.get("jetstream", {}).get("config", {})
        if config.get("sync_always") is not True:
            seconds = config.get("sync_interval", 0) / 1e9
            problems.append(f"server {varz.get('server_name')}: sync_interval={seconds:g}s, must be `always`")
    if len(silent) == len(monitors):
        raise silent[0]
    return problems


def refuse(problems: list[str]) -> None:
    """Raise if there are any."""
    if problems:
        raise LossyLogRefused(
            "this NATS server or stream can lose acknowledged entries: "
            + "; ".join(problems)
            + ". Change the settings, "
            "or open the log with allow_lossy=1 if losing entries is acceptable",
            problems=len(problems),
        )


UNSTATED_SYNC = (
    "sync_interval is unknown: set `sync_interval: always` in the jetstream block of every server, then open the log "
    "with monitor=host:port,... so that it can be verified, or with sync_always=1 to vouch for it"
)


async def fetch_json(address: str, path: str) -> dict[str, Any]:
    """GET a JSON document from a server's monitoring port."""
    host, _, port = address.rpartition(":")
    try:
        async with timeout(MONITOR_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, int(port), limit=MONITOR_ANSWER_BYTES_MAX)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                answer = await reader.read()
            finally:
                writer.close()
                await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        document = json.loads(body)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        raise ConnectionLost(f"the NATS monitoring port did not answer: {error!r}", address=address) from error
    if not isinstance(document, dict) or b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ConnectionLost("the NATS monitoring port gave no good answer", address=address, answer=head[:80])
    return document
