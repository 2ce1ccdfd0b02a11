"""How far a feed over many ranges has come: a timestamp per span, the minimum of all, and tokens to resume from.

    spans       [a ───────── f)[f ───── m)[m ──────────── z)
    progress         40            25            40               resolved = 25
    forward([f, m), 50)  ─►  [a, f) 40 │ [f, m) 50 │ [m, z) 40    resolved = 40

Ranges come and go: a split reports two halves, a merge one whole, each with a timestamp of its own. The frontier does not
care: `forward` cuts its spans where it must and joins equal neighbors. Nothing ever goes back, whatever a range that starts
again from an older place reports (I-23: the frontier is the minimum over spans).

A feed that resumes goes on *per span*, each from its own timestamp: spans that an initial scan has not reached are still at
the beginning, whatever the others have done (pitfall 28; planted bug M13). `resume_points` gives them with
`after`, exclusive, exactly as a range feed takes it: there is no +1 and no −1 anywhere on the way (pitfall 25; M12).

A token is an opaque string, `sw1.` and base64 of a checksum and a msgpack record: the resolved timestamp, and those spans
that are ahead of it, up to a bound. A span that does not fit is resumed from the resolved timestamp: that costs repeats,
never a gap. With spans ahead it is a *position*, for a reader that has everything it was handed; applications get tokens
without them (`gateway.changes`), because they may have kept only what is resolved.

Its twin in the tests keeps a timestamp per key.
"""

from __future__ import annotations

import base64
import binascii
import heapq
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec

from slackwater.clock.timestamp import MAX, MIN, Timestamp, show
from slackwater.errors import DecodeError, UsageError, invariant
from slackwater.hooks import probe
from slackwater.model.protection import RECORD_ID_BYTES
from slackwater.model.spans import Span, SpanSet
from slackwater.protocol.client.changes import TOKEN_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TOKEN_CHARS_MAX = 1 << 21
TOKEN_SPANS_MAX = 10_000
"""Spans ahead of the resolved timestamp that a token names."""
TOKEN_KEY_BYTES_MAX = 1 << 20
"""Bytes of their bounds."""
CHECKSUM_BYTES = 4


class Progress(NamedTuple):
    """How far one span has come: everything at or below `ts` has been delivered."""

    span: Span
    ts: Timestamp


class Frontier:
    """A timestamp for every key of a set of spans."""

    def __init__(self, spans: SpanSet | Iterable[Span], *, after: Timestamp = MIN) -> None:
        self.spans = spans if isinstance(spans, SpanSet) else SpanSet(spans)
        if not self.spans:
            raise UsageError("a frontier needs at least one span")
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []
        self._times: list[Timestamp] = []
        self._counts: dict[Timestamp, int] = {}
        self._heap: list[Timestamp] = []
        for span in self.spans:
            self._starts.append(span.start)
            self._ends.append(span.end)
            self._times.append(after)
            self._count(after, 1)

    def __len__(self) -> int:
        """Entries kept: spans of equal progress count once."""
        return len(self._starts)

    @property
    def resolved(self) -> Timestamp:
        """The minimum: everything at or below has been delivered, everywhere."""
        while self._heap[0] not in self._counts:
            heapq.heappop(self._heap)
        return self._heap[0]

    def entries(self) -> Iterator[Progress]:
        """Every span and its timestamp, in key order."""
        for start, end, ts in zip(self._starts, self._ends, self._times, strict=True):
            yield Progress(Span(start, end), ts)

    def at(self, key: bytes) -> Timestamp | None:
        """How far one key has come; None when it is not watched."""
        i = bisect_right(self._starts, key) - 1
        return self._times[i] if i >= 0 and key < self._ends[i] else None

    def forward(self, span: Span, ts: Timestamp) -> bool:
        """Everything of `span` at or below `ts` has been delivered; True when the minimum moved.

        Keys of the span that are not watched are ignored; those further ahead stay there.
        """
        before = self.resolved
        low = bisect_right(self._ends, span.start)
        high = bisect_left(self._starts, span.end)
        pieces: list[tuple[bytes, bytes, Timestamp]] = []
        for i in range(low, high):
            pieces.extend(self._cut(i, span, ts))
        if pieces:
            self._replace(low, high, pieces)
        return self.resolved > before

    def forward_all(self, ts: Timestamp) -> bool:
        """Like `forward` for everything watched."""
        return self.forward(Span(self._starts[0], self._ends[-1]), ts)

    def resume_points(self) -> list[Progress]:
        """Where to register again: each span with the timestamp to pass as `after`."""
        return list(self.entries())

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        ahead = sum(ts > self.resolved for ts in self._times)
        return f"resolved={self.resolved} entries={len(self)} ahead={ahead} highest={max(self._times)}"

    def _cut(self, i: int, span: Span, ts: Timestamp) -> Iterator[tuple[bytes, bytes, Timestamp]]:
        start, end, now = self._starts[i], self._ends[i], self._times[i]
        if now >= ts:
            yield start, end, now
            return
        low, high = max(start, span.start), min(end, span.end)
        if start < low:
            yield start, low, now
        yield low, high, ts
        if high < end:
            yield high, end, now

    def _replace(self, low: int, high: int, pieces: list[tuple[bytes, bytes, Timestamp]]) -> None:
        """Put `pieces` in the place of entries [low, high), joining what touches and is equal, also outside."""
        if low > 0:
            low -= 1
            pieces.insert(0, (self._starts[low], self._ends[low], self._times[low]))
        if high < len(self._starts):
            pieces.append((self._starts[high], self._ends[high], self._times[high]))
            high += 1
        joined: list[tuple[bytes, bytes, Timestamp]] = []
        for start, end, ts in pieces:
            if joined and joined[-1][1] == start and joined[-1][2] == ts:
                joined[-1] = (joined[-1][0], end, ts)
            else:
                joined.append((start, end, ts))
        for ts in self._times[low:high]:
            self._count(ts, -1)
        for _, _, ts in joined:
            self._count(ts, 1)
        self._starts[low:high] = [start for start, _, _ in joined]
        self._ends[low:high] = [end for _, end, _ in joined]
        self._times[low:high] = [ts for _, _, ts in joined]

    def _count(self, ts: Timestamp, by: int) -> None:
        count = self._counts.get(ts, 0) + by
        if count:
            if ts not in self._counts:
                heapq.heappush(self._heap, ts)
            self._counts[ts] = count
        else:
            del self._counts[ts]
            if len(self._heap) > 2 * len(self._counts) + 64:
                self._heap = sorted(self._counts)  # a sorted list is a heap

    def check(self) -> None:
        """What must hold between the parts, for tests."""
        invariant(SpanSet(p.span for p in self.entries()) == self.spans, "A-frontier-spans")
        invariant(self.resolved == min(self._times), "I-23", resolved=self.resolved)
        for a, b in zip(range(len(self) - 1), range(1, len(self)), strict=True):
            touching = self._ends[a] == self._starts[b]
            invariant(self._ends[a] <= self._starts[b], "A-frontier-order")
            invariant(not (touching and self._times[a] == self._times[b]), "A-frontier-joined")


