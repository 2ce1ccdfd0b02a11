"""The cache remembers, but the replica beside it knows better."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from slackwater.model.descriptors import Generation, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.routing.directory import Directory
from slackwater.routing.range_cache import RangeCache

R3, N1, N2 = RangeId(3), NodeId(1), NodeId(2)
OLD = RangeDescriptor(R3, b"\x04", b"\xff", (N1,), Generation(1))
MOVED = RangeDescriptor(R3, b"\x04", b"\xff", (N1, N2), Generation(2))
SPLIT = RangeDescriptor(R3, b"\x04", b"\x05", (N1, N2), Generation(3))


def locate(directory: Directory, key: bytes) -> RangeDescriptor:
    return asyncio.run(directory.locate(key, cast("Any", SimpleNamespace(told=None))))


def made(found: RangeDescriptor | None) -> Directory:
    async def never(*_: object) -> Any:
        raise AssertionError("a cached range needs no lookup")

    directory = Directory(RangeCache(entries_max=16), first_range=never, ask=never)
    directory.cache.insert(OLD)
    directory.held = lambda range_id: found if range_id == R3 else None
    return directory


def test_a_replica_here_that_is_newer_than_the_cache_is_believed() -> None:
    directory = made(MOVED)
    assert locate(directory, b"\x04a") == MOVED, "so that reads are served from here"
    assert directory.cache.lookup(b"\x04a") == MOVED


def test_a_cache_that_is_newer_than_the_replica_here_is_kept() -> None:
    directory = made(OLD)
    directory.cache.insert(MOVED)
    assert locate(directory, b"\x04a") == MOVED


def test_without_a_replica_here_the_cache_is_all_there_is() -> None:
    assert locate(made(None), b"\x04a") == OLD


def test_a_replica_that_was_split_since_answers_for_its_part() -> None:
    assert locate(made(SPLIT), b"\x04a") == SPLIT
