"""Releases protections whose owner is gone (pitfall 39).

    expired                          whatever it is for
    meta_type "job"                  the job has ended, or is not kept any more
    meta_type "feed"                 the process that ran the feed is gone: it expires after the grace time from then on
    any other meta_type              never: what is not known here may be known elsewhere

Owners release what they no longer need themselves; this is for those that could not. A record is looked at again inside the
transaction that releases it: one that was renewed or moved meanwhile stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import NotFound, SlackwaterError
from slackwater.hooks import probe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from slackwater.model.protection import Record
    from slackwater.protect.store import ProtectionStore
    from slackwater.protect.tracker import ProtectionTracker
    from slackwater.txn.coordinator import Transaction
    from slackwater.txn.kv import KV

    Orphaned = Callable[[Transaction, Record], Awaitable[bool]]

RELEASED_TOLD_MAX = 64


class Reconciler:
    """Looks at every record now and then."""

    def __init__(
        self, kv: KV, store: ProtectionStore, tracker: ProtectionTracker, orphaned: Mapping[str, Orphaned]
    ) -> None:
        """`orphaned` tells, per `meta_type`, whether a record's owner is certainly gone."""
        self._kv = kv
        self._store = store
        self._tracker = tracker
        self._orphaned = orphaned
        self.released: list[Record] = []
        """The last ones, for the journal and tests."""

    async def round(self) -> int:
        """Look at all records once; returns how many were released."""
        now = self._kv.context.clock.now()
        await self._tracker.refresh(after=Timestamp(now - 1))
        released = 0
        for record in self._tracker.state.records:
            expired = MIN < record.expires <= now
            if not expired and record.meta_type not in self._orphaned:
                continue
            try:
                released += await self._kv.run(lambda txn, record=record: self._release(txn, record))  # type: ignore[misc]
            except NotFound:
                probe("protect.released_meanwhile")
            except SlackwaterError:
                probe("protect.reconcile_failed")  # the next round tries again
        return released

    async def _release(self, txn: Transaction, record: Record) -> bool:
        now = await self._store.get(txn, record.id)
        orphaned = self._orphaned.get(now.meta_type)
        expired = MIN < now.expires <= txn.state.read_ts
        if not expired and (orphaned is None or not await orphaned(txn, now)):
            return False
        probe("protect.expired" if expired else "protect.orphan")
        await self._store.release(txn, record.id)
        self.released = [*self.released[-RELEASED_TOLD_MAX:], now]
        return True
