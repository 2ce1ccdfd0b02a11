"""Decides what a recovery uses: for every key the best surviving replica, and the newest timestamp that all of them have.

bounds of all replicas    a────────m────────z         every piece between two neighboring bounds is judged by itself: a
n1  r2 [a, z) to 90       ├─────────────────┤         replica from before a split still serves what no newer one has
n2  r5 [m, z) to 130               ├────────┤
n1 to 90 n2 to 130          T = 90
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from slackwater.catalog.records import decode_record, descriptors_span, is_version
from slackwater.catalog.tables import Tables
from slackwater.clock.timestamp import MIN, Timestamp, show
from slackwater.closedts.negotiate import resolve
from slackwater.codec.layout import KEY_MAX, KEY_MIN, KV, TABLE, show_key, table_span
from slackwater.errors import UsageError, invariant
from slackwater.model.system_tables import FIRST_USER_TABLE_ID
from slackwater.model.txns import TxnStatus
from slackwater.replica.records import read_record, resolution
from slackwater.server.bootstrap import first_bounds
from slackwater.server.recovery.survey import check_together
from slackwater.storage.reads import scan
from slackwater.storage.through import Through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from slackwater.model.txns import Intent, Resolution
    from slackwater.server.recovery.survey import Copy, Survivor
    from slackwater.storage.intents import StoredIntent


class RecoveredPiece(NamedTuple):
    """Keys `[start, end)` and where they come from; no copy: no store that was named has them."""

    start: bytes
    end: bytes
    copy: Copy | None
    complete: Timestamp = MIN
    """The newest timestamp at which these keys are complete in that copy."""
    held_by: Intent | None = None
    """The transaction that holds `complete` below what is closed: what became of it is not known."""


class RecoveryPlan(NamedTuple):
    """What a recovery would do."""

    survivors: list[Survivor]
    pieces: list[RecoveredPiece]
    at: Timestamp
    """T: the cluster is recovered as it was at this timestamp."""
    newest: Timestamp
    """The newest timestamp that any replica has closed: what was committed between T and here is lost, in part or all."""
    limited_by: RecoveredPiece | None
    """Whose keys hold T back."""
    lost: list[RecoveredPiece]
    """Keys that no usable replica has."""
    tables: dict[str, list[tuple[bytes, bytes]]]
    """Every table at T, and which of its keys are lost."""
    damaged: list[Copy]


def make_plan(survivors: Sequence[Survivor], *, at: Timestamp | None = None) -> RecoveryPlan:
    """The plan for these stores; `at` asks for an older timestamp than the newest possible one."""
    check_together(survivors)
    fate = outcomes(survivors)
    copies = [copy for survivor in survivors for copy in survivor.copies]
    usable = [copy for copy in copies if not copy.damage]
    bounds = {KEY_MIN, KEY_MAX, *first_bounds()}
    bounds.update(bound for c in usable for bound in (c.state.descriptor.start, c.state.descriptor.end))
    options = [_options(usable, start, end, fate) for start, end in pairwise(sorted(bounds))]
    newest_possible = Timestamp(min((max(p.complete for p in found) for found in options if found), default=MIN))
    chosen = newest_possible if at is None else at
    if chosen > newest_possible:
        raise UsageError(
            f"these stores are complete up to {show(newest_possible)} only; ask for that or less",
            newest=newest_possible,
        )
    pieces = [_choose(found, chosen, *bound) for found, bound in zip(options, pairwise(sorted(bounds)), strict=True)]
    lost = [piece for piece in pieces if piece.copy is None]
    return RecoveryPlan(
        survivors=list(survivors),
        pieces=pieces,
        at=chosen,
        newest=Timestamp(max((c.closed for c in copies), default=MIN)),
        limited_by=next((p for p in pieces if p.copy is not None and p.complete == newest_possible), None),
        lost=lost,
        tables=_tables(pieces, lost, chosen, fate),
        damaged=[copy for copy in copies if copy.damage],
    )


def outcomes(survivors: Sequence[Survivor]) -> Callable[[StoredIntent], Resolution | None]:
    """What became of an intent's transaction, by any record that survived. None: nothing is known."""
    known: dict[bytes, Resolution | None] = {}

    def fate(intent: StoredIntent) -> Resolution | None:
        if intent.txn_id not in known:
            records = [read_record(s.reader, anchor=intent.anchor, txn_id=intent.txn_id) for s in survivors]
            found = [resolution(record) for record in records if record is not None]
            final = [one for one in found if one.status is not TxnStatus.PENDING]
            invariant(len({(o.status, o.ts) for o in final}) <= 1, "I-20", txn=intent.txn_id, outcomes=final)
            known[intent.txn_id] = final[0] if final else max(found, key=lambda one: one.ts, default=None)
        return known[intent.txn_id]

    return fate


