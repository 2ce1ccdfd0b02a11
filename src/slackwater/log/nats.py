"""The ordered log on NATS JetStream: replicated, several machines, many ranges in one stream.

    append --> Publisher --> orders.e.3 --> stream, file storage, R replicas --> LiveReader --> hub --> tails
               groups per range             acknowledged after a quorum synced       |
    trim ----> record in orders.t.3, then purge of orders.e.3                     RangeReader (catch-up)

Rules
    L-1  The acknowledgement of JetStream is the promise: stored by a quorum of the replicas. Whether "stored" survives
         a power cut depends on the servers' settings: `nats_checks` refuses those that it would not survive.
    L-2  See the table in `nats_publish`.
    L-3  Positions come from the sequence of the stream, see `nats_wire`.
    L-5  A trim first records, in the stream, the newest position it will remove (guarded by the sequence of the
         previous record, so that two trimmers cannot overwrite each other), then purges. A crash in between is finished
         by the next trim. Blocks are removed whole.
    L-6  The incarnation is a random token in the stream's metadata plus its creation time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.client import Client

from slackwater.errors import (
    AmbiguousResult,
    ConnectionLost,
    LogError,
    SlackwaterError,
    UnavailableError,
)
from slackwater.hooks import probe
from slackwater.log import nats_checks as checks
from slackwater.log import nats_wire as wire
from slackwater.log.blocks import check_payloads
from slackwater.log.contract import Entry, LogIdentity
from slackwater.log.nats_api import CLIENT_ERRORS, WRONG_LAST_SEQUENCE, Api, Line, StreamMessage
from slackwater.log.nats_publish import NatsPublisher
from slackwater.log.nats_reader import LiveReader, RangeReader, incarnation_of
from slackwater.log.tails import Tail, TailHub
from slackwater.runtime.sync import timeout
from slackwater.settings import Settings, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.log.nats_access import Access
    from slackwater.model.ids import Position, RangeId
    from slackwater.runtime.seam import Clock, Rng, TaskScope

TRIM_ATTEMPTS_MAX = 16
RECONNECT_SECONDS = 0.05
CONNECT_SECONDS = 1.0
PING_SECONDS = 1
"""A server that answers neither of two pings is left: it, or the way to it, is gone without a word."""
assert RECONNECT_SECONDS < CONNECT_SECONDS, "a lost server is dialed again before a dial is given up"
assert describe("log.append_timeout").default > 2 * PING_SECONDS, "a silent server is left before an append gives up"

OPENINGS_MAX, OPENING_PAUSE_S = 25, 0.2
"""How often a stream that exists, and of which its server knows nothing yet, is asked for."""


class NatsLog:
    """`log.contract.OrderedLog` on a stream. Make it with `open_nats`."""

    def __init__(
        self,
        client: Client,
        line: Line,
        api: Api,
        identity: LogIdentity,
        seen: int,
        *,
        clock: Clock,
        rng: Rng,
        scope: TaskScope,
        settings: Settings,
    ) -> None:
        self._client = client
        self._line = line
        self._api = api
        self._identity = identity
        self._settings = settings
        self._scope = scope
        self._failure: SlackwaterError | None = None
        self._closed = False
        self._hub = TailHub(self, buffer_bytes_max=int(settings["log.tail_buffer_bytes_max"]))
        self.live = LiveReader(
            client,
            api,
            self._hub,
            incarnation=identity.incarnation,
            seen=seen,
            clock=clock,
            rng=rng,
            give_up=self._fail,
        )
        self._ranges = RangeReader(client, api, self.live, clock=clock, rng=rng)
        self._publisher = NatsPublisher(
            line,
            stream=api.stream,
            token=rng.bytes(12).hex(),
            clock=clock,
            scope=scope,
            append_timeout=settings["log.append_timeout"],
            queue_bytes_max=int(settings["log.queue_bytes_max"]),
        )
        self._publisher.on_stored = self.live.stored
        scope.spawn(self.live.run(), name="log-live-reader")
        scope.spawn(self.live.bridge(), name="log-bridge")

    async def append(self, range_id: RangeId, payloads: Sequence[bytes]) -> Position:
        """See `log.contract.OrderedLog`."""
        room = self._client.max_payload - wire.MESSAGE_OVERHEAD_BYTES
        check_payloads(payloads, limit=min(room, int(self._settings["log.entry_bytes_max"])))
        self._check_usable()
        return await self._publisher.append(
            range_id, payloads, message_bytes_max=room - 4 * wire.PAYLOADS_PER_MESSAGE_MAX
        )

    def tail(self, range_id: RangeId, *, after: Position) -> Tail:
        """See `log.contract.OrderedLog`."""
        return self._hub.tail(range_id, after=after)

    async def read(self, range_id: RangeId, *, after: Position) -> tuple[list[Entry], bool]:
        """See `tails.TailSource`. An unavailable log is waited for, as a tail waits for entries."""
        try:
            return await self._ranges.read(range_id, after=after)
        except UnavailableError:
            return [], False

    async def head(self, range_id: RangeId) -> Position:
        """See `log.contract.OrderedLog`."""
        self._check_usable()
        return await self._ranges.head(range_id)

    async def trim(self, range_id: RangeId, *, upto: Position) -> None:
        """See `log.contract.OrderedLog`."""
        self._check_usable()
        for _ in range(TRIM_ATTEMPTS_MAX):
            trimmed, record = await self._ranges.trimmed(range_id)
            newest = await self._newest(range_id, above=wire.sequence_of(trimmed), upto=upto)
            if newest is not None:
                trimmed = wire.last_position(newest.sequence, newest.data)
                assert trimmed <= upto, "no more is trimmed than was asked for (L-4)"
                if not await self._record_trim(range_id, trimmed, expected=record):
                    continue  # another trimmer was faster: look again
            if trimmed:
                await self._api.purge(wire.entry_subject(self._api.stream, range_id), seq=wire.sequence_of(trimmed) + 1)
                await self._api.purge(wire.trim_subject(self._api.stream, range_id), keep=1)
            return
        raise UnavailableError("other trimmers kept being faster; trim again later", range_id=range_id)

    def identity(self) -> LogIdentity:
        """See `log.contract.OrderedLog`."""
        return self._identity

    async def close(self) -> None:
        """Refuse what is not sent yet, stop reading, disconnect."""
        if self._closed:
            return
        self._closed = True
        self._fail(LogError("the log handle was closed; open the log again"))
        await self._scope.close()
        await self._client.close()

    def status(self) -> str:
        """One line about this handle."""
        state = "connected" if self._client.is_connected else "not connected"
        return f"nats {self._identity.name} {self._identity.incarnation} {state}"

    def _fail(self, error: SlackwaterError) -> None:
        """Refuse everything from now on."""
        self._failure = self._failure or error
        self._publisher.fail_waiting(error)
        self._hub.fail(error)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _newest(self, range_id: RangeId, *, above: int, upto: Position) -> StreamMessage | None:
        """The newest message of the range after sequence `above` whose entries are all <= upto.

        JetStream can only look forward, so this halves the span that the newest may be in.
        """
        subject = wire.entry_subject(self._api.stream, range_id)
        found: StreamMessage | None = None
        low, high = above + 1, wire.sequence_of(upto)
        last = await self._api.last(subject)
        high = min(high, last.sequence if last else 0)
        at = high  # mostly `upto` is the position of an entry: try there first
        while low <= high:
            candidate = await self._api.next_at(subject, at)
            if candidate is None or candidate.sequence > high or not _covered(candidate, upto):
                high = at - 1
            else:
                found, low = candidate, candidate.sequence + 1
            at = (low + high + 1) // 2
        assert found is None or above < found.sequence, "only what is above the last trim"
        return found

    async def _record_trim(self, range_id: RangeId, trimmed: Position, *, expected: int) -> bool:
        """Write the trim record after the one expected; False if it is not the last any more."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected), "Nats-Expected-Stream": self._api.stream}
        subject = wire.trim_subject(self._api.stream, range_id)
        try:
            answer = await self._line.request(
                subject, str(trimmed).encode(), seconds=self._settings["log.append_timeout"], headers=headers
            )
        except CLIENT_ERRORS as error:
            raise AmbiguousResult(f"the log did not say whether it recorded the trim: {error!r}; trim again") from error
        return wire.stored(answer, conflicts=WRONG_LAST_SEQUENCE)


