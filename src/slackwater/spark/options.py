"""What a user may write in `.option(…)`, checked before anything is asked of a cluster.

    spark.read.format("slackwater").option("endpoint", "slackwater://h1:7400,h2:7400")
         .option("timestampAsOf", "2026-11-15T19:15:00Z").option("columns", "id,balance").load("accounts")

Spark hands over a map of strings with lower-cased names. Each name here belongs to one or more uses (read, changes,
stream, write); a name that does not exist, a value that does not parse, and two that exclude each other are one
`UsageError` that says what to write instead. An option that would be ignored silently is worse than one that fails: a
misspelled `versionAsOf` would read another time than the one meant.

    connection   endpoint, certs, user, timeout, locality
    what         table (or `load("table")`), columns, filters, includeMetadata
    when         versionAsOf | timestampAsOf | maxStaleness, waitForTimestamp
    where from   readFrom, numPartitions
    changes      readChangeFeed, starting/endingVersion, starting/endingTimestamp, starting/endingBoundInclusive,
                 computeUpdates, deduplicationMode, maxRowsPerTrigger (or maxOffsetsPerTrigger), failOnDataLoss,
                 schemaEvolution
    writing      operation, missingColumns, txnAppId, txnVersion, atomic, schemaMode

Names that other sources have, or that ours will have, and that mean nothing yet are refused with what to do instead; so are
values of that sort (`schemaMode=merge`). An option that was written was meant to do something.

Pure: no Spark, no network.
"""

from __future__ import annotations

import difflib
import enum
import json
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from slackwater.clock import timestamp as tsm
from slackwater.clock.timestamp import Timestamp
from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
EnumT = TypeVar("EnumT", bound=enum.Enum)

PARTITIONS_MAX = 10_000
ROWS_MAX = 1 << 40
FILTERS_MAX = 1_000
WAIT_S_DEFAULT = 30.0
PROTECT_TTL_S_DEFAULT = 600.0
"""How long what a load reads is kept after its application is gone without a word; while it lives, that is renewed."""
TIMEOUT_S_DEFAULT = 30.0


class Use(enum.Enum):
    """What an option is for."""

    READ = "a snapshot read"
    CHANGES = "a change feed"
    WRITE = "a write"


class Operation(enum.Enum):
    """What a write does with a row."""

    UPSERT = "upsert"
    INSERT = "insert"
    INSERT_IGNORE = "insertIgnore"
    DELETE = "delete"


class Missing(enum.Enum):
    """What an upsert does about columns that the frame does not have."""

    REFUSE = "refuse"
    NULL = "null"
    KEEP = "keep"


class Evolution(enum.Enum):
    """What a stream does when its table changes (`evolution`)."""

    FAIL = "fail"
    ADDITIVE = "additive"


class ReadFrom(enum.Enum):
    """Which replicas may serve a read."""

    FOLLOWER = "follower"
    ANY = "any"
    LEADER = "leader"


class Deduplication(enum.Enum):
    """How many changes of one key are handed out."""

    NONE = "none"
    NET_CHANGES = "netChanges"


class Name(NamedTuple):
    """An option as people write it, and its uses."""

    text: str
    uses: frozenset[Use]


