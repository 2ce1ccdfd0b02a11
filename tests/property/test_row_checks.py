"""What a gateway lets through decodes later, and nothing that a codec wrote is refused."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.codec import row_checks
from slackwater.codec.row_checks import RowChecker
from slackwater.codec.rows import RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import UsageError
from tests.property.model_strategies import rows, schemas


@st.composite
def tables(draw):
    schema = draw(schemas())
    return schema, [RowCodec(schema).encode(row) for row in draw(rows(schema))]


@settings(max_examples=80)
@given(tables(), st.sampled_from([0, row_checks.ONE_BY_ONE_MAX]))
def test_what_the_codec_wrote_passes_one_by_one_and_as_a_block(table, one_by_one):
    schema, pairs = table
    if not pairs:
        return
    keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    checker = RowChecker(schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_checks, "ONE_BY_ONE_MAX", one_by_one)
        checker.check_rows(keys, values)
    checker.check_keys(keys)


@settings(max_examples=200)
@given(tables(), st.data(), st.sampled_from([0, row_checks.ONE_BY_ONE_MAX]))
def test_a_damaged_row_is_refused_or_still_decodes_under_its_own_key(table, data, one_by_one):
    schema, pairs = table
    if not pairs:
        return
    keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    at = data.draw(st.integers(0, len(values) - 1))
    values[at] = data.draw(damaged(values[at]))
    codec = RowCodec(schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_checks, "ONE_BY_ONE_MAX", one_by_one)
        try:
            RowChecker(schema).check_rows(keys, values)
        except UsageError:
            return
    BlockDecoder(schema, {}).decode(values)
    row = codec.decode(values[at])
    assert codec.key([row[c.name] for c, _ in schema.key_columns()]) == keys[at]


@settings(max_examples=200)
@given(tables(), st.data())
def test_a_damaged_key_is_refused_or_is_another_key_of_the_table(table, data):
    schema, pairs = table
    if not pairs:
        return
    key = data.draw(damaged(pairs[0][0]))
    codec = RowCodec(schema)
    try:
        RowChecker(schema).check_keys([key])
    except UsageError:
        return
    assert codec.key(list(codec.decode_key(key).values())) == key


@settings(max_examples=200)
@given(tables(), st.data())
def test_a_block_with_another_key_than_its_rows_have_is_refused(table, data):
    schema, pairs = table
    keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    checker = RowChecker(schema)
    assert not pairs or checker.fits(keys, values)
    assert not pairs or not checker.fits(keys[:-1], values)
    if pairs:
        at = data.draw(st.integers(0, len(keys) - 1))
        changed = data.draw(damaged(keys[at]))
        assert checker.fits([*keys[:at], changed, *keys[at + 1 :]], values) is (changed == keys[at])
    if len(pairs) > 1:  # the same bytes one after the other, cut elsewhere
        moved = data.draw(st.integers(1, len(keys[1])))
        assert not checker.fits([keys[0] + keys[1][:moved], keys[1][moved:], *keys[2:]], values)


def test_a_block_with_a_row_of_another_version_is_refused():
    schema = schema_of_two()
    codec, later = RowCodec(schema), RowCodec(msgspec.structs.replace(schema, version=2))
    pairs = [(codec if number else later).encode({"k1": number, "c2": "a"}) for number in range(100)]
    keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    with pytest.raises(UsageError, match="a row does not fit table t in version 1"):
        RowChecker(schema).check_written(keys, values, bytes_max=1 << 20)
    RowChecker(schema).check_written(keys[1:], values[1:], bytes_max=1 << 20)


def test_a_key_of_another_row_is_refused():
    schema = schema_of_two()
    codec = RowCodec(schema)
    (one, _), (_, other) = codec.encode({"k1": 1, "c2": "a"}), codec.encode({"k1": 2, "c2": "b"})
    with pytest.raises(UsageError, match="the key is not that of the row in the value"):
        RowChecker(schema).check_rows([one], [other])


def schema_of_two():
    from slackwater.model import kinds
    from slackwater.model.schema import Column, KeyColumn, TableSchema

    columns = (Column(1, "k1", kinds.INT, nullable=False), Column(2, "c2", kinds.STRING))
    return TableSchema(9, "t", 1, columns, (KeyColumn(1, descending=False),))


@st.composite
def damaged(draw, value: bytes):
    """The bytes with some changed, cut off or added."""
    at = draw(st.integers(0, max(0, len(value) - 1)))
    return draw(
        st.sampled_from(
            [
                value[:at],
                value + draw(st.binary(min_size=1, max_size=4)),
                value[:at] + draw(st.binary(min_size=1, max_size=4)) + value[at + 1 :],
                value[:at] + bytes([value[at] ^ draw(st.integers(1, 255))]) + value[at + 1 :] if value else b"\x00",
            ]
        )
    )
