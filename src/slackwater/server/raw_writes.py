"""Checks key/value writes of callers that are no nodes: an operator, `slackwater kv`, a tool.

Nodes send what gateways have checked already. Other writers of raw keys might write a row that no scan of its table can
decode, or a key that sorts among the versions of its neighbor. Both are refused here, before anything is evaluated. Removing
a key is always allowed: that is how a row that does not decode is got rid of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec import layout
from slackwater.codec.keys import unescape
from slackwater.codec.row_checks import ONE_BY_ONE_MAX
from slackwater.codec.rows import version_of
from slackwater.errors import DecodeError, UsageError
from slackwater.model.system_tables import check_not_system
from slackwater.protocol.range import requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.codec.row_checks import RowChecker
    from slackwater.gateway.service import Gateway
    from slackwater.protocol.range.requests import Batch

_PUTS = (requests.Put, requests.ConditionalPut, requests.InitPut)
WRITES = frozenset({*_PUTS, requests.PutRows, requests.FillRows, requests.Increment})


def known_plain(batch: Batch) -> bool:
    """Whether a batch of a caller that is no node writes plain keys only, or nothing: then there is no table to look up."""
    if WRITES.isdisjoint(map(type, batch.requests)):
        return True
    for key, _ in _written(batch):
        if not key.startswith(layout.KV):
            return False
        _check_plain(key)
    return True


async def check_raw(gateway: Gateway, batch: Batch) -> None:
    """Raise `UsageError` when a write of the batch is a row that its table could not hold, or is under no key at all."""
    if len(batch.requests) == 1 and isinstance(batch.requests[0], requests.PutRows):
        keys, values = batch.requests[0].keys, batch.requests[0].values
        if await _one_version(gateway, keys, values):
            return
    rows: dict[tuple[int, int], tuple[list[bytes], list[bytes]]] = {}
    for key, value in _written(batch):
        if key.startswith(layout.TABLE):
            keys, values = rows.setdefault(_version_of(key, value), ([], []))
            keys.append(key)
            values.append(value or b"")
        elif key.startswith(layout.KV):
            _check_plain(key)
    for of, (keys, values) in rows.items():  # all rows of a version at once: a block is checked by columns
        await _check_rows(gateway, *of, keys, values)


async def _one_version(gateway: Gateway, keys: list[bytes], values: list[bytes]) -> bool:
    """Whether a block is rows of one version of one table, that of its first row, all of them as they should be."""
    if len(keys) != len(values) or len(keys) <= ONE_BY_ONE_MAX or not keys[0].startswith(layout.TABLE):
        return False
    return (await _checker(gateway, *_version_of(keys[0], values[0]), keys)).fits(keys, values)


def _written(batch: Batch) -> Iterator[tuple[bytes, bytes | None]]:
    for request in batch.requests:
        match request:
            case requests.Put(key, value) | requests.ConditionalPut(key, value) | requests.InitPut(key, value):
                yield key, value
            case requests.Increment(key):
                yield key, None
            case requests.PutRows(keys, values) | requests.FillRows(keys, values):
                yield from zip(keys, values, strict=False)


def _version_of(key: bytes, value: bytes | None) -> tuple[int, int]:
    """The table and the version that a row says it is of."""
    try:
        table_id, _, _ = layout.split_table_key(key)
        return table_id, version_of(value or b"")  # a counter is no row
    except DecodeError as error:
        raise UsageError(f"this is no row of a table: {error.message}; nothing was written", key=key[:32]) from None


async def _check_rows(gateway: Gateway, table_id: int, version: int, keys: list[bytes], values: list[bytes]) -> None:
    (await _checker(gateway, table_id, version, keys)).check_rows(keys, values)


async def _checker(gateway: Gateway, table_id: int, version: int, keys: list[bytes]) -> RowChecker:
    """What checks rows of one version of a table of users; `UsageError` if there is none."""
    history = await gateway.catalog.find_id(table_id)
    check_not_system(history.latest.name, what="write to")
    schema = history.by_version().get(version)
    if schema is None:
        raise UsageError(f"table {history.latest.name} has no version {version}; nothing was written", key=keys[0][:32])
    return gateway.checkers.of(schema)


def _check_plain(key: bytes) -> None:
    try:
        _, end = unescape(key, len(layout.KV))
    except DecodeError:
        end = 0
    if end != len(key):
        raise UsageError("a plain key is made by slackwater.codec.layout.kv; nothing was written", key=key[:32])
