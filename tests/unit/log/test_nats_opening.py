"""Opening a stream that another process is creating in this moment, and a server that says no goodbye."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client

from slackwater.errors import LogError
from slackwater.log import nats
from slackwater.log.nats import OPENINGS_MAX, GuardedClient, _open_stream
from slackwater.log.nats_api import STREAM_EXISTS, STREAM_NOT_FOUND, Api, ApiError
from slackwater.runtime import run
from slackwater.runtime.clock import RealClock


class Patient(RealClock):
    """A clock whose sleeps take no time."""

    async def sleep(self, seconds: float) -> None:
        """Return at once."""


class LateServer(Api):
    """A server that knows that a stream exists, and hears what it is after so many questions."""

    def __init__(self, answers_after: int) -> None:
        super().__init__(None, stream="s", clock=Patient(), patience=1.0)  # type: ignore[arg-type]
        self.questions = 0
        self._answers_after = answers_after

    async def ask(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Answer as nats-server does while an assignment is on its way."""
        if verb.startswith("STREAM.CREATE"):
            raise ApiError({"err_code": STREAM_EXISTS, "code": 400, "description": "stream name already in use"})
        self.questions += 1
        if self.questions <= self._answers_after:
            raise ApiError({"err_code": STREAM_NOT_FOUND, "code": 404, "description": "stream not found"})
        return {"config": {}}


@pytest.mark.parametrize("questions", [0, 1, 2, 7])
def test_a_stream_that_another_process_has_just_created_is_waited_for(questions: int) -> None:
    server = LateServer(questions)
    assert run(_open_stream(server, replicas=3, token="t", clock=Patient())) == {"config": {}}


def test_a_stream_that_never_shows_is_an_error_that_says_so() -> None:
    server = LateServer(10_000)
    with pytest.raises(LogError, match="try again"):
        run(_open_stream(server, replicas=3, token="t", clock=Patient()))
    assert server.questions == 2 * OPENINGS_MAX


def test_the_end_of_a_connection_waits_for_no_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Client) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Client, "close", never)
    monkeypatch.setattr(nats, "CONNECT_SECONDS", 0.01)
    run(GuardedClient(secure=True).close())
