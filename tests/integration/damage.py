"""Flips bytes in the SST files of a store, as a failing disk does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FLIP = 0x55


def sst_files(store: Path) -> list[Path]:
    """The table files of a store, the largest last."""
    return sorted(store.glob("**/*.sst"), key=lambda file: file.stat().st_size)


def flip_byte(file: Path, at: int) -> None:
    """Change one byte of a file in place."""
    with file.open("r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte[0] ^ FLIP]))


def damage_largest(store: Path) -> Path:
    """Flip a byte in the middle of the largest table file; returns the file."""
    file = sst_files(store)[-1]
    flip_byte(file, file.stat().st_size // 2)
    return file


def damage_newest(store: Path, *, bytes_min: int) -> Path:
    """Flip a byte in the middle of the newest table file that is not small; returns the file."""
    file = max((f for f in sst_files(store) if f.stat().st_size >= bytes_min), key=lambda f: f.stat().st_mtime_ns)
    flip_byte(file, file.stat().st_size // 2)
    return file
