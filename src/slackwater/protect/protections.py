"""Protections outside of a transaction of the caller's: each call is one small transaction, tried again until it is decided.

Every change writes the meta row, so changes of all clients take turns at one key. The transaction does nothing else, and is
repeated here (pitfall 41).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.errors import AccessDenied

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.protection import Mode, Record, State
    from slackwater.model.spans import Span
    from slackwater.protect.store import ProtectionCatalog, ProtectionStore
    from slackwater.protect.tracker import ProtectionTracker
    from slackwater.txn.coordinator import Transaction
    from slackwater.txn.kv import KV


class Protections:
    """What a node offers: store, catalog and tracker, and the common calls with a transaction of their own."""

    def __init__(self, kv: KV, store: ProtectionStore, catalog: ProtectionCatalog, tracker: ProtectionTracker) -> None:
        self._kv = kv
        self.store = store
        self.catalog = catalog
        self.tracker = tracker

    async def protect(
        self,
        ts: Timestamp,
        mode: Mode,
        meta_type: str,
        meta: bytes,
        *,
        spans: Sequence[Span] = (),
        tables: Sequence[int] = (),
        expires: Timestamp = MIN,
        user: str = "",
        timeout: float | None = None,
    ) -> bytes:
        """Protect a timestamp, or raise `TooLate`; returns the record's id."""

        async def work(txn: Transaction) -> bytes:
            return await self.store.protect(
                txn, ts, mode, meta_type, meta, spans=spans, tables=tables, expires=expires, user=user
            )

        return await self._kv.run(work, timeout=timeout)

    async def release(self, record_id: bytes, *, by: str | None = None, timeout: float | None = None) -> Record:
        """Release a record. A user who is named by `by` may release only their own; None may release all."""

        async def work(txn: Transaction) -> Record:
            await self._check_owner(txn, record_id, by)
            return await self.store.release(txn, record_id)

        return await self._kv.run(work, timeout=timeout)

    async def renew(
        self,
        record_id: bytes,
        *,
        expires: Timestamp,
        after: Timestamp = MIN,
        by: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Let a record expire later, or never (MIN); with `after`, let it keep only what is live then or later."""

        async def work(txn: Transaction) -> None:
            await self._check_owner(txn, record_id, by)
            if after:
                await self.store.move(txn, record_id, after)
            await self.store.renew(txn, record_id, expires=expires)

        await self._kv.run(work, timeout=timeout)

    async def move(self, record_id: bytes, ts: Timestamp, *, timeout: float | None = None) -> None:
        """Let a record of mode AFTER keep only what is live at `ts` or later."""
        await self._kv.run(lambda txn: self.store.move(txn, record_id, ts), timeout=timeout)

    async def list(self, *, timeout: float | None = None) -> State:
        """All of them, now."""
        return await self._kv.run(self.catalog.list, timeout=timeout)

    async def _check_owner(self, txn: Transaction, record_id: bytes, by: str | None) -> None:
        if by is None:
            return
        record = await self.store.get(txn, record_id)
        if record.user != by:
            whose = repr(record.user) if record.user else "the operators"
            raise AccessDenied(
                f"this protection belongs to {whose}; its owner or an operator may change it", id=record_id.hex()
            )
