"""The pure parts of transactions: spans kept, writes held back, pushes planned, what was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec import layout
from slackwater.errors import ProtocolError, UsageError
from slackwater.model.spans import Span, SpanSet
from slackwater.model.txns import Intent, Resolution, TxnStatus
from slackwater.protocol.range.requests import (
    ConditionalPut,
    Delete,
    DeleteRange,
    Done,
    EndTxn,
    Get,
    Increment,
    InitPut,
    Number,
    Put,
    PutRows,
    Refresh,
    Request,
    ReverseScan,
    Rows,
    Scan,
    Value,
)
from slackwater.runtime import LocalNet, RealRuntime
from slackwater.settings import Settings
from slackwater.storage.memory import MemoryDisk
from slackwater.txn import check, reads
from slackwater.txn.buffer import WriteBuffer, chunks
from slackwater.txn.context import TxnContext
from slackwater.txn.finish import KEYS_PER_REQUEST_MAX, Finished
from slackwater.txn.finish import requests_for as resolutions
from slackwater.txn.operations import grouped
from slackwater.txn.pushing import TxnPusher, plan
from slackwater.txn.refresh import requests_for as refreshes
from slackwater.txn.spanbook import SpanBook, collapse

ME = TxnPusher(Timestamp(50), b"m" * 16, Timestamp(70), uncertain=False, holds_locks=True)


def intent(key: bytes, txn: bytes, *, ts: int = 60, epoch: int = 0) -> Intent:
    return Intent(key, txn * 16, b"anchor", Timestamp(40), epoch, Timestamp(ts))


# --- spans


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20)), min_size=1, max_size=40), st.integers(1, 10))
def test_collapsed_spans_cover_everything_within_the_bound(pairs: list[tuple[int, int]], limit: int) -> None:
    spans = [Span(bytes([a]), bytes([a + b])) for a, b in pairs]
    covering = collapse(spans, limit=limit)
    assert len(covering) <= limit
    assert all(SpanSet(covering).covers(span) for span in spans)


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=60), st.integers(1, 12))
def test_a_span_book_stays_within_its_bound_and_forgets_nothing(keys: list[bytes], limit: int) -> None:
    book = SpanBook(limit=limit)
    for key in keys:
        book.add_key(key)
        assert len(book) <= limit
    covered = SpanSet(book.all_spans())
    assert all(key in covered for key in keys)
    exact = book.keys()
    held = SpanSet([*(Span.point(k) for k in exact), *(Span(s, e) for s, e in book.spans())])
    assert held == covered


def test_a_span_book_is_exact_below_its_bound() -> None:
    book = SpanBook(limit=4)
    book.add_keys([b"c", b"a", b"c"])
    book.add_span(b"m", b"p")
    book.add_span(b"x", b"x")
    assert book.keys() == (b"a", b"c")
    assert book.spans() == ((b"m", b"p"),)
    book.clear()
    assert not book


# --- the buffer


def test_puts_leave_as_one_block_and_the_last_write_wins() -> None:
    buffer = WriteBuffer(bytes_max=100)
    for key, value in ((b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"d", b"4"), (b"d", None)):
        buffer.put(key, value)
    assert buffer.requests() == [PutRows([b"a", b"b"], [b"2", b"3"]), Delete(b"d")]
    buffer.clear()
    buffer.put(b"a", b"1")
    assert buffer.requests() == [Put(b"a", b"1")]


def test_the_buffer_counts_what_it_holds_now() -> None:
    buffer = WriteBuffer(bytes_max=10)
    buffer.put(b"k", b"0123456789")
    assert buffer.full
    buffer.put(b"k", b"x")
    assert not buffer.full
    buffer.put(b"k", None)
    assert not buffer.full
    assert len(buffer) == 1


def test_reads_of_held_back_keys_are_noticed() -> None:
    buffer = WriteBuffer(bytes_max=100)
    assert not buffer.touches([Span(b"a", b"z")])
    buffer.put(b"k", None)
    assert buffer.touches(reads.spans_of(Get(b"k")))
    assert not buffer.touches(reads.spans_of(Get(b"l")))
    assert buffer.touches(reads.spans_of(Scan(b"a", b"l")))
    assert not buffer.touches(reads.spans_of(Scan(b"a", b"k")))
    assert buffer.touches(reads.spans_of(ConditionalPut(b"k", b"", None)))
    assert buffer.touches(reads.spans_of(PutRows([b"a", b"k"], [b"", b""])))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 64))
def test_chunks_keep_every_row_and_their_size(sizes: list[int], bytes_max: int) -> None:
    keys = [bytes([i]) for i in range(len(sizes))]
    values = [b"x" * n for n in sizes]
    blocks = chunks(keys, values, bytes_max=bytes_max)
    assert [k for ks, _ in blocks for k in ks] == keys
    assert [v for _, vs in blocks for v in vs] == values
    for ks, vs in blocks:
        assert len(ks) == 1 or sum(map(len, ks)) + sum(map(len, vs)) <= bytes_max


# --- what was seen


@pytest.mark.parametrize(
    ("request_", "result", "keys", "spans"),
    [
        (Get(b"k"), Value(None), (b"k",), ()),
        (Scan(b"a", b"z"), Rows([], []), (), ((b"a", b"z"),)),
        (Scan(b"a", b"z"), Rows([b"b"], [b""], resume=b"c"), (), ((b"a", b"c"),)),
        (ReverseScan(b"a", b"z"), Rows([b"y"], [b""], resume=b"y"), (), ((b"y", b"z"),)),
        (ReverseScan(b"a", b"z"), Rows([], []), (), ((b"a", b"z"),)),
        (ConditionalPut(b"k", b"v", None), Done(), (), ()),
        (Increment(b"k", 1), Number(1), (), ()),
        (InitPut(b"k", b"v"), Done(), (b"k",), ()),
        (DeleteRange(b"a", b"z"), Rows([b"b"], []), (), ((b"a", b"z"),)),
        (PutRows([b"k"], [b""], must_be_new=True), Done(), (), ()),
        (PutRows([b"k"], [b""]), Done(), (), ()),
        (Put(b"k", b""), Done(), (), ()),
        (Delete(b"k"), Done(), (), ()),
    ],
)
def test_reads_are_remembered_as_far_as_they_went(request_, result, keys, spans) -> None:
    book = SpanBook(limit=10)
    reads.remember(book, request_, result)
    assert (book.keys(), book.spans()) == (keys, spans)


def test_every_write_is_locked_and_the_first_is_the_anchor() -> None:
    writes = [
        Get(b"z"), DeleteRange(b"m", b"n"), Put(b"a", b""), Delete(b"b"), ConditionalPut(b"c", b"", None),
        InitPut(b"d", b""), Increment(b"e", 1), PutRows([b"f", b"g"], [b"", b""]),
    ]  # fmt: skip
    book = SpanBook(limit=100)
    for write in writes:
        reads.lock(book, write)
    assert book.keys() == (b"a", b"b", b"c", b"d", b"e", b"f", b"g")
    assert book.spans() == ((b"m", b"n"),)
    assert reads.first_key(writes) == b"m"
    with pytest.raises(UsageError):
        reads.first_key([Get(b"z")])


def test_refreshes_name_the_window() -> None:
    book = SpanBook(limit=10)
    book.add_key(b"k")
    book.add_span(b"a", b"c")
    assert refreshes(book, after=Timestamp(10), upto=Timestamp(25)) == [
        Refresh(b"a", b"c", Timestamp(10), Timestamp(25)),
        Refresh(b"k", b"k\x00", Timestamp(10), Timestamp(25)),
    ]


# --- pushing


def test_one_push_per_transaction_and_never_of_oneself() -> None:
    met = [intent(b"a", b"x"), intent(b"b", b"y"), intent(b"c", b"x", ts=65), intent(b"d", b"m")]
    pushes = plan(met, [Scan(b"a", b"z")], ME)
    assert [(p.request.pushee.txn_id[:1], p.keys, p.request.abort) for p in pushes] == [
        (b"x", (b"a", b"c"), False),
        (b"y", (b"b",), False),
    ]
    assert pushes[0].request.pushee.ts == 65
    assert pushes[0].request.above == 70


def test_a_write_on_the_intents_key_pushes_to_abort() -> None:
    batch = [Get(b"a"), PutRows([b"c", b"e"], [b"", b""])]
    aborts = {p.keys[0]: p.request.abort for p in plan([intent(b"a", b"x"), intent(b"d", b"y")], batch, ME, known=())}
    assert aborts == {b"a": False, b"d": True}


# --- finishing


def test_resolution_is_cut_to_the_size_of_a_command() -> None:
    keys = tuple(i.to_bytes(2, "big") for i in range(KEYS_PER_REQUEST_MAX + 5))
    finished = Finished(
        b"t" * 16, b"a", 2, TxnStatus.COMMITTED, Timestamp(9), keys=keys, spans=((b"x", b"y"), (b"z", b"zz"))
    )
    requests = resolutions(finished)
    assert [len(r.keys) for r in requests] == [KEYS_PER_REQUEST_MAX, 5]
    assert not any(r.spans for r in requests), "spans are walked by their ranges (txn.resolving)"
    assert all(r.resolution.ts == 9 and r.resolution.epoch == 2 for r in requests)


# --- batches and checks


def test_batches_are_grouped_so_that_each_can_be_tried_again() -> None:
    get, put, cput = Get(b"a"), Put(b"a", b""), ConditionalPut(b"a", b"", None)
    fresh = PutRows([b"a"], [b""], must_be_new=True)
    assert grouped([get, get, put, put, cput, cput, fresh, put, get]) == [
        [get, get], [put, put], [cput], [cput], [fresh], [put], [get],
    ]  # fmt: skip
    assert grouped([]) == []


@pytest.mark.parametrize("key", [b"", b"\x01local", b"\xff", b"\xff\xff"])
def test_keys_outside_the_key_space_are_refused(key: bytes) -> None:
    with pytest.raises(UsageError):
        check.key_ok(key)


def test_good_and_bad_batches() -> None:
    a, b = layout.kv(b"a"), layout.kv(b"b")
    check.requests_ok([Get(a), Scan(a, b), PutRows([a, b], [b"", b""]), Increment(a, 1)])
    bad: list[Request] = [
        Scan(b, a), Scan(a, a), Scan(a, b"\xff\x00"), PutRows([b, a], [b"", b""]), PutRows([a, a], [b"", b""]),
        PutRows([a], []), PutRows([], []), EndTxn(commit=True), Get(b"\x01x"), Refresh(a, b, MIN, MIN),
    ]  # fmt: skip
    for request in bad:
        with pytest.raises(UsageError):
            check.requests_ok([request])


def test_what_became_of_a_transaction_is_not_forgotten_for_an_answer_from_before() -> None:
    """Two pushes from one node: the answer of the first, PENDING, comes last (as in seeds 355655611 and 983080603, probably)."""
    runtime = RealRuntime(disk=MemoryDisk(), net=LocalNet(Settings()))
    context = TxnContext(sender=None, clock=None, runtime=runtime, settings=None, scope=None)  # type: ignore[arg-type]
    moved = Resolution(b"t", 0, TxnStatus.PENDING, Timestamp(7))
    higher = Resolution(b"t", 0, TxnStatus.PENDING, Timestamp(9))
    assert context.remember(higher) is higher
    assert context.remember(moved) is higher
    decided = Resolution(b"t", 0, TxnStatus.COMMITTED, Timestamp(9))
    assert context.remember(decided) is decided
    assert context.remember(moved) is decided
    assert context.fates[b"t"] is decided
    with pytest.raises(ProtocolError, match="I-20"):  # one of two nodes is wrong: neither is believed from then on
        context.remember(Resolution(b"t", 0, TxnStatus.ABORTED))
    assert b"t" not in context.fates
