"""A feed's protection follows its progress, raises an alarm before it expires, and does what its policy says."""

from __future__ import annotations

import pytest

from slackwater.clock import HybridClock
from slackwater.clock.timestamp import Timestamp, add_seconds
from slackwater.errors import FeedExpired, NotFound, UnavailableError
from slackwater.feeds.protection import MOVE_INTERVAL_S, FeedProtection, ProtectionPolicy
from slackwater.model.spans import Span
from slackwater.runtime import run

SPANS = [Span(b"a", b"b")]


class Ledger:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.broken = False
        self.gone = False

    async def protect(self, spans, ts, *, owner, user, former) -> bytes:
        if self.broken:
            raise UnavailableError("not now")
        self.calls.append(("protect", ts))
        self.former = former
        return b"p1"

    async def move(self, protection, ts) -> None:
        assert protection == b"p1"
        if self.gone:
            raise NotFound("released")
        self.calls.append(("move", ts))

    async def release(self, protection) -> None:
        self.calls.append(("release", 0))

    async def leave(self, protection) -> None:
        self.calls.append(("leave", 0))


class Story:
    def __init__(self, **options) -> None:
        self.now_s = 1000.0
        self.clock = HybridClock(lambda: int(self.now_s * 1e9), max_offset_s=0.5)
        self.ledger = Ledger()
        self.protection = FeedProtection(self.ledger, SPANS, owner="feed 1", clock=self.clock, **options)

    def now(self) -> Timestamp:
        return self.clock.now()


def test_it_moves_behind_progress_now_and_then() -> None:
    story = Story()
    began = story.now()
    run(story.protection.begin(began))
    run(story.protection.advance(story.now()))
    assert story.ledger.calls == [("protect", began)], "too soon to be worth a write"
    story.now_s += MOVE_INTERVAL_S + 1
    there = add_seconds(story.now(), -3)
    run(story.protection.advance(there))
    assert story.ledger.calls[1:] == [("move", began)], "the consumer may not have kept what was sent since"
    story.now_s += MOVE_INTERVAL_S + 1
    run(story.protection.advance(story.now()))
    assert story.ledger.calls[2:] == [("move", there)]
    assert story.protection.protected == there
    run(story.protection.end(finished=True))
    assert story.ledger.calls[-1][0] == "release"
    assert story.protection.protected is None


def test_a_consumer_that_went_away_leaves_its_protection_and_its_token_names_it() -> None:
    story = Story()
    run(story.protection.begin(story.now(), former=b"old"))
    assert story.ledger.former == b"old"
    assert story.protection.name == b"p1"
    run(story.protection.end(finished=False))
    assert [call for call, _ in story.ledger.calls] == ["protect", "leave"]
    assert story.protection.name == b""


def test_the_alarm_comes_first_and_then_the_policy() -> None:
    for policy in ProtectionPolicy:
        story = Story(policy=policy, expires_after_s=100.0)
        run(story.protection.begin(story.now()))
        run(story.protection.check())
        assert not story.protection.alarming
        story.now_s += 60
        run(story.protection.check())
        assert story.protection.alarming
        story.now_s += 60
        if policy is ProtectionPolicy.KEEP:
            run(story.protection.check())
            assert story.protection.protected is not None
        else:
            with pytest.raises(FeedExpired):
                run(story.protection.check())
            assert story.ledger.calls[-1][0] == "release"


def test_what_could_not_be_protected_is_tried_again() -> None:
    story = Story()
    story.ledger.broken = True
    run(story.protection.begin(story.now()))
    assert story.protection.protected is None
    story.ledger.broken = False
    run(story.protection.advance(there := story.now()))
    assert story.protection.protected == there
    assert story.protection.failures == 1


def test_one_that_was_released_by_hand_is_made_again() -> None:
    story = Story()
    run(story.protection.begin(story.now()))
    story.ledger.gone = True
    story.now_s += MOVE_INTERVAL_S + 1
    run(story.protection.advance(story.now()))
    assert (story.protection.protected, story.protection.failures) == (None, 1)
    story.ledger.gone = False
    run(story.protection.advance(story.now()))
    assert [call for call, _ in story.ledger.calls] == ["protect", "protect"]
    assert story.protection.protected == story.protection.resolved
