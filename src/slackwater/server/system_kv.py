"""The store as its own machinery sees it: `txn.KV` behind the narrow `SystemKv` Protocol of the layers below."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.txn.kv import KV

SYSTEM_TIMEOUT_S = 4.0
"""Machinery retries by itself; it is better off knowing soon that a record cannot be reached."""


class KvAdapter:
    """Implements `replica.driver.SystemKv`."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv

    async def get(self, key: bytes) -> bytes | None:
        """Read one record."""
        return await self._kv.get(key, timeout=SYSTEM_TIMEOUT_S)

    async def put(self, key: bytes, value: bytes) -> None:
        """Write one record."""
        await self._kv.put(key, value, timeout=SYSTEM_TIMEOUT_S)

    async def conditional_put(self, key: bytes, value: bytes, *, expected: bytes | None) -> None:
        """Write one record if it still is what it was."""
        await self._kv.cput(key, value, expected=expected, timeout=SYSTEM_TIMEOUT_S)

    async def scan(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Read many records."""
        rows = await self._kv.scan(start, end, timeout=SYSTEM_TIMEOUT_S)
        return list(zip(rows.keys, rows.values, strict=True))

    async def increment(self, key: bytes, by: int) -> int:
        """Add to a counter."""
        return await self._kv.increment(key, by, timeout=SYSTEM_TIMEOUT_S)
