"""How busy a range is, and where: a decaying rate and a sample of the keys asked for.

    rate      requests per second, averaged over about WINDOW_S: each tick mixes the last second's count into the average
    keys      every SAMPLE_EVERY-th request leaves its lowest key in a ring of KEYS_KEPT: the middle of the sample halves
              the load, if anything does

Counting costs an addition per request. Nothing here is replicated: a new leaseholder starts from nothing. Pure.
"""

from __future__ import annotations

WINDOW_S = 10.0
TICK_NS = 1_000_000_000
KEYS_KEPT = 64
SAMPLE_EVERY = 16
SIDE_SHARE_MIN = 4
"""A split key must leave at least one in this many of the samples on either side."""
assert KEYS_KEPT >= 4 * SIDE_SHARE_MIN, "a share of the samples is more than one of them"


class LoadMeter:
    """The load of one range on its leaseholder."""

    __slots__ = ("_at", "_count", "_keys", "_rate", "_seen", "_tick_ns")

    def __init__(self, *, now_ns: int) -> None:
        self._rate = 0.0
        self._count = 0
        self._tick_ns = now_ns
        self._keys: list[bytes] = []
        self._at = 0
        self._seen = 0

    def wants_key(self) -> bool:
        """Count a request; whether its key should be left as a sample."""
        self._count += 1
        self._seen += 1
        return self._seen % SAMPLE_EVERY == 1

    @property
    def counted(self) -> int:
        """Requests since this meter was made."""
        return self._seen

    def sample(self, key: bytes) -> None:
        """Leave a key."""
        assert 0 <= self._at < KEYS_KEPT, "the oldest sample is replaced"
        if len(self._keys) < KEYS_KEPT:
            self._keys.append(key)
        else:
            self._keys[self._at] = key
            self._at = (self._at + 1) % KEYS_KEPT

    def rate(self, *, now_ns: int) -> float:
        """Requests per second, lately."""
        elapsed = now_ns - self._tick_ns
        if elapsed >= TICK_NS:
            seconds = elapsed / 1e9
            fresh = self._count / seconds
            weight = min(1.0, seconds / WINDOW_S)
            self._rate += (fresh - self._rate) * weight
            self._count, self._tick_ns = 0, now_ns
        assert self._rate >= 0, "a rate is not negative"
        return self._rate

    def split_key(self) -> bytes | None:
        """A key that halves the sampled load; None when most of it is on one key, or too little is known."""
        if len(self._keys) < KEYS_KEPT:
            return None
        ordered = sorted(self._keys)
        middle = ordered[len(ordered) // 2]
        below = sum(1 for key in ordered if key < middle)
        least = len(ordered) // SIDE_SHARE_MIN
        assert ordered[0] <= middle <= ordered[-1], "a split key is one of those seen"
        return middle if least <= below <= len(ordered) - least else None
