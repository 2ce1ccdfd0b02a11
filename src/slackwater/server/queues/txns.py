"""What dead coordinators leave behind: unresolved intents and records that are not needed any more (I-21).

    intent older than `txn.expiration`            push its transaction to abort, resolve as the answer says
    pending record without heartbeat for as long  push it to abort: its coordinator may have died before its first intent
    finished record that still names intents      resolve them, then ForgetLocks
    finished and forgotten, older than retention  GcTxnRecords, which also raises the floor below which none may return

A transaction that lives heartbeats its record, so a push of an old intent does it no harm: the answer is PENDING, and the
intent stays. An aborted record without intents of its own to name (its coordinator died before it could say) may be
forgotten at once: a reader that meets one of its intents later is told "aborted" with or without the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import Timestamp, add_seconds, seconds_between
from slackwater.codec.layout import anchored_span
from slackwater.hooks import probe
from slackwater.model.spans import Span
from slackwater.model.txns import Intent, Resolution, TxnRecord, TxnStatus
from slackwater.protocol.range import requests
from slackwater.replica.records import decode_record, resolution
from slackwater.runtime.deadline import Deadline
from slackwater.runtime.seam import Family
from slackwater.storage.intents import decode_intent
from slackwater.storage.stats import Stats
from slackwater.txn.resolving import resolve_span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.runtime.seam import EngineSnapshot
    from slackwater.server.queues.context import Visit

SCANNED_MAX = 20_000
"""Intents, and records, looked at in one visit."""
HANDLED_MAX = 200
"""Transactions pushed or finished in one visit; the rest waits for the next."""
COLLECTED_AT_ONCE = 500
KEYS_PER_REQUEST = 200
BLOCK = 1_000
TIMEOUT_S = 10.0
SPANS_PATIENCE = 4
"""How many times longer a decided transaction with spans of intents is left to its own coordinator: they take a while."""


class Chores(NamedTuple):
    """What there is to do for the transactions of one range."""

    push: list[list[Intent]]
    """Old intents, by transaction."""
    expire: list[TxnRecord]
    """Pending records whose coordinators are silent."""
    finish: list[TxnRecord]
    """Finished records that may have intents left."""
    collect: list[tuple[bytes, bytes]]
    """(anchor, id) of records that are not needed any more."""


def sort_out(
    intents: Iterable[Intent], records: Iterable[TxnRecord], *, now: Timestamp, expiration_s: float, retention_s: float
) -> Chores:
    """What to do about these intents and records at `now`."""
    old: dict[bytes, list[Intent]] = {}
    for intent in intents:
        if seconds_between(intent.ts, now) > expiration_s:
            old.setdefault(intent.txn_id, []).append(intent)
    expire: list[TxnRecord] = []
    finish: list[TxnRecord] = []
    collect: list[tuple[bytes, bytes]] = []
    for record in records:
        silent_s = seconds_between(Timestamp(max(record.start, record.heartbeat)), now)
        if record.resolved:
            if silent_s > retention_s:
                collect.append((record.anchor, record.txn_id))
        elif silent_s > expiration_s * (SPANS_PATIENCE if record.lock_spans and record.status else 1):
            (expire if record.status is TxnStatus.PENDING else finish).append(record)
    return Chores(list(old.values())[:HANDLED_MAX], expire[:HANDLED_MAX], finish[:HANDLED_MAX], collect)


class TxnQueue:
    """Cleans up after transactions."""

    name = "txns"

    async def process(self, visit: Visit) -> bool:
        """Push, finish and collect."""
        if not visit.leading:
            return False
        context, state = visit.context, visit.replica.state
        counted = Stats(*state.stats).intents if state.stats else 0
        frozen = visit.replica.context.engine.snapshot()
        intents, records = await context.runtime.offload(
            _read, frozen, state.descriptor.start, state.descriptor.end, counted > 0
        )
        chores = sort_out(
            intents,
            records,
            now=context.clock.now(),
            expiration_s=context.settings["txn.expiration"],
            retention_s=context.settings["txn.record_retention"],
        )
        for own in chores.push:
            await self._push(visit, own)
        for record in chores.expire:
            await self._expire(visit, record)
        for record in chores.finish:
            await self._finish(visit, record)
        await self._collect(visit, chores.collect)
        return False

    async def _push(self, visit: Visit, intents: list[Intent]) -> None:
        probe("queues.push_old_intent")
        outcome = await self._aborted(visit, max(intents, key=lambda i: (i.epoch, i.ts)))
        if outcome is not None:
            await self._resolve(visit, outcome, tuple(i.key for i in intents), ())

    async def _expire(self, visit: Visit, record: TxnRecord) -> None:
        """A record that no intent may ever lead to: the visit after this one finds it aborted, and finishes it."""
        probe("queues.expire_record")
        anchor = record.anchor
        await self._aborted(
            visit, Intent(anchor, record.txn_id, anchor, record.start, record.epoch, ts=record.write_ts)
        )

    async def _aborted(self, visit: Visit, pushee: Intent) -> Resolution | None:
        """The outcome of a transaction that seems to be abandoned; None while it lives."""
        deadline = Deadline(visit.context.runtime.clock, seconds=TIMEOUT_S)
        # As young as can be: only a transaction that no longer heartbeats loses against it.
        push = requests.PushTxn(pushee, visit.context.clock.now(), b"", pushee.ts, abort=True)
        answer = (await visit.context.kv.context.ask([push], deadline=deadline)).results[0]
        decided = isinstance(answer, requests.Pushed) and answer.resolution.status is not TxnStatus.PENDING
        return answer.resolution if decided and isinstance(answer, requests.Pushed) else None

    async def _finish(self, visit: Visit, record: TxnRecord) -> None:
        probe("queues.finish_txn")
        await self._resolve(visit, resolution(record), record.lock_keys, record.lock_spans)
        deadline = Deadline(visit.context.runtime.clock, seconds=TIMEOUT_S)
        await visit.context.kv.context.ask([requests.ForgetLocks(record.txn_id, record.anchor)], deadline=deadline)

    async def _resolve(
        self, visit: Visit, outcome: Resolution, keys: tuple[bytes, ...], spans: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        deadline = Deadline(visit.context.runtime.clock, seconds=TIMEOUT_S)
        pieces = [
            requests.ResolveIntents(outcome, keys=keys[i : i + KEYS_PER_REQUEST])
            for i in range(0, len(keys), KEYS_PER_REQUEST)
        ]
        for piece in pieces:
            await visit.context.kv.context.ask([piece], deadline=deadline)
        for start, end in spans:
            await resolve_span(visit.context.kv.context, outcome, start, end, timeout=TIMEOUT_S)

    async def _collect(self, visit: Visit, records: list[tuple[bytes, bytes]]) -> None:
        context = visit.context
        before = add_seconds(context.clock.now(), -context.settings["txn.record_retention"])
        for i in range(0, len(records), COLLECTED_AT_ONCE):
            some = tuple(records[i : i + COLLECTED_AT_ONCE])
            await context.admin.ask(requests.GcTxnRecords(before, some), at=visit.descriptor.start)


def _read(frozen: EngineSnapshot, start: bytes, end: bytes, with_intents: bool) -> tuple[list[Intent], list[TxnRecord]]:  # noqa: FBT001 - offload passes by position
    """The intents and records of a range, from a snapshot."""
    with frozen:
        intents = []
        if with_intents:
            intents = [decode_intent(v).named(k) for k, v in _pairs(frozen, Family.LOCK, Span(start, end))]
        records = [decode_record(v) for _, v in _pairs(frozen, Family.LOCAL, anchored_span(Span(start, end)))]
    return intents, records


def _pairs(frozen: EngineSnapshot, family: Family, span: Span) -> list[tuple[bytes, bytes]]:
    cursor = frozen.cursor(family, start=span.start, end=span.end)
    found: list[tuple[bytes, bytes]] = []
    while len(found) < SCANNED_MAX:
        keys, values = cursor.chunk(BLOCK)
        if not keys:
            break
        found += zip(keys, values, strict=True)
    return found