def _check_message_room(max_payload: int) -> None:
    if max_payload < 4 * wire.MESSAGE_OVERHEAD_BYTES:
        raise LogError("the server's max_payload is too small for a log; raise it", max_payload=max_payload)


def _covered(message: StreamMessage, upto: Position) -> bool:
    return wire.last_position(message.sequence, message.data) <= upto


async def open_nats(
    servers: list[str],
    *,
    access: Access,
    stream: str,
    replicas: int,
    clock: Clock,
    rng: Rng,
    scope: TaskScope,
    settings: Settings | None = None,
    monitors: list[str] | None = None,
    sync_always: bool = False,
    allow_lossy: bool = False,
    place: int = 0,
) -> NatsLog:
    """Open the log in this stream; create it if there is none. The log's tasks live in a child of `scope`.

    `place` says at which of the servers this process begins, so that the nodes of a cluster do not all sit on one.
    """
    settings = settings or Settings()
    wire.check_stream_name(stream)
    patience = settings["log.append_timeout"]
    hooks = _Hooks()
    client = await _connect(spread(servers, place), access, hooks, patience)
    try:
        hooks.line = line = Line(client)
        api = Api(line, stream=stream, clock=clock, patience=patience)
        info = await _open_stream(api, replicas=replicas, token=rng.bytes(16).hex(), clock=clock)
        if not allow_lossy:
            problems = checks.stream_problems(info["config"], replicas=replicas)
            if monitors:
                problems += await checks.server_problems(monitors)
            elif not sync_always:
                problems.append(checks.UNSTATED_SYNC)
            checks.refuse(problems)
        _check_message_room(client.max_payload)
        identity = LogIdentity("nats", stream, incarnation_of(info))
    except BaseException:
        await client.close()
        raise
    log = NatsLog(
        client,
        line,
        api,
        identity,
        info["state"]["last_seq"],
        clock=clock,
        rng=rng,
        scope=scope.child(f"log-{stream}"),
        settings=settings,
    )
    hooks.reader = log.live
    return log


