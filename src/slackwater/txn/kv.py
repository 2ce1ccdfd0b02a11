"""The key/value API that everything above is written with: plain operations, and transactions with retries.

    kv.get / scan / put / cput / increment / …     one range: atomic, and its leaseholder picks the timestamp
    kv.scan over several ranges                    one timestamp for all of them, chosen first
    writes over several ranges                     become a transaction, unless they are a bulk load (`put_rows`)
    await kv.run(function)                         a transaction, run again for as long as that makes sense

A plain write is sent once. If its answer is lost the caller gets `AmbiguousResult`; there is no record to ask.
Callers that need to know use `run`: an ambiguous commit is settled there.

`run` calls the function with a `Transaction`, commits, and calls it again after a `RetryableError`, with growing
pauses, up to `txn.max_retries` times. The function must have no effects outside the transaction: it may run many
times and only the last one counts. Any other exception rolls back and goes to the caller.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp
from slackwater.errors import (
    ConditionFailed,
    ConflictError,
    ReadWithinUncertainty,
    RetryableError,
    SlackwaterError,
    TransactionAborted,
    UsageError,
)
from slackwater.hooks import probe
from slackwater.protocol.range.requests import (
    Batch,
    BatchResult,
    ConditionalPut,
    Delete,
    DeleteRange,
    FillRows,
    Get,
    Header,
    Increment,
    InitPut,
    Put,
    PutRows,
    ReverseScan,
    Scan,
)
from slackwater.routing import outcome
from slackwater.routing.facts import timestamp_of
from slackwater.routing.parallel import in_parallel
from slackwater.routing.sender import NO_RANGE, crosses_ranges
from slackwater.runtime.sync import CancelledError
from slackwater.txn.buffer import chunks
from slackwater.txn.check import key_ok, requests_ok, rows_ok, span_ok
from slackwater.txn.contention import ContentionWait, clear_index_conflicts
from slackwater.txn.context import TxnContext
from slackwater.txn.coordinator import Transaction
from slackwater.txn.finish import Finisher
from slackwater.txn.operations import number_of, rows_of, value_of
from slackwater.txn.pushing import TxnPusher
from slackwater.txn.state import TxnPhase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from slackwater.clock.hlc import HybridClock
    from slackwater.protocol.range.requests import Request, Result, Rows
    from slackwater.routing.sender import RangeSender
    from slackwater.runtime.deadline import Deadline
    from slackwater.runtime.retry import RetryBudget
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings

T = TypeVar("T")

BLOCKS_IN_FLIGHT_MAX = 8
"""Blocks of one bulk load under way at a time: while the log syncs some, the leaseholder evaluates others."""
assert BLOCKS_IN_FLIGHT_MAX >= 2, "one block is evaluated while another is synced"


class KV:
    """Plain operations and transactions. One per node or client; background work is owned by `scope`."""

    def __init__(
        self, *, sender: RangeSender, clock: HybridClock, runtime: Runtime, settings: Settings, scope: TaskScope
    ) -> None:
        self.context = TxnContext(sender=sender, clock=clock, runtime=runtime, settings=settings, scope=scope)
        self.finisher = Finisher(self.context)
        clear_index_conflicts(self.context)

    # --- reads

    async def get(
        self,
        key: bytes,
        *,
        ts: Timestamp = MIN,
        follower_ok: bool = False,
        nearest: bool = False,
        wait_ms: int = 0,
        timeout: float | None = None,
    ) -> bytes | None:
        """The value of a key: the latest, or as of `ts`. With `follower_ok` any replica may answer at a closed `ts`.

        With `nearest` the latest is read from the nearest replica, if the present is closed there: on every replica where
        the span's policy is `lead`, on none elsewhere (the leaseholder answers then, a message later).
        """
        header = Header(NO_RANGE, ts=ts, follower_ok=follower_ok, wait_ms=wait_ms)
        header = self._present(header) if nearest else header
        return value_of((await self._send([Get(key_ok(key))], header, timeout=timeout)).results)

    async def scan(
        self,
        start: bytes,
        end: bytes,
        *,
        max_keys: int = 0,
        max_bytes: int = 0,
        ts: Timestamp = MIN,
        follower_ok: bool = False,
        nearest: bool = False,
        wait_ms: int = 0,
        timeout: float | None = None,
    ) -> Rows:
        """Keys and values of `[start, end)` in order; with a limit, `resume` is the next start. `nearest`: see `get`."""
        span_ok(start, end)
        header = _scan_header(ts, max_keys, max_bytes, follower_ok=follower_ok, wait_ms=wait_ms)
        header = self._present(header) if nearest else header
        return rows_of((await self._send([Scan(start, end)], header, timeout=timeout)).results)

    async def reverse_scan(
        self,
        start: bytes,
        end: bytes,
        *,
        max_keys: int = 0,
        max_bytes: int = 0,
        ts: Timestamp = MIN,
        follower_ok: bool = False,
        nearest: bool = False,
        wait_ms: int = 0,
        timeout: float | None = None,
    ) -> Rows:
        """Keys and values of `[start, end)` from the end; with a limit, `resume` is the next end."""
        span_ok(start, end)
        header = _scan_header(ts, max_keys, max_bytes, follower_ok=follower_ok, wait_ms=wait_ms)
        header = self._present(header) if nearest else header
        return rows_of((await self._send([ReverseScan(start, end)], header, timeout=timeout)).results)

    async def read(
        self, requests: Sequence[Request], header: Header, *, timeout: float | None = None, movable: bool = False
    ) -> BatchResult:
        """Any reads, by a header of the caller's own, with intents that are in the way cleared.

        With `movable`, a read that meets an uncertain value is sent again just above it; the answer says where it read.
        """
        if not outcome.read_only(requests):
            raise UsageError("only reads may be sent this way")
        return await self._send(requests, header, timeout=timeout, movable=movable)

    def get_at_once(self, keys: Sequence[bytes]) -> BatchResult | None:
        """The latest values of keys of one range that is led here, read in this very step; None: it has to wait."""
        home = self.context.sender.here(min(keys), max(keys))
        if home is None:
            return None
        header = Header(home.range_id, generation=home.generation)
        try:
            answer = self.context.sender.at_once(Batch(header, [Get(key) for key in keys]), None)
        except SlackwaterError:  # an intent to be cleared, a lease that has moved: `read` knows what to do
            return None
        if not isinstance(answer, BatchResult) or not self.context.passed(answer.ts):
            return None
        assert len(answer.results) == len(keys), "a value, or none, for every key that was read here"
        return answer

    # --- writes

    async def put(self, key: bytes, value: bytes, *, timeout: float | None = None) -> Timestamp:
        """Set a key; returns when."""
        return (await self._write(Put(key_ok(key), value), timeout)).ts

    async def delete(self, key: bytes, *, timeout: float | None = None) -> Timestamp:
        """Remove a key; returns when."""
        return (await self._write(Delete(key_ok(key)), timeout)).ts

    async def cput(
        self, key: bytes, value: bytes, *, expected: bytes | None, timeout: float | None = None
    ) -> Timestamp:
        """Set a key if it has the `expected` value now (None: no value), else `ConditionFailed`; returns when."""
        return (await self._write(ConditionalPut(key_ok(key), value, expected), timeout)).ts

    async def init_put(self, key: bytes, value: bytes, *, timeout: float | None = None) -> Timestamp:
        """Set a key unless it has another value; returns when."""
        return (await self._write(InitPut(key_ok(key), value), timeout)).ts

    async def increment(self, key: bytes, by: int = 1, *, timeout: float | None = None) -> int:
        """Add to a counter; returns the new value."""
        return number_of((await self._write(Increment(key_ok(key), by), timeout)).results)

    async def delete_range(self, start: bytes, end: bytes, *, timeout: float | None = None) -> int:
        """Remove every key of `[start, end)`; returns how many there were."""
        span_ok(start, end)
        return len(rows_of(await self.batch([DeleteRange(start, end)], timeout=timeout)).keys)

    async def put_rows(
        self,
        keys: list[bytes],
        values: list[bytes],
        *,
        must_be_new: bool = False,
        below: Timestamp = MIN,
        timeout: float | None = None,
    ) -> None:
        """Set many keys, sorted and unique; with `below`, at timestamps below that, or `RetryableError`.

        Without `must_be_new` this is a bulk load: each row is written at least once, not all at the same moment, and a
        block whose answer was lost is written again. With it, all rows are written or none.
        """
        rows_ok(keys, values)
        if must_be_new:
            await self.batch([PutRows(keys, values, must_be_new=True)], timeout=timeout)
            return
        blocks = chunks(keys, values, bytes_max=self.block_bytes())
        assert blocks, "rows that were checked are sent"
        deadline = self.context.deadline(timeout)
        works = [partial(self._put_block, PutRows(*block), below, deadline) for block in blocks]
        done = await in_parallel(self.context.scope, works, limit=BLOCKS_IN_FLIGHT_MAX, name="put rows")
        assert len(done) == len(blocks), "an outcome for every block"
        for failed in done:
            if isinstance(failed, SlackwaterError):
                raise failed

    async def _put_block(self, rows: PutRows, below: Timestamp, deadline: Deadline) -> BatchResult:
        header = Header(NO_RANGE, write_below=below)
        return await self._send([rows], header, timeout=deadline.remaining(), repeatable=True)

    async def fill_rows(
        self,
        keys: list[bytes],
        values: list[bytes],
        *,
        above: Timestamp,
        alone: bool,
        below: Timestamp,
        timeout: float | None = None,
    ) -> list[bytes]:
        """Set those of many keys that were not written after `above`, at timestamps below `below`; returns those left out.

        See `FillRows`. The rows must fit one log entry; that they are sorted is checked where they are written.
        """
        key_ok(keys[0])
        key_ok(keys[-1])
        assert len(keys) == len(values), "an entry of an index has a key and a value"
        request, header = FillRows(keys, values, above, alone), Header(NO_RANGE, write_below=below)
        return rows_of((await self._send([request], header, timeout=timeout, repeatable=True)).results).keys

    async def batch(self, requests: Sequence[Request], *, timeout: float | None = None) -> list[Result]:
        """Several requests as one atomic step; a transaction if they need more than one range."""
        requests_ok(requests)
        deadline = self.context.deadline(timeout)
        try:
            return (await self._send(requests, Header(NO_RANGE), timeout=deadline.remaining())).results
        except UsageError as error:
            if not crosses_ranges(error):
                raise
        probe("kv.batch_became_txn")
        return await self.run(lambda txn: txn.batch(requests), timeout=deadline.remaining())

    # --- transactions

    def begin(
        self,
        *,
        timeout: float | None = None,
        until: Deadline | None = None,
        nearest: bool = False,
        name: bytes = b"",
    ) -> Transaction:
        """A transaction whose caller commits, rolls back and restarts; `timeout` bounds each operation, `until` all.

        With `nearest` it reads from the nearest replicas until it writes, wherever they can tell the present: see `get`.
        `name` is for callers that must know beforehand by what to ask for its outcome: random, and never used before.
        """
        return Transaction(self.context, self.finisher, timeout=timeout, until=until, nearest=nearest, name=name)

    async def run(
        self,
        function: Callable[[Transaction], Awaitable[T]],
        *,
        timeout: float | None = None,
        nearest: bool = False,
    ) -> T:
        """Run `function` in a transaction and commit, again and again until it succeeds or must not be repeated.

        `timeout` bounds all of it: every try, the commit, finding out what became of it, and undoing it.
        """
        budget = self.context.budget(timeout)
        txn = self.begin(until=None if timeout is None else budget, nearest=nearest)

        async def once() -> T:
            value = await function(txn)
            if txn.phase is TxnPhase.OPEN:
                await txn.commit()
            return value

        value = await until_committed(txn, once, budget)
        assert txn.phase is not TxnPhase.OPEN, "a transaction that was run has ended"
        return value

    def status(self) -> str:
        """One line for logs and scripts."""
        return self.finisher.status()

    # --- inside

    async def _write(self, request: Request, timeout: float | None) -> BatchResult:
        return await self._send([request], Header(NO_RANGE), timeout=timeout)

    async def _send(
        self,
        requests: Sequence[Request],
        header: Header,
        *,
        timeout: float | None,
        repeatable: bool = False,
        movable: bool = True,
    ) -> BatchResult:
        """Send without a transaction, clearing intents that are in the way."""
        deadline = self.context.deadline(timeout)
        waiting: ContentionWait | None = None
        began = MIN
        while True:
            try:
                answer = await self.context.sender.send(
                    requests, header, timeout=deadline.remaining(), repeatable=repeatable
                )
            except ConditionFailed as error:
                # The value it tells may be of the future, like one that was read.
                await self.context.wait_past(timestamp_of(error, "ts"))
                raise
            except ConflictError as error:
                began = began or self.context.clock.now()
                historical = header.ts != MIN and header.uncertainty_limit == MIN
                if waiting is not None and header.ts == MIN and outcome.read_only(requests):
                    # A caller that insists must say up to where: read at the time at which this read began, and not ever later.
                    header = _above(header, began, self.uncertain_upto(began))
                waiting = waiting or ContentionWait(self.context, deadline=deadline)
                pusher = TxnPusher(
                    began, b"", header.ts, uncertain=not historical, holds_locks=False, limit=header.uncertainty_limit
                )
                await waiting.clear(error, requests, pusher)
                header = await waiting.until_heard(error, structs.replace(header, decided=waiting.decided))
            except ReadWithinUncertainty as error:
                if not movable:
                    raise
                # Only where the sender chose the timestamp: read again just above what is there.
                began = began or self.context.clock.now()
                limit = header.uncertainty_limit or self.uncertain_upto(began)
                header = _above(header, Timestamp(timestamp_of(error, "existing") + 1), limit)
            else:
                await self.context.wait_past(answer.ts)
                return answer if waiting is None else waiting.explain(answer)

    def _present(self, header: Header) -> Header:
        """Read the present at this node's clock, uncertain as far as another clock may be ahead of it."""
        if header.ts != MIN:
            raise UsageError("`nearest` reads the present; leave the timestamp out, or use follower_ok")
        now = self.context.clock.now()
        return structs.replace(header, ts=now, uncertainty_limit=self.uncertain_upto(now), follower_ok=True)

    def uncertain_upto(self, began: Timestamp) -> Timestamp:
        """Up to where a value may have been acknowledged before `began`, by a clock that is ahead of this one."""
        return Timestamp(began + (self.context.clock.max_offset_us << LOGICAL_BITS))

    def block_bytes(self) -> int:
        """Bytes of rows that one command of a bulk load has at most."""
        return max(1, int(self.context.settings["log.entry_bytes_max"]) // 4)


async def until_committed(
    txn: Transaction, once: Callable[[], Awaitable[T]], budget: RetryBudget, *, same_id: bool = False
) -> T:
    """Try a transaction, which `once` commits, again and again until it succeeds, must not be repeated, or `budget` is used up.

    The one loop that restarts transactions. With `same_id`, one that was aborted by a rival is not reborn: its caller knows it
    by its id. Whatever goes wrong, it is rolled back.
    """
    try:
        while True:
            try:
                return await once()
            except RetryableError as error:
                if same_id and isinstance(error, TransactionAborted):
                    raise
                if txn.phase is not TxnPhase.OPEN or txn.spoiled is None or not budget.spend() or budget.passed:
                    raise
            await budget.back_off()
            await txn.restart()
    except SlackwaterError:
        if txn.phase is TxnPhase.OPEN:
            await txn.rollback()
        raise
    except (Exception, CancelledError):  # not GeneratorExit: a crashed process cleans up nothing
        txn.abandon()
        raise


def _scan_header(ts: Timestamp, max_keys: int, max_bytes: int, *, follower_ok: bool, wait_ms: int) -> Header:
    return Header(NO_RANGE, ts=ts, max_keys=max_keys, max_bytes=max_bytes, follower_ok=follower_ok, wait_ms=wait_ms)


def _above(header: Header, ts: Timestamp, limit: Timestamp) -> Header:
    return structs.replace(header, ts=Timestamp(max(ts, header.ts)), uncertainty_limit=limit)
