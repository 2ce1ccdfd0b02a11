"""Broken rows: both decoders agree on what is broken, and raise one error."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.codec.rows import FORMAT, RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import DecodeError
from tests.property.model_strategies import next_version, rows, schemas
from tests.property.test_rows import exact_rows, in_blocks, per_row


@st.composite
def damaged(draw):
    """Values of a table with bits flipped, bytes cut off or added, or made of nothing."""
    schema = draw(schemas(columns_max=6))
    codec = RowCodec(schema)
    encoded = [codec.encode(r)[1] for r in draw(rows(schema, max_size=4))]
    header = bytes([FORMAT]) + schema.version.to_bytes(4, "little")
    made_up = st.binary(max_size=60) | st.binary(max_size=60).map(lambda b: header + b)
    encoded += draw(st.lists(made_up, max_size=2, min_size=0 if encoded else 1))
    hit = draw(st.integers(0, len(encoded) - 1))
    value = bytearray(encoded[hit])
    for _ in range(draw(st.integers(0, 2))):
        if value:
            value[draw(st.integers(0, len(value) - 1))] ^= 1 << draw(st.integers(0, 7))
    cut = draw(st.integers(0, 3))
    encoded[hit] = bytes(value[: len(value) - cut]) + draw(st.sampled_from([b"", b"\0", b"\xff\xff"]))
    return schema, draw(st.permutations(encoded))


@settings(max_examples=300)
@given(damaged())
def test_blocks_and_rows_agree_on_what_is_broken(case):
    schema, encoded = case
    assert in_blocks(BlockDecoder(schema, {}), encoded) == per_row(RowCodec(schema), encoded)


@settings(max_examples=100)
@given(damaged(), st.data())
def test_broken_rows_under_another_schema(case, data):
    schema, encoded = case
    reader = data.draw(next_version(schema))
    known = {s.version: s for s in (schema, reader)}
    found, expected = in_blocks(BlockDecoder(reader, known), encoded), per_row(RowCodec(reader, known), encoded)
    # A column that the reader does not have is checked by neither, so that they agree here as well.
    assert found == expected


@settings(max_examples=100)
@given(damaged(), st.lists(st.integers(-5, 200), max_size=8))
def test_arbitrary_offsets_never_leave_the_buffer(case, offsets):
    schema, encoded = case
    with contextlib.suppress(DecodeError):
        BlockDecoder(schema, {}).decode_buffer(b"".join(encoded), np.array(offsets, dtype=np.int64))


@given(damaged(), st.binary(max_size=20))
def test_arbitrary_keys(case, key):
    codec = RowCodec(case[0])
    try:
        codec.decode_key(codec.prefix + key)
        codec.decode_key(key)
    except DecodeError:
        pass


def test_every_single_bit_flip_of_a_row_decodes_alike():
    from tests.unit.codec.test_rows import ROW, SCHEMA  # one row with every type

    codec, decoder = RowCodec(SCHEMA), BlockDecoder(SCHEMA, {})
    value = codec.encode(ROW)[1]
    good = decoder.decode([value])
    assert exact_rows(good) == per_row(codec, [value])
    broken = 0
    for bit in range(len(value) * 8):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        found = in_blocks(decoder, [value, bytes(flipped)])
        assert found == per_row(codec, [value, bytes(flipped)])
        broken += found is DecodeError
    assert broken > 100, "header, bitmap, offsets, booleans and text are checked"


@pytest.mark.parametrize("cut", range(60))
def test_every_truncation_is_noticed(cut):
    from tests.unit.codec.test_rows import ROW, SCHEMA

    codec = RowCodec(SCHEMA)
    value = codec.encode(ROW)[1]
    assert cut < len(value)
    assert in_blocks(BlockDecoder(SCHEMA, {}), [value, value[:cut]]) is DecodeError
    assert per_row(codec, [value[:cut]]) is DecodeError
