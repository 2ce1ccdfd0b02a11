"""The fence: while a run is active, asking the real world for anything is an error, not a flake.

    time            time, time_ns, monotonic(_ns), perf_counter(_ns), process_time(_ns), thread_time(_ns), sleep
    chance          random.* functions, random.Random and SystemRandom, os.urandom, os.getrandom, uuid.uuid1/uuid4,
                    secrets (through SystemRandom's methods)
    threads         threading.Thread.start, and with it every executor
    network         socket.socket, socket.create_connection, socket.getaddrinfo
    files           open(), io.open() and os.open() for writing; reading stays allowed, because tracebacks and lazy
                    imports read sources (imports use io.open_code, which is not fenced)
    processes       os.fork, subprocess.Popen
    collector       gc is off; the loop collects at fixed steps

What the fence cannot see: names bound with `from time import monotonic` before the run, and `datetime.now`, a C type's
method. Ruff's list of banned names catches those at lint time; the doubled seeds catch what slips through both.

The simulator itself measures real time from outside the fence only.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import io
import os
import random
import secrets
import socket
import subprocess
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, NoReturn

from slackwater.sim.loop import EscapedSimulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ADVICE = {
    "time": "use runtime.clock",
    "random": "use runtime.rng",
    "os": "use runtime.rng or runtime.disk",
    "uuid": "use runtime.rng.bytes",
    "secrets": "use runtime.rng",
    "threading": "use runtime.offload",
    "socket": "use runtime.net",
    "subprocess": "a simulated node has no processes",
}

_TIME = tuple(
    f"{name}{suffix}"
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for suffix in ("", "_ns")
)
_RANDOM = (
    "Random", "SystemRandom", "random", "randint", "randrange", "randbytes", "choice", "choices", "shuffle", "sample",
    "uniform", "getrandbits", "seed", "gauss", "expovariate", "normalvariate", "triangular", "betavariate",
)  # fmt: skip

_REFUSED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, (*_TIME, "sleep")),
    (random, _RANDOM),
    (os, ("urandom", "getrandom", "fork")),
    (uuid, ("uuid1", "uuid4")),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice", "randbits")),
    (threading.Thread, ("start",)),
    (socket, ("socket", "create_connection", "getaddrinfo")),
    (subprocess, ("Popen",)),
)

_active = False


@contextlib.contextmanager
def fenced() -> Iterator[None]:
    """Put the fence up, and take it down again whatever happens."""
    global _active
    if _active:
        raise RuntimeError("a simulation is already running in this process; runs do not nest")
    saved: list[tuple[Any, str, Any]] = []
    collecting = gc.isenabled()
    _active = True
    gc.collect()
    gc.disable()
    try:
        for owner, names in _REFUSED:
            for name in names:
                _replace(saved, owner, name, _refusal(owner, name))
        _replace(saved, builtins, "open", _read_only(builtins.open, "open"))
        _replace(saved, io, "open", _read_only(io.open, "io.open"))
        _replace(saved, os, "open", _read_only_descriptor(os.open))
        yield
    finally:
        for owner, name, original in reversed(saved):
            setattr(owner, name, original)
        _active = False
        if collecting:
            gc.enable()


def _replace(saved: list[tuple[Any, str, Any]], owner: Any, name: str, replacement: object) -> None:
    original = getattr(owner, name, None)
    if original is not None:
        saved.append((owner, name, original))
        setattr(owner, name, replacement)


def _refusal(owner: Any, name: str) -> Callable[..., NoReturn]:
    module = owner.__name__ if owner is not threading.Thread else "threading"
    label = f"{module}.{'Thread.' if owner is threading.Thread else ''}{name}"
    advice = _ADVICE[module]

    def refused(*args: object, **kwargs: object) -> NoReturn:
        raise EscapedSimulation(f"{label}() was called during a simulation; {advice}")

    return refused


def _read_only(original: Callable[..., Any], label: str) -> Callable[..., Any]:
    def checked(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            raise EscapedSimulation(
                f"{label}({file!r}, {mode!r}) writes to a real file during a simulation; use runtime.disk"
            )
        return original(file, mode, *args, **kwargs)

    return checked


def _read_only_descriptor(original: Callable[..., int]) -> Callable[..., int]:
    def checked(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        # __pycache__ files are written by the import system, which is allowed to.
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and "__pycache__" not in os.fspath(path):
            raise EscapedSimulation(f"os.open({path!r}) writes to a real file during a simulation; use runtime.disk")
        return original(path, flags, *args, **kwargs)

    return checked
