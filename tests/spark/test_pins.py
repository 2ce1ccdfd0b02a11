"""What a load reads is kept while its application lives, and let go at its end, however that comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from pyspark.errors import PySparkException

from slackwater.errors import BelowGcThreshold

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


STREAM = """
import sys
import slackwater.spark
url, table, checkpoint, out = sys.argv[1:5]
spark = slackwater.spark.session(master="local[1]", config={"spark.log.level": "OFF", "spark.sql.shuffle.partitions": 1})
reader = spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", "true")
stream = reader.option("protectTtl", "120s").option("protectName", "a stream").load(table)

def write(batch, number):
    with open(out, "a") as file:
        for row in batch.collect():
            print(number, row["id"], row["balance"], file=file, flush=True)

query = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
print("started", spark.sparkContext._gateway.proc.pid, flush=True)
sys.stdin.readline()
query.stop()
spark.stop()
"""


def test_a_stream_goes_on_from_its_checkpoint_after_a_kill_although_its_offset_is_older_than_the_ttl(
    db, url, name, tmp_path
) -> None:
    """Every version that was written while it was down is there: ten times the ttl, and a table beside it was collected."""
    table, beside = name, f"{name}_beside"
    for one in (table, beside):
        db.create_table(one, {"id": "int8", "balance": "int8"}, primary_key=["id"])
        where = ["--host", url.removeprefix("slackwater://").split(",")[0]]
        subprocess.run([*CLI, "zone", "set", one, "--gc-ttl", "2s", *where], check=True, capture_output=True)
        db.upsert(one, [{"id": 1, "balance": 0}])
    out = tmp_path / "out"
    command = [sys.executable, "-c", STREAM, url, table, str(tmp_path / "checkpoint"), str(out)]

    def delivered() -> list[int]:
        return [int(line.split()[2]) for line in out.read_text().splitlines()] if out.exists() else []

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            _, java = program.stdout.readline().split()
            until(lambda: 0 in delivered())
            until(lambda: len(pins(db, table)) == 1)
            (pinned,) = pins(db, table)
            assert (pinned.kind, pinned.about, pinned.mode.value) == ("spark", "a stream", "after")
            db.upsert(table, [{"id": 1, "balance": 1}])
            until(lambda: 1 in delivered())
        finally:
            os.kill(int(java), signal.SIGKILL)  # the JVM, without a word
            program.kill()
    early = db.now()
    for number in range(2, 12):
        db.upsert(table, [{"id": 1, "balance": number}])
        db.upsert(beside, [{"id": 1, "balance": number}])

    def collected() -> bool:
        try:
            db.snapshot(as_of=early).scan(beside)
        except BelowGcThreshold:
            return True
        return False

    until(collected, seconds=240)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            program.stdout.readline()
            until(lambda: 11 in delivered())
            program.communicate("\n", timeout=60)
        finally:
            program.kill()
    assert set(delivered()) == set(range(12)), "no version is missing"
    assert len(pins(db, table)) <= 2, "what it left, and what the first run left; both expire"
    assert all(pin.expires > 0 for pin in pins(db, table))
