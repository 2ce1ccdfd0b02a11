"""Keeps the history that a `load()` or a stream reads, for as long as its application lives.

    load() ─► plan process ── protect T, expires in protectTtl ──► <Spark's local directory>/slackwater/pins/<id>
                  │ starts, once per application
                  ▼
              keeper process ── renews every pin ──► cluster       ends with the application: releases them all

Spark plans in processes of its own that come and go, and its executors may be anywhere. What lives exactly as long as the
application is the directory that Spark makes for it (`floors`), and the process that the planners are started from. So a small
process of our own, the keeper, watches both: while they are there it renews, and when one is gone it releases and ends. If the
whole machine is gone, what was pinned expires after `protectTtl` (pitfall 62).

A stream pins everything after its committed offset and moves that up as Spark commits batches (`StreamPin`). Its checkpoint
outlives its process: what it pinned is not released when the query or the application ends, but expires `protectTtl` later, and a
stream that goes on from the checkpoint within that time can protect it again (`protect.store.uncovered`).

A timestamp is pinned before anything is planned. Where that fails (it is too late, or too many are protected already) a load
that did not ask for it goes on without: history may well be there. One that names `protectTtl` or `protectName` fails instead.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slackwater.client import connect
from slackwater.clock.timestamp import MIN, seconds_between
from slackwater.errors import NotFound, SlackwaterError
from slackwater.spark.floors import directory

if TYPE_CHECKING:
    from slackwater.client import Database
    from slackwater.clock.timestamp import Timestamp
    from slackwater.spark.options import Options

PINS_MAX = 64
"""Timestamps that one application pins by itself; loads beyond that go on without, unless they ask for it."""
LOOK_S = 1.0
"""How often the keeper looks whether the application is still there."""
MOVE_S = 10.0
"""A stream's pin follows its committed offset in steps of at least this much."""
RENEW_SHARE = 0.33
"""The part of `protectTtl` after which a pin is renewed."""


class Pin(msgspec.Struct, frozen=True):
    """A protection of this application, as the keeper finds it."""

    id: str
    endpoint: str
    certs: str | None
    user: str | None
    ttl: float
    stream: int = 0
    """The process that runs the stream it is for; 0: it is for a load."""


def pin(db: Database, options: Options, ts: Timestamp, *, changes: bool, stream: int = 0) -> str:
    """Keep what a load is about to read; returns the protection's id, or "" when the load goes on without one."""
    demanded = "protectttl" in options.given or "protectname" in options.given
    if not options.protect_ttl:
        return ""
    home = directory()
    pins = None if home is None else home / "pins"
    if not demanded and pins is not None and pins.is_dir() and sum(1 for _ in pins.iterdir()) >= PINS_MAX:
        return ""
    when = {"after": ts} if changes else {"at": ts}
    try:
        made = db.protect(options.table, expires=options.protect_ttl, reason=options.protect_name, kind="spark", **when)
    except SlackwaterError:
        if demanded:
            raise
        return ""
    if pins is not None:
        entry = Pin(made.id, options.endpoint, options.certs, options.user, options.protect_ttl, stream)
        pins.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole = pins / f".{made.id}"
        whole.write_bytes(msgspec.json.encode(entry))
        whole.rename(pins / made.id)
        _start_keeper(pins)
    return made.id


class StreamPin:
    """Keeps the changes that one stream has yet to read: everything after its committed offset."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._id = ""
        self._tried = MIN
        self._at = MIN

    def begin(self, db: Database, after: Timestamp) -> None:
        """Pin the changes after an offset, before the batch that begins there is planned; once for each offset."""
        if not self._id and after > self._tried:
            self._tried = self._at = after
            self._id = pin(db, self._options, after, changes=True, stream=os.getpid())

    def advance(self, db: Database, committed: Timestamp) -> None:
        """Let go of what Spark has committed; moves are writes, so only after a while."""
        if not self._id:
            self.begin(db, committed)
        elif seconds_between(self._at, committed) >= min(MOVE_S, self._options.protect_ttl * RENEW_SHARE):
            self._at = committed
            try:
                db.renew_protection(self._id, expires=self._options.protect_ttl, after=committed)
            except NotFound:
                self._id = ""  # it was released by hand, or expired while this machine slept
                self.begin(db, committed)
            except SlackwaterError:
                return  # it keeps more than it needs; the next commit tries again


def _start_keeper(pins: Path) -> None:
    """Start the application's keeper, unless it runs."""
    with (pins.parent / "keeper").open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # it runs and holds the lock
    subprocess.Popen(
        [sys.executable, "-m", "slackwater.spark.pins", str(pins), str(os.getppid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={k: v for k, v in os.environ.items() if k != "PYTHONSTARTUP"},
    )


class PinKeeper:
    """Renews the pins of one application, and releases them at its end."""

    def __init__(self, pins: Path, parent: int) -> None:
        self._pins = pins
        self._parent = parent
        self._known: dict[str, Pin] = {}
        self._due_s: dict[str, float] = {}
        """How long until a pin is renewed."""
        self._open: dict[tuple[str, str | None, str | None], Database] = {}

    def run(self) -> None:
        """Renew the pins until the application ends."""
        pause = threading.Event()
        while self._alive():
            self._look()
            self._renew()
            pause.wait(LOOK_S)
        for one in self._known.values():
            # A stream's checkpoint is still there: who goes on from it finds its history for a while.
            if not one.stream or _runs(one.stream):
                self._tell(one, release=not one.stream)

    def _alive(self) -> bool:
        return _runs(self._parent) and self._pins.is_dir()

    def _look(self) -> None:
        for path in self._pins.glob("[0-9a-f]*"):
            if path.name not in self._known:
                try:
                    self._known[path.name] = msgspec.json.decode(path.read_bytes(), type=Pin)
                except (OSError, msgspec.MsgspecError):
                    continue
                self._due_s[path.name] = self._known[path.name].ttl * RENEW_SHARE

    def _renew(self) -> None:
        for name, one in list(self._known.items()):
            self._due_s[name] -= LOOK_S
            if self._due_s[name] <= 0:
                self._due_s[name] = one.ttl * RENEW_SHARE
                if (one.stream and not _runs(one.stream)) or not self._tell(one, release=False):
                    del self._known[name]
                    (self._pins / name).unlink(missing_ok=True)

    def _tell(self, one: Pin, *, release: bool) -> bool:
        """Renew or release; False when there is nothing left of it."""
        try:
            db = self._database(one)
            if release:
                db.release(one.id)
            else:
                db.renew_protection(one.id, expires=one.ttl)
        except NotFound:
            return False
        except SlackwaterError:
            return True  # the next round tries again; otherwise it expires
        return True

    def _database(self, one: Pin) -> Database:
        key = (one.endpoint, one.certs, one.user)
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = connect(one.endpoint, certs=one.certs, user=one.user)
        return found


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def main(argv: list[str]) -> None:
    """`python -m slackwater.spark.pins DIRECTORY PID`, once per application."""
    pins = Path(argv[0])
    with (pins.parent / "keeper").open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        PinKeeper(pins, int(argv[1])).run()


if __name__ == "__main__":
    main(sys.argv[1:])