_ALL = frozenset(Use)
_READS = frozenset({Use.READ, Use.CHANGES})
_NAMES: dict[str, Name] = {
    text.lower(): Name(text, uses)
    for text, uses in [
        ("endpoint", _ALL),
        ("certs", _ALL),
        ("user", _ALL),
        ("timeout", _ALL),
        ("locality", _ALL),
        ("table", _ALL),
        ("path", _ALL),  # `load("accounts")`
        ("checkpointLocation", _ALL),  # Spark's own; it comes along with a stream's
        ("columns", _READS),
        ("filters", frozenset({Use.READ})),
        ("includeMetadata", frozenset({Use.READ})),
        ("versionAsOf", frozenset({Use.READ})),
        ("timestampAsOf", frozenset({Use.READ})),
        ("maxStaleness", frozenset({Use.READ})),
        ("waitForTimestamp", _READS),
        ("readFrom", _READS),
        ("numPartitions", _READS),
        ("readChangeFeed", _READS),
        ("startingVersion", frozenset({Use.CHANGES})),
        ("startingTimestamp", frozenset({Use.CHANGES})),
        ("startingBoundInclusive", frozenset({Use.CHANGES})),
        ("endingVersion", frozenset({Use.CHANGES})),
        ("endingTimestamp", frozenset({Use.CHANGES})),
        ("endingBoundInclusive", frozenset({Use.CHANGES})),
        ("computeUpdates", frozenset({Use.CHANGES})),
        ("deduplicationMode", frozenset({Use.CHANGES})),
        ("maxRowsPerTrigger", frozenset({Use.CHANGES})),
        ("maxOffsetsPerTrigger", frozenset({Use.CHANGES})),  # what Kafka's source calls it
        ("failOnDataLoss", frozenset({Use.CHANGES})),
        ("schemaEvolution", frozenset({Use.CHANGES})),
        ("protectTtl", _READS),
        ("protectName", _READS),
        ("sessionFloor", frozenset({Use.READ})),  # our own question, see `floors`
        ("operation", frozenset({Use.WRITE})),
        ("missingColumns", frozenset({Use.WRITE})),
        ("txnAppId", frozenset({Use.WRITE})),
        ("txnVersion", frozenset({Use.WRITE})),
        ("atomic", frozenset({Use.WRITE})),
        ("schemaMode", frozenset({Use.WRITE})),
    ]
}
_NOT_HERE: dict[str, str] = {
    name.lower(): f"{name} is not offered: {instead}"
    for names, instead in [
        (("replicaLabels",), "say where the readers are with locality (region=eu,zone=a), and they read what is near"),
        (("readPriority",), "reads of whole tables always come after other work; leave it out"),
        (("splitSizeMB", "fetchSize"), "say about how many tasks with numPartitions"),
        (("maxRequestsPerSecond", "throughputMiBPerTask"), "nodes limit bulk reads by themselves; leave it out"),
        (("maxBytesPerTrigger", "maxFilesPerTrigger"), "limit a micro-batch with maxRowsPerTrigger"),
        (
            ("startingOffsets", "endingOffsets"),
            "write startingVersion (a number, earliest, latest) or startingTimestamp",
        ),
        (("envelope",), "changes are rows with _change_type, _commit_version and _commit_timestamp"),
        (("confirmTruncate",), 'there is no overwrite; use .mode("append") with operation=upsert or operation=delete'),
        (("mergeSchema", "overwriteSchema"), "tables do not change with what is written to them"),
    ]
    for name in names
}


class Filter(msgspec.Struct, frozen=True):
    """One condition of a read, as it was written."""

    column: str
    op: str
    value: object = None


class Start(msgspec.Struct, frozen=True):
    """Where a change feed begins: after a version, or with the oldest or the newest there is."""

    after: Timestamp | None = None
    word: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All options, parsed."""

    endpoint: str
    table: str
    certs: str | None = None
    user: str | None = None
    timeout: float = TIMEOUT_S_DEFAULT
    locality: str | None = None
    columns: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    metadata: bool = False
    asks_floor: bool = False
    as_of: Timestamp | None = None
    max_staleness: float | None = None
    wait: float = WAIT_S_DEFAULT
    read_from: ReadFrom = ReadFrom.FOLLOWER
    partitions: int | None = None
    protect_ttl: float = PROTECT_TTL_S_DEFAULT
    protect_name: str = ""
    changes: bool = False
    start: Start | None = None
    upto: Timestamp | None = None
    diff: bool = False
    deduplication: Deduplication = Deduplication.NONE
    rows_per_trigger: int | None = None
    operation: Operation = Operation.UPSERT
    missing: Missing = Missing.REFUSE
    evolution: Evolution = Evolution.FAIL
    txn_app: str | None = None
    txn_version: int | None = None
    atomic: bool = True
    given: tuple[str, ...] = ()

    def check_use(self, use: Use) -> None:
        """Refuse options that have no meaning for this use."""
        for name in self.given:
            known = _NAMES[name]
            if use not in known.uses:
                raise UsageError(
                    f"the option {known.text} is for {' or '.join(sorted(u.value for u in known.uses))}, "
                    f"not for {use.value}; leave it out"
                )


class _Raw:
    """The strings as Spark gives them, taken one by one."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.values = {name.lower(): str(value) for name, value in options.items()}
        for name in self.values:
            if name in _NOT_HERE:
                raise UsageError(_NOT_HERE[name])
            if name not in _NAMES:
                raise _unknown(name)

    def take(self, name: str, parse: Callable[[str], T], otherwise: T) -> T:
        """The parsed value of an option, or what counts without it."""
        text = self.values.get(name.lower())
        if text is None:
            return otherwise
        try:
            return parse(text)
        except UsageError as error:
            raise UsageError(f"option {name}: {error.message}", **error.facts) from None

    def one_of(self, *names: str) -> None:
        """At most one of these may be there."""
        found = [name for name in names if name.lower() in self.values]
        if len(found) > 1:
            raise UsageError(f"{' and '.join(found)} exclude each other; give one of them")


