"""Reads of the past and of the bounded past, through any replica: what a session that tolerates staleness does.

    exact        a timestamp of the caller's, over all ranges, with a drawn budget for waiting
    follower     `follower_read_timestamp()`: far enough back for every follower
    staleness    `with_max_staleness`, sometimes `nearest_only`; then a read at what was chosen
    minimum      `with_min_timestamp`, the same with a bound as a timestamp
    close        `close(now)`, then a bulk read at present time, on followers that wait for it
    direct       a read sent straight to one drawn replica, restarted, lagging or just moved as it may be
    resolved     how far that replica is resolved, and at once a read there at that timestamp
    collect      raise a range's threshold of garbage collection and collect: reads below must fail (I-17)

Every answer is written down as a transaction of the past and compared with V in the end (I-15). What only the session
knows is judged here (I-16): a chosen timestamp is neither below its bound nor in the future, and a session never goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.codec.layout import prefix_end
from slackwater.errors import BelowGcThreshold, SlackwaterError, TooStale, UnavailableError
from slackwater.hooks import probe
from slackwater.protocol.range import requests
from slackwater.sim.scenarios.cluster_plan import KV_SPAN, account_keys, all_keys
from slackwater.sim.scenarios.cluster_worker import operation
from slackwater.txn.staleness import Staleness

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId
    from slackwater.sim.scenarios.cluster_worker import Worker
    from slackwater.txn.staleness import Chosen

PAST_S = (0.0, 0.1, 0.5, 2.0, 4.0, 8.0)
STALENESS_S = (0.0, 0.2, 1.0, 4.0, 10.0)
WAITS_MS = (0, 0, 50, 500, 3_000)
PIECE_KEYS_MAX = 12
BANK_SPAN = (account_keys()[0], prefix_end(account_keys()[-1]))


class FollowerSession:
    """One client's session: it never reads further back than it has read."""

    def __init__(self, me: Worker) -> None:
        client = me.client
        self.staleness = Staleness(sender=client.sender, clock=client.clock, settings=client.runtime.settings)
        self.last = MIN


def session_of(me: Worker) -> FollowerSession:
    """The session of a client; a client that is started again begins another one."""
    sessions = me.cluster.world.facts.setdefault("sessions", {})
    if me.client not in sessions:
        sessions[me.client] = FollowerSession(me)
    session: FollowerSession = sessions[me.client]
    return session


@operation("follow")
async def follow(me: Worker, timeout: float) -> None:
    """One read of the past, of a drawn kind."""
    await me.draw.pick(KINDS)(me, timeout)


async def read(me: Worker, span: tuple[bytes, bytes], ts: Timestamp, timeout: float, *, wait_ms: int = 0) -> None:
    """Scan a span at a timestamp through whichever replica is nearest, and write it down."""
    if ts <= me.cluster.loaded_ts:
        return
    pen = me.cluster.recorder.txn(client=me.number, historical=True)
    try:
        rows = await me.kv.scan(*span, ts=ts, follower_ok=True, wait_ms=wait_ms, timeout=timeout)
    except SlackwaterError as error:
        pen.failed()
        if isinstance(error, BelowGcThreshold):
            probe("follow.collected")
        return
    probe("follow.read")
    pen.scan(start=span[0], end=span[1], rows=list(zip(rows.keys, rows.values, strict=True)))
    pen.ok(read_ts=ts)


def drawn_span(me: Worker) -> tuple[bytes, bytes]:
    """All keys, the bank, or most often a short piece: reads of everything cost the most."""
    keys = all_keys()
    first = me.draw.below(len(keys) - PIECE_KEYS_MAX)
    piece = (keys[first], keys[first + me.draw.between(1, PIECE_KEYS_MAX)])
    span: tuple[bytes, bytes] = me.draw.pick([KV_SPAN, BANK_SPAN, piece, piece, piece])
    return span


async def exact(me: Worker, timeout: float) -> None:
    """At a moment of the past."""
    ts = add_seconds(me.client.clock.now(), -me.draw.pick(PAST_S))
    await read(me, drawn_span(me), ts, timeout, wait_ms=me.draw.pick(WAITS_MS))


async def follower_timestamp(me: Worker, timeout: float) -> None:
    """Where every follower very likely is."""
    if not me.client.runtime.settings["closed_timestamp.target_duration"]:
        return
    await read(me, drawn_span(me), session_of(me).staleness.follower_read_timestamp(), timeout)


