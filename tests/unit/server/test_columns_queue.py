"""When columns are made anew: where nobody writes, at once; beside writers, when it costs no more than its readers have paid."""

from slackwater.model.spans import Span
from slackwater.server.queues.columns import MERGES_WORTH, Range, is_worth_it, next_segment
from slackwater.storage.columns.delta import Delta
from slackwater.storage.columns.shelf import DELTA_MIN, DELTA_SHARE, KeptSegment, SegmentRecord
from slackwater.storage.files import MemoryFiles

ROWS = 100_000


def segment(*, changed, uses=0, remade=0):
    stored = [b"%08d" % number + bytes(8) for number in range(changed)]
    kept = KeptSegment(MemoryFiles(), SegmentRecord(1, b"a", b"z", 5, ROWS, 1), Delta(stored), parts=1)
    kept.uses, kept.remade_rows = uses, remade
    return kept


def planned(kept, *, quiet):
    here = Range(Span(b"a", b"z"), ROWS, threshold=0, quiet=quiet, wanted=False)
    return next_segment(here, [kept], rows_min=10_000, delta_percent=3.0)


def test_a_quiet_table_gets_its_columns_anew_as_soon_as_some_percent_have_changed():
    assert planned(segment(changed=2_999), quiet=True) is None
    assert planned(segment(changed=3_001), quiet=True).why == "changed"


def test_beside_writers_readers_pay_for_changes_until_that_costs_as_much_as_to_make_them_anew():
    changed = 3_001
    assert planned(segment(changed=changed), quiet=False) is None, "nobody reads it"
    assert planned(segment(changed=changed, uses=9, remade=MERGES_WORTH * ROWS - 1), quiet=False) is None
    assert planned(segment(changed=changed, uses=9, remade=MERGES_WORTH * ROWS), quiet=False).why == "changed"
    assert planned(segment(changed=2_999, uses=9, remade=MERGES_WORTH * ROWS), quiet=False) is None, (
        "little has changed"
    )


def test_what_is_read_is_made_anew_before_so_much_has_changed_that_it_is_dropped():
    half = max(DELTA_MIN, ROWS // DELTA_SHARE) // 2
    assert not is_worth_it(segment(changed=half, uses=1), quiet=False)
    assert is_worth_it(segment(changed=half + 1, uses=1), quiet=False)
    assert not is_worth_it(segment(changed=half + 1), quiet=False), "nobody misses it"
