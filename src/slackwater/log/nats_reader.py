"""Reading from JetStream: one live consumer per handle for the new, short-lived consumers for the old.

Live: a push consumer over the whole stream, in memory, without acknowledgements. Its messages carry two sequences:

    consumer sequence   1 2 3 4 ...    a hole means that a message was lost on the way: start over after the last seen
    stream sequence     17 18 21 ...   a hole means that messages were purged: a reader may have lost entries (L-4)

Nothing for a few heartbeats, or a new connection: start over too; and sooner when this process has been told of a message
that was stored and nothing comes: the consumer lives on one server, and that one may have died. On every start the
incarnation of the stream is compared, because a stream that was deleted and created again would deliver other entries under
old positions (L-6); and so is the newest message that was read, because a server may have cut its stream at a damaged block.

Making a consumer takes the leader of the servers' own directory, which may have died with the consumer, and electing another
takes seconds. Meanwhile `bridge` asks the leader of the stream for one message after the other: slower, and never late.

Catch-up: a pull consumer filtered to one range. It may run on a replica that lags behind the leader, so "no more
messages" proves nothing; a read is complete only if it reached the newest message that the leader knows of and the
newest that the live consumer has dispatched.

Trims are recorded in the stream before anything is purged. A reader therefore reads first and then looks at the record:
whatever was gone when it read, the record names.
"""

from __future__ import annotations

import json
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import nats.errors

from slackwater.errors import (
    LogBehindStore,
    LogError,
    LogIdentityMismatch,
    LogTrimmed,
    SlackwaterError,
    UnavailableError,
)
from slackwater.hooks import probe
from slackwater.log import nats_wire as wire
from slackwater.log.nats_api import CLIENT_ERRORS, ApiError, heed_cancellation
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.sync import Event, timeout
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from slackwater.log.contract import Entry
    from slackwater.log.nats_api import Api
    from slackwater.log.tails import TailHub
    from slackwater.runtime.seam import Clock, Rng

HEARTBEAT_SECONDS = 0.5
HEARTBEATS_MISSED_MAX = 3
OWED_SECONDS = 0.2
"""A consumer that says nothing for this long while a message is known to be stored is replaced."""
LOOK_SECONDS = 0.1
BRIDGE_SECONDS = 0.02
"""Between two questions for a message that is not there yet."""
READ_MESSAGES_MAX = 256
READ_BYTES_MAX = 32 << 20
"""Of one catch-up read. At least twice the largest message, or a read could stall."""
assert 2 * describe("log.entry_bytes_max").safe[1] <= READ_BYTES_MAX, (
    "a read takes at least two of the largest messages"
)
INACTIVE_SECONDS = 30.0
assert INACTIVE_SECONDS > HEARTBEAT_SECONDS * HEARTBEATS_MISSED_MAX, (
    "a consumer is there for longer than it may be silent"
)
PENDING_BYTES_MAX = 64 << 20
assert READ_BYTES_MAX <= PENDING_BYTES_MAX, "a batch that is read fits what may wait for its reader"
assert BRIDGE_SECONDS < OWED_SECONDS, "while no consumer delivers, messages come sooner than one is missed"
_PAUSE_SECONDS = 0.05
_READ_SECONDS = 5.0
assert _READ_SECONDS < INACTIVE_SECONDS, "a consumer outlives the read it was made for"
assert LOOK_SECONDS < OWED_SECONDS, "a message that is owed is missed in time"
assert OWED_SECONDS < HEARTBEAT_SECONDS * HEARTBEATS_MISSED_MAX, (
    "a message that is owed is missed sooner than heartbeats"
)


