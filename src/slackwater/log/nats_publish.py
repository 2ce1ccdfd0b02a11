"""Appending to JetStream: one message in the air per range, everything that waits goes with the next.

A server that syncs before it acknowledges takes as long for one payload as for a thousand. So appends to a range that
arrive while a message is under way are gathered into the next one, as a group commit does, up to 1024 payloads and the
server's payload limit. One message at a time also keeps the order of appends of this process.

    append a ---> message 1 (a)           in the air ...  ack seq 17
    append b --.                                             |
    append c ---+-> waits ------------------> message 2 (b, c, d) ...
    append d --'

What an answer means (L-2)
    acknowledged                     durable at that sequence
    no responders, not connected     it was never received: try again until out of time, then say so
    a refusal before storing         never stored (too large)
    anything else, or no answer      AppendUnknown. We never repeat a message that may have arrived.

No answer is waited for longer than ANSWER_SECONDS_MAX: most messages without an answer went down with the server that led the
stream, and its successor, elected long before `log.append_timeout` is over, would answer the next one at once. When the
connection breaks, an answer on it cannot come any more: callers that wait are told so at once (`nats_api.Line`).

The message id is for the client library, which may send its buffer again after a reconnect: the server drops the copy.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

import nats.errors

from slackwater.errors import (
    AppendUnknown,
    ConnectionLost,
    EntryTooLarge,
    LogIdentityMismatch,
    Overloaded,
    SlackwaterError,
)
from slackwater.hooks import probe
from slackwater.log import blocks
from slackwater.log.nats_api import CLIENT_ERRORS, heed_cancellation
from slackwater.log.nats_wire import PAYLOADS_PER_MESSAGE_MAX, entry_subject, position, range_of
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.sync import Future, get_running_loop
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.log.nats_api import Line
    from slackwater.runtime.seam import Clock, TaskScope

_TOO_LARGE = 10054
_PAUSE_SECONDS = 0.05
ANSWER_SECONDS_MAX = 2.5
"""How long an answer to one message is waited for."""
assert _PAUSE_SECONDS < ANSWER_SECONDS_MAX, "several tries fit into the wait for one answer"
assert describe("log.append_timeout").default > 2 * ANSWER_SECONDS_MAX, (
    "an append outlasts an answer that does not come"
)


class _Piece:
    """Payloads of one append that fit in one message."""

    __slots__ = ("deadline", "future", "payloads", "size")

    def __init__(self, payloads: Sequence[bytes], size: int, deadline: int) -> None:
        self.payloads = payloads
        self.size = size
        self.deadline = deadline
        self.future: Future[Position] = get_running_loop().create_future()

    def fail(self, error: SlackwaterError) -> None:
        """Tell the caller, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)


