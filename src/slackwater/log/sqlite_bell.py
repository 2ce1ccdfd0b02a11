"""The bell: how processes that share a log file tell each other that there is something new, without polling.

Every handle binds a Unix datagram socket in a directory beside the file, and a handle that committed sends one byte to each
of the others:

    wal.db               wal.db.bells/
      ^  commit            41c2.sock   <--- 'n' ---  the handle that committed
      |                    9f07.sock   <--- 'n' ---    |
      +------------------------------------------------+

    n   new entries                h   hello: a bell was added, list the directory again

Rules
    - A ring carries no data and may be lost: it only saves the repair poll's delay. So a full queue is no error (its
      owner has a wake-up waiting), and a bell whose owner died without a word (refused) is removed by the handle that notices.
    - Socket names are random, so a removed name is never another process's new bell.
    - Socket paths are short whatever the path of the log: they go through a descriptor of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

DATAGRAMS_DRAINED_MAX = 1024
_FD_PATHS = Path("/proc/self/fd")


class Bell:
    """One handle's bell and its view of the others."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._base = _FD_PATHS / str(self._directory) if _FD_PATHS.exists() else directory
        self._name = f"{name}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # noqa: FBT003 - its only argument
        try:
            self._socket.bind(str(self._base / self._name))
        except BaseException:
            self._socket.close()
            os.close(self._directory)
            raise
        self._others: list[str] | None = None  # unknown: list the directory

    def fileno(self) -> int:
        """What to watch for readability."""
        return self._socket.fileno()

    def greet(self) -> None:
        """Tell the others that this bell exists."""
        self._send(b"h")

    def ring(self) -> None:
        """Tell the others that there is something new."""
        if self._others is None or self._others:
            self._send(b"n")

    def drain(self) -> None:
        """Take what was received; notes the bells that said hello."""
        for _ in range(DATAGRAMS_DRAINED_MAX):
            try:
                word = self._socket.recv(1)
            except BlockingIOError:
                return
            if word == b"h":
                self._others = None

    def refresh(self) -> None:
        """List the directory again before the next ring."""
        self._others = None

    def close(self) -> None:
        """Take the bell down."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._directory)
        self._socket.close()
        os.close(self._directory)

    def _send(self, word: bytes) -> None:
        others = self._others
        if others is None:
            names = os.listdir(self._directory)  # noqa: PTH208 - of the descriptor
            others = self._others = [name for name in names if name.endswith(".sock") and name != self._name]
        assert self._name not in others, "a bell rings for others"
        for name in others:
            try:
                self._socket.sendto(word, str(self._base / name))
            except BlockingIOError:
                continue
            except OSError as error:
                self._others = None
                if error.errno == errno.ECONNREFUSED:  # its owner is gone
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=self._directory)