def _options(
    copies: Iterable[Copy], start: bytes, end: bytes, fate: Callable[[StoredIntent], Resolution | None]
) -> list[RecoveredPiece]:
    """Every usable replica that covers `[start, end)`, the one that has applied most first."""
    found = []
    for copy in copies:
        if copy.state.descriptor.covers(start, end):
            known = resolve(copy.reader, start, end, closed=copy.closed, fate=fate)
            found.append(RecoveredPiece(start, end, copy, known.ts, known.held_by))
    return sorted(found, key=lambda p: (p.copy is not None and p.copy.state.position, p.complete), reverse=True)


def _choose(options: list[RecoveredPiece], at: Timestamp, start: bytes, end: bytes) -> RecoveredPiece:
    """The best replica that is complete at `at` and has not collected what was visible then."""
    complete = [p for p in options if p.complete >= at]
    for piece in complete:
        if piece.copy is not None and piece.copy.state.gc_threshold <= at:
            return piece
    if complete and complete[0].copy is not None:
        copy = complete[0].copy
        raise UsageError(
            f"history at {show(at)} has been collected in {copy.name()}, whose threshold is "
            f"{show(copy.state.gc_threshold)}; name more stores, or leave out the ones that hold the others back",
            store=copy.store,
        )
    return RecoveredPiece(start, end, None)


def read_at(piece: RecoveredPiece, at: Timestamp, fate: Callable[[StoredIntent], Resolution | None]) -> Through:
    """The keys of a piece as they are once every transaction that committed at or below `at` is resolved."""
    assert piece.copy is not None, "only a piece that survived can be read"
    return Through(piece.copy.reader, fate, bound=at)


def _tables(
    pieces: list[RecoveredPiece],
    lost: list[RecoveredPiece],
    at: Timestamp,
    fate: Callable[[StoredIntent], Resolution | None],
) -> dict[str, list[tuple[bytes, bytes]]]:
    """The tables there were at `at`, each with what of it is lost."""
    span, tables = descriptors_span(), Tables()
    for piece in pieces:
        if piece.copy is None or piece.end <= span.start or span.end <= piece.start:
            continue
        low, high = max(piece.start, span.start), min(piece.end, span.end)
        rows = scan(read_at(piece, at, fate), low, high, ts=at)
        for key, value, ts in zip(rows.keys, rows.values, rows.timestamps, strict=True):
            if is_version(key):
                tables.learn([decode_record(key, value, ts)])
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    for history in tables.names():
        table = table_span(history.latest.table_id)
        cuts = [(max(p.start, table.start), min(p.end, table.end)) for p in lost]
        found[history.latest.name] = [(low, high) for low, high in cuts if low < high]
    return found


def system_lost(plan: RecoveryPlan) -> list[RecoveredPiece]:
    """Lost keys without which no cluster can be made: the system's own records and tables."""
    return [piece for piece in plan.lost if piece.start < KV or _in_system_tables(piece)]


def _in_system_tables(piece: RecoveredPiece) -> bool:
    first_user = table_span(FIRST_USER_TABLE_ID).start
    return piece.start < first_user and piece.end > TABLE


def describe(piece: RecoveredPiece) -> str:
    """The keys of a piece for people."""
    return f"[{show_key(piece.start)}, {show_key(piece.end)})"
