"""One transaction, seen from its client: operations, commit, rollback, restart.

        ┌──────── restart (epoch + 1, or another identity after an abort) ─────────┐
        ▼                                                                          │
      OPEN ── operations ── error that spoils the reads or a write ──► OPEN, spoiled ── rollback ──► ROLLED_BACK
        └──── commit ──► COMMITTED  (or UNKNOWN: the record could not be reached to find out)

Operations of one transaction take turns. An error that leaves it unclear what this epoch has read or written *spoils*
the transaction: every further operation fails with the same error until it is restarted or rolled back, so no caller
commits half of what he meant by swallowing an exception. `ConditionFailed` and misuse do not spoil: nothing happened.

How errors are met
    ConflictError                        push and resolve the intents in the way, try again (`contention`)
    ReadWithinUncertainty, WriteTooOld   refresh the reads to just above what is there, try again
    RetryableError(push_to)              refresh the reads to there, try again
    AmbiguousResult of a write           spoiled; the next epoch makes the lost write void, whenever it arrives
    AmbiguousResult of EndTxn            settled by the record (`_settle`)
    TransactionAborted                   spoiled; restart with another identity and the same age
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import (
    AmbiguousResult,
    ConditionFailed,
    ConflictError,
    ReadWithinUncertainty,
    RetryableError,
    SlackwaterError,
    TransactionAborted,
    UsageError,
    WriteTooOld,
    invariant,
)
from slackwater.hooks import buggify, probe
from slackwater.model.txns import TXN_ID_BYTES, TxnStatus
from slackwater.protocol.range.requests import VERSION_WRITES, Committed, EndTxn, Get, Header, Value
from slackwater.routing.facts import timestamp_of
from slackwater.routing.sender import NO_RANGE, crosses_ranges
from slackwater.runtime.sync import CancelledError, Lock
from slackwater.settings import describe
from slackwater.txn import reads as saw
from slackwater.txn.buffer import WriteBuffer
from slackwater.txn.contention import ContentionWait
from slackwater.txn.finish import Finished
from slackwater.txn.heartbeat import HeartbeatLoop
from slackwater.txn.operations import Operations
from slackwater.txn.pushing import TxnPusher
from slackwater.txn.refresh import refresh
from slackwater.txn.settle import settled_commit
from slackwater.txn.spanbook import SpanBook
from slackwater.txn.state import TxnPhase, TxnState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.protocol.range.requests import BatchResult, Request, Result
    from slackwater.runtime.deadline import Deadline
    from slackwater.txn.context import TxnContext
    from slackwater.txn.finish import Finisher

_WRITES = frozenset(VERSION_WRITES)
CONFIRM_ATTEMPTS_MAX = 4
ONE_PHASE_ATTEMPTS_MAX = 2
assert ONE_PHASE_ATTEMPTS_MAX >= 1, "a commit is tried"
assert describe("txn.buffer_bytes_max").default <= describe("log.entry_bytes_max").default // 4, (
    "what a transaction holds back by default fits one command"
)


class Transaction(Operations):
    """A serializable transaction. Made by `KV.begin` or handed to the function given to `KV.run`."""

    def __init__(
        self,
        context: TxnContext,
        finisher: Finisher,
        *,
        timeout: float | None = None,
        until: Deadline | None = None,
        nearest: bool = False,
        name: bytes = b"",
    ) -> None:
        settings = context.settings
        self._context = context
        self._finisher = finisher
        self._timeout = timeout
        self.until = until
        """When everything has to be over, the undoing included; without it, `timeout` bounds each operation."""
        self._nearest = nearest
        self._turn = Lock()
        self._reads = SpanBook(limit=int(settings["txn.refresh_spans_max"]))
        self._locks = SpanBook(limit=int(settings["txn.lock_keys_max"]))
        entry_share = int(settings["log.entry_bytes_max"]) // 4
        self._buffer = WriteBuffer(bytes_max=min(int(settings["txn.buffer_bytes_max"]), entry_share))
        self._spoiled: SlackwaterError | None = None
        self._intents = False  # whether any epoch of this identity may have left one
        now = context.clock.now()
        self.state = TxnState(
            txn_id=context.life(name, now) if name else context.runtime.rng.bytes(TXN_ID_BYTES),
            now=now,
            max_offset_us=context.clock.max_offset_us,
        )
        self._heart = HeartbeatLoop(context, self.state)
        self.phase = TxnPhase.OPEN
        self.commit_ts = MIN
        """When it happened; known after `commit`."""
        self.deadline: Timestamp | None = None
        """The commit timestamp must stay below this (leases on descriptors)."""

    # --- the end

    async def commit(self) -> Timestamp:
        """Make every write visible at one timestamp, at which every read holds too; returns it."""
        async with self._turn:
            self._usable()
            try:
                committed = await self._commit()
            except CancelledError:
                self.phase = TxnPhase.UNKNOWN
                self._heart.stop()
                raise
            except SlackwaterError as error:
                self._commit_failed(error)
                raise
            await self._committed(committed)
        assert self.phase is TxnPhase.COMMITTED, "a commit that returns has happened"
        assert self.commit_ts > MIN, "a commit has a timestamp"
        return self.commit_ts

    async def rollback(self) -> None:
        """Undo everything. Returns when that is decided; intents vanish soon after."""
        async with self._turn:
            self._open()
            self.phase = TxnPhase.ROLLED_BACK
            self._heart.stop()
            if self.until is not None and self.until.passed:
                self._discard()
            elif self._intents:
                finished = self._finished(TxnStatus.ABORTED, MIN)
                await self._finisher.roll_back(self.state.message(), finished, deadline=self.until)

    def abandon(self) -> None:
        """Undo everything in the background; for callers that were cancelled. Does nothing after the end."""
        if self.phase is TxnPhase.OPEN:
            self.phase = TxnPhase.ROLLED_BACK
            self._discard()

    async def restart(self) -> None:
        """Begin again after a `RetryableError`: everything read and written so far is void, the age stays."""
        async with self._turn:
            self._open()
            spoiled = self._spoiled
            if not isinstance(spoiled, TransactionAborted):  # a rival may have aborted what failed for another reason
                spoiled = self._heart.verdict or spoiled
            self._spoiled = None
            self._buffer.clear()
            self._reads.clear()
            now = self._context.clock.now()
            if isinstance(spoiled, TransactionAborted):
                probe("txn.reborn")
                self._discard()
                self._locks.clear()
                self._intents = False
                too_old = spoiled.facts.get("collected") is True
                self.state.reborn(txn_id=self._context.runtime.rng.bytes(TXN_ID_BYTES), now=now, too_old=too_old)
                if spoiled.facts.get("collected"):
                    # Nothing of this age may have a record there any more: young again, or it never commits.
                    self.state.start = now
                self._heart = HeartbeatLoop(self._context, self.state)
                assert self._heart.verdict is None, "another identity begins alive"
                assert self.state.start <= now, "a transaction is as old as its first try"
            else:
                probe("txn.restart")
                self.state.restart(now)
                assert self.state.read_ts >= now, "a transaction that begins anew reads the present"
                if not self._intents:
                    self._locks.clear()
                    self.state.anchor = b""
            assert self.spoiled is None, "a transaction that was restarted can be used again"

    @property
    def spoiled(self) -> SlackwaterError | None:
        """Why this epoch cannot go on, if it cannot."""
        return self._spoiled or self._heart.verdict

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"{self.state.status()} {self.phase.value} reads={len(self._reads)} locks={len(self._locks)}"

    # --- operations, one at a time

    async def _do(self, requests: Sequence[Request], *, max_keys: int = 0, max_bytes: int = 0) -> list[Result]:
        async with self._turn:
            self._usable()
            return await self._seen(requests, max_keys=max_keys, max_bytes=max_bytes)

    async def _seen(self, requests: Sequence[Request], *, max_keys: int = 0, max_bytes: int = 0) -> list[Result]:
        """Have requests executed, after the writes held back that they must see. The caller has the turn."""
        waiting = self._waiting()
        if any(self._buffer.touches(saw.spans_of(request)) for request in requests):
            await self._flush(waiting)
        return (await self._send(requests, waiting, max_keys=max_keys, max_bytes=max_bytes)).results

    async def _hold_back_new(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Keep writes for later whose keys must be new: that they are is read now, and held true like any read."""
        async with self._turn:
            self._usable()
            for key, found in zip(keys, await self._seen([Get(key) for key in keys]), strict=True):
                if isinstance(found, Value) and found.value is not None:
                    raise ConditionFailed("the key has a value already", key=key, actual=found.value, ts=MIN)
            for key, value in zip(keys, values, strict=True):
                if not self._buffer.fits(key, value):
                    await self._flush(self._waiting())
                assert self._buffer.fits(key, value) or not self._buffer, "what does not fit was sent first"
                self._buffer.put(key, value)
            if self._buffer.full:
                await self._flush(self._waiting())

    async def _hold_back(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Keep blind writes for later; send them all when they have become many."""
        async with self._turn:
            self._usable()
            for key, value in rows:
                if not self._buffer.fits(key, value):
                    await self._flush(self._waiting())
                assert self._buffer.fits(key, value) or not self._buffer, "what does not fit was sent first"
                self._buffer.put(key, value)
                if self._buffer.full:
                    await self._flush(self._waiting())

    async def _flush(self, waiting: ContentionWait) -> None:
        if self._buffer:
            await self._write_intents(self._buffer.requests(), waiting)
            self._buffer.clear()
            assert not self._buffer, "what was sent is no longer held back"

    async def _write_intents(self, writes: Sequence[Request], waiting: ContentionWait) -> None:
        """Make writes that were held back intents. Their callers cannot be told of an error any more: it ends the epoch."""
        try:
            await self._send(writes, waiting)
        except SlackwaterError as error:
            self._spoil(error)
            raise

    async def _send(
        self, requests: Sequence[Request], waiting: ContentionWait, *, max_keys: int = 0, max_bytes: int = 0
    ) -> BatchResult:
        """Have a batch executed in this epoch, moving timestamps and clearing rivals as needed."""
        writing = any(type(request) in _WRITES for request in requests)
        if writing:
            self._will_write(requests)
            self._intents = True
            await self._heart.start(within_s=waiting.deadline.remaining())
        assert not writing or self.state.anchor, "a transaction that writes has an anchor for its record"
        while True:
            # A batch tried again gets new numbers: what an earlier try left in part lies below them.
            first = self.state.take_sequences(len(requests))
            header = self._header(first, max_keys=max_keys, max_bytes=max_bytes)
            header = structs.replace(header, decided=waiting.decided) if waiting.decided else header
            try:
                answer = await self._context.sender.send(requests, header, timeout=waiting.deadline.remaining())
            except CancelledError:
                if writing:
                    self._spoil(RetryableError("a write was cancelled; it may or may not have happened"))
                raise
            except SlackwaterError as error:
                await self._recover_or_spoil(error, requests, waiting, writing=writing)
                continue
            assert len(answer.results) == len(requests), "a result for every request"
            self.state.moved(answer.txn_write_ts)
            for request, result in zip(requests, answer.results, strict=True):
                saw.remember(self._reads, request, result)
            return answer

    async def _recover_or_spoil(
        self, error: SlackwaterError, requests: Sequence[Request], waiting: ContentionWait, *, writing: bool
    ) -> None:
        """Recover, or leave the transaction unusable if some of the batch may have been carried out."""
        try:
            await self._recover(error, requests, waiting, writing=writing)
        except (ConditionFailed, UsageError) as final:
            if final.facts.get("partial"):
                self._spoil(final)
            raise
        except SlackwaterError as final:
            if writing:
                self._spoil(final)
            raise

    async def _recover(
        self, error: SlackwaterError, requests: Sequence[Request], waiting: ContentionWait, *, writing: bool
    ) -> None:
        """Do what the error asks for, so that the batch can be sent again; or raise."""
        self._alive()
        again = not (writing and error.facts.get("partial")) or all(saw.same_twice(request) for request in requests)
        match error:
            case TransactionAborted():
                raise self._spoil(error)
            case ConditionFailed():
                await self._confirm(error, waiting)
                raise error
            case ConflictError() | RetryableError() if not again:
                raise self._spoil(RetryableError(f"a write was carried out in part; restart the transaction: {error}"))
            case ConflictError():
                await waiting.clear(error, requests, self._pusher())
            case ReadWithinUncertainty() | WriteTooOld():
                await self._move_reads(Timestamp(timestamp_of(error, "existing") + 1), waiting, cause=error)
            case RetryableError():
                await self._move_reads(timestamp_of(error, "push_to"), waiting, cause=error)
            case AmbiguousResult():
                lost = RetryableError(f"a write went unanswered; restart the transaction: {error}")
                raise self._spoil(lost) from error
            case _:
                raise error

    async def _confirm(self, error: ConditionFailed, waiting: ContentionWait) -> None:
        """Make what a failed condition has told part of this transaction's reads.

        The server compared with the newest version, which may be above the read timestamp. Reading the key like any
        other keeps all reads true at one timestamp; if the newest value is not visible there, the reads move up first.
        """
        key = error.facts.get("key")
        if not isinstance(key, bytes):
            raise self._spoil(RetryableError("a condition failed at a key that was not named; run it again")) from error
        get = Get(key)
        for _ in range(CONFIRM_ATTEMPTS_MAX):
            (found,) = (await self._send([get], waiting)).results
            if isinstance(found, Value) and found.value == error.facts.get("actual"):
                return
            probe("txn.condition_saw_the_future")
            upto = Timestamp(max(self._context.clock.now(), timestamp_of(error, "ts")))
            await self._move_reads(upto, waiting, cause=error)
        raise self._spoil(RetryableError("the value that failed the condition keeps changing; run it again")) from error

    async def _move_reads(self, upto: Timestamp, waiting: ContentionWait, *, cause: SlackwaterError) -> None:
        """Refresh to `upto`, or spoil the epoch."""
        if upto <= self.state.read_ts and not isinstance(cause, ReadWithinUncertainty | WriteTooOld):
            raise self._spoil(cause)  # nothing a refresh could mend
        self.state.moved(upto)
        upto = max(upto, self.state.write_ts) if buggify("txn.refresh_all_the_way") else upto
        if not await refresh(self._context, self.state, self._reads, upto=upto, waiting=waiting):
            raise self._spoil(RetryableError("something this transaction read has changed; run it again")) from cause
        assert self.state.read_ts >= upto, "reads hold where the transaction moved to (I-18)"

    # --- commit

    async def _commit(self) -> Committed:
        waiting = self._waiting()
        if not self._buffer and not self._locks:
            return Committed(TxnStatus.COMMITTED, self.state.read_ts, resolved=True)
        if self._buffer and not self._intents and not buggify("txn.commit_without_1pc"):
            committed = await self._commit_at_once(waiting)
            if committed is not None:
                return committed
        assert self.phase is TxnPhase.OPEN, "only an open transaction commits"
        await self._flush(waiting)
        committed = await self._end(waiting, [], attempts=int(self._context.settings["txn.commit_attempts_max"]))
        if committed is None:
            raise self._spoil(RetryableError("the transaction was moved up again and again; run it again"))
        return committed

    async def _commit_at_once(self, waiting: ContentionWait) -> Committed | None:
        """Writes and commit in one batch, as far as the range of the record has them; None if that does not get through.

        What other ranges have becomes intents first. Where there are none such, this is the whole transaction: one command.
        Without intents nothing holds rivals off: two transactions that read and write the same key would refresh
        above each other for ever. After a few tries all writes are laid down as intents, and one of the two waits.
        """
        assert self._buffer, "there is something to commit"
        assert not self._intents, "a transaction that has intents commits the long way"
        anchor = self.state.anchor = self.state.anchor or saw.first_key(self._buffer.requests())
        sender = self._context.sender
        home = sender.cache.lookup(anchor) or await sender.range_of(anchor, timeout=waiting.deadline.remaining())
        assert home.start <= anchor < home.end, "the anchor is in its range"
        here, elsewhere = self._buffer.divided(home.start, home.end)
        if not here:
            return None
        if elsewhere:
            probe("txn.commit_with_writes")
            await self._write_intents(elsewhere, waiting)
        try:
            return await self._end(waiting, here, attempts=ONE_PHASE_ATTEMPTS_MAX)
        except UsageError as error:
            if not crosses_ranges(error):
                raise
            probe("txn.one_phase_split")
            return None

    async def _end(self, waiting: ContentionWait, writes: Sequence[Request], *, attempts: int) -> Committed | None:
        """EndTxn, in one batch with `writes` if there are any, after the reads were brought up to the writes.

        Again when the server moved them in between; None when that has happened `attempts` times.
        """
        assert attempts > 0, "a commit is tried"
        keys, spans = (self._locks.keys(), self._locks.spans()) if self._intents else ((), ())
        for _ in range(attempts):
            self._alive()
            if self.state.write_ts > self.state.read_ts:
                await self._move_reads(self.state.write_ts, waiting, cause=RetryableError("the writes moved up"))
            end = EndTxn(
                commit=True,
                lock_keys=keys,
                lock_spans=spans,
                deadline=self.deadline,
                one_phase=bool(writes),
                can_forward=not self._reads,
            )
            requests = [*writes, end]
            header = self._header(self.state.take_sequences(len(requests)))
            try:
                answer = await self._context.sender.send(requests, header, timeout=waiting.deadline.sparing())
            except AmbiguousResult as error:
                return await self._settle(error, waiting.deadline)
            except SlackwaterError as error:
                if crosses_ranges(error):
                    raise
                await self._recover(error, requests, waiting, writing=bool(writes))
                continue
            assert len(answer.results) == len(requests), "a result for every request"
            committed = answer.results[-1]
            invariant(isinstance(committed, Committed), "A-end-answer", kind=type(committed).__name__)
            return committed  # type: ignore[return-value]  # by the line above
        return None

    async def _settle(self, error: AmbiguousResult, deadline: Deadline) -> Committed:
        """Find out whether the commit happened; if it did not, make sure that it never will."""
        try:
            return await settled_commit(self._context, self.state.as_intent(), error, deadline=deadline)
        except AmbiguousResult:
            self.phase = TxnPhase.UNKNOWN
            raise

    async def _committed(self, committed: Committed) -> None:
        self._heart.stop()
        invariant(committed.status is TxnStatus.COMMITTED, "I-20", status=committed.status.name)
        assert self.phase is TxnPhase.OPEN, "a transaction ends once (I-20)"
        self.phase = TxnPhase.COMMITTED
        self.commit_ts = committed.commit_ts
        if not committed.resolved:
            finished = self._finished(TxnStatus.COMMITTED, committed.commit_ts)
            if committed.left_keys or committed.left_spans:
                finished = structs.replace(finished, keys=committed.left_keys, spans=committed.left_spans)
            await self._finisher.enqueue(finished, deadline=self.until)
        await self._context.acknowledged(committed.commit_ts)

    def _commit_failed(self, error: SlackwaterError) -> None:
        if self.phase is TxnPhase.UNKNOWN:
            self._heart.stop()
        else:
            self._spoil(error)

    # --- bookkeeping: none of this awaits

    def _will_write(self, requests: Sequence[Request]) -> None:
        """Note every key before anything is sent: a write that goes unanswered may have left an intent."""
        for request in requests:
            saw.lock(self._locks, request)
        if not self.state.anchor:
            self.state.anchor = saw.first_key(requests)
        assert self._locks, "where an intent may be left is noted before it is written"

    def _header(self, first: int, *, max_keys: int = 0, max_bytes: int = 0) -> Header:
        state = self.state
        return Header(
            NO_RANGE,
            ts=state.read_ts,
            txn=state.message(sequence=first),
            uncertainty_limit=state.uncertainty_limit,
            max_keys=max_keys,
            max_bytes=max_bytes,
            # Its own intents may not have reached a follower (pitfall 19), so only before there are any.
            follower_ok=self._nearest and not self._intents,
        )

    def _pusher(self) -> TxnPusher:
        state = self.state
        limit, locks = state.uncertainty_limit, self._intents
        uncertain = limit > state.read_ts
        return TxnPusher(state.start, state.txn_id, state.read_ts, uncertain=uncertain, holds_locks=locks, limit=limit)

    def _waiting(self) -> ContentionWait:
        deadline = self.until or self._context.deadline(self._timeout)
        return ContentionWait(self._context, deadline=deadline, alive=self._alive)

    def _finished(self, status: TxnStatus, ts: Timestamp) -> Finished:
        assert status is not TxnStatus.PENDING, "a transaction that has ended is decided"
        assert self.state.anchor or not self._locks, "locks hang on a record"
        state = self.state
        return Finished(
            state.txn_id, state.anchor, state.epoch, status, ts, keys=self._locks.keys(), spans=self._locks.spans()
        )

    def _discard(self) -> None:
        self._heart.stop()
        if self._intents:
            self._finisher.abandon(self.state.message(), self._finished(TxnStatus.ABORTED, MIN))

    def _open(self) -> None:
        if self.phase is not TxnPhase.OPEN:
            raise UsageError(f"the transaction is {self.phase.value}; begin another one")

    def _usable(self) -> None:
        self._open()
        if self._spoiled is not None:
            raise self._spoiled
        self._alive()

    def _alive(self) -> None:
        """Fail early when a heartbeat found the transaction aborted."""
        if self._heart.verdict is not None:
            raise self._spoil(self._heart.verdict)

    def _spoil(self, error: SlackwaterError) -> SlackwaterError:
        """Note that this epoch cannot go on, and why; returns the error."""
        self._spoiled = error
        return error
