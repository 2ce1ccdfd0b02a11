"""Store directories without their nodes: opened for reading only, and refused while a process has one of them."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.errors import StorageError, UsageError
from slackwater.server.process import ENGINE, PRIVATE_MODE, UNFINISHED
from slackwater.server.recovery.survey import check_together, survey
from slackwater.storage.rocks import RocksFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slackwater.server.recovery.survey import Survivor

LOCK = "LOCK"
"""The file that RocksDB holds a lock on while a process has a store open."""


@contextmanager
def opened(
    directories: Sequence[Path], *, force: bool = False, progress: Callable[[str], None] = lambda _: None
) -> Iterator[list[Survivor]]:
    """The stores in these data directories, surveyed; closed at the end of the block. Nothing in them is changed.

    Raises `UsageError`, with the directory's name, for one that holds no store, is in use, or does not belong to the others.
    """
    scratch = Path(tempfile.mkdtemp(prefix="slackwater-recover-"))
    files: list[RocksFiles] = []
    try:
        survivors = []
        for number, directory in enumerate(directories):
            engine = _engine_in(directory, force=force)
            (scratch / str(number)).mkdir()
            try:
                files.append(RocksFiles(engine, scratch=scratch / str(number)))
                survivors.append(survey(str(directory), files[-1], progress=progress))
            except StorageError as error:
                raise UsageError(f"{directory} cannot be read: {error.message}", store=str(directory)) from error
        check_together(survivors)
        yield survivors
    finally:
        for one in files:
            one.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _engine_in(directory: Path, *, force: bool) -> Path:
    engine = directory / ENGINE
    if not (engine / "CURRENT").exists():
        raise UsageError(
            f"{directory} holds no store; name a node's data directory (its --store)", store=str(directory)
        )
    if unfinished(directory):
        raise UsageError(
            f"the store in {directory} was not finished by `slackwater recover apply`; name stores of the old cluster",
            store=str(directory),
        )
    if in_use(engine) and not force:
        raise UsageError(
            f"a process has {directory} open: its node runs. Stop it first; a cluster that runs needs no recovery",
            store=str(directory),
        )
    return engine


def in_use(engine: Path) -> bool:
    """Whether another process has a store open."""
    path = engine / LOCK
    if not path.exists():
        return False
    try:
        with path.open("rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:  # a file that may only be read: whether a process has it cannot be told
        return False
    return False


def check_empty(directory: Path) -> None:
    """Raise `UsageError` unless a new store can be made in `directory`; what an unfinished attempt left there is no store."""
    try:
        if directory.exists() and not unfinished(directory) and any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty; recover into a new directory")
    except OSError as error:
        raise UsageError(f"{directory} cannot be used: {error.strerror}") from error


def unfinished(directory: Path) -> bool:
    """Whether a new store was begun in `directory` and not finished: the process was killed, or its disk was full."""
    return (directory / UNFINISHED).exists()


def begin(directory: Path) -> None:
    """Make `directory` hold nothing but the note that a store is being made in it; an unfinished attempt is removed."""
    directory.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
    if unfinished(directory):
        for left in directory.iterdir():  # all of it was made after the note, in a directory that was empty
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            elif left.name != UNFINISHED:
                left.unlink()
    (directory / UNFINISHED).touch(mode=0o600)


def finished(directory: Path) -> None:
    """The store in `directory` is whole and durable: nodes may be started on it."""
    (directory / UNFINISHED).unlink()
