"""Remembers beside a store how far it was flushed, so that one that was cut back is not opened as a whole one.

    DIR/FLUSHED     the sequence number that a flush has made durable, and a checksum; written after each flush, not synced

RocksDB ends its list of files (MANIFEST) at the first record that is not complete: of a list that lost its end it opens an
older state without an error, and removes the newer files. Everything in that state fits together, but promises that were
made durable since are gone. A note that is missing, older or unreadable says nothing; one that is newer than what
was opened proves that the store lost something.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FLUSHED_FILE = "FLUSHED"


def note_flushed(directory: Path, sequence: int) -> None:
    """Note that everything up to a sequence number is durable; a disk that takes no note is no error."""
    text = str(sequence)
    new = directory / f"{FLUSHED_FILE}.tmp"
    with suppress(OSError):
        new.write_text(f"{text} {zlib.crc32(text.encode()):08x}\n")
        new.replace(directory / FLUSHED_FILE)


def flushed_upto(directory: Path) -> int:
    """The newest sequence number that was noted; 0 where none can be read."""
    with suppress(OSError, ValueError):
        text, checksum = (directory / FLUSHED_FILE).read_text().split()
        if zlib.crc32(text.encode()) == int(checksum, 16):
            return int(text)
    return 0
