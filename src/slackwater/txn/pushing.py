"""What to ask of a transaction whose intent is in the way, and what to do with the answer.

    I                                    ask                          and when it is still PENDING
    write its key                        abort, by my age             wait
    read at t, sure of t                 move above t, by my age      ts > t: move its intents up; else wait
    read, uncertain, holding locks       abort, by my age             wait
    read, uncertain, holding nothing     nothing: wait as if young    wait

    COMMITTED or ABORTED                 in all cases: a write resolves its intents and tries again; a read is told the
                                         outcome, reads through them, and leaves them to others (`replica.fates`)

A read that holds no locks and has waited once insists: when the clock has passed all that is uncertain to it, it moves the
writer above that, whatever its age, and passes its intents by. A transaction that writes for minutes holds up no such reader
for longer than a moment.

The pushed transaction's range decides by age (wound-wait): an older pusher wins at once, a younger one waits there
for a while and then gets PENDING as it stands. Waits lead from young to old only, so they make no cycle; and a request that
holds nothing may wait for any transaction.

Grace: the first time a transaction is met, even an older one waits for GRACE_MS before it wounds. A short transaction
is over by then, and no transaction has to run again; a deadlock lasts that much longer.

Why uncertainty makes a difference: a reader at t that is uncertain up to t + max_offset is disturbed by intents up to
there. Moving a writer that far would send it, and the clocks of all ranges it writes to, into the future. Waiting for
the decision ends soon: after max_offset new intents lie above the interval, which does not move with the clock.

The golden script `tests/scripts/txn/wound_wait.txt` prints the whole table. Pure.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.errors import UnavailableError
from slackwater.model.txns import Intent, Resolution, TxnStatus
from slackwater.protocol.range.requests import VERSION_WRITES, PushTxn, ResolveIntents
from slackwater.routing.outcome import read_only
from slackwater.routing.split import extent
from slackwater.settings import describe
from slackwater.storage.intents import CONFLICTS_MAX

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from slackwater.protocol.range.requests import Request

INTENTS_PER_ROUND_MAX = 1000
"""Intents dealt with at a time; the rest are met again on the next try."""
assert INTENTS_PER_ROUND_MAX >= CONFLICTS_MAX, "all intents that one error names are dealt with in one round"
GRACE_MS = 30
"""How long an older transaction waits for a younger one before it wounds it. Most end by themselves sooner."""
WAIT_MS = 1000
"""How long a push that has to wait may be parked at the pushee's range."""
READ_WAIT_MS = 250
"""The same of a read, which does better than to wait then."""
assert GRACE_MS < READ_WAIT_MS < WAIT_MS, "a reader waits for longer than the grace, and for less than a writer"
assert describe("routing.send_timeout").default * 1000 > WAIT_MS, (
    "a push that is parked is answered before its sender gives up"
)
_WRITES = frozenset(VERSION_WRITES)


class TxnPusher(msgspec.Struct, frozen=True):
    """The transaction on whose behalf others are pushed. Without one: the time the request began, and no id."""

    start: Timestamp
    txn_id: bytes
    read_ts: Timestamp
    uncertain: bool
    """Whether intents above `read_ts` disturb it too."""
    holds_locks: bool
    limit: Timestamp = MIN
    """Up to where it is uncertain."""


class Push(msgspec.Struct, frozen=True):
    """One transaction to push and its intents that were met."""

    request: PushTxn
    keys: tuple[bytes, ...]


class AfterPush(enum.Enum):
    """What to do after a push."""

    RESOLVE = "resolve"
    WAIT = "wait"


def plan(
    intents: Sequence[Intent], requests: Sequence[Request], pusher: TxnPusher, *, known: Container[bytes] = ()
) -> list[Push]:
    """One push per transaction met, in the order they were met; those not in `known` are given time to end first."""
    met: dict[bytes, list[Intent]] = {}
    for intent in intents[:INTENTS_PER_ROUND_MAX]:
        if intent.txn_id != pusher.txn_id:
            met.setdefault(intent.txn_id, []).append(intent)
    reading = bool(requests) and read_only(requests)
    pushes = []
    for own in met.values():
        writing = any(_writes(request, i.key) for i in own for request in requests)
        patient = pusher.uncertain and not writing and not pusher.holds_locks
        abort = writing or pusher.uncertain
        grace = abort and own[0].txn_id not in known
        request = PushTxn(
            pushee=max(own, key=lambda i: (i.epoch, i.ts)),
            pusher_start=MAX if patient or grace else pusher.start,
            pusher_id=pusher.txn_id,
            above=pusher.read_ts,
            abort=abort,
            wait_ms=(READ_WAIT_MS if reading else WAIT_MS) if patient or not grace else GRACE_MS,
        )
        pushes.append(Push(request, tuple(sorted({i.key for i in own}))))
    assert len({push.request.pushee.txn_id for push in pushes}) == len(pushes), (
        "a transaction is pushed once in a round"
    )
    assert all(push.keys for push in pushes), "a push is for keys that were met"
    assert all(push.request.pushee.txn_id != pusher.txn_id for push in pushes), "a transaction does not push itself"
    return pushes


def after(push: PushTxn, resolution: Resolution) -> AfterPush:
    """What the answer to a push allows."""
    if resolution.txn_id != push.pushee.txn_id:
        raise UnavailableError("a push was answered for another transaction", txn=push.pushee.txn_id.hex())
    if resolution.status is not TxnStatus.PENDING:
        return AfterPush.RESOLVE
    if push.abort:
        return AfterPush.WAIT
    return AfterPush.RESOLVE if resolution.ts > push.above else AfterPush.WAIT


def insistent(pusher: TxnPusher) -> TxnPusher:
    """The same reader, when its clock has passed all that it is uncertain about: it wins over all others."""
    above = Timestamp(max(pusher.read_ts, pusher.limit))
    assert above >= pusher.read_ts, "a read looks at least where it reads"
    return TxnPusher(MIN, pusher.txn_id, above, uncertain=False, holds_locks=pusher.holds_locks, limit=above)


def settles(outcome: Resolution, *, above: Timestamp) -> bool:
    """Whether an outcome is all that a read at `above` or below needs to know of a transaction."""
    return outcome.status is not TxnStatus.PENDING or outcome.ts > above


def resolve(push: Push, resolution: Resolution) -> ResolveIntents:
    """What clears the intents out of the way of a write."""
    assert push.keys, "there is something to resolve"
    return ResolveIntents(resolution, keys=push.keys)


def _writes(request: Request, key: bytes) -> bool:
    if type(request) not in _WRITES:
        return False
    start, end = extent(request, home=b"")
    return start <= key < end
