"""The simulated ordered log: one for the whole world, outside all nodes, durable on acknowledgement.

An append is a request that travels to the log, *lands* (from then on it is in the log for ever), and an answer that
travels back. Each leg can go wrong, and the caller can tell none of it apart:

    request ──────► lands ──────► answer             position
    request ──────► lands ──────X lost               AppendUnknown, the entry is there
    request ──X lost                                 AppendUnknown, the entry is not there and never will be
    request ─────────────(timeout)────► lands        AppendUnknown, the entry comes later, even past a lease's end
    request ──► lands, sent again ──► lands          AppendUnknown, the entry is there twice (a log that retries)

The contract L-1 … L-6 of `log.contract.OrderedLog` holds throughout: an acknowledged append is there once and in order; only
`AppendUnknown` is ambiguous. A node that dies does not recall its requests: they land or not as drawn. Appends in
flight at the same time may land in any order.

Readers: every tail sees entries after a lag of its node. A *reader restart* ends a tail with `ConnectionLost`; the
driver opens another after what it has applied. Positions have gaps on purpose (L-3: callers do no arithmetic on them).

Cost: an append is one or two timers; a landing wakes each waiting tail with one timer; an idle tail costs nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from slackwater.errors import AppendUnknown, ConnectionLost, EntryTooLarge, LogTrimmed
from slackwater.hooks import probe
from slackwater.log.contract import Entry, LogIdentity
from slackwater.model.ids import Position, RangeId
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from slackwater.settings import Settings
    from slackwater.sim.handles import Domain
    from slackwater.sim.loop import SimLoop
    from slackwater.sim.tape import Tape, TapeStream

LEG_MIN_NS, LEG_MEAN_NS = 200_000, 1_000_000
LATE_NS_MAX = 30 * NS
TAIL_BATCH_MAX = 256
POSITION_GAP_MAX = 3


class RangeLog:
    """The entries of one range."""

    __slots__ = ("entries", "newest", "positions", "readers", "trimmed")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.entries: list[Entry] = []
        self.newest = 0
        self.trimmed = 0
        self.readers: dict[SimTail, None] = {}


class LogLink:
    """How one node reaches the log. The nemesis turns the knobs; percentages are of appends."""

    def __init__(self) -> None:
        self.lose_answer = 0
        self.lose_request = 0
        self.late = 0
        self.duplicate = 0
        self.slow_ns = 0
        self.lag_ns = 0
        self.cut = False

    def heal(self) -> None:
        """A good connection again."""
        self.__init__()  # type: ignore[misc]


class SimLog:
    """The log itself."""

    def __init__(self, loop: SimLoop, tape: Tape, settings: Settings, *, name: str = "sim") -> None:
        self.loop = loop
        self.stream: TapeStream = tape.stream("log")
        self.ranges: dict[RangeId, RangeLog] = {}
        self.links: dict[str, LogLink] = {}
        self.incarnation = 1
        self.landed: Callable[[RangeId, list[Entry]], None] | None = None
        self.entry_bytes_max = int(settings["log.entry_bytes_max"])
        self.append_timeout_ns = round(settings["log.append_timeout"] * NS)
        self._name = name
        self._position = 0
        self._tape = tape

    def log_for(self, node: str, domain: Domain) -> NodeLog:
        """The handle of one node incarnation."""
        return NodeLog(self, node, domain, self._tape.stream(f"log/{node}"))

    def range(self, range_id: RangeId) -> RangeLog:
        """The entries of one range, made at first use."""
        known = self.ranges.get(range_id)
        if known is None:
            known = self.ranges[range_id] = RangeLog()
        return known

    def link(self, node: str) -> LogLink:
        """How one node reaches the log."""
        return self.links.setdefault(node, LogLink())

    def land(self, range_id: RangeId, payloads: Sequence[bytes]) -> Position:
        """Entries become part of the log, for ever, and readers hear of it."""
        log = self.range(range_id)
        added = []
        for payload in payloads:
            self._position += 1 + self.stream.below(POSITION_GAP_MAX)
            added.append(Entry(Position(self._position), payload))
        log.entries.extend(added)
        log.positions.extend(entry.position for entry in added)
        log.newest = self._position
        if self.landed is not None:
            self.landed(range_id, added)
        for tail in list(log.readers):
            tail.entries_landed()
        return Position(self._position)

    def trim(self, range_id: RangeId, upto: Position) -> None:
        """Remove entries with position <= upto."""
        log = self.range(range_id)
        count = bisect_right(log.positions, upto)
        if count:
            log.trimmed = log.positions[count - 1]
            del log.positions[:count], log.entries[:count]

    def restart_readers(self, node: str) -> None:
        """End every tail of a node with `ConnectionLost`."""
        for log in self.ranges.values():
            for tail in [t for t in log.readers if t.node == node]:
                tail.fail(ConnectionLost("the log reader was restarted; tail again after the last applied position"))

    def node_crashed(self, node: str) -> None:
        """Forget the tails of a dead incarnation."""
        for log in self.ranges.values():
            for tail in [t for t in log.readers if t.node == node]:
                del log.readers[tail]

    def heal(self, node: str | None = None) -> None:
        """A good connection for one node, or for all."""
        for name, link in self.links.items():
            if node in (None, name):
                link.heal()
        for log in self.ranges.values():
            for tail in list(log.readers):
                tail.entries_landed()


class NodeLog:
    """`log.contract.OrderedLog` of one node incarnation."""

    def __init__(self, log: SimLog, node: str, domain: Domain, stream: TapeStream) -> None:
        self._log = log
        self._node = node
        self._domain = domain
        self._stream = stream
        self._link = log.link(node)

    async def append(self, range_id: RangeId, payloads: Sequence[bytes]) -> Position:
        """Append in order; durable on return, or `AppendUnknown`."""
        log, loop = self._log, self._log.loop
        assert not loop.dropped(self._domain), "only a running incarnation appends"
        for payload in payloads:
            if len(payload) > log.entry_bytes_max:
                raise EntryTooLarge(
                    "the entry is over log.entry_bytes_max; chunk it", size=len(payload), limit=log.entry_bytes_max
                )
        waiter = loop.create_future()
        timer = loop.call_at_ns(loop.now_ns + log.append_timeout_ns, _unknown, waiter, range_id)
        self._send(range_id, list(payloads), waiter)
        try:
            position: Position = await waiter
        finally:
            timer.cancel()
        return position

    def _send(self, range_id: RangeId, payloads: list[bytes], waiter: Any) -> None:
        """Draw what happens to this append and set it in motion. Landing is a step of the world, not of the node."""
        link, draw, loop = self._link, self._stream, self._log.loop
        fate = draw.below(100)
        answered = True
        copies = 1
        wait_ns = self._leg_ns()
        if link.cut or fate < link.lose_request:
            probe("sim.log.request_lost")
            return
        fate -= link.lose_request
        if fate < link.late:
            probe("sim.log.landed_late")
            wait_ns += self._log.append_timeout_ns + draw.below(LATE_NS_MAX)
            answered = False
        elif fate < link.late + link.lose_answer:
            probe("sim.log.answer_lost")
            answered = False
        elif fate < link.late + link.lose_answer + link.duplicate:
            probe("sim.log.duplicate")
            answered, copies = False, 2
        for _ in range(copies):
            arguments = (range_id, payloads, waiter if answered else None)
            loop.call_at_ns(loop.now_ns + wait_ns, self._land, *arguments, context=loop.root.context)
            wait_ns += self._leg_ns() + draw.below(NS)

    def _land(self, range_id: RangeId, payloads: list[bytes], waiter: Any) -> None:
        position = self._log.land(range_id, payloads)
        if waiter is not None and not self._link.cut:
            loop = self._log.loop
            loop.call_at_ns(loop.now_ns + self._leg_ns(), _answer, waiter, position, context=self._domain.context)

    def _leg_ns(self) -> int:
        slow_ns = self._stream.decay(self._link.slow_ns) if self._link.slow_ns else 0
        return LEG_MIN_NS + self._stream.decay(LEG_MEAN_NS) + slow_ns

    def tail(self, range_id: RangeId, *, after: Position) -> AsyncIterator[list[Entry]]:
        """Batches of entries with position > after, for ever."""
        return SimTail(self._log, self._node, range_id, after, self._link, self._stream)

    async def trim(self, range_id: RangeId, *, upto: Position) -> None:
        """Remove entries with position <= upto; advisory."""
        await self._round_trip()
        self._log.trim(range_id, upto)

    async def head(self, range_id: RangeId) -> Position:
        """The position of the newest entry ever appended to this range."""
        await self._round_trip()
        return Position(self._log.range(range_id).newest)

    def identity(self) -> LogIdentity:
        """Which log this is."""
        return LogIdentity("sim", self._log._name, str(self._log.incarnation))

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _round_trip(self) -> None:
        loop = self._log.loop
        waiter = loop.create_future()
        if self._link.cut:
            lost = ConnectionLost("the log does not answer; retry")
            loop.call_at_ns(loop.now_ns + self._log.append_timeout_ns, _fail, waiter, lost)
        else:
            loop.call_at_ns(loop.now_ns + 2 * self._leg_ns(), _answer, waiter, None)
        await waiter


class SimTail:
    """A reader of one range. An async iterator; `aclose` ends it."""

    def __init__(
        self, log: SimLog, node: str, range_id: RangeId, after: Position, link: LogLink, stream: TapeStream
    ) -> None:
        self.node = node
        self._log = log
        self._range_id = range_id
        self._range = log.range(range_id)
        self._after: int = after
        self._visible = after
        self._link = link
        self._stream = stream
        self._waiter: Any = None
        self._woken = False
        self._failure: Exception | None = None
        self._ended = False
        self._range.readers[self] = None
        self.entries_landed()

    def __aiter__(self) -> SimTail:
        return self

    async def __anext__(self) -> list[Entry]:
        """The next batch, in order and without gaps."""
        while True:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._end()
                raise failure
            if self._ended:
                raise StopAsyncIteration
            if self._range.trimmed > self._after:
                self._end()
                facts = {"after": self._after, "first": self._range.trimmed}
                raise LogTrimmed("entries after this position were trimmed; restore from a snapshot", **facts)
            batch = self._due()
            if batch:
                self._after = batch[-1].position
                return batch
            self._waiter = self._log.loop.create_future()
            await self._waiter

    def _due(self) -> list[Entry]:
        positions = self._range.positions
        first = bisect_right(positions, self._after)
        last = min(bisect_right(positions, self._visible), first + TAIL_BATCH_MAX)
        return self._range.entries[first:last]

    def entries_landed(self) -> None:
        """Something is new: it becomes visible to this reader after its lag. Called in any domain."""
        if self._woken or self._ended or self._range.newest <= self._visible or self._link.cut:
            return
        self._woken = True
        loop = self._log.loop
        lag_ns = LEG_MIN_NS + self._stream.decay(LEG_MEAN_NS)
        if self._link.lag_ns:
            lag_ns += self._stream.below(self._link.lag_ns)
        loop.call_at_ns(loop.now_ns + lag_ns, self._show, self._range.newest, context=loop.root.context)

    def _show(self, upto: int) -> None:
        self._woken = False
        if self._link.cut:
            return
        self._visible = Position(max(self._visible, upto))
        _answer(self._waiter, None)
        self.entries_landed()

    def fail(self, error: Exception) -> None:
        """The reader breaks: the next read raises."""
        self._failure = error
        _answer(self._waiter, None)

    async def aclose(self) -> None:
        """Stop reading."""
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._range.readers.pop(self, None)


def _answer(waiter: Any, value: object) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(value)


def _fail(waiter: Any, error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)


def _unknown(waiter: Any, range_id: RangeId) -> None:
    if not waiter.done():
        waiter.set_exception(AppendUnknown("the log did not answer in time; read it to find out", range_id=range_id))