class LiveReader:
    """Feeds the hub with every new entry of the stream."""

    def __init__(
        self,
        client: Client,
        api: Api,
        hub: TailHub,
        *,
        incarnation: str,
        seen: int,
        clock: Clock,
        rng: Rng,
        give_up: Callable[[SlackwaterError], None],
    ) -> None:
        self._client = client
        self._api = api
        self._hub = hub
        self._incarnation = incarnation
        self._seen = seen  # newest stream sequence that went through
        self._mark: int | None = None  # checksum of that message; None while it is not known
        self._checked = False  # whether it was found unchanged since the last consumer ended
        self._clock = clock
        self._rng = rng
        self._expected = 1  # next consumer sequence
        self._heard = clock.monotonic_ns()
        self._attention = Event()
        self._broken = False
        self._owed = 0  # newest stream sequence that this process knows to be stored
        self._owed_since = 0
        self._interrupted = Event()  # while no consumer delivers
        self._interrupted.set()
        self._give_up = give_up
        self.dispatched: dict[RangeId, Position] = {}  # newest position that went through, per range

    def disturb(self) -> None:
        """The connection changed: start over."""
        self._broken = True
        self._attention.set()

    def stored(self, sequence: int) -> None:
        """A message of this process was stored there: the consumer owes it."""
        if self._owed <= self._seen:
            self._owed_since = self._clock.monotonic_ns()
        self._owed = max(self._owed, sequence)
        assert self._owed >= sequence, "what is owed only grows"

    async def run(self) -> None:
        """Keep a consumer running until cancelled."""
        while True:
            name = self._rng.bytes(12).hex()
            inbox = self._client.new_inbox()
            self._broken, self._expected = False, 1
            self._attention = Event()
            try:
                receive = partial(self._receive, self._attention)
                subscription = await self._client.subscribe(inbox, cb=receive, pending_bytes_limit=PENDING_BYTES_MAX)
                try:
                    await self._start(name, inbox)
                    self._interrupted.clear()
                    await self._watch()
                finally:
                    self._checked = False
                    self._interrupted.set()
                    # The consumer itself ends by its inactivity: the server that could be asked to remove it may be dead.
                    await _quietly(subscription.unsubscribe())
            except (LogIdentityMismatch, LogBehindStore) as error:
                self._give_up(error)
                return
            except (SlackwaterError, ApiError, *CLIENT_ERRORS):
                probe("log.nats_reader_restarts")  # no leader now: try again
            heed_cancellation()
            await self._clock.sleep(_PAUSE_SECONDS)

    async def bridge(self) -> None:
        """Read message by message while no consumer delivers, until cancelled."""
        everything = wire.all_subjects(self._api.stream)
        while True:
            heed_cancellation()
            await self._interrupted.wait()
            try:
                found = await self._api.next_at(everything, self._seen + 1)
                if found is not None:  # asked afterwards: a stream that is still ours now was ours then
                    check_incarnation(await self._api.info(), self._incarnation)
                    if not self._checked:
                        await self._check_history()
            except (LogIdentityMismatch, LogBehindStore) as error:
                self._give_up(error)
                return
            except (SlackwaterError, ApiError):
                found = None  # no leader of the stream now
            if found is None:
                await self._clock.sleep(BRIDGE_SECONDS)
            else:
                probe("log.nats_bridged")  # tests/integration/test_log_nats.py
                self._pass_on(found.sequence, found.subject, found.data)

    async def _start(self, name: str, inbox: str) -> None:
        info = await self._api.info()
        check_incarnation(info, self._incarnation)
        await self._check_history()
        config = wire.consumer_config(
            name,
            start=self._seen + 1,
            inactive_seconds=INACTIVE_SECONDS,
            deliver_subject=inbox,
            flow_control=True,
            idle_heartbeat=int(HEARTBEAT_SECONDS * 1e9),
        )
        await self._api.create_consumer(config)
        self._heard = self._clock.monotonic_ns()

    async def _check_history(self) -> None:
        """Raise unless the newest message that went through is still where it was, or was trimmed.

        A server that finds a damaged block after a restart cuts its stream there, says nothing, and numbers what comes next
        from there on. What this process has read since is in no log then, and what comes in its place would never be
        read: its sequences have been. While the stream is shorter than that, nothing is read from it, because a leader that was
        just elected may be about to catch up.
        """
        seen, mark = self._seen, self._mark
        if mark is None:
            return
        found = await self._api.next_at(wire.all_subjects(self._api.stream), seen)
        if found is not None and found.sequence == seen and zlib.crc32(found.data) != mark:
            raise LogBehindStore(
                f"the stream has another message at {seen} than was read there: its server lost messages and numbered others in "
                "their place. Stop the nodes and rebuild the cluster from its stores (`slackwater recover`)",
                sequence=seen,
            )
        if found is None and (await self._last_sequence()) < seen:
            probe("log.nats_shorter")  # tests/integration/test_log_nats.py
            raise UnavailableError(
                "the stream ends before what was read from it; waiting for its servers", sequence=seen
            )
        self._checked = True

    async def _last_sequence(self) -> int:
        info = await self._api.info()
        check_incarnation(info, self._incarnation)
        return 0 if info is None else int(info["state"]["last_seq"])

    async def _watch(self) -> None:
        """Return when the consumer has to be replaced."""
        heed_cancellation()
        while not self._broken and not self._silent():
            try:
                async with timeout(LOOK_SECONDS):
                    await self._attention.wait()
            except TimeoutError:
                continue

    def _silent(self) -> bool:
        """Whether the consumer has said nothing for longer than one that works would."""
        now = self._clock.monotonic_ns()
        quiet_ns = now - self._heard
        assert quiet_ns >= 0, "the monotonic clock does not go back"
        if self._owed > self._seen and now - max(self._owed_since, self._heard) >= int(OWED_SECONDS * 1e9):
            probe("log.nats_consumer_owes")  # tests/integration/test_log_nats.py
            return True
        return quiet_ns >= int(HEARTBEAT_SECONDS * HEARTBEATS_MISSED_MAX * 1e9)

    async def _receive(self, generation: Event, message: Msg) -> None:
        if generation is not self._attention:  # from a consumer that was replaced
            return
        self._heard = self._clock.monotonic_ns()
        if message.headers and "Status" in message.headers:
            wanted = message.reply or message.headers.get("Nats-Consumer-Stalled")
            if wanted:
                await self._client.publish(wanted)
            return
        if self._broken:
            return
        try:
            self._arrived(message)
        except SlackwaterError as error:
            self._give_up(error)

    def _arrived(self, message: Msg) -> None:
        at = wire.delivered(message.reply)
        if at.consumer_sequence != self._expected:
            probe("log.nats_message_lost")
            self.disturb()
            return
        self._expected += 1
        self._pass_on(at.stream_sequence, message.subject, message.data)

    def _pass_on(self, sequence: int, subject: str, data: bytes) -> None:
        """Give a message of the stream to the hub, once, in order."""
        if sequence <= self._seen:
            return
        if sequence != self._seen + 1:
            probe("log.nats_hole")  # tests/integration/test_log_nats.py
            self._hub.demote()
        assert sequence > self._seen, "a reader only moves on"
        self._seen, self._mark = sequence, zlib.crc32(data)
        range_id = wire.range_of(self._api.stream, subject)
        if range_id is not None:
            self.dispatched[range_id] = wire.last_position(sequence, data)
            if self._hub.wants(range_id):
                self._hub.dispatch(range_id, wire.entries(sequence, data), len(data))


