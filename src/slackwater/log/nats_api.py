"""Questions to JetStream: JSON requests that are safe to repeat, asked until answered or out of time.

Everything here is idempotent or guarded by an expected sequence, so a question that got no answer (an election, a
reconnect) is simply asked again. Appends are not: they are in `nats_publish`.

`STREAM.MSG.GET` is answered by the leader of the stream, so `last` and `next_at` see every acknowledged message.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import nats.errors

from slackwater.errors import LogError, UnavailableError
from slackwater.hooks import probe
from slackwater.runtime.sync import CancelledError, timeout
from slackwater.settings import describe

if TYPE_CHECKING:
    from nats.aio.client import Client

    from slackwater.runtime.seam import Clock

NO_MESSAGE = 10037
STREAM_NOT_FOUND = 10059
STREAM_EXISTS = 10058
CONSUMER_NOT_FOUND = 10014
WRONG_LAST_SEQUENCE = (10071, 10164)
_NOT_NOW = (10008, 10009, 10023, 10039)
"""Answers that mean "ask again": no leader yet, temporarily unavailable, not enough resources, being set up."""
_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
assert describe("log.append_timeout").default > 2 * (_ATTEMPT_SECONDS + _PAUSE_SECONDS), (
    "a question is asked more than once"
)
assert {STREAM_NOT_FOUND, STREAM_EXISTS, CONSUMER_NOT_FOUND, NO_MESSAGE}.isdisjoint(_NOT_NOW), (
    "what there is, and what there is not, is an answer"
)
assert set(_NOT_NOW).isdisjoint(WRONG_LAST_SEQUENCE), "a guard that did not hold is an answer"


def heed_cancellation() -> None:
    """Raise if this task was cancelled: the client library, and `wait_for` before Python 3.12, may swallow it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise CancelledError


CLIENT_ERRORS = (nats.errors.Error, OSError)
"""What the client library raises when it cannot do what was asked; TimeoutError is an OSError."""


class StreamMessage(NamedTuple):
    """A message of the stream."""

    sequence: int
    subject: str
    data: bytes


class ApiError(Exception):
    """JetStream answered with an error."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.code = int(answer.get("err_code", 0))
        super().__init__(f"{answer.get('description', 'unknown error')} ({self.code})")


class Line:
    """Requests over one client, which end with the connection they were sent on.

    The client library lets a request wait for its whole time when the server that was to answer dies: the answer was lost
    with the connection, and the library has long found another server. Every request that is under way when a connection
    breaks ends at once, as if its time were over: it may have arrived.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waits: dict[asyncio.Timeout, None] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a server to ask."""
        return bool(self._client.is_connected)

    async def request(
        self, subject: str, payload: bytes, *, seconds: float, headers: dict[str, str] | None = None
    ) -> bytes:
        """The answer; `TimeoutError` if none came in time, or none can come any more."""
        async with timeout(seconds) as wait:
            self._waits[wait] = None
            try:
                # The library's own limit is only there because it wants one.
                answer = await self._client.request(subject, payload, timeout=2 * seconds, headers=headers)
            finally:
                del self._waits[wait]
        return bytes(answer.data)

    def broke(self) -> None:
        """The connection broke: end what waits for an answer over it."""
        probe("log.nats_connection_broke")
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now)


class Api:
    """Asks one stream's questions over one connection."""

    def __init__(self, line: Line, *, stream: str, clock: Clock, patience: float) -> None:
        self._line = line
        self._clock = clock
        self._patience = patience
        self.stream = stream

    async def ask(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One question; repeated while the servers are busy electing; `ApiError` if the answer is no."""
        payload = json.dumps(body).encode() if body is not None else b""
        deadline = self._clock.monotonic_ns() + int(self._patience * 1e9)
        while True:
            heed_cancellation()
            try:
                answer = await self._line.request(f"$JS.API.{verb}", payload, seconds=_ATTEMPT_SECONDS)
                document: dict[str, Any] = json.loads(answer)
                if "error" not in document:
                    return document
                if document["error"].get("err_code") not in _NOT_NOW:
                    raise ApiError(document["error"])
                why = str(document["error"])
            except (OSError, nats.errors.TimeoutError, nats.errors.NoRespondersError) as error:
                why = repr(error)
            except nats.errors.Error as error:
                raise LogError(f"the NATS connection cannot be used: {error!r}") from error
            if self._clock.monotonic_ns() >= deadline:
                raise UnavailableError(f"JetStream did not answer {verb}: {why}", stream=self.stream)
            await self._clock.sleep(_PAUSE_SECONDS)

    async def info(self) -> dict[str, Any] | None:
        """The stream, or None if there is none."""
        try:
            return await self.ask(f"STREAM.INFO.{self.stream}")
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                return None
            raise

    async def create(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """Create the stream; None if another process was faster."""
        try:
            return await self.ask(f"STREAM.CREATE.{self.stream}", config)
        except ApiError as error:
            if error.code == STREAM_EXISTS:
                return None
            raise LogError(f"the stream cannot be created: {error}", stream=self.stream) from error

    async def last(self, subject: str) -> StreamMessage | None:
        """The newest message of a subject."""
        return await self._get({"last_by_subj": subject})

    async def next_at(self, subject: str, sequence: int) -> StreamMessage | None:
        """The first message of a subject at or after a sequence."""
        assert sequence > 0, "JetStream counts from 1"
        found = await self._get({"seq": sequence, "next_by_subj": subject})
        if found is not None and found.sequence < sequence:
            raise LogError(
                "the stream answered with a message before the one that was asked for; check the NATS servers",
                stream=self.stream,
                asked=sequence,
                got=found.sequence,
            )
        return found

    async def purge(self, subject: str, **how: int) -> None:
        """Delete messages of a subject: `seq` = those before it, or `keep` = all but the newest so many."""
        assert len(how) == 1, "a purge says how far, or how many stay: it never takes a whole subject (L-5)"
        assert min(how.values()) > 0, "JetStream takes 0 for no bound, which would be a whole subject (L-5)"
        await self.ask(f"STREAM.PURGE.{self.stream}", {"filter": subject, **how})

    async def create_consumer(self, config: dict[str, Any]) -> None:
        """Make a consumer."""
        body = {"stream_name": self.stream, "config": config, "action": "create"}
        name, subject = config["name"], config.get("filter_subject")
        verb = f"CONSUMER.CREATE.{self.stream}.{name}" + (f".{subject}" if subject else "")
        await self.ask(verb, body)

    async def delete_consumer(self, name: str) -> None:
        """Remove a consumer, if it is there."""
        try:
            await self.ask(f"CONSUMER.DELETE.{self.stream}.{name}")
        except ApiError as error:
            if error.code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                raise

    async def _get(self, which: dict[str, Any]) -> StreamMessage | None:
        try:
            answer = await self.ask(f"STREAM.MSG.GET.{self.stream}", which)
        except ApiError as error:
            if error.code == NO_MESSAGE:
                return None
            raise LogError(f"the stream cannot be read: {error}", stream=self.stream) from error
        message = answer["message"]
        return StreamMessage(message["seq"], message["subject"], base64.b64decode(message.get("data", "")))