# --- tokens --------------------------------------------------------------------------------------------------------


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Where a feed stands: enough to go on without a gap and with few repeats."""

    resolved: Timestamp
    ahead: tuple[tuple[bytes, bytes, Timestamp], ...] = ()
    """Spans beyond `resolved`: (start, end, ts)."""
    scan_ts: Timestamp = MIN
    """Of the initial scan, while it is not complete; MIN: there is none. Spans at it or above have been scanned."""
    protection: bytes = b""
    """The protection that keeps the changes after this token, for as long as it is kept after the feed."""

    def encode(self) -> str:
        """The opaque string."""
        body = _encoder.encode(self)
        framed = crc32(body).to_bytes(CHECKSUM_BYTES, "big") + body
        return TOKEN_PREFIX + base64.urlsafe_b64encode(framed).decode().rstrip("=")

    def describe(self) -> dict[str, object]:
        """For people and JSON."""
        return {"resolved": show(self.resolved), "ahead": len(self.ahead), "initial_scan": bool(self.scan_ts)}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Token)


def decode_token(text: str) -> Token:
    """Read what `Token.encode` wrote; anything else is a `DecodeError`."""
    if not text.startswith(TOKEN_PREFIX):
        raise DecodeError(f"a resume token starts with {TOKEN_PREFIX}; pass it as it was given")
    if len(text) > TOKEN_CHARS_MAX:
        raise DecodeError("a resume token is longer than any that is written", size=len(text))
    body = text[len(TOKEN_PREFIX) :]
    try:
        framed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError("a resume token is damaged: it is not base64") from None
    if len(framed) < CHECKSUM_BYTES or crc32(framed[CHECKSUM_BYTES:]) != int.from_bytes(framed[:CHECKSUM_BYTES], "big"):
        raise DecodeError("a resume token is damaged: its checksum fails")
    try:
        token = _decoder.decode(framed[CHECKSUM_BYTES:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError("a resume token cannot be read", reason=str(error)) from None
    _check_token(token)
    return token


def _check_token(token: Token) -> None:
    times = [token.resolved, token.scan_ts, *(ts for _, _, ts in token.ahead)]
    if not all(MIN <= ts <= MAX for ts in times):
        raise DecodeError("a resume token has a timestamp out of range")
    if len(token.ahead) > TOKEN_SPANS_MAX or any(start >= end for start, end, _ in token.ahead):
        raise DecodeError("a resume token has impossible spans", spans=len(token.ahead))
    if len(token.protection) not in {0, RECORD_ID_BYTES}:
        raise DecodeError("a resume token names an impossible protection", size=len(token.protection))


def token_of(frontier: Frontier, *, scan_ts: Timestamp = MIN) -> Token:
    """The token of a frontier. With too many spans, some are left out: they are resumed from `resolved`."""
    resolved = frontier.resolved
    ahead: list[tuple[bytes, bytes, Timestamp]] = []
    size = 0
    for span, ts in frontier.entries():
        if ts <= resolved:
            continue
        size += len(span.start) + len(span.end)
        if len(ahead) >= TOKEN_SPANS_MAX or size > TOKEN_KEY_BYTES_MAX:
            probe("feeds.token_cut")
            break
        ahead.append((span.start, span.end, ts))
    return Token(resolved, tuple(ahead), scan_ts)


def frontier_from(token: Token, spans: SpanSet | Iterable[Span]) -> Frontier:
    """The frontier of a feed that resumes over `spans`: each span from where it was."""
    frontier = Frontier(spans, after=token.resolved)
    for start, end, ts in token.ahead:
        frontier.forward(Span(start, end), ts)
    return frontier
