"""Changed rows merged into a batch of columns: what lists of rows would give, and nothing read by a place that is not there."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.codec.bulk_arrow import SMALL_BYTES, pack, unpack
from slackwater.codec.patch_arrow import Places, merged
from slackwater.errors import DecodeError
from slackwater.model.patches import Patch

SCHEMA = pa.schema(
    [
        ("number", pa.int64()), ("small", pa.int32()), ("text", pa.string()), ("raw", pa.binary()), ("flag", pa.bool_()),
        ("money", pa.decimal128(20, 2)), ("uuid", pa.binary(16)), ("at", pa.timestamp("us", "UTC")), ("fixed", pa.string()),
    ]
)  # fmt: skip


def rows_of(draw, count, *, nulls):
    def one():
        row = {
            "number": draw(st.integers(-(1 << 63), (1 << 63) - 1)), "small": draw(st.integers(-(1 << 31), (1 << 31) - 1)),
            "text": draw(st.text(max_size=5)), "raw": draw(st.binary(max_size=5)), "flag": draw(st.booleans()),
            "money": draw(st.decimals(-1000, 1000, places=2)), "uuid": draw(st.binary(min_size=16, max_size=16)),
            "at": draw(st.integers(0, 1 << 50)), "fixed": draw(st.text("abc", min_size=3, max_size=3)),
        }  # fmt: skip
        if nulls:
            for name in row:
                if draw(st.integers(0, 3)) == 0:
                    row[name] = None
        return row

    return pa.RecordBatch.from_pylist([one() for _ in range(count)], schema=SCHEMA)


@st.composite
def cases(draw):
    size = draw(st.integers(1, 24))
    nulls = draw(st.booleans())
    kinds = draw(st.lists(st.sampled_from("....rdii"), min_size=size + 1, max_size=size + 1))
    places = Places(
        np.array([n for n in range(size) if kinds[n] == "d"], np.int32),
        np.array([n for n in range(size) if kinds[n] == "r"], np.int32),
        np.array([n for n in range(size + 1) for _ in range(2 if kinds[n] == "i" else 0)], np.int32),
    )
    if draw(st.booleans()):  # rows are replaced, and nothing else
        places = Places(np.zeros(0, np.int32), places.replaced, np.zeros(0, np.int32))
    fresh = rows_of(draw, len(places.replaced) + len(places.inserted), nulls=nulls)
    return rows_of(draw, size, nulls=nulls), fresh, places, draw(st.integers(0, 3))


def wanted(batch, fresh, places):
    base, new = batch.to_pylist(), fresh.to_pylist()
    replaced = dict(zip(places.replaced.tolist(), new, strict=False))
    added = new[len(places.replaced) :]
    found = []
    for number in range(len(base) + 1):
        found += [row for at, row in zip(places.inserted.tolist(), added, strict=True) if at == number]
        if number < len(base) and number not in places.removed.tolist():
            found.append(replaced.get(number, base[number]))
    return found


def patch_of(fresh, places, block=0):
    return Patch(block, *(p.astype("<i4").tobytes() for p in places), pack(fresh))


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_merged_columns_are_what_lists_of_rows_give(case):
    batch, fresh, places, cut = case
    expected = wanted(batch, fresh, places)
    before = batch.to_pylist()
    (got,) = unpack([pack(batch)], SCHEMA, [patch_of(fresh, places)])
    got.validate(full=True)
    assert got.to_pylist() == expected
    longer = pa.concat_batches([rows_like(batch, cut), batch]).slice(
        cut
    )  # arrays that do not begin at their buffers' start
    columns = merged(longer.columns, fresh.columns, places)
    assert pa.RecordBatch.from_arrays(columns, schema=SCHEMA).to_pylist() == expected
    assert longer.to_pylist() == before  # what is not the caller's own is left as it is


def rows_like(batch, count):
    return pa.concat_batches([batch.slice(0, 1)] * count) if count else batch.slice(0, 0)


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_compressed_buffers_are_written_in_place_and_nothing_else_is(case):
    batch, fresh, places, _ = case
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    sent = messages.read_next_message().serialize().to_pybytes()
    for _ in range(2):  # the message itself is as it was
        (got,) = unpack([memoryview(sent)], SCHEMA, [patch_of(fresh, places)])
        got.validate(full=True)
        assert got.to_pylist() == wanted(batch, fresh, places)


def blocks_of(draw, sizes):
    """Blocks of one column: as pyarrow packs them, or compressed; and their values."""
    schema, blocks, values = pa.schema([("n", pa.int64())]), [], []
    for size in sizes:
        values.append(np.random.default_rng(size).integers(0, 1 << 60, size).tolist())
        batch = pa.RecordBatch.from_pydict({"n": values[-1]}, schema=schema)
        options = pa.ipc.IpcWriteOptions(compression="lz4" if draw(st.booleans()) else None)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            writer.write_batch(batch)
        messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
        messages.read_next_message()
        blocks.append(memoryview(messages.read_next_message().serialize().to_pybytes()))
    return schema, blocks, values


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_blocks_of_all_sizes_come_in_their_order(data):
    sizes = data.draw(
        st.lists(st.sampled_from([0, 1, 1000, SMALL_BYTES // 8 - 200, 20_000, SMALL_BYTES // 8 + 1]), max_size=6)
    )
    schema, blocks, values = blocks_of(data.draw, sizes)
    patches, wanted = [], [list(found) for found in values]
    for number, found in enumerate(values):
        if found and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(found) - 1))
            wanted[number][at] = -number
            fresh = pa.RecordBatch.from_pydict({"n": [-number]}, schema=schema)
            patches.append(Patch(number, b"", np.array([at], "<i4").tobytes(), b"", pack(fresh)))
    given_before = [bytes(block) for block in blocks]
    for _ in range(2):
        got = unpack(blocks, schema, patches)
        assert [batch.column(0).to_pylist() for batch in got] == wanted
    assert [bytes(block) for block in blocks] == given_before


@settings(max_examples=60, deadline=None)
@given(data=st.data(), sizes=st.lists(st.sampled_from([1, 100, 40_000]), min_size=1, max_size=4))
def test_blocks_that_are_not_one_batch_each_are_refused(data, sizes):
    schema, blocks, _ = blocks_of(data.draw, sizes)
    at = data.draw(st.integers(0, len(blocks) - 1))
    whole = bytes(blocks[at])
    if data.draw(st.booleans()):
        blocks[at] = memoryview(whole[: data.draw(st.integers(0, len(whole) - 1))])
    elif len(whole) < SMALL_BYTES:  # of a large one only the first message is read
        blocks[at] = memoryview(whole + whole)
    else:
        return
    with pytest.raises(DecodeError):
        unpack(blocks, schema)


@settings(max_examples=30, deadline=None)
@given(rows=st.sampled_from([777, 1000, 50_000]), more=st.integers(1000, 1 << 40))
def test_a_block_that_claims_more_rows_than_it_holds_is_refused(rows, more):
    schema = pa.schema([("n", pa.int64())])
    raw = bytearray(pack(pa.RecordBatch.from_pydict({"n": range(rows)}, schema=schema)))
    head = len(raw) - 8 * rows
    count, claimed = rows.to_bytes(8, "little"), (rows + more).to_bytes(8, "little")
    places = [at for at in range(0, head, 8) if raw[at : at + 8] == count]
    assert len(places) == 2  # of the batch, and of its column
    for at in places:
        raw[at : at + 8] = claimed
    with pytest.raises(DecodeError):
        unpack([memoryview(raw)], schema)


@pytest.mark.parametrize(
    ("removed", "replaced", "inserted", "block"),
    [
        ([], [3], [], 0), ([], [-1], [], 0), ([], [1, 1], [], 0), ([], [2, 1], [], 0), ([], [], [4], 0), ([3], [0], [], 0),
        ([], [0], [], 1), ([], [0], [], -1), ([], [0, 1], [0], 0), ([], [], [], 0),
    ],
)  # fmt: skip
def test_places_that_are_not_there_are_refused(removed, replaced, inserted, block):
    schema = pa.schema([("n", pa.int64()), ("t", pa.string())])
    batch = pa.RecordBatch.from_pylist([{"n": n, "t": "x"} for n in range(3)], schema=schema)
    fresh = batch.slice(0, 1) if replaced != [1, 1] and replaced != [2, 1] else batch.slice(0, 2)
    places = Places(*(np.array(p, np.int32) for p in (removed, replaced, inserted)))
    with pytest.raises(DecodeError):
        unpack([pack(batch)], schema, [patch_of(fresh, places, block)])


def test_places_cut_short_are_refused():
    schema = pa.schema([("n", pa.int64())])
    batch = pa.RecordBatch.from_pylist([{"n": 1}], schema=schema)
    with pytest.raises(DecodeError):
        unpack([pack(batch)], schema, [Patch(0, b"", b"\x00\x00\x00", b"", pack(batch))])
