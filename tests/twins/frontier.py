"""The twin of the frontier: a timestamp per key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.model.spans import Span


class FrontierNaive:
    """The twin, for keys of one byte: a timestamp per key."""

    def __init__(self, keys: Iterable[bytes], *, after: Timestamp = MIN) -> None:
        self.times = dict.fromkeys(keys, after)

    def forward(self, span: Span, ts: Timestamp) -> bool:
        """Raise the keys of the span that are below."""
        before = self.resolved
        for key, now in self.times.items():
            if key in span and now < ts:
                self.times[key] = ts
        return self.resolved > before

    @property
    def resolved(self) -> Timestamp:
        """The minimum."""
        return min(self.times.values())