async def _open_stream(api: Api, *, replicas: int, token: str, clock: Clock) -> dict[str, Any]:
    """What the servers say of the stream, created if need be."""
    config = wire.stream_config(api.stream, replicas=replicas, incarnation=token)
    assert not checks.stream_problems(config, replicas=replicas), "a stream that is made here loses nothing (L-1)"
    for attempt in range(OPENINGS_MAX):
        if attempt:
            await clock.sleep(OPENING_PAUSE_S)
        # Another process may create it between the two questions, and the server that is asked may hear of that later.
        info = await api.info() or await api.create(config) or await api.info()
        if info is not None:
            return info
    raise LogError("the stream was deleted while it was being opened; try again", stream=api.stream)


class GuardedClient(Client):
    """A client that says nothing to a server before the connection is as safe as the URL asks for."""

    def __init__(self, *, secure: bool) -> None:
        super().__init__()
        self._secure = secure

    async def close(self) -> None:
        """Disconnect, or stop waiting for the server's goodbye after a while: one that refused us may never say it."""
        with suppress(TimeoutError):
            async with timeout(CONNECT_SECONDS):
                await super().close()

    def _connect_command(self) -> bytes:
        """What is sent first, password and all; fails closed should the library change under us."""
        if self._secure and self._transport._io_writer.get_extra_info("ssl_object") is None:  # type: ignore[union-attr]
            raise nats.errors.Error("the server does not ask for TLS, and the URL of the log does (nats+tls://)")
        return super()._connect_command()


class _Hooks:
    """What a connection that breaks, or was made anew, is told to."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.reader: LiveReader | None = None

    async def disconnected(self) -> None:
        """What was under way on it gets no answer any more."""
        if self.line is not None:
            self.line.broke()

    async def reconnected(self) -> None:
        """What was delivered meanwhile may be missing."""
        if self.reader is not None:
            self.reader.disturb()


def spread(servers: list[str], place: int) -> list[str]:
    """The servers in the order in which the process at `place` tries them."""
    assert servers, "a log has servers"
    begin = place % len(servers)
    order = servers[begin:] + servers[:begin]
    assert len(order) == len(servers), "every server is tried"
    return order


async def _connect(servers: list[str], access: Access, hooks: _Hooks, patience: float) -> Client:
    last: list[Exception] = []

    async def ignore(error: Exception) -> None:
        probe("log.nats_connection_error")  # reconnects are automatic; appends and questions report what matters
        last[:] = [error]

    client = GuardedClient(secure=access.tls is not None)
    limits: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "reconnect_time_wait": RECONNECT_SECONDS}
    try:
        async with timeout(patience):
            await client.connect(
                servers,
                **access.arguments(),
                dont_randomize=True,  # by place instead: see `spread`
                **limits,
                max_reconnect_attempts=-1,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                disconnected_cb=hooks.disconnected,
                reconnected_cb=hooks.reconnected,
                error_cb=ignore,
            )
    except CLIENT_ERRORS as error:
        await client.close()
        why = last[0] if last and isinstance(error, TimeoutError) else error
        raise ConnectionLost(f"no NATS server could be reached: {why!r}", servers=",".join(servers)) from error
    return client
