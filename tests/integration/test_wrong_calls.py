"""What applications get wrong in calls of the client: one `SlackwaterError` that says what to write, and nothing written.

Every case is one call on a database of this process (`slackwater.open`); the asynchronous twin is the same code under another
name, and a few cases go through it. Afterwards the tables hold exactly what they held before.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

import slackwater
from slackwater.errors import SlackwaterError

pytestmark = [pytest.mark.integration]

COLUMNS = {
    "id": "int8",
    "n": "int4",
    "s": "text not null",
    "p": "decimal(6,2)",
    "d": "date",
    "ts": "timestamp",
    "tz": "timestamptz",
    "u": "uuid",
}
NOW = dt.datetime(2026, 1, 1)
NOWHERE = "slackwater://127.0.0.1:9"


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    with slackwater.open(tmp_path_factory.mktemp("wrong") / "data") as db:
        db.create_table("t", COLUMNS, primary_key=["id"])
        db.create_table("two", {"a": "int8", "b": "text"}, primary_key=["a", "b"])
        db.upsert("t", [{"id": 1, "s": "x"}])
        yield db


def refused(db, call, said: str) -> None:
    """The call is refused with these words, and nothing has changed by it."""
    before = db.scan("t"), [table.name for table in db.tables()]
    with pytest.raises(SlackwaterError) as error:
        call()
    assert said in str(error.value), str(error.value)
    assert (db.scan("t"), [table.name for table in db.tables()]) == before


def test_opening(db, tmp_path):
    (tmp_path / "file").touch()
    for call, said in [
        (lambda: slackwater.open(tmp_path / "file"), "cannot be used as a data directory"),
        (lambda: slackwater.open(5), "a data directory is a path"),
        (lambda: slackwater.open(tmp_path / "x", timeout="soon"), "cannot read 'soon' as a duration"),
        (lambda: slackwater.connect("http://x"), "begins with slackwater://"),
        (lambda: slackwater.connect(5), "connect takes a URL"),
        (lambda: slackwater.connect(NOWHERE), "no process listens there; is the node running?"),
        (lambda: slackwater.connect(NOWHERE, certs=5), "certs is a path"),
        (lambda: slackwater.connect(NOWHERE, certs=tmp_path / "none"), "is no directory of certificates"),
        (lambda: slackwater.connect(NOWHERE, user=5), "user is a text"),
        (lambda: slackwater.connect(NOWHERE, locality=5), "locality is a text"),
        (lambda: slackwater.connect(NOWHERE, locality="eu"), "write a locality as region=eu"),
        (lambda: slackwater.connect(NOWHERE, timeout=[1]), "a timeout is a positive number"),
        (lambda: slackwater.connect("slackwater://127.0.0.1:x"), "is not an address"),
        (lambda: slackwater.connect("slackwater://db.example:7400"), "is reached with certificates"),
        (lambda: slackwater.connect("slackwater://127.0.0.1?x=1"), "unknown option 'x'"),
    ]:
        refused(db, call, said)


@pytest.mark.parametrize(
    ("name", "columns", "key", "said"),
    [
        ("t", {"id": "int8"}, "id", "there is a table 't' already"),
        ("", {"id": "int8"}, "id", "named by a text that is not empty"),
        (5, {"id": "int8"}, "id", "named by a text"),
        ("x", {"id": "int8"}, [], "needs a primary key"),
        ("x", {"id": "int8"}, "nope", "names 'nope', which is none of its columns"),
        ("x", {"id": "int8"}, 5, "are names"),
        ("x", {"id": "int8"}, ["id", "id"], "in the primary key twice"),
        ("x", {"id": "int9"}, "id", "unknown type 'int9'"),
        ("x", {"id": None}, "id", "a type is a text"),
        ("x", {"id": "decimal(99,2)"}, "id", "a precision from 1 to 38"),
        ("x", {"id": "json"}, "id", "cannot be in a primary key"),
        ("x", {"id": "int8", "_commit_x": "int8"}, "id", "is reserved"),
        ("x", {}, "id", "at least one column"),
        ("x", "id int8", "id", "columns are a dict of names and types"),
        ("x", ["id"], "id", "Column objects"),
        ("x", pa.schema([("id", pa.list_(pa.int64()))]), "id", "there is no column type for Arrow's list"),
    ],
)
def test_definitions(db, name, columns, key, said):
    refused(db, lambda: db.create_table(name, columns, primary_key=key), said)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("x", "rows are a list of dicts"),
        (5, "rows are a list of dicts"),
        ([(2, "x")], "a row of t is a dict"),
        ([{"s": "x"}], "column id of table t is NOT NULL"),
        ([{"id": 2}], "column s of table t is NOT NULL"),
        ([{"id": 2, "s": "x", "z": 1}], "has no column 'z'; its columns are id"),
        ([{"id": "2", "s": "x"}], "column id: a 64-bit integer column takes int"),
        ([{"id": True, "s": "x"}], "column id: a 64-bit integer column takes int"),
        ([{"id": 2, "s": 5}], "column s: a string column does not take int"),
        ([{"id": 2, "s": "x"}, {"id": 3, "s": 5}], "column s"),
        ([{"id": 2, "s": "x", "n": 1 << 40}], "column n: value does not fit 32 bits"),
        ([{"id": 2, "s": "x", "p": Decimal("123456.789")}], "column p: value does not fit decimal(6,2)"),
        ([{"id": 2, "s": "x", "p": 1.1}], "takes decimal.Decimal or int"),
        ([{"id": 2, "s": "x", "d": "2026-01-01"}], "column d: a date column does not take str"),
        ([{"id": 2, "s": "x", "tz": NOW}], "one with a time zone"),
        ([{"id": 2, "s": "x", "ts": NOW.replace(tzinfo=dt.UTC)}], "one without a time zone"),
        ([{"id": 2, "s": "x", "u": b"12"}], "uuid takes 16 bytes"),
        ([{"id": 2, "s": "\ud800"}], "lone surrogate"),
        ([{"id": 2, "s": "x"}, {"id": 2, "s": "y"}], "the same primary key"),
        ([{"id": 2, "s": "x" * (5 << 20)}], "a row has at most"),
        (pa.table({"id": ["a"], "s": ["x"]}), "column id: cannot store string as int"),
        (pa.table({"id": [2], "s": pa.array([None], pa.string())}), "column s is NOT NULL"),
        (pa.table({"s": ["x"]}), "column id is NOT NULL"),
        (pa.table({"id": [2], "s": ["x"], "q": [1]}), "has no column 'q'"),
        (pa.table({"id": [2], "s": ["x"], "n": [1.5]}), "column n: cannot store double as int4"),
        (pd.DataFrame({"id": [2], "s": [object()]}), "does not convert to Arrow"),
        (pd.DataFrame({"id": [2, math.nan], "s": ["x", "y"]}), "column id is NOT NULL"),
    ],
)
def test_rows(db, rows, said):
    refused(db, lambda: db.upsert("t", rows), said)
    refused(db, lambda: db.run(lambda tx: tx.upsert("t", rows)), "t" if "log entry" in said else said)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda db: db.upsert("nope", [{"id": 1}]), "there is no table 'nope'; tables: t, two"),
        (lambda db: db.insert("t", [{"id": 9, "s": "n"}, {"id": 1, "s": "y"}]), "has a row with this key already"),
        (lambda db: db.delete("t", [{"s": "x"}]), "the key of t needs a value for id"),
        (lambda db: db.delete("t", ["x"]), "takes int"),
        (lambda db: db.delete("two", [(1,)]), "give 2 values"),
        (lambda db: db.drop_table("nope"), "there is no table 'nope'"),
        (lambda db: db.table(5), "named by a text"),
        (lambda db: db.get("t", "1"), "the key of t (id)"),
        (lambda db: db.get("t", None), "NOT NULL"),
        (lambda db: db.get("two", 1), "give 2 values"),
        (lambda db: db.get("t", {"nope": 1}), "has no column 'nope'"),
        (lambda db: db.scan("nope"), "there is no table 'nope'"),
        (lambda db: db.scan("t", columns=["nope"]), "has no column 'nope'"),
        (lambda db: db.scan("t", columns="id"), "columns are a list of names"),
        (lambda db: db.scan("t", columns=5), "columns are names"),
        (lambda db: db.scan("t", where="id > 1"), "where is a list of conditions"),
        (lambda db: db.scan("t", where=[("id",)]), "a condition is (column, operator, value)"),
        (lambda db: db.scan("t", where=[("id", "~", 1)]), "unknown operator '~'"),
        (lambda db: db.scan("t", where=[("id", "=", "x")]), "compare a numeric column with a number"),
        (lambda db: db.scan("t", where=[("id", "in", 5)]), "`in` takes a list"),
        (lambda db: db.scan("t", limit=-1), "a limit is a number of rows"),
        (lambda db: db.run(5), "run takes a function"),
        (lambda db: db.resolved(5), "tables are names"),
        (lambda db: db.close_now("nope"), "there is no table 'nope'"),
        (lambda db: db.frontier(5), "tables are names"),
        (lambda db: db.staging("t", "replace"), "there is no operation 'replace'"),
        (lambda db: db.publish("t", [], app="x"), "app is a name and a version"),
        (lambda db: db.partitions("t", -1), "in 1 to 10000 partitions"),
        (lambda db: db.partitions("t", 1 << 70), "in 1 to 10000 partitions"),
        (lambda db: list(db.read_partition("x", at=db.now())), "a partition comes from"),
    ],
)
def test_reads_and_others(db, call, said):
    refused(db, lambda: call(db), said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"as_of": "-1s", "max_staleness": 1}, "give one of as_of, max_staleness and min_timestamp"),
        ({"as_of": "2200-01-01"}, "the future cannot be read"),
        ({"as_of": "soon"}, "cannot read 'soon' as a timestamp"),
        ({"as_of": NOW}, "a datetime needs a time zone"),
        ({"as_of": [1]}, "a time is a timestamp, an aware datetime"),
        ({"as_of": -1}, "a timestamp is an integer between"),
        ({"as_of": dt.datetime(1950, 1, 1, tzinfo=dt.UTC)}, "outside what a timestamp can hold"),
        ({"max_staleness": -1}, "max_staleness is a number of seconds"),
        ({"max_staleness": "x"}, "max_staleness is a number of seconds"),
        ({"max_staleness": math.nan}, "max_staleness is a number of seconds"),
        ({"tables": ["nope"]}, "there is no table 'nope'"),
        ({"tables": 5}, "tables are names"),
        ({"read_from": "moon"}, "read_from is one of leader, any, follower"),
        ({"wait": "x"}, "wait is a number of seconds"),
    ],
)
def test_snapshots(db, asked, said):
    refused(db, lambda: db.snapshot(**asked), said)


@pytest.mark.parametrize(
    ("tables", "asked", "said"),
    [
        (["nope"], {}, "there is no table 'nope'"),
        ([], {}, "a feed follows tables by name"),
        (5, {}, "tables are names"),
        ("t", {"after": "soon"}, "cannot read 'soon'"),
        ("t", {"after": "2200-01-01"}, "past"),
        ("t", {"initial_scan": "maybe"}, "initial_scan is one of yes, no, only"),
        ("t", {"resolved": -1}, "resolved is a number of seconds"),
        ("t", {"resolved": "x"}, "resolved is a number of seconds"),
        ("t", {"on_schema_change": "x"}, "on_schema_change is one of"),
        ("t", {"expires_after": -1}, "expires_after is a number of seconds"),
    ],
)
def test_feeds(db, tables, asked, said):
    refused(db, lambda: list(db.changes(tables, **asked)), said)


def test_the_asynchronous_twin(db, tmp_path):
    async def story() -> None:
        with pytest.raises(SlackwaterError, match="no process listens there"):
            async with slackwater.aconnect(NOWHERE):
                pass
        with pytest.raises(SlackwaterError, match="certs is a path"):
            slackwater.aconnect(NOWHERE, certs=5)

    asyncio.run(story())
    with db.transaction() as tx:
        pass
    refused(db, lambda: tx.get("t", 1), "the transaction has ended")
    with slackwater.open(tmp_path / "other") as other:
        assert other.tables() == []
    with pytest.raises(SlackwaterError, match="the connection is closed"):
        other.tables()
