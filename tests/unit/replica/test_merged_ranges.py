"""What a store remembers of ranges that merged away."""

from __future__ import annotations

from slackwater.errors import StorageError
from slackwater.model.ids import Position, RangeId
from slackwater.replica.driver.merged_ranges import MERGED_MAX, MergedRanges
from slackwater.storage.memory import MemoryEngine


def test_notes_outlive_the_store_and_move_to_whoever_absorbs_their_keeper():
    engine = MemoryEngine()
    merged = MergedRanges(engine)
    merged.record(RangeId(9), into=RangeId(7), at=Position(120))
    merged.record(RangeId(256), into=RangeId(7), at=Position(130))
    assert merged.due(RangeId(7), upto=Position(119)) == []
    assert merged.due(RangeId(7), upto=Position(120)) == [9]
    merged.record(RangeId(7), into=RangeId(3), at=Position(200))
    assert not merged.of(RangeId(7))
    assert merged.due(RangeId(3), upto=Position(199)) == []
    again = MergedRanges(engine)
    again.load({RangeId(3), RangeId(7)})
    assert sorted(again.due(RangeId(3), upto=Position(200))) == [7, 9, 256]
    assert not again.of(RangeId(7))
    for absorbed in (7, 9, 256):
        again.forget(RangeId(absorbed), into=RangeId(3))
    third = MergedRanges(engine)
    third.load({RangeId(3)})
    assert not third.of(RangeId(3))


def test_notes_of_ranges_that_are_gone_are_deleted_and_others_bounded():
    engine = MemoryEngine()
    merged = MergedRanges(engine)
    for absorbed in range(10, 10 + 2 * MERGED_MAX):
        merged.record(RangeId(absorbed), into=RangeId(3), at=Position(absorbed))
    assert merged.due(RangeId(3), upto=Position(10**9)) == list(range(10 + MERGED_MAX, 10 + 2 * MERGED_MAX))
    again = MergedRanges(engine)
    again.load({RangeId(3)})
    assert len(again.due(RangeId(3), upto=Position(10**9))) == MERGED_MAX
    MergedRanges(engine).load(set())
    again.load({RangeId(3)})
    last = MergedRanges(engine)
    last.load({RangeId(3)})
    assert not last.of(RangeId(3))


def test_a_full_disk_does_not_stop_a_merge():
    class Full(MemoryEngine):
        def write(self, batch):
            raise StorageError("the disk is full")

    merged = MergedRanges(Full())
    merged.record(RangeId(9), into=RangeId(7), at=Position(120))
    assert merged.of(RangeId(7))
