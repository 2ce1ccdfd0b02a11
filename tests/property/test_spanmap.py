"""SpanMap against a value per key, KeyIndex against sorting."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.replica.spanmap import KeyIndex, SpanMap

KEYS = [b"", *(bytes([n]) for n in range(1, 16))]
positions = st.tuples(st.integers(0, 14), st.integers(1, 15)).filter(lambda p: p[0] < p[1])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(positions, st.integers(0, 3)), max_size=25), positions)
def test_a_span_map_is_a_value_per_key(changes: list[tuple[tuple[int, int], int]], asked: tuple[int, int]) -> None:
    spans = SpanMap(0)
    model = dict.fromkeys(range(16), 0)
    for (low, high), value in changes:
        spans.change(KEYS[low], KEYS[high], lambda old, v=value: (old + v) % 5)
        for n in range(low, high):
            model[n] = (model[n] + value) % 5
        spans.check()
    assert [spans.at(KEYS[n]) for n in range(16)] == [model[n] for n in range(16)]
    low, high = asked
    assert set(spans.over(KEYS[low], KEYS[high])) == {model[n] for n in range(low, high)}
    rebuilt = dict.fromkeys(range(low, high), 0)
    for start, end, value in spans.segments(KEYS[low], KEYS[high]):
        for n in range(KEYS.index(start), KEYS.index(end)):
            rebuilt[n] = value
    assert rebuilt == {n: model[n] for n in range(low, high)}
    spans.change_all(lambda value: value if value > 2 else 0)
    spans.check()
    assert [spans.at(KEYS[n]) for n in range(16)] == [model[n] if model[n] > 2 else 0 for n in range(16)]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("+-?"), st.integers(0, 40), st.integers(0, 40)), max_size=80))
def test_a_key_index_finds_the_living_keys_in_order(steps: list[tuple[str, int, int]]) -> None:
    keys: dict[bytes, int] = {}
    index = KeyIndex(keys)
    for verb, a, b in steps:
        key = b"%02d" % a
        if verb == "+":
            if key not in keys:
                keys[key] = a
                index.note(key)
        elif verb == "-":
            keys.pop(key, None)
        else:
            low, high = sorted((key, b"%02d" % b))
            assert index.between(low, high) == sorted(k for k in keys if low <= k < high)
    assert index.between(b"", b"z") == sorted(keys)