async def max_staleness(me: Worker, timeout: float) -> None:
    """The freshest that needs no waiting, not older than so much."""
    seconds, span, nearest = me.draw.pick(STALENESS_S), drawn_span(me), me.draw.chance(1, 2)
    bound = add_seconds(me.client.clock.now(), -seconds)
    ask = session_of(me).staleness.with_max_staleness(seconds, [span], nearest_only=nearest, timeout=timeout)
    await negotiated(me, ask, bound, span, timeout)


async def min_timestamp(me: Worker, timeout: float) -> None:
    """The freshest that needs no waiting over two spans, not below a timestamp."""
    now, span = me.client.clock.now(), drawn_span(me)
    bound, nearest = add_seconds(now, -me.draw.pick(STALENESS_S)), me.draw.chance(1, 2)
    spans = [span, BANK_SPAN]
    ask = session_of(me).staleness.with_min_timestamp(bound, spans, nearest_only=nearest, timeout=timeout)
    await negotiated(me, ask, bound, me.draw.pick(spans), timeout)


async def negotiated(
    me: Worker, ask: Awaitable[Chosen], bound: Timestamp, span: tuple[bytes, bytes], timeout: float
) -> None:
    """Judge what was chosen (I-16), then read there."""
    session, world = session_of(me), me.cluster.world
    try:
        chosen = await ask
    except TooStale:
        probe("follow.not_fresh_enough")
        return
    except UnavailableError:
        return
    probe("follow.negotiated" if chosen.by_followers else "follow.leaseholder_needed")
    name = me.client.runtime.name
    if chosen.ts < bound:
        world.violated("I-16", "bound-missed", f"{name} asked for {bound} or newer and was given {chosen.ts}")
    if chosen.ts > me.client.clock.now():
        world.violated("I-16", "future-chosen", f"{name} was given {chosen.ts}, which is in its future")
    if chosen.ts < session.last:
        world.violated("I-16", "session-went-back", f"{name} had read at {session.last} and was given {chosen.ts}")
    session.last = chosen.ts
    await read(me, span, chosen.ts, timeout)


async def close_now(me: Worker, timeout: float) -> None:
    """Have the present closed and read it in bulk, on followers that wait for it."""
    span = drawn_span(me)
    ts = await session_of(me).staleness.close([span], timeout=timeout)
    probe("follow.closed")
    await read(me, span, ts, timeout, wait_ms=me.draw.pick(WAITS_MS))


# --- straight to one replica ------------------------------------------------------------------------------------------


async def direct(me: Worker, timeout: float) -> None:
    """At a moment of the past, from one drawn replica."""
    found = await me.client.sender.range_of(me.draw.pick(all_keys()), timeout=timeout)
    ts = add_seconds(me.client.clock.now(), -me.draw.pick(PAST_S))
    await read_from(me, found, me.draw.pick(found.replicas), ts, wait_ms=me.draw.pick(WAITS_MS))


async def resolved(me: Worker, timeout: float) -> None:
    """How far one drawn replica is resolved, then a read there at that timestamp."""
    found = await me.client.sender.range_of(me.draw.pick(all_keys()), timeout=timeout)
    node = me.draw.pick(found.replicas)
    header = requests.Header(found.range_id, generation=found.generation, deadline_ms=round(1000 * timeout))
    batch = requests.Batch(header, [requests.QueryResolved(found.start, found.end)])
    answer = await me.client.sender._transport.batch(node, batch)
    (result,) = answer.results
    if isinstance(result, requests.ResolvedResult):
        probe("follow.resolved")
        await read_from(me, found, node, result.ts, wait_ms=0)


async def read_from(me: Worker, found: RangeDescriptor, node: NodeId, ts: Timestamp, *, wait_ms: int) -> None:
    """Scan a range on one node, and write it down."""
    if ts <= me.cluster.loaded_ts:
        return
    header = requests.Header(
        found.range_id, ts=ts, generation=found.generation, follower_ok=True, wait_ms=wait_ms, deadline_ms=5_000
    )
    pen = me.cluster.recorder.txn(client=me.number, historical=True)
    end = min(found.end, KV_SPAN[1])  # what lies above is other workloads' tables
    try:
        answer = await me.client.sender._transport.batch(
            node, requests.Batch(header, [requests.Scan(found.start, end)])
        )
    except SlackwaterError:
        pen.failed()
        return
    (rows,) = answer.results
    assert isinstance(rows, requests.Rows)
    probe("follow.direct_by_follower" if answer.by_follower else "follow.direct_by_leaseholder")
    pen.scan(start=found.start, end=end, rows=list(zip(rows.keys, rows.values, strict=True)))
    pen.ok(read_ts=ts)


KINDS = (
    *(exact, follower_timestamp, max_staleness, max_staleness, min_timestamp),
    *(close_now, direct, direct, resolved, resolved),
)
