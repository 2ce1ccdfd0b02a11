"""What a transaction can be asked, as methods: thin, typed, checked. How it is done is in `coordinator.py`."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from slackwater.protocol.range.requests import (
    BATCH_REQUESTS_MAX,
    ConditionalPut,
    DeleteRange,
    Get,
    Increment,
    InitPut,
    Number,
    PutRows,
    Result,
    ReverseScan,
    Rows,
    Scan,
    Value,
)
from slackwater.txn.check import key_ok, requests_ok, rows_ok, span_ok
from slackwater.txn.reads import is_blind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.protocol.range.requests import Request

NEW_ROWS_READ_MAX = 32
"""Rows that must be new: up to so many are looked up and then held back like others, which saves an intent and a log entry
each time they can commit in one phase; more are checked where they are written."""
assert NEW_ROWS_READ_MAX <= BATCH_REQUESTS_MAX, "rows that are looked up fit one batch"


class Operations(abc.ABC):
    """The operations of a transaction; `Transaction` supplies the two ways to carry them out."""

    @abc.abstractmethod
    async def _do(self, requests: Sequence[Request], *, max_keys: int = 0, max_bytes: int = 0) -> list[Result]:
        """Have requests executed at once."""

    @abc.abstractmethod
    async def _hold_back(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Take blind writes, to be sent when that is needed or pays."""

    @abc.abstractmethod
    async def _hold_back_new(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """`_hold_back`, if no key has a value; `ConditionFailed` at once if one has."""

    async def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        return value_of(await self._do([Get(key_ok(key))]))

    async def scan(self, start: bytes, end: bytes, *, max_keys: int = 0, max_bytes: int = 0) -> Rows:
        """Keys and values of `[start, end)` in order; with a limit, `resume` is the next start."""
        span_ok(start, end)
        return rows_of(await self._do([Scan(start, end)], max_keys=max_keys, max_bytes=max_bytes))

    async def reverse_scan(self, start: bytes, end: bytes, *, max_keys: int = 0, max_bytes: int = 0) -> Rows:
        """Keys and values of `[start, end)` from the end; with a limit, `resume` is the next end."""
        span_ok(start, end)
        return rows_of(await self._do([ReverseScan(start, end)], max_keys=max_keys, max_bytes=max_bytes))

    async def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        await self._hold_back([(key_ok(key), value)])

    async def delete(self, key: bytes) -> None:
        """Remove a key."""
        await self._hold_back([(key_ok(key), None)])

    async def delete_rows(self, keys: Sequence[bytes]) -> None:
        """Remove many keys, whether or not they are there."""
        await self._hold_back([(key_ok(key), None) for key in keys])

    async def cput(self, key: bytes, value: bytes, *, expected: bytes | None) -> None:
        """Set a key if it has the `expected` value now (None: no value); else `ConditionFailed`."""
        await self._do([ConditionalPut(key_ok(key), value, expected)])

    async def init_put(self, key: bytes, value: bytes) -> None:
        """Set a key unless it has another value; the same value is fine, another is `ConditionFailed`."""
        await self._do([InitPut(key_ok(key), value)])

    async def increment(self, key: bytes, by: int = 1) -> int:
        """Add to a counter; returns the new value."""
        return number_of(await self._do([Increment(key_ok(key), by)]))

    async def delete_range(self, start: bytes, end: bytes) -> int:
        """Remove every key of `[start, end)`; returns how many there were."""
        span_ok(start, end)
        return len(rows_of(await self._do([DeleteRange(start, end)])).keys)

    async def put_rows(self, keys: list[bytes], values: list[bytes], *, must_be_new: bool = False) -> None:
        """Set many keys: sorted and unique. With `must_be_new` any that exists fails all."""
        rows_ok(keys, values)
        if must_be_new and len(keys) <= NEW_ROWS_READ_MAX:
            await self._hold_back_new(keys, values)
        elif must_be_new:
            await self._do([PutRows(keys, values, must_be_new=True)])
        else:
            await self._hold_back(list(zip(keys, values, strict=True)))

    async def batch(self, requests: Sequence[Request]) -> list[Result]:
        """Several requests in order; each sees the writes before it. Conditional writes are sent one by one."""
        requests_ok(requests)
        results: list[Result] = []
        for group in grouped(requests):
            results += await self._do(group)
        assert len(results) == len(requests), "a result for every request"
        return results


def grouped(requests: Sequence[Request]) -> list[list[Request]]:
    """Neighbours that may share a message: reads with reads, blind writes with blind writes, all others alone."""
    groups: list[list[Request]] = []
    last = ""
    for request in requests:
        kind = "read" if isinstance(request, Get | Scan | ReverseScan) else "blind" if is_blind(request) else "alone"
        if kind != last or kind == "alone":
            groups.append([])
        groups[-1].append(request)
        last = kind
    assert sum(map(len, groups)) == len(requests), "every request is sent once"
    return groups


def value_of(results: list[Result]) -> bytes | None:
    """The value of a Get."""
    (value,) = results
    assert isinstance(value, Value), value
    return value.value


def rows_of(results: list[Result]) -> Rows:
    """The rows of a scan, or the keys that a DeleteRange removed."""
    (rows,) = results
    assert isinstance(rows, Rows), rows
    return rows


def number_of(results: list[Result]) -> int:
    """The number of an Increment."""
    (number,) = results
    assert isinstance(number, Number), number
    return number.number
