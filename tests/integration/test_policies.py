"""Spans that lead, on real processes: set by the command, split off by the queues, and read at present time on every node."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json

import pytest

import slackwater
from slackwater.cli.main import main
from slackwater.clock.timestamp import add_seconds
from slackwater.codec.layout import kv
from slackwater.errors import NotLeaseholder, ReadWithinUncertainty, SlackwaterError
from slackwater.model.ids import NodeId
from slackwater.protocol.range import requests
from slackwater.server.remote import connect
from tests.integration.cluster import Processes, client_settings, spread

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]

MAX_OFFSET_S = 0.2
SETTINGS = {"clock.max_offset": MAX_OFFSET_S, "span_config.poll_interval": 0.2, "range.min_bytes": 0}
START, KEY, END = kv(b"rates/"), kv(b"rates/eur"), kv(b"rates0")
NODES = 3
TRIES = 400
ROUNDS = 5


def command(*words: str) -> tuple[int, str]:
    """`slackwater …` in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(list(words))
    return status, out.getvalue()


@pytest.fixture
def cluster(tmp_path):
    processes = Processes(tmp_path, nodes=NODES, log_url=f"sqlite:{tmp_path}/log.db", settings=SETTINGS)
    try:
        yield processes
    except BaseException as error:
        error.add_note(processes.journals())
        raise
    finally:
        processes.end_all()


async def until(look):
    """Ask again until the answer is not None; bounded by tries, not by a clock."""
    for _ in range(TRIES):
        with contextlib.suppress(SlackwaterError):
            if (found := await look()) is not None:
                return found
        await asyncio.sleep(0.05)
    raise AssertionError("it never came")


def test_every_node_reads_the_present_of_a_leading_span(cluster):
    at = cluster.addresses[0]

    async def build():
        await cluster.make()
        async with connect(cluster.addresses, settings=settings()) as remote:
            await spread(remote, cluster)
            await remote.kv.put(KEY, b"0")

    asyncio.run(build())
    span = ("--from", "rates/", "--to", "rates0", "--host", at)
    status, text = command("zone", "set", *span, "--policy", "lead", "--json")
    assert (status, json.loads(text)[0]["policy"]) == (0, "lead")
    asyncio.run(read_everywhere(cluster))
    assert command("kv", "get", "rates/eur", "--nearest", "--host", at) == (0, f"{ROUNDS - 1}\n")
    status, text = command("settings", "set", "closed_timestamp.target_duration", "1.5", "--host", at)
    assert (status, text) == (0, "closed_timestamp.target_duration = 1.5 s\n")
    asyncio.run(lags_by(cluster, 1.5))
    assert command("settings", "unset", "closed_timestamp.target_duration", "--host", at, "--json") == (0, "{}\n")
    asyncio.run(lags_by(cluster, 3.0))
    status, text = command("zone", "show", "--host", at)
    assert status == 0
    assert "lead" in text
    assert command("zone", "set", *span, "--policy", "lag", "--duration-ms", "300")[0] == 0
    asyncio.run(write_quickly(cluster))
    assert command("zone", "unset", *span)[0] == 0
    assert command("zone", "unset", *span)[0] == 1, "there was nothing left to unset"


def settings():
    """A client that knows the cluster's clocks."""
    return client_settings(**{"clock.max_offset": MAX_OFFSET_S})


async def read_everywhere(cluster) -> None:
    """Each acknowledged write is there, at present time, on every replica, without the leaseholder."""
    async with connect(cluster.addresses, settings=settings()) as remote:

        async def own_range():
            remote.sender.cache.clear()
            found = await remote.sender.range_of(KEY)
            return found if (found.start, found.end) == (START, END) and len(found.replicas) == NODES else None

        descriptor = await until(own_range)

        async def present(node, expected):
            now = remote.clock.now()
            for _ in range(8):  # above what may have been acknowledged before, as any client does
                header = requests.Header(
                    descriptor.range_id, ts=now, uncertainty_limit=add_seconds(now, MAX_OFFSET_S), follower_ok=True
                )
                try:
                    answer = await remote.transport.batch(node, requests.Batch(header, [requests.Get(KEY)]))
                except ReadWithinUncertainty as error:
                    now = error.facts["existing"] + 1
                    continue
                except NotLeaseholder:
                    return None  # not closed that far yet
                (value,) = answer.results
                assert value.value == expected, f"n{node} missed an acknowledged write"
                return answer
            return None

        for round_ in range(ROUNDS):
            ts = await remote.kv.put(KEY, b"%d" % round_)
            assert remote.clock.now() > ts
            for number in range(NODES):
                node = NodeId(number + 1)
                answer = await until(lambda node=node, wanted=b"%d" % round_: present(node, wanted))
                assert answer.served_by == node
            assert await remote.kv.get(KEY, nearest=True) == b"%d" % round_


async def write_quickly(cluster) -> None:
    """Back under lag: soon nothing is closed ahead any more, and a write's time is not in the future."""
    async with connect(cluster.addresses, settings=settings()) as remote:

        async def lags():
            before = remote.clock.now()
            answer = await remote.sender.send([requests.Put(KEY, b"last")], requests.Header(requests.RangeId(0)))
            return answer if answer.ts <= max(before, remote.clock.now()) else None

        await until(lags)
        assert await remote.kv.get(KEY) == b"last"


async def lags_by(cluster, seconds):
    """Every node's choice of a follower-read timestamp comes to follow the cluster's setting."""
    for address in cluster.addresses:
        async with slackwater.aconnect(f"slackwater://{address}") as db:

            async def obeyed(db=db):
                before = db.now()
                ts = await db.follower_read_timestamp()
                far = 1.2 + seconds  # one tick of 0.2 s and the slack of 1 s
                return add_seconds(before, -far - 0.01) <= ts <= add_seconds(db.now(), -far) or None

            await until(obeyed)