class RangeReader:
    """Reads old entries of a range, and what was trimmed of it."""

    def __init__(self, client: Client, api: Api, live: LiveReader, *, clock: Clock, rng: Rng) -> None:
        self._client = client
        self._api = api
        self._live = live
        self._clock = clock
        self._rng = rng

    async def read(self, range_id: RangeId, *, after: Position) -> tuple[list[Entry], bool]:
        """See `tails.TailSource`."""
        seen_live = self._live.dispatched.get(range_id, Position(0))
        newest = await self._api.last(wire.entry_subject(self._api.stream, range_id))
        target = max(seen_live, wire.last_position(newest.sequence, newest.data) if newest else Position(0))
        found: list[Entry] = []
        if target > after:
            found = [entry for entry in await self._fetch(range_id, after=after) if entry.position > after]
        trimmed, _ = await self.trimmed(range_id)
        if after < trimmed:
            raise LogTrimmed(
                "the entries asked for were trimmed; restore from a snapshot", after=after, trimmed=trimmed
            )
        assert all(entry.position > after for entry in found), "only what was asked for"
        reached = found[-1].position if found else after
        complete = reached >= target or target <= trimmed
        if not found and not complete:
            await self._clock.sleep(_PAUSE_SECONDS)  # the replica that served us lags
        assert reached >= after, "a read only moves on (L-2)"
        return found, complete

    async def head(self, range_id: RangeId) -> Position:
        """The newest position of a range, trimmed or not."""
        newest = await self._api.last(wire.entry_subject(self._api.stream, range_id))
        trimmed, _ = await self.trimmed(range_id)
        at = wire.last_position(newest.sequence, newest.data) if newest else Position(0)
        return max(at, trimmed)

    async def trimmed(self, range_id: RangeId) -> tuple[Position, int]:
        """The newest position that was trimmed, and the sequence of the record that says so."""
        record = await self._api.last(wire.trim_subject(self._api.stream, range_id))
        return (Position(int(record.data)), record.sequence) if record else (Position(0), 0)

    async def _fetch(self, range_id: RangeId, *, after: Position) -> list[Entry]:
        """A batch from the message that holds `after` on."""
        name = self._rng.bytes(12).hex()
        config = wire.consumer_config(
            name,
            start=max(1, wire.sequence_of(after)),
            inactive_seconds=INACTIVE_SECONDS,
            filter_subject=wire.entry_subject(self._api.stream, range_id),
        )
        subscription = await self._client.subscribe(inbox := self._client.new_inbox())
        try:
            await self._api.create_consumer(config)
            request = {"batch": READ_MESSAGES_MAX, "max_bytes": READ_BYTES_MAX, "no_wait": True}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._api.stream}.{name}"
            await self._client.publish(subject, json.dumps(request).encode(), reply=inbox)
            return await self._receive_batch(subscription)
        except CLIENT_ERRORS as error:
            raise UnavailableError(f"the log cannot be read now: {error!r}") from error
        except ApiError as error:
            raise LogError(f"the log cannot be read: {error}") from error
        finally:
            await _quietly(subscription.unsubscribe())
            await _quietly(self._api.delete_consumer(name))

    async def _receive_batch(self, subscription: Any) -> list[Entry]:
        found: list[Entry] = []
        for expected in range(1, READ_MESSAGES_MAX + 1):
            try:
                message = await subscription.next_msg(timeout=_READ_SECONDS)
            except nats.errors.TimeoutError:
                break
            if message.headers and "Status" in message.headers:  # no more messages
                break
            at = wire.delivered(message.reply)
            if at.consumer_sequence != expected:  # one was lost on the way: keep what came before it
                break
            found.extend(wire.entries(at.stream_sequence, message.data))
        return found


def check_incarnation(info: dict[str, Any] | None, expected: str) -> None:
    """Raise unless the stream is still the one that was opened."""
    actual = incarnation_of(info) if info else None
    if actual != expected:
        raise LogIdentityMismatch(
            "the stream was deleted or re-created while it was open", expected=expected, actual=actual
        )


def incarnation_of(info: dict[str, Any]) -> str:
    """What tells this stream from any other of its name: when it was created, and the token it was given then."""
    token = (info["config"].get("metadata") or {}).get(wire.INCARNATION_KEY)
    if token is None:
        raise LogError(
            "the stream was not created by Slackwater; choose another stream name", stream=info["config"]["name"]
        )
    return f"{token}@{info['created']}"


async def _quietly(cleanup: Any) -> None:
    """Clean up what the server would clean up by itself later."""
    try:
        await cleanup
    except (SlackwaterError, ApiError, *CLIENT_ERRORS):
        probe("log.nats_cleanup_failed")
