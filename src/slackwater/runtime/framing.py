"""Frames on a byte stream: four bytes of length, most significant first, then that many bytes.

The parser is pure: bytes in, frames out. Bytes arrive in pieces of any size, so it keeps what is left over and looks at
each byte a bounded number of times: a frame of 16 MiB that arrives in pieces of 64 KiB is gathered in
one buffer and cut out once.

A length above the bound is the only thing that can be wrong here. Nothing after it can be trusted, so the parser stops
for good: `fault` says why, and the frames before it are still delivered.
"""

from __future__ import annotations

import struct

HEADER_BYTES = 4
_HEADER = struct.Struct(">I")
header = _HEADER.pack


class FrameParser:
    """Cuts a byte stream into frames of at most `frame_bytes_max`."""

    def __init__(self, *, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.fault: str | None = None
        self._rest = bytearray()
        self._wanted = HEADER_BYTES  # bytes `_rest` must hold before another look is worth it

    def feed(self, data: bytes) -> list[bytes]:
        """The frames completed by these bytes, in order."""
        if self.fault is not None:
            return []
        if not self._rest:
            return self._cut(data)
        self._rest += data
        if len(self._rest) < self._wanted:
            return []
        whole = bytes(self._rest)
        self._rest = bytearray()
        return self._cut(whole)

    @property
    def wanted(self) -> int:
        """Bytes of the frame that is being received, header included; those of a header alone between frames."""
        return self._wanted

    @property
    def mid_frame(self) -> bool:
        """Whether the stream would end inside a frame if it ended now."""
        return bool(self._rest)

    def _cut(self, data: bytes) -> list[bytes]:
        frames: list[bytes] = []
        at, size = 0, len(data)
        unpack = _HEADER.unpack_from
        self._wanted = HEADER_BYTES
        while size - at >= HEADER_BYTES:
            (length,) = unpack(data, at)
            end = at + HEADER_BYTES + length
            if length > self.frame_bytes_max:
                self.fault = f"a frame of {length} bytes is over the bound of {self.frame_bytes_max}"
                return frames
            if end > size:
                self._wanted = HEADER_BYTES + length
                break
            frames.append(data[at + HEADER_BYTES : end])
            at = end
        if at < size:
            self._rest = bytearray(data[at:])
        return frames
