"""Files beside an engine: a directory of them, and their twin in memory.

    DIR/engine/columns/000000000000002a         finished: whole and durable
    DIR/engine/columns/000000000000002b.tmp     in the making; removed when the directory is opened next

A file is written under another name, made durable, and renamed: a file that is found is complete. They lie inside the engine's
own directory, so that an engine that is moved aside, copied or deleted takes along what was derived from it.

Read by `pread`, not mapped: a mapped file that was cut short would end the process, and what is mapped counts as the node's
memory.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from slackwater.errors import StorageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

UNFINISHED = ".tmp"


class DirectoryFiles:
    """`seam.Files` in a directory of its own."""

    def __init__(self, path: Path, guard: AbstractContextManager[Any]) -> None:
        self._path = path
        self.guard = guard
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in path.glob(f"*{UNFINISHED}"):
            left.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Finished files."""
        return sorted(file.name for file in self._path.iterdir() if file.suffix != UNFINISHED)

    def create(self, name: str) -> DirectorySink:
        """A file in the making."""
        assert not name.endswith(UNFINISHED), "a finished file is told from one in the making by its name"
        return DirectorySink(self._path, name)

    def open(self, name: str) -> DirectoryFile:
        """A finished file."""
        return DirectoryFile(self._path / name)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"a file cannot be removed: {error}", name=name) from error


class DirectorySink:
    """`seam.FileSink` of a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._final = directory / name
        self._path = directory / (name + UNFINISHED)
        try:
            self._file = self._path.open("wb", buffering=0)
        except OSError as error:
            raise StorageError(f"a file cannot be made: {error}", name=name) from error

    def write(self, data: bytes) -> None:
        """Append."""
        assert not self._file.closed, "a file that is finished is not written any more"
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise StorageError(f"a file cannot be written: {error}", name=self._final.name) from error

    def finish(self) -> None:
        """Durable, then visible."""
        assert not self._file.closed, "a file is finished once"
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.rename(self._final)
            _sync(self._directory)
        except OSError as error:
            raise StorageError(f"a file cannot be finished: {error}", name=self._final.name) from error

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class DirectoryFile:
    """`seam.StoredFile` of a directory. It is closed when the last one that reads it lets it go."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._handle = -1
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size = os.fstat(self._handle).st_size
        except OSError as error:
            raise StorageError(f"a file cannot be opened: {error}", name=path.name) from error

    def read(self, at: int, size: int) -> bytes:
        """The bytes from `at` on."""
        assert at >= 0, "a part of the file"
        assert size >= 0, "a part of the file"
        try:
            return os.pread(self._handle, size, at)
        except OSError as error:
            raise StorageError(f"a file cannot be read: {error}", name=self._name) from error

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)


class MemoryFiles:
    """`seam.Files` in memory: the simulator's, and what stands beside a memory engine. It outlives the engine's handles."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.guard: AbstractContextManager[Any] = nullcontext()

    def names(self) -> list[str]:
        """Finished files."""
        return sorted(self.held)

    def create(self, name: str) -> MemorySink:
        """A file in the making."""
        assert not name.endswith(UNFINISHED), "a name that a directory would refuse is refused here, too (I-32)"
        return MemorySink(self, name)

    def open(self, name: str) -> MemoryFile:
        """A finished file."""
        if name not in self.held:
            raise StorageError("there is no file of this name", name=name)
        return MemoryFile(self.held[name], self, name)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self.held.pop(name, None)


class MemorySink:
    """`seam.FileSink` in memory."""

    def __init__(self, files: MemoryFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Append."""
        assert self._name not in self._files.held, "a file that is finished is not written any more"
        self._pieces.append(data)

    def finish(self) -> None:
        """Visible, and durable as all finished files are."""
        assert self._name not in self._files.held, "a file is finished once"
        self._files.held[self._name] = b"".join(self._pieces)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._pieces.clear()


class MemoryFile:
    """`seam.StoredFile` in memory. It shows what has become of the file's bytes; one that was removed is read on."""

    def __init__(self, data: bytes, files: MemoryFiles | None = None, name: str = "") -> None:
        self._data = data
        self._files = files
        self._name = name
        self.size = len(data)

    def read(self, at: int, size: int) -> bytes:
        """The bytes from `at` on."""
        assert at >= 0, "a part of the file"
        assert size >= 0, "a part of the file"
        if self._files is not None:
            self._data = self._files.held.get(self._name, self._data)
        return self._data[at : at + size]


def _sync(directory: Path) -> None:
    """Make a rename in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
