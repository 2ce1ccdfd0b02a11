"""Which keys a transaction has read, and which it may have locked: exact while few, covering when many.

A transaction over a million rows must not carry a million keys to its record, nor refresh them one by one. Above a
bound, neighbours are merged until half the bound is left:

    exact     k1  k2 k3        k7   k8        k9
    merged    [k1 …… k3]       [k7 … k8]      [k9]         a superset: correct for both uses

A refresh of keys that were never read can only fail when it need not (a restart too many); resolving a span touches
only intents of this transaction. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import invariant
from slackwater.hooks import level
from slackwater.model.spans import Span, SpanSet

if TYPE_CHECKING:
    from collections.abc import Iterable


def collapse(spans: Iterable[Span], *, limit: int) -> list[Span]:
    """At most `limit` spans that cover all of `spans`."""
    invariant(limit > 0, "A-collapse", limit=limit)
    merged = list(SpanSet(spans))
    bounds = (merged[0].start, merged[-1].end) if merged else None
    while len(merged) > limit:
        pairs = zip(merged[::2], [*merged[1::2], merged[-1]], strict=False)
        merged = [Span(low.start, high.end) for low, high in pairs]
    assert len(merged) <= limit, "as few spans as were asked for"
    assert not merged or (merged[0].start, merged[-1].end) == bounds, "all of the spans is covered"
    return merged


class SpanBook:
    """Keys and spans, bounded."""

    def __init__(self, *, limit: int) -> None:
        invariant(limit > 0, "A-spanbook", limit=limit)
        self._limit = limit
        self._keys: dict[bytes, None] = {}
        self._spans: dict[tuple[bytes, bytes], None] = {}

    def __bool__(self) -> bool:
        return bool(self._keys or self._spans)

    def __len__(self) -> int:
        return len(self._keys) + len(self._spans)

    def add_key(self, key: bytes) -> None:
        """One key."""
        self._keys[key] = None
        self._bound()

    def add_keys(self, keys: Iterable[bytes]) -> None:
        """Many keys."""
        self._keys.update(dict.fromkeys(keys))
        self._bound()

    def add_span(self, start: bytes, end: bytes) -> None:
        """Everything in `[start, end)`; nothing when that is empty."""
        if start < end:
            self._spans[start, end] = None
            self._bound()

    def clear(self) -> None:
        """Forget all."""
        self._keys.clear()
        self._spans.clear()

    def keys(self) -> tuple[bytes, ...]:
        """The keys kept exactly, sorted."""
        return tuple(sorted(self._keys))

    def spans(self) -> tuple[tuple[bytes, bytes], ...]:
        """The spans, sorted."""
        return tuple(sorted(self._spans))

    def all_spans(self) -> list[Span]:
        """Keys and spans together, normalised."""
        points = (Span.point(key) for key in self._keys)
        spans = list(SpanSet([*points, *(Span(start, end) for start, end in self._spans)]))
        assert len(spans) <= len(self), "neighbors are joined, and nothing is added"
        return spans

    def _bound(self) -> None:
        if len(self) > self._limit:
            # Down to half, so that the work of merging is spread over the next half of the bound.
            covering = collapse(self.all_spans(), limit=max(1, self._limit // 2))
            self._keys.clear()
            self._spans = {(span.start, span.end): None for span in covering}
        assert len(self) <= self._limit, "a book is bounded"
        level("txn.spans", len(self), self._limit)
