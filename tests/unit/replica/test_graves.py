"""What a store remembers of ranges that merged away."""

from __future__ import annotations

from slackwater.errors import StorageError
from slackwater.model.ids import Position, RangeId
from slackwater.replica.driver.graves import GRAVES_MAX, Graves
from slackwater.storage.memory import MemoryEngine


def test_notes_outlive_the_store_and_move_to_whoever_absorbs_their_keeper():
    engine = MemoryEngine()
    graves = Graves(engine)
    graves.bury(RangeId(9), into=RangeId(7), at=Position(120))
    graves.bury(RangeId(256), into=RangeId(7), at=Position(130))
    assert graves.due(RangeId(7), upto=Position(119)) == []
    assert graves.due(RangeId(7), upto=Position(120)) == [9]
    graves.bury(RangeId(7), into=RangeId(3), at=Position(200))
    assert not graves.of(RangeId(7))
    assert graves.due(RangeId(3), upto=Position(199)) == []
    again = Graves(engine)
    again.load({RangeId(3), RangeId(7)})
    assert sorted(again.due(RangeId(3), upto=Position(200))) == [7, 9, 256]
    assert not again.of(RangeId(7))
    for absorbed in (7, 9, 256):
        again.forget(RangeId(absorbed), into=RangeId(3))
    third = Graves(engine)
    third.load({RangeId(3)})
    assert not third.of(RangeId(3))


def test_notes_of_ranges_that_are_gone_are_deleted_and_others_bounded():
    engine = MemoryEngine()
    graves = Graves(engine)
    for absorbed in range(10, 10 + 2 * GRAVES_MAX):
        graves.bury(RangeId(absorbed), into=RangeId(3), at=Position(absorbed))
    assert graves.due(RangeId(3), upto=Position(10**9)) == list(range(10 + GRAVES_MAX, 10 + 2 * GRAVES_MAX))
    again = Graves(engine)
    again.load({RangeId(3)})
    assert len(again.due(RangeId(3), upto=Position(10**9))) == GRAVES_MAX
    Graves(engine).load(set())
    again.load({RangeId(3)})
    last = Graves(engine)
    last.load({RangeId(3)})
    assert not last.of(RangeId(3))


def test_a_full_disk_does_not_stop_a_merge():
    class Full(MemoryEngine):
        def write(self, batch):
            raise StorageError("the disk is full")

    graves = Graves(Full())
    graves.bury(RangeId(9), into=RangeId(7), at=Position(120))
    assert graves.of(RangeId(7))