class NatsPublisher:
    """The appends of one handle."""

    def __init__(
        self,
        line: Line,
        *,
        stream: str,
        token: str,
        clock: Clock,
        scope: TaskScope,
        append_timeout: float,
        queue_bytes_max: int,
    ) -> None:
        self._line = line
        self._stream = stream
        self._token = token
        self._clock = clock
        self._scope = scope
        self._timeout = append_timeout
        self._queue_bytes_max = queue_bytes_max
        self._queued_bytes = 0
        self._sent = 0
        self._queues: dict[RangeId, deque[_Piece]] = {}
        self._newest: dict[RangeId, int] = {}  # newest acknowledged sequence
        self.on_stored: Callable[[int], None] = lambda _sequence: None
        """Told the sequence of each acknowledged message."""

    async def append(self, range_id: RangeId, payloads: Sequence[bytes], *, message_bytes_max: int) -> Position:
        """Append; see `log.contract.OrderedLog`."""
        deadline = self._clock.monotonic_ns() + int(self._timeout * 1e9)
        pieces = [_Piece(part, sum(map(len, part)), deadline) for part in split(payloads, message_bytes_max)]
        size = sum(piece.size for piece in pieces)
        assert sum(len(piece.payloads) for piece in pieces) == len(payloads), "no entry is left out or sent twice"
        if self._queued_bytes + size > self._queue_bytes_max:
            raise Overloaded("the log's queue is full; back off", queued_bytes=self._queued_bytes)
        self._queued_bytes += size
        for piece in pieces:
            self._enqueue(range_id, piece, message_bytes_max)
        assert self._queued_bytes <= self._queue_bytes_max, "bytes under way are bounded"
        return await _all(pieces)

    def fail_waiting(self, error: SlackwaterError) -> None:
        """Refuse everything that is not in the air."""
        for queue in self._queues.values():
            while queue:
                self._settle(queue.popleft(), error)

    def _enqueue(self, range_id: RangeId, piece: _Piece, message_bytes_max: int) -> None:
        queue = self._queues.get(range_id)
        if queue is None:
            queue = self._queues[range_id] = deque()
            self._scope.spawn(self._drain(range_id, queue, message_bytes_max), name=f"log-publish-{range_id}")
        queue.append(piece)

    async def _drain(self, range_id: RangeId, queue: deque[_Piece], message_bytes_max: int) -> None:
        """Send group after group until nothing waits. Ends in the same turn in which it sees the queue empty."""
        assert self._queues.get(range_id) is queue, (
            "one task sends what is of a range, so one message is in the air (L-3)"
        )
        try:
            while queue:
                heed_cancellation()
                await self._send(range_id, _gather(queue, message_bytes_max))
        finally:
            del self._queues[range_id]
            while queue:  # cancelled with the scope
                self._settle(queue.popleft(), ConnectionLost("the log handle was closed before the append was sent"))

    async def _send(self, range_id: RangeId, group: list[_Piece]) -> None:
        payloads = [payload for piece in group for payload in piece.payloads]
        assert len(payloads) <= PAYLOADS_PER_MESSAGE_MAX, "a message holds what positions can number"
        try:
            sequence = await self._publish(range_id, blocks.encode(payloads), group[0].deadline)
            self._check_progress(range_id, sequence)
        except SlackwaterError as error:
            for piece in group:
                self._settle(piece, error)
            return
        except BaseException:  # cancelled with the scope: the message may be anywhere
            for piece in group:
                self._settle(
                    piece, AppendUnknown("the log handle was closed during the append; read the log to find out")
                )
            raise
        at = 0
        for piece in group:
            at += len(piece.payloads)
            self._queued_bytes -= piece.size
            assert self._queued_bytes >= 0, "bytes are given back once"
            if not piece.future.done():
                piece.future.set_result(position(sequence, at - 1))
        assert at == len(payloads), "every entry has its position"

    async def _publish(self, range_id: RangeId, block: bytes, deadline: int) -> int:
        """The sequence of the stored message."""
        self._sent += 1
        headers = {"Nats-Msg-Id": f"{self._token}-{self._sent}", "Nats-Expected-Stream": self._stream}
        subject = entry_subject(self._stream, range_id)
        assert range_of(self._stream, subject) == range_id, "an entry is read back under its range"
        while True:
            heed_cancellation()
            left = (deadline - self._clock.monotonic_ns()) / 1e9
            if left <= 0:
                raise ConnectionLost(
                    "no JetStream leader took the append in time; nothing was written", stream=self._stream
                )
            if self._line.connected:
                try:
                    patience = min(left, ANSWER_SECONDS_MAX)
                    return _acknowledged(await self._line.request(subject, block, seconds=patience, headers=headers))
                except nats.errors.NoRespondersError:
                    probe("log.nats_no_responders")  # tests/integration/test_log_nats.py
                except CLIENT_ERRORS as error:
                    raise AppendUnknown(f"the log did not acknowledge: {error!r}; read the log to find out") from error
            await self._clock.sleep(min(_PAUSE_SECONDS, left))

    def _check_progress(self, range_id: RangeId, sequence: int) -> None:
        """With one message in the air per range, sequences can only grow, unless the stream is another one now."""
        if sequence <= self._newest.get(range_id, 0):
            raise LogIdentityMismatch("the stream was re-created while it was open: its positions restarted")
        self._newest[range_id] = sequence
        self.on_stored(sequence)

    def _settle(self, piece: _Piece, error: SlackwaterError) -> None:
        self._queued_bytes -= piece.size
        assert self._queued_bytes >= 0, "bytes are given back once"
        piece.fail(error)


def split(payloads: Sequence[bytes], message_bytes_max: int) -> list[Sequence[bytes]]:
    """Cut an append into parts that fit in a message each."""
    parts: list[Sequence[bytes]] = []
    begin = size = 0
    for at, payload in enumerate(payloads):
        if at > begin and (size + len(payload) > message_bytes_max or at - begin == PAYLOADS_PER_MESSAGE_MAX):
            parts.append(payloads[begin:at])
            begin, size = at, 0
        size += len(payload) + 4
    parts.append(payloads[begin:])
    assert all(parts), "no message is empty"
    assert sum(map(len, parts)) == len(payloads), "no entry is left out or sent twice"
    return parts


def _gather(queue: deque[_Piece], message_bytes_max: int) -> list[_Piece]:
    group = [queue.popleft()]
    count, size = len(group[0].payloads), group[0].size
    while queue:
        piece = queue[0]
        count += len(piece.payloads)
        size += piece.size
        if count > PAYLOADS_PER_MESSAGE_MAX or size + 4 * count > message_bytes_max:
            break
        group.append(queue.popleft())
    assert group, "a message holds at least one entry"
    assert sum(len(piece.payloads) for piece in group) <= PAYLOADS_PER_MESSAGE_MAX, "positions number every entry"
    return group


def _acknowledged(data: bytes) -> int:
    try:
        ack = json.loads(data)
        error, sequence = ack.get("error"), ack.get("seq", 0)
    except (ValueError, AttributeError):
        raise AppendUnknown("the log answered an append with something else; read the log to find out") from None
    if error is None and sequence > 0:
        return int(sequence)
    if error is not None and error.get("err_code") == _TOO_LARGE:
        raise EntryTooLarge("the stream refuses messages of this size", description=error.get("description"))
    raise AppendUnknown(f"the log refused or lost track of an append: {error}; read the log to find out")


async def _all(pieces: list[_Piece]) -> Position:
    """The last position; an append that failed in part is unknown, not failed."""
    assert pieces, "an append has something in it"
    last, failure, succeeded = Position(0), None, False
    for piece in pieces:
        try:
            last = await piece.future
            succeeded = True
        except SlackwaterError as error:
            failure = failure or error
    if failure is None:
        return last
    if succeeded and not isinstance(failure, AppendUnknown):
        raise AppendUnknown("an append of several messages was written in part", cause=str(failure)) from failure
    raise failure
