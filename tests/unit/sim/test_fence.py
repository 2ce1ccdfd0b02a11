# ruff: noqa: PTH123, SIM115, UP020, PT012 - calling the forbidden things is the point
from __future__ import annotations

import gc
import importlib
import io
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid

import pytest

from slackwater.sim.fence import fenced
from slackwater.sim.loop import EscapedSimulation

FORBIDDEN = [
    ("time.time", lambda: time.time()),
    ("time.monotonic_ns", lambda: time.monotonic_ns()),
    ("time.perf_counter", lambda: time.perf_counter()),
    ("time.sleep", lambda: time.sleep(0)),
    ("random.random", lambda: random.random()),
    ("random.randint", lambda: random.randint(1, 2)),
    ("random.Random", lambda: random.Random()),
    ("random.SystemRandom", lambda: random.SystemRandom()),
    ("os.urandom", lambda: os.urandom(1)),
    ("uuid.uuid4", lambda: uuid.uuid4()),
    ("secrets.token_bytes", lambda: secrets.token_bytes(1)),
    ("threading.Thread.start", lambda: threading.Thread(target=print).start()),
    ("socket.socket", lambda: socket.socket()),
    ("socket.getaddrinfo", lambda: socket.getaddrinfo("localhost", 1)),
    ("subprocess.Popen", lambda: subprocess.Popen(["true"])),
    ("open", lambda: open("/tmp/slackwater-fence", "w")),
    ("io.open", lambda: io.open("/tmp/slackwater-fence", "a")),
    ("os.open", lambda: os.open("/tmp/slackwater-fence", os.O_WRONLY | os.O_CREAT)),
]


@pytest.mark.parametrize(("name", "call"), FORBIDDEN, ids=[name for name, _ in FORBIDDEN])
def test_the_real_world_raises(name, call):
    with fenced(), pytest.raises(EscapedSimulation, match=name):
        call()


def test_reading_and_importing_stay_possible():
    sys.modules.pop("colorsys", None)
    with fenced():
        importlib.import_module("colorsys")
        with open(__file__) as file:
            assert file.read(1) == "#"


def test_everything_is_back_afterwards_even_after_an_error():
    before = (time.time, random.random, os.urandom, open, threading.Thread.start)
    collecting = gc.isenabled()
    with pytest.raises(KeyError), fenced():
        assert not gc.isenabled()
        raise KeyError
    assert (time.time, random.random, os.urandom, open, threading.Thread.start) == before
    assert gc.isenabled() == collecting
    assert time.time() > 0


def test_runs_do_not_nest():
    with fenced(), pytest.raises(RuntimeError, match="already running"), fenced():
        pass
