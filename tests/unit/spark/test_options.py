"""Options: what is accepted, and the one clear error for everything else."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import from_us
from slackwater.errors import UsageError
from slackwater.spark.options import Deduplication, Filter, Operation, ReadFrom, Start, Use, parse_options

HERE = {"endpoint": "slackwater://127.0.0.1:7400", "path": "accounts"}


def test_plain() -> None:
    found = parse_options(HERE)
    assert (found.endpoint, found.table) == ("slackwater://127.0.0.1:7400", "accounts")
    assert (found.as_of, found.columns, found.read_from, found.atomic) == (None, (), ReadFrom.FOLLOWER, True)
    assert found.operation is Operation.UPSERT
    for use in Use:
        found.check_use(use)


def test_everything_of_a_read() -> None:
    found = parse_options(
        HERE
        | {
            "timestampAsOf": "1970-01-01T00:00:01+00:00",
            "columns": "id, balance",
            "filters": '[["balance", ">=", 10], ["note", "is null"]]',
            "readFrom": "ANY",
            "numPartitions": "4",
            "waitForTimestamp": "500ms",
        }
    )
    assert found.as_of == from_us(1_000_000)
    assert found.columns == ("id", "balance")
    assert found.filters == (Filter("balance", ">=", 10), Filter("note", "is null"))
    assert (found.read_from, found.partitions, found.wait) == (ReadFrom.ANY, 4, 0.5)
    assert parse_options(HERE | {"columns": '["a,b", "c"]'}).columns == ("a,b", "c")
    assert parse_options(HERE | {"versionAsOf": "12345"}).as_of == 12345
    assert parse_options(HERE | {"maxStaleness": "5s"}).max_staleness == 5.0


def test_bounds_of_a_change_feed() -> None:
    feed = HERE | {"readChangeFeed": "true"}
    assert parse_options(feed).start is None
    assert parse_options(feed | {"startingVersion": "10"}).start == Start(after=9)
    assert parse_options(feed | {"startingVersion": "10", "startingBoundInclusive": "false"}).start == Start(after=10)
    assert parse_options(feed | {"startingVersion": "latest"}).start == Start(word="latest")
    assert parse_options(feed | {"startingTimestamp": "1970-01-01T00:00:01Z"}).start == Start(after=from_us(10**6) - 1)
    assert parse_options(feed | {"endingVersion": "10"}).upto == 10
    assert parse_options(feed | {"endingVersion": "10", "endingBoundInclusive": "false"}).upto == 9
    assert parse_options(feed | {"maxOffsetsPerTrigger": "10"}).rows_per_trigger == 10
    usual = {"failOnDataLoss": "true", "schemaEvolution": "fail", "deduplicationMode": "none"}
    assert parse_options(feed | usual).deduplication is Deduplication.NONE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "t"}, "say which cluster"),
        ({"endpoint": "slackwater://h:1"}, "say which table"),
        (HERE | {"table": "t"}, "table and path exclude each other"),
        (HERE | {"versionasoff": "1"}, "there is no option 'versionasoff'; did you mean versionAsOf"),
        (HERE | {"zzz": "1"}, "there is no option 'zzz'; there are endpoint, certs"),
        (
            HERE | {"versionAsOf": "1", "timestampAsOf": "2026-01-01"},
            "versionAsOf and timestampAsOf exclude each other",
        ),
        (HERE | {"versionAsOf": "1", "maxStaleness": "1s"}, "exclude each other"),
        (HERE | {"versionAsOf": "-1"}, "option versionAsOf: '-1' is not a version"),
        (HERE | {"versionAsOf": str(1 << 63)}, "option versionAsOf: a timestamp is an integer"),
        (HERE | {"timestampAsOf": "yesterday"}, "option timestampAsOf: cannot read 'yesterday'"),
        (HERE | {"timestampAsOf": "123"}, "option timestampAsOf: '123' is not a time"),
        (HERE | {"timestampAsOf": "-5s"}, "option timestampAsOf: '-5s' is not a time"),
        (HERE | {"maxStaleness": "5"}, "option maxStaleness: cannot read '5' as a duration"),
        (HERE | {"maxStaleness": "-5s"}, "option maxStaleness: a duration here is not negative"),
        (HERE | {"readFrom": "moon"}, "option readFrom: 'moon' is none of follower, any, leader"),
        (HERE | {"numPartitions": "0"}, "option numPartitions: '0' is not between 1 and"),
        (HERE | {"numPartitions": "1.5"}, "option numPartitions: '1.5' is not a whole number"),
        (HERE | {"columns": "a,,b"}, "option columns: write columns as"),
        (HERE | {"columns": "a,a"}, "option columns: a column is named twice"),
        (HERE | {"columns": "[1]"}, "option columns: write columns as"),
        (HERE | {"filters": "a > 1"}, "option filters: the value is not a JSON list"),
        (HERE | {"filters": '[["a"]]'}, "option filters: write filters as JSON"),
        (HERE | {"readChangeFeed": "yes"}, "option readChangeFeed: 'yes' is neither true nor false"),
        (HERE | {"startingVersion": "soon"}, "option startingVersion: 'soon' is not a version"),
        (HERE | {"startingVersion": "1", "startingTimestamp": "2026-01-01"}, "exclude each other"),
        (
            HERE | {"operation": "replace"},
            "option operation: 'replace' is none of upsert, insert, insertIgnore, delete",
        ),
        (HERE | {"txnAppId": "a", "txnVersion": "x"}, "option txnVersion: 'x' is not a whole number"),
        (HERE | {"replicaLabels": "a"}, "replicaLabels is not offered: say where the readers are with locality"),
        (HERE | {"protectTtl": "soon"}, "option protectTtl: "),
        (HERE | {"splitSizeMB": "128"}, "numPartitions"),
        (HERE | {"maxBytesPerTrigger": "1"}, "limit a micro-batch with maxRowsPerTrigger"),
        (HERE | {"envelope": "debezium"}, "envelope is not offered"),
        (HERE | {"failOnDataLoss": "false"}, "option failOnDataLoss: 'false' is not offered, only true"),
        (HERE | {"schemaEvolution": "merge"}, "schemaEvolution"),
        (
            HERE | {"schemaMode": "merge"},
            "option schemaMode: 'merge' is not offered, only strict: a write does not change",
        ),
        (HERE | {"schemaMode": "evolve"}, "option schemaMode: 'evolve' is not offered, only strict"),
        (HERE | {"deduplicationMode": "dropCarryovers"}, "is none of none, netChanges"),
        (HERE | {"deduplicationMode": "netChanges", "computeUpdates": "true"}, "exclude each other"),
        (HERE | {"maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "exclude each other"),
        (HERE | {"includeMetadata": "true", "filters": '[["a", "=", 1]]'}, "leave filters out"),
        (HERE | {"includeMetadata": "1"}, "option includeMetadata: '1' is neither true nor false"),
    ],
)
def test_one_clear_error(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_options(options)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "use", "said"),
    [
        (
            {"operation": "upsert"},
            Use.READ,
            "the option operation is for a write, not for a snapshot read; leave it out",
        ),
        ({"versionAsOf": "1"}, Use.WRITE, "the option versionAsOf is for a snapshot read, not for a write"),
        ({"startingVersion": "1"}, Use.READ, "the option startingVersion is for a change feed"),
        ({"filters": "[]"}, Use.CHANGES, "the option filters is for a snapshot read"),
        ({"includeMetadata": "true"}, Use.CHANGES, "the option includeMetadata is for a snapshot read"),
        ({"deduplicationMode": "none"}, Use.READ, "the option deduplicationMode is for a change feed"),
    ],
)
def test_an_option_of_another_use_is_refused(options: dict[str, str], use: Use, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_options(HERE | options).check_use(use)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "stream", "said"),
    [
        ({"txnAppId": "a"}, False, "txnAppId and txnVersion belong together"),
        ({"txnVersion": "1"}, False, "txnAppId and txnVersion belong together"),
        ({"txnAppId": "a", "txnVersion": "1"}, True, "give txnAppId alone"),
        ({"txnAppId": "a", "txnVersion": "1", "atomic": "false"}, False, "txnAppId needs atomic=true"),
        ({"operation": "insertIgnore", "atomic": "false"}, False, "insertIgnore needs atomic=true"),
    ],
)
def test_what_a_writer_cannot_do(options: dict[str, str], stream: bool, said: str) -> None:
    pytest.importorskip("pyspark")
    from slackwater.spark.writing import writer_options

    with pytest.raises(UsageError, match=said):
        writer_options(parse_options(HERE | options), overwrite=False, stream=stream)
    with pytest.raises(UsageError, match="no overwrite"):
        writer_options(parse_options(HERE), overwrite=True, stream=stream)
    kept = writer_options(parse_options(HERE | {"txnAppId": "a"}), overwrite=False, stream=True)
    assert kept.txn_app == "a"
