"""Compare the replicas of every range while ranges still split, merge and move.

The cluster's own queues go on while a test looks at it, so a range that was listed a moment ago may be gone before its
digest is asked for. A span of keys is what stays: `digests` walks over the key space, and for each span

    describe ► ComputeChecksum ► ask every replica, until all have answered
       ▲                              │ the range there is another one by now, or another generation of it
       └───────── start again ────────┘ or the replica was replaced by a snapshot taken after the checksum

A replica that is there, in a range that stands still, and computes nothing for `DIGEST_S` in `TRIES_MAX` tries is a
failure, and so is a span whose ranges never stand still that long.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from slackwater.codec import layout
from slackwater.errors import SlackwaterError
from slackwater.protocol.node.services import CHECKSUM, ChecksumRequest
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.server.remote import Remote

DIGEST_S = 30.0
"""For one replica of a range that does not change."""
CHANGES_MAX = 50
"""A range is looked at again after so many changes of the range or of the way to it."""
TRIES_MAX = 3
POLL_S = 0.05
PAUSE_S = 0.2


class Changed(Exception):
    """The range that was asked is no longer what it was."""


async def digests(remote: Remote) -> dict[tuple[RangeId, bytes], set[bytes]]:
    """Have every replica of every range compute its digest at one point of the log; equal ones collapse.

    By the range and the first key that was left to look at: a range may take its right neighbor in after it was looked
    at, is then looked at once more, and has another digest.
    """
    found: dict[tuple[RangeId, bytes], set[bytes]] = {}
    key = layout.KEY_MIN
    while key < layout.KEY_MAX:
        descriptor, copies = await _span(remote, key)
        found[descriptor.range_id, key] = copies
        key = descriptor.end
    return found


async def _span(remote: Remote, key: bytes) -> tuple[RangeDescriptor, set[bytes]]:
    """The range that holds `key`, and the digests of its replicas."""
    silent = 0
    last: Exception | None = None
    for _ in range(CHANGES_MAX):
        try:
            return await _compare(remote, key)
        except TimeoutError as error:
            last, silent = error, silent + 1
            if silent == TRIES_MAX:
                raise
        except (Changed, SlackwaterError) as error:
            last = error
        await asyncio.sleep(PAUSE_S)
    raise TimeoutError(f"the range of {key!r} never stood still: {last}") from last


async def _compare(remote: Remote, key: bytes) -> tuple[RangeDescriptor, set[bytes]]:
    descriptor, name = await describe(remote, key), os.urandom(8)
    await remote.sender.send([requests.ComputeChecksum(name)], requests.Header(NO_RANGE), at=max(key, layout.META))
    copies = {await _digest(remote, node, descriptor, key, name) for node in descriptor.replicas}
    return descriptor, copies


async def _digest(remote: Remote, node: NodeId, descriptor: RangeDescriptor, key: bytes, name: bytes) -> bytes:
    deadline = asyncio.get_running_loop().time() + DIGEST_S
    request = ChecksumRequest(descriptor.range_id, name)
    while asyncio.get_running_loop().time() < deadline:
        reply = await remote.dialer.call(remote.book.resolve(node), CHECKSUM, request, timeout=10.0)
        if reply.found is not None:
            assert reply.found.whole, f"n{node}: {reply.found.versions} versions, expected {reply.found.expected}"
            return reply.found.digest
        now = await describe(remote, key)
        if now.range_id != descriptor.range_id or now.generation != descriptor.generation:
            raise Changed(f"{descriptor.status()} became {now.status()}")
        await asyncio.sleep(POLL_S)
    raise TimeoutError(f"n{node} computed no digest of {descriptor.status()}")


async def describe(remote: Remote, key: bytes) -> RangeDescriptor:
    """The range that holds `key`, as its leaseholder knows it."""
    answer = await remote.sender.send(
        [requests.LeaseInfo(by_holder=True)], requests.Header(NO_RANGE), at=max(key, layout.META)
    )
    (info,) = answer.results
    assert isinstance(info, requests.LeaseResult)
    if not info.descriptor.contains(max(key, layout.META)):
        raise Changed(f"{key!r} is no longer in {info.descriptor.status()}")
    return info.descriptor
