"""Catch-up slots: nobody has them all, and everybody gets one."""

import pytest

from slackwater.errors import InvariantViolation, Overloaded
from slackwater.feeds import slots as module
from slackwater.feeds.slots import CatchUpSlots


def test_one_consumer_cannot_take_all_slots():
    slots = CatchUpSlots(4)
    for ticket in range(10):
        slots.request(ticket, "greedy")
    assert slots.grant() == [0, 1, 2]
    slots.request(100, "modest")
    assert slots.grant() == [100]
    slots.release(100)
    assert slots.grant() == [], "the last slot is there for whoever else comes"


def test_slots_go_to_whoever_has_the_fewest_and_was_served_the_longest_ago():
    slots = CatchUpSlots(2, share=1.0)
    for ticket in ("a1", "a2", "a3", "b1", "b2", "c1"):
        slots.request(ticket, ticket[0])
    order = []
    running = slots.grant()
    while running:
        order += running
        slots.release(running[0])
        running = [*running[1:], *(more := slots.grant())]
        order += more
        running, order = running, list(dict.fromkeys(order))
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert slots.status() == "running=0/2 waiting=0 consumers=0"


def test_release_of_the_waiting_and_of_strangers():
    slots = CatchUpSlots(1)
    slots.request(1, "a")
    slots.request(2, "a")
    slots.request(2, "a")
    assert slots.grant() == [1]
    slots.release(2)
    slots.release(99)
    slots.release(1)
    assert slots.grant() == []


def test_bounds(monkeypatch):
    monkeypatch.setattr(module, "TICKETS_MAX", 2)
    slots = CatchUpSlots(1)
    slots.request(1, "a")
    slots.request(2, "a")
    with pytest.raises(Overloaded):
        slots.request(3, "a")
    with pytest.raises(InvariantViolation):
        CatchUpSlots(0)
