"""Protections as clients see them, on a real node in this process."""

from __future__ import annotations

import time

import pytest

import slackwater
from slackwater.clock.timestamp import add_seconds
from slackwater.errors import NotFound, TooLate, UsageError
from slackwater.protocol.client.protections import Protection


@pytest.fixture
def db(tmp_path):
    with slackwater.open(tmp_path / "store") as db:
        db.create_table("orders", {"id": "int8", "price": "int8"}, primary_key=["id"])
        db.upsert("orders", [{"id": i, "price": i} for i in range(10)])
        yield db


def test_protect_list_renew_release(db) -> None:
    now = db.now()
    made = db.protect("orders", after=now, expires=60, reason="audit")
    assert isinstance(made, Protection)
    assert (made.tables, made.timestamp, made.mode.value, made.kind, made.about) == (
        ("orders",), now, "after", "user", "audit",
    )  # fmt: skip
    (listed,) = db.protections()
    assert listed == made
    renewed = db.renew_protection(made, expires=3600)
    assert renewed.expires > made.expires
    db.release(made.id)
    assert db.protections() == []
    with pytest.raises(NotFound, match="no protection has this id"):
        db.release(made)
    rows = db.scan("system.protected_ts_meta").to_pylist()
    assert rows == [{"_exists": True, "version": 3, "rows": 0, "spans": 0}], "like any table"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tables": "orders"}, "give one of at and after"),
        ({"tables": "orders", "at": "-1s", "after": "-1s"}, "give one of at and after"),
        ({"tables": "nope", "at": "-0s"}, "there is no table 'nope'"),
        ({"tables": "orders", "at": "2200-01-01T00:00:00Z"}, "future"),
        ({"tables": "orders", "at": "-1h"}, "did not exist yet"),
        ({"tables": "orders", "at": "-0s", "expires": -5}, "expires"),
        ({"tables": [], "at": "-0s"}, "name 1 to"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_is_protected(db, given, match) -> None:
    given = dict(given)
    with pytest.raises((UsageError, TooLate), match=match):
        db.protect(given.pop("tables"), **given)
    assert db.protections() == []
    with pytest.raises(UsageError, match="32 hexadecimal digits"):
        db.release("nonsense")


def test_a_protected_snapshot_is_released_by_hand_or_by_its_ttl(db) -> None:
    snap = db.snapshot(tables=["orders"], protect=True, protect_ttl=120)
    (listed,) = db.protections()
    assert (listed.kind, listed.mode.value, listed.timestamp) == ("snapshot", "at", snap.timestamp)
    snap.renew(600)
    snap.release()
    assert db.protections() == []
    with pytest.raises(UsageError, match="not protected"):
        snap.release()
    with pytest.raises(UsageError, match="not protected"):
        db.snapshot().renew(5)


def test_a_change_feed_keeps_what_it_still_needs_and_lets_it_go_some_time_after_its_end(db) -> None:
    feed = db.changes("orders", resolved=0.1)
    next(feed)
    (listed,) = db.protections()
    assert (listed.kind, listed.mode.value, listed.tables) == ("feed", "after", ("orders",))
    assert listed.about.startswith("changes 1 of")
    assert listed.expires == 0
    feed.close()
    until(lambda: db.protections()[0].expires > 0)  # its consumer may come back with a token, for a while
    list(db.changes("orders", resolved=0.1, until=db.now()))  # this one is finished, and leaves nothing
    until(lambda: [p.id for p in db.protections()] == [listed.id])


def test_a_protection_of_all_that_comes_after_a_time_moves_up_and_no_other_does(db) -> None:
    began = db.now()
    kept = db.protect("orders", after=began)
    later = db.now()
    assert db.renew_protection(kept, expires=60, after=later).timestamp == later
    assert db.renew_protection(kept, expires=60, after=began).timestamp == later, "never back"
    with pytest.raises(UsageError, match="future"):
        db.renew_protection(kept, expires=60, after=add_seconds(later, 3600))
    instant = db.protect("orders", at=later)
    with pytest.raises(UsageError, match="only a protection of all that comes after a time can move"):
        db.renew_protection(instant, expires=60, after=later)
    assert {p.id: (p.timestamp, p.expires > 0) for p in db.protections()} == {
        kept.id: (later, True),
        instant.id: (later, False),
    }


def until(holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