def parse_options(options: Mapping[str, str]) -> Options:
    """Check and parse everything at once."""
    raw = _Raw(options)
    raw.one_of("versionAsOf", "timestampAsOf", "maxStaleness")
    raw.one_of("startingVersion", "startingTimestamp")
    raw.one_of("endingVersion", "endingTimestamp")
    raw.one_of("maxRowsPerTrigger", "maxOffsetsPerTrigger")
    _refuse_the_future(raw)
    found = Options(
        endpoint=_endpoint(raw),
        table=_table(raw),
        certs=raw.take("certs", _text, None),
        user=raw.take("user", _text, None),
        timeout=raw.take("timeout", _duration, TIMEOUT_S_DEFAULT),
        locality=raw.take("locality", _text, None),
        columns=raw.take("columns", _columns, ()),
        filters=raw.take("filters", _filters, ()),
        metadata=raw.take("includeMetadata", _flag, otherwise=False),
        asks_floor=raw.take("sessionFloor", _flag, otherwise=False),
        as_of=raw.take("timestampAsOf", _moment, raw.take("versionAsOf", _version, None)),
        max_staleness=raw.take("maxStaleness", _duration, None),
        wait=raw.take("waitForTimestamp", _duration, WAIT_S_DEFAULT),
        read_from=raw.take("readFrom", _choice(ReadFrom), ReadFrom.FOLLOWER),
        partitions=raw.take("numPartitions", _count(PARTITIONS_MAX), None),
        protect_ttl=raw.take("protectTtl", _duration, PROTECT_TTL_S_DEFAULT),
        protect_name=raw.take("protectName", str, ""),
        changes=raw.take("readChangeFeed", _flag, otherwise=False),
        start=_start(raw),
        upto=_upto(raw),
        diff=raw.take("computeUpdates", _flag, otherwise=False),
        deduplication=raw.take("deduplicationMode", _choice(Deduplication), Deduplication.NONE),
        rows_per_trigger=raw.take(
            "maxRowsPerTrigger", _count(ROWS_MAX), raw.take("maxOffsetsPerTrigger", _count(ROWS_MAX), None)
        ),
        operation=raw.take("operation", _choice(Operation), Operation.UPSERT),
        missing=raw.take("missingColumns", _choice(Missing), Missing.REFUSE),
        evolution=raw.take("schemaEvolution", _choice(Evolution), Evolution.FAIL),
        txn_app=raw.take("txnAppId", _text, None),
        txn_version=raw.take("txnVersion", _number, None),
        atomic=raw.take("atomic", _flag, otherwise=True),
        given=tuple(raw.values),
    )
    if found.metadata and found.filters:
        raise UsageError("includeMetadata reads whole tables; leave filters out and use .where(…) in Spark")
    if found.diff and found.deduplication is Deduplication.NET_CHANGES:
        raise UsageError("computeUpdates and deduplicationMode=netChanges exclude each other; give one of them")
    return found


def _refuse_the_future(raw: _Raw) -> None:
    """Options that have one value yet: the one that says what happens anyway."""
    for name, only, why in [
        (
            "failOnDataLoss",
            "true",
            "a stream whose changes were collected before it read them cannot go on, and always fails",
        ),
        (
            "schemaMode",
            "strict",
            "a write does not change its table; alter it first, then write the columns that it has",
        ),
    ]:
        text = raw.values.get(name.lower(), only).strip()
        if text.lower() != only:
            raise UsageError(f"option {name}: {text!r} is not offered, only {only}: {why}")


def _endpoint(raw: _Raw) -> str:
    found = raw.values.get("endpoint", "").strip()
    if not found:
        raise UsageError('say which cluster: .option("endpoint", "slackwater://host:7400")')
    return found


