"""The frontier against a timestamp per key; tokens through every round trip and through garbage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import DecodeError, UsageError
from slackwater.feeds.frontier import (
    TOKEN_PREFIX,
    Frontier,
    Token,
    decode_token,
    frontier_from,
    token_of,
)
from slackwater.model.spans import Span, SpanSet
from tests.twins.frontier import FrontierNaive

KEYS = [bytes([k]) for k in range(1, 17)]
spans = st.tuples(st.integers(1, 16), st.integers(1, 16)).map(lambda p: Span(bytes([min(p)]), bytes([max(p) + 1])))
steps = st.lists(st.tuples(spans, st.integers(0, 12).map(Timestamp)), max_size=40)
watched = st.lists(spans, min_size=1, max_size=4).map(SpanSet)


def naive_of(watched: SpanSet) -> FrontierNaive:
    return FrontierNaive([k for k in KEYS if k in watched])


@settings(max_examples=300)
@given(watched, steps)
def test_frontier_is_a_timestamp_per_key(watched, steps) -> None:
    frontier, naive = Frontier(watched), naive_of(watched)
    for span, ts in steps:
        assert frontier.forward(span, ts) == naive.forward(span, ts)
        frontier.check()
        assert frontier.resolved == naive.resolved
        for key in KEYS:
            assert frontier.at(key) == naive.times.get(key)


@settings(max_examples=200)
@given(watched, steps, st.integers(0, 3))
def test_a_token_brings_every_span_back_to_its_own_place(watched, steps, scan) -> None:
    frontier = Frontier(watched)
    for span, ts in steps:
        frontier.forward(span, ts)
    token = token_of(frontier, scan_ts=Timestamp(scan))
    again = decode_token(token.encode())
    assert again == token
    back = frontier_from(again, watched)
    back.check()
    assert list(back.entries()) == list(frontier.entries()) == back.resume_points()


@settings(max_examples=200)
@given(st.one_of(st.text(max_size=80), st.text(max_size=80).map(TOKEN_PREFIX.__add__)))
def test_garbage_is_a_decode_error(text) -> None:
    with pytest.raises(DecodeError):
        decode_token(text)


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_token_is_a_decode_error(data) -> None:
    text = Token(Timestamp(5), ((b"a", b"b", Timestamp(9)),)).encode()
    at = data.draw(st.integers(len(TOKEN_PREFIX), len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from("ABab01-_!é")) + text[at + 1 :]
    if changed != text:
        try:
            assert decode_token(changed) == decode_token(text)  # base64 leaves spare bits in the last character
        except DecodeError:
            return
        assert at == len(text) - 1


def test_impossible_contents_are_decode_errors() -> None:
    for token in (Token(Timestamp(-1)), Token(Timestamp(1), ((b"b", b"a", Timestamp(2)),))):
        with pytest.raises(DecodeError):
            decode_token(token.encode())


def test_a_frontier_watches_something() -> None:
    with pytest.raises(UsageError):
        Frontier([])


def test_a_token_that_would_be_too_long_resumes_some_spans_lower(monkeypatch) -> None:
    monkeypatch.setattr("slackwater.feeds.frontier.TOKEN_SPANS_MAX", 2)
    frontier = Frontier([Span(b"\x01", b"\x11")])
    for at in (2, 4, 6, 8):
        frontier.forward(Span(bytes([at]), bytes([at + 1])), Timestamp(9))
    back = frontier_from(token_of(frontier), frontier.spans)
    assert back.resolved == frontier.resolved == MIN
    assert all(back.at(k) <= frontier.at(k) for k in KEYS)
    assert sum(back.at(k) == 9 for k in KEYS) == 2
