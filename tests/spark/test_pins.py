"""What a load reads is kept while its application lives, and let go at its end, however that comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from pyspark.errors import PySparkException

CLI = [sys.executable, "-m", "slackwater.cli.main"]
PROGRAM = """
import sys
import slackwater.spark
url, table = sys.argv[1:3]
spark = slackwater.spark.session(master="local[1]")
reader = spark.read.format("slackwater").option("endpoint", url)
frame = reader.option("protectName", "a test").option("protectTtl", "3s").load(table)
assert frame.count() == 10
print("loaded", spark.sparkContext._gateway.proc.pid, flush=True)
sys.stdin.readline()
spark.stop()
"""


def pins(db, table):
    return [one for one in db.protections() if one.tables == (table,)]


def until(holds, *, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.2)


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_load_is_pinned_renewed_and_released(db, url, name, ending) -> None:
    table = name
    db.create_table(table, {"id": "int8", "balance": "int8"}, primary_key=["id"])
    db.upsert(table, [{"id": i, "balance": i} for i in range(10)])
    command = [sys.executable, "-c", PROGRAM, url, table]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            word, java = program.stdout.readline().split()
            assert word == "loaded"
            (pinned,) = pins(db, table)
            assert (pinned.kind, pinned.about, pinned.mode.value) == ("spark", "a test", "at")
            until(lambda: pins(db, table)[0].expires > pinned.expires)  # renewed, by the keeper
            if ending == "stop":
                program.communicate("\n", timeout=60)
            else:
                os.kill(int(java), signal.SIGKILL)  # the JVM, without a word
                program.kill()
            until(lambda: not pins(db, table))
        finally:
            program.kill()


def test_a_load_that_demands_what_is_too_late_fails_and_one_that_does_not_goes_on(db, url, load, name) -> None:
    table = name
    db.create_table(table, {"id": "int8", "balance": "int8"}, primary_key=["id"])
    db.upsert(table, [{"id": 1, "balance": 1}])
    early = db.now()
    where = ["--host", url.removeprefix("slackwater://").split(",")[0]]
    subprocess.run([*CLI, "zone", "set", table, "--gc-ttl", "1s", *where], check=True, capture_output=True)
    time.sleep(1.5)
    with pytest.raises(PySparkException, match="may be collected already"):
        load(table, versionAsOf=int(early), protectName="mine")
    load(table, versionAsOf=int(early))
    assert pins(db, table) == []