def _table(raw: _Raw) -> str:
    raw.one_of("table", "path")
    found = (raw.values.get("table") or raw.values.get("path") or "").strip()
    if not found:
        raise UsageError('say which table: .load("accounts") or .option("table", "accounts")')
    return found


def _start(raw: _Raw) -> Start | None:
    inclusive = raw.take("startingBoundInclusive", _flag, otherwise=True)
    word = raw.values.get("startingversion", "").strip().lower()
    if word in {"earliest", "latest"}:
        return Start(word=word)
    first = raw.take("startingTimestamp", _moment, raw.take("startingVersion", _version, None))
    if first is None:
        return None
    return Start(after=Timestamp(max(tsm.MIN, first - 1 if inclusive else first)))


def _upto(raw: _Raw) -> Timestamp | None:
    inclusive = raw.take("endingBoundInclusive", _flag, otherwise=True)
    last = raw.take("endingTimestamp", _moment, raw.take("endingVersion", _version, None))
    return last if last is None or inclusive else Timestamp(max(tsm.MIN, last - 1))


def _text(text: str) -> str | None:
    if not text.strip():
        raise UsageError("the value is empty")
    return text.strip()


def _flag(text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise UsageError(f"{text!r} is neither true nor false")
    return text.strip().lower() == "true"


def _number(text: str) -> int | None:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _count(limit: int) -> Callable[[str], int | None]:
    def parse(text: str) -> int | None:
        found = _number(text)
        if found is None or not 1 <= found <= limit:
            raise UsageError(f"{text!r} is not between 1 and {limit}")
        return found

    return parse


def _duration(text: str) -> float:
    seconds = tsm.parse_seconds(text.strip())
    if seconds < 0:
        raise UsageError("a duration here is not negative", value=text)
    return seconds


def _version(text: str) -> Timestamp | None:
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{text!r} is not a version; write the whole number that _commit_version shows")
    return tsm.parse(text)


def _moment(text: str) -> Timestamp | None:
    text = text.strip()
    if text.startswith("-") or text.isdigit():
        raise UsageError(
            f"{text!r} is not a time; write it like 2026-11-15T19:15:00Z (versions have their own options)"
        )
    return tsm.parse(text)


def _choice(kind: type[EnumT]) -> Callable[[str], EnumT]:
    by_name = {str(member.value).lower(): member for member in kind}

    def parse(text: str) -> EnumT:
        found = by_name.get(text.strip().lower())
        if found is None:
            raise UsageError(f"{text!r} is none of {', '.join(str(m.value) for m in kind)}")
        return found

    return parse


def _columns(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        names = _json(text)
        if not all(isinstance(name, str) for name in names):
            raise UsageError('write columns as id,balance or as JSON ["id", "balance"]')
    else:
        names = [part.strip() for part in text.split(",")]
    if not names or not all(names):
        raise UsageError('write columns as id,balance or as JSON ["id", "balance"]')
    if len(set(names)) != len(names):
        raise UsageError("a column is named twice")
    return tuple(str(name) for name in names)


def _filters(text: str) -> tuple[Filter, ...]:
    found = []
    for item in _json(text, parse_float=Decimal):  # a number is what was written, not the double nearest to it
        if not isinstance(item, list) or not 2 <= len(item) <= 3 or not all(isinstance(part, str) for part in item[:2]):
            raise UsageError('write filters as JSON [["balance", ">=", 10], ["note", "is null"]]')
        found.append(Filter(item[0], item[1], item[2] if len(item) == 3 else None))
    if len(found) > FILTERS_MAX:
        raise UsageError(f"at most {FILTERS_MAX} filters; use an `in` list")
    return tuple(found)


def _json(text: str, parse_float: Callable[[str], object] = float) -> list[object]:
    try:
        found = json.loads(text, parse_float=parse_float)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise UsageError("the value is not a JSON list")
    return found


def _unknown(name: str) -> UsageError:
    near = difflib.get_close_matches(name, _NAMES, n=2, cutoff=0.75)
    hint = " or ".join(_NAMES[n].text for n in near) if near else ""
    known = ", ".join(n.text for n in _NAMES.values() if n.text not in {"path", "checkpointLocation", "sessionFloor"})
    said = f"there is no option {name!r}; "
    return UsageError(said + (f"did you mean {hint}?" if hint else f"there are {known}"))
