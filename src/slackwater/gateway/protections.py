"""Protected timestamps for clients: tables by name, rights by certificate, and what each one costs.

A client may protect any table that it can read, and change what it protected itself; an operator may change all. How much
history a protection pins is told from the statistics of the ranges that it covers, as the gateway hears them from the nodes:
all that is not live there, once the protected time is older than the ttl (before that it is the ttl that keeps it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.codec.layout import TABLE
from slackwater.errors import UsageError
from slackwater.gateway.tables import owner_of
from slackwater.model.protection import OWNED_BY_JOB, RECORD_ID_BYTES
from slackwater.model.system_tables import check_not_view, is_system
from slackwater.protocol.client import protections as pr

if TYPE_CHECKING:
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.model.protection import Record
    from slackwater.runtime.rpc.server import RpcServer

TABLES_MAX = 256
EXPIRES_S_MAX = 366 * 86400.0
ABOUT_CHARS_MAX = 200
KINDS = ("user", "snapshot", "spark")


class Owner(msgspec.Struct, frozen=True):
    """The `meta` of protections that were asked for by clients and feeds."""

    about: str = ""


_owner = msgspec.json.Decoder(Owner)


def about(record: Record) -> str:
    """Why a record was made, or for what, in a few words; empty when its owner has another way to say so."""
    try:
        return _owner.decode(record.meta).about
    except (msgspec.MsgspecError, ValueError):
        return record.meta.decode(errors="replace")[:ABOUT_CHARS_MAX]


class ProtectionService:
    """Serves `db.protect` and its like."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def serve(self, server: RpcServer) -> None:
        """Offer the methods."""
        server.handle(pr.PROTECT, self.protect)
        server.handle(pr.RENEW, self.renew)
        server.handle(pr.RELEASE, self.release)
        server.handle(pr.PROTECTIONS, self.all)

    async def protect(self, request: pr.ProtectTables, context: CallContext) -> pr.ProtectionsReply:
        """Protect tables as they were named at that time."""
        catalog, node = self._gateway.catalog, self._gateway.node
        if not 1 <= len(request.tables) <= TABLES_MAX:
            raise UsageError(f"name 1 to {TABLES_MAX} tables to protect", tables=len(request.tables))
        if request.kind not in KINDS or len(request.about) > ABOUT_CHARS_MAX:
            raise UsageError(
                f"a protection is of {', '.join(KINDS)}, with a reason of up to {ABOUT_CHARS_MAX} characters"
            )
        self._gateway.scans.check_past(request.ts)
        histories = [await catalog.find(name, at=request.ts) for name in request.tables]
        for history in histories:
            history.readable_at(request.ts)
            check_not_view(history.latest.table_id, history.latest.name, what="protected")
        record_id = await node.protections.protect(
            request.ts,
            request.mode,
            request.kind,
            msgspec.json.encode(Owner(request.about)),
            tables=sorted({history.latest.table_id for history in histories}),
            expires=self._expires(request.expires_s),
            user=owner_of(context) or "",
            timeout=context.remaining(),
        )
        return await self._one(record_id, context)

    async def renew(self, request: pr.RenewProtection, context: CallContext) -> pr.ProtectionsReply:
        """Let a protection expire later, and move up if it is of all that comes after a time."""
        protections, expires = self._gateway.node.protections, self._expires(request.expires_s)
        self._gateway.scans.check_past(request.after)
        await self._check_no_job(request.id, context)
        await protections.renew(
            request.id, expires=expires, after=request.after, by=owner_of(context), timeout=context.remaining()
        )
        return await self._one(request.id, context)

    async def release(self, request: pr.ReleaseProtection, context: CallContext) -> pr.ProtectionsReply:
        """Let one go; what it was is the answer."""
        await self._check_no_job(request.id[:RECORD_ID_BYTES], context)
        gone = await self._gateway.node.protections.release(
            request.id[:RECORD_ID_BYTES], by=owner_of(context), timeout=context.remaining()
        )
        return pr.ProtectionsReply([self._shown(gone, 0)])

    async def all(self, request: pr.ListProtections, context: CallContext) -> pr.ProtectionsReply:
        """All of them, with how much history each pins."""
        await self._gateway.catalog.refresh()
        records = (await self._gateway.node.protections.list(timeout=context.remaining())).records
        pinned = await self._gateway.node.pinned.of(records)
        shown = [self._shown(record, pinned.get(record.id, 0)) for record in records]
        return pr.ProtectionsReply(sorted(shown, key=lambda p: (p.timestamp, p.id)))

    async def _get(self, record_id: bytes, context: CallContext) -> Record:
        store, kv = self._gateway.node.protections.store, self._gateway.kv
        return await kv.run(lambda txn: store.get(txn, record_id), timeout=context.remaining())

    async def _check_no_job(self, record_id: bytes, context: CallContext) -> None:
        """Refuse to change by hand what a job reads by: it goes in the transaction that ends the job."""
        record = await self._get(record_id, context)
        if record.meta_type == OWNED_BY_JOB:
            job = record.meta.decode(errors="replace")
            raise UsageError(
                f"this protection belongs to job {job} and goes when that ends; `slackwater jobs cancel {job}` ends it",
                id=record_id.hex(),
            )

    async def _one(self, record_id: bytes, context: CallContext) -> pr.ProtectionsReply:
        return pr.ProtectionsReply([self._shown(await self._get(record_id, context), 0)])

    def _shown(self, record: Record, pinned_bytes: int) -> pr.Protection:
        return pr.Protection(
            record.id.hex(),
            record.ts,
            record.mode,
            record.meta_type,
            about(record),
            self._names(record),
            record.created,
            record.expires,
            record.user,
            pinned_bytes,
        )

    def _names(self, record: Record) -> tuple[str, ...]:
        tables = self._gateway.catalog.tables
        ids = {int.from_bytes(s.start[1:5], "big") for s in record.spans if s.start[:1] == TABLE and len(s.start) >= 5}
        found = [tables.by_id(table_id) for table_id in sorted(ids) if not is_system(table_id)]
        return tuple(history.latest.name for history in found if history is not None)

    def _expires(self, seconds: float) -> Timestamp:
        if not 0 <= seconds <= EXPIRES_S_MAX:
            raise UsageError(
                f"a protection expires within {EXPIRES_S_MAX / 86400:g} days, or never (0)", seconds=seconds
            )
        return add_seconds(self._gateway.node.clock.now(), seconds) if seconds else MIN
