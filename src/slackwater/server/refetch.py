"""Fetching a replica that failed here from a node whose replica is good.

    quarantined, or its log was trimmed ──► try every other replica in turn ──► installed: acquire its lease anew
                                                  │ none can                       if it had one
                                                  ▼
                                       ask how the range has gone on: without this node, or as part of another one?

A snapshot may be newer than a split of the range. The right half that the split would have made here is fetched as well: where
this node holds its lease, no other node sees to it, and none can take the lease as long as this node lives.

A snapshot that broke off has removed the old replica already. The range needs the new one all the same, and where this
node holds the lease, no other node would see to it: so it goes on until a replica is there or none is wanted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.runtime.sync import timeout

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.replica.driver import Store
    from slackwater.server.member import Member

HALVES_TRIES_MAX = 60
"""Looks for what was split off, before it is left to the leaseholder's queues: perhaps it has moved away altogether."""
PAUSE_S, PAUSE_S_MAX = 1.0, 10.0
"""Between two rounds over the other replicas; longer each time, because a sender reads its whole replica first."""


ASKED_S_MAX = 2.0
"""For the leaseholder's answer how the range has gone on: where every replica has failed there is none, and none comes."""


async def refetch(member: Member, descriptor: RangeDescriptor) -> None:
    """Return once the replica is good again, with all that was split off it meanwhile, or its range has gone on without it."""
    store = member.store
    await _refetch(member, store, descriptor)
    replica = store.replicas.get(descriptor.range_id)
    if replica is not None and replica.state.descriptor.end < descriptor.end:
        await _fetch_halves(member, store, replica.state.descriptor.end, descriptor)


async def _fetch_halves(member: Member, store: Store, start: bytes, before: RangeDescriptor) -> None:
    """Fetch the ranges that a range was split into, where this node has a part in them and nothing of them is here."""
    tries = 0
    while start < before.end and tries < HALVES_TRIES_MAX:
        found = await _beside(member, before, start)
        if found is None:
            tries += 1
            await member.runtime.clock.sleep(PAUSE_S)
            continue
        if member.node_id in found.replicas and store.holding(start) is None:
            probe("refetch.right_half")
            await _refetch(member, store, found)
        start = found.end


async def _beside(member: Member, before: RangeDescriptor, key: bytes) -> RangeDescriptor | None:
    """The range that holds a key now, as the others who had a replica know it: the index may not have been told yet."""
    best: RangeDescriptor | None = None
    for other in before.replicas:
        with suppress(SlackwaterError):
            for status in (await member.peers.status(other, [])).replicas if other != member.node_id else ():
                found = status.descriptor
                if found.contains(key) and (best is None or best.generation < found.generation):
                    best = found
    return best


async def _refetch(member: Member, store: Store, descriptor: RangeDescriptor) -> None:
    range_id, pause_s = descriptor.range_id, PAUSE_S
    while True:
        replica = store.replicas.get(range_id)
        if replica is not None and replica.failure is None:
            return
        for source in descriptor.replicas:
            if source == member.node_id:
                continue
            with suppress(SlackwaterError):
                await member.fetch(range_id, source)
                member.queues.wake()  # the lease it had must be acquired anew, even if no request comes
                return
        await member.runtime.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
        with suppress(SlackwaterError, TimeoutError):
            async with timeout(ASKED_S_MAX):
                newer = await _superseded(member, descriptor)
            if newer is None:
                continue
            if member.node_id not in newer.replicas:
                store.remove(range_id)
                return
            if newer.range_id == range_id:
                descriptor = newer
            elif range_id not in store.replicas:
                return  # merged away, and so is what was left of it here


async def _superseded(member: Member, descriptor: RangeDescriptor) -> RangeDescriptor | None:
    """The range that now holds where this one began, if its leaseholder says that it is newer."""
    now = (await member.admin.describe(descriptor.start)).descriptor
    return now if now.generation > descriptor.generation else None
