from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import DecodeError, EntryTooLarge, UsageError
from slackwater.log import blocks


@given(st.lists(st.binary(max_size=50), max_size=40))
def test_round_trip(payloads):
    block = blocks.encode(payloads)
    assert blocks.decode(block) == payloads
    assert blocks.count(block) == len(payloads)
    assert len(block) == 12 + 4 * len(payloads) + sum(map(len, payloads))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_one_error(data):
    with pytest.raises(DecodeError):
        blocks.decode(data)


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5), st.data())
def test_any_flipped_bit_is_noticed(payloads, data):
    block = bytearray(blocks.encode(payloads))
    at = data.draw(st.integers(0, len(block) * 8 - 1))
    block[at // 8] ^= 1 << at % 8
    with pytest.raises(DecodeError):
        blocks.decode(bytes(block))


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5), st.data())
def test_a_cut_block_is_noticed(payloads, data):
    block = blocks.encode(payloads)
    with pytest.raises(DecodeError):
        blocks.decode(block[: data.draw(st.integers(0, len(block) - 1))])


def test_payload_checks():
    assert blocks.check_payloads([b"ab", b"c"], limit=2) == 3
    with pytest.raises(EntryTooLarge) as error:
        blocks.check_payloads([b"abc"], limit=2)
    assert error.value.facts == {"size": 3, "limit": 2}
    with pytest.raises(UsageError):
        blocks.check_payloads([], limit=2)
