"""Every choice a run makes, on one tape of separate streams.

A run never asks chance directly: it asks a *stream* of the tape for an integer below a bound. Streams are separate per
subject, so that one more draw in a client does not reshuffle the network:

    schedule        which ready handle runs next (the hot path: one draw per contended step)
    net/n1-n2       delays on the directed link from n1 to n2
    disk/n2         flush times and what survives a power cut of n2
    faults          what the nemesis does, when and for how long
    scenario        the swarm draw made before the first event
    workload/c3     what client 3 asks for
    rng/n1          what production code on n1 draws through its `Runtime.rng`

A tape has three ways of life:

    Tape(seed)                   filled from the seed, nothing kept: the normal run
    Tape(seed, record=True)      filled from the seed, every choice kept as (bound, value) in its stream
    Tape.load(text)              read back. A choice whose bound changed is taken modulo the new bound; a stream that
                                 has run out answers 0, the simplest choice; both are counted in `strays`, so a replay
                                 is exact if and only if `strays == 0`. A shrinker edits the lists and loads them.

The numbers come from CPython's Mersenne twister, seeded with a BLAKE2 digest of `seed/stream`. Only `random()` and
`getrandbits()` are used: their sequences are the same on every platform and Python version.
"""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import Any

SMALL_BOUND = 1 << 32
"""Up to here `int(random() * bound)` has a bias below 2^-20, which no simulation can see."""
FORMAT = 1


class TapeStream:
    """One subject's choices. Implements `seam.Rng`."""

    __slots__ = ("_bits", "_uniform", "name")

    def __init__(self, seed: str, name: str) -> None:
        self.name = name
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
        source = Random(int.from_bytes(digest, "big"))
        self._uniform = source.random
        self._bits = source.getrandbits

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        if bound <= SMALL_BOUND:
            return int(self._uniform() * bound)
        return self._bits(bound.bit_length() + 64) % bound

    def chance(self, numerator: int, denominator: int) -> bool:
        """True with probability numerator/denominator."""
        return self.below(denominator) < numerator

    def bytes(self, count: int) -> bytes:
        """`count` seeded bytes."""
        return self.below(1 << (8 * count)).to_bytes(count, "big") if count else b""

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high], both ends included."""
        return low + self.below(high - low + 1)

    def pick(self, options: list[Any] | tuple[Any, ...]) -> Any:
        """One of the options."""
        return options[self.below(len(options))]

    def shuffled(self, options: list[Any] | tuple[Any, ...]) -> list[Any]:
        """The options in a drawn order."""
        result = list(options)
        for i in range(len(result) - 1, 0, -1):
            j = self.below(i + 1)
            result[i], result[j] = result[j], result[i]
        return result

    def decay(self, mean: int) -> int:
        """Exponential-like with about this mean, in integers only.

        With u uniform in (0, 1], -log2(u) is the number of whole halvings plus, inside an octave, a hyperbola from 0 to
        1. The mean of that is 2 ln 2 = 1.386, and 739 / 1024 is its inverse.
        """
        u = self.below(65536) + 1
        octave = 16 - (u - 1).bit_length()  # u is in (2^(15-octave), 2^(16-octave)]
        top = 65536 >> octave
        return mean * ((octave << 16) + ((top - u) << 16) // u) * 739 >> 26


class RecordingStream(TapeStream):
    """Keeps every choice it makes."""

    __slots__ = ("bounds", "values")

    def __init__(self, seed: str, name: str) -> None:
        super().__init__(seed, name)
        self.bounds: list[int] = []
        self.values: list[int] = []

    def below(self, bound: int) -> int:
        """An integer in [0, bound), kept."""
        value = super().below(bound)
        self.bounds.append(bound)
        self.values.append(value)
        return value


class ReplayStream(TapeStream):
    """Reads choices back."""

    __slots__ = ("_bounds", "_next", "_tape", "_values")

    def __init__(self, tape: Tape, name: str, bounds: list[int], values: list[int]) -> None:
        super().__init__(tape.seed, name)
        self._tape = tape
        self._bounds = bounds
        self._values = values
        self._next = 0

    def below(self, bound: int) -> int:
        """The next recorded choice, fitted to the bound."""
        at = self._next
        if at >= len(self._values):
            self._tape.strays += 1
            return 0
        self._next = at + 1
        if self._bounds[at] != bound:
            self._tape.strays += 1
        return self._values[at] % bound


class Tape:
    """All streams of one run."""

    def __init__(self, seed: int | str, *, record: bool = False) -> None:
        self.seed = str(seed)
        self.recording = record
        self.strays = 0
        self._streams: dict[str, TapeStream] = {}
        self._played: dict[str, tuple[list[int], list[int]]] | None = None

    def stream(self, name: str) -> TapeStream:
        """The stream of one subject, made at first use."""
        known = self._streams.get(name)
        if known is None:
            known = self._streams[name] = self._make(name)
        return known

    def _make(self, name: str) -> TapeStream:
        if self._played is not None:
            bounds, values = self._played.get(name, ([], []))
            return ReplayStream(self, name, bounds, values)
        return RecordingStream(self.seed, name) if self.recording else TapeStream(self.seed, name)

    def save(self) -> str:
        """The recorded choices as JSON."""
        streams = {n: [s.bounds, s.values] for n, s in sorted(self._streams.items()) if isinstance(s, RecordingStream)}
        return json.dumps({"format": FORMAT, "seed": self.seed, "streams": streams}, separators=(",", ":"))

    @classmethod
    def load(cls, text: str) -> Tape:
        """A tape that replays what `save` wrote."""
        content = json.loads(text)
        if content.get("format") != FORMAT:
            message = (
                f"this tape has format {content.get('format')}; this version reads {FORMAT}: replay its seed instead"
            )
            raise ValueError(message)
        tape = cls(content["seed"])
        tape._played = {name: (list(b), list(v)) for name, (b, v) in content["streams"].items()}
        return tape
