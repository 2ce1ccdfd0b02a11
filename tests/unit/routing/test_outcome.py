"""What errors mean to the sender, and what may be repeated or divided."""

from __future__ import annotations

import msgspec
import pytest

from slackwater import errors
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.descriptors import Generation, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.txns import Intent, Resolution, Txn, TxnStatus
from slackwater.protocol.range import requests
from slackwater.routing import outcome
from slackwater.routing.facts import descriptors_of, hint_of, intents_of, timestamp_of
from slackwater.routing.sender import NO_RANGE, crosses_ranges
from slackwater.runtime.rpc.faults import pack, unpack

TXN = Txn(b"t" * 16, b"a", Timestamp(1), 0, Timestamp(1), Timestamp(1), Timestamp(2), 1)
PLAIN = requests.Header(NO_RANGE)
IN_TXN = requests.Header(NO_RANGE, txn=TXN)
INTENT = Intent(b"k", b"t" * 16, b"a", Timestamp(1), 0, Timestamp(7))
DESCRIPTOR = RangeDescriptor(RangeId(4), b"a", b"m", (NodeId(1), NodeId(2)), Generation(3))

DEFINITE = [
    errors.NotLeaseholder, errors.RangeMismatch, errors.ConflictError, errors.ConditionFailed, errors.WriteTooOld,
    errors.TransactionAborted, errors.Overloaded, errors.UnavailableError, errors.BelowGcThreshold, errors.UsageError,
]  # fmt: skip
DOUBTFUL = [
    errors.ConnectionLost, errors.DeadlineExceeded, errors.AmbiguousResult, errors.ClockError, errors.DecodeError,
    errors.ProtocolError, errors.StorageError, errors.LogError, errors.SlackwaterError,
]  # fmt: skip


@pytest.mark.parametrize("kind", DEFINITE, ids=lambda k: k.__name__)
def test_a_definite_error_says_that_nothing_happened(kind: type[errors.SlackwaterError]) -> None:
    assert not outcome.lost(kind("x"))


@pytest.mark.parametrize("kind", DOUBTFUL, ids=lambda k: k.__name__)
def test_everything_else_leaves_a_doubt(kind: type[errors.SlackwaterError]) -> None:
    assert outcome.lost(kind("x"))


@pytest.mark.parametrize("kind", [errors.ConnectionLost, errors.DeadlineExceeded])
def test_a_request_that_never_left_leaves_no_doubt(kind: type[errors.SlackwaterError]) -> None:
    assert not outcome.lost(kind("x", sent=False))
    assert outcome.lost(kind("x", sent=True))


def test_no_write_of_a_version_is_repeatable() -> None:
    writes = [
        requests.Put(b"a", b"v"), requests.Delete(b"a"), requests.ConditionalPut(b"a", b"v", None), requests.InitPut(b"a", b"v"),
        requests.Increment(b"a", 1), requests.DeleteRange(b"a", b"b"), requests.PutRows([b"a"], [b"v"]),
        requests.EndTxn(commit=True),
    ]  # fmt: skip
    for write in writes:
        assert not outcome.repeatable([write])
        assert not outcome.repeatable([requests.Get(b"a"), write])


def test_reads_pushes_and_resolutions_are_repeatable() -> None:
    push = requests.PushTxn(INTENT, Timestamp(1), b"", Timestamp(5), abort=False)
    resolve = requests.ResolveIntents(Resolution(b"t" * 16, 0, TxnStatus.ABORTED), keys=(b"k",))
    assert outcome.repeatable([requests.Get(b"a"), requests.Scan(b"a", b"b"), push, resolve, requests.HeartbeatTxn()])
    assert outcome.repeatable([requests.FillRows([b"a"], [b"v"], Timestamp(5))])  # its copy finds what it wrote


def test_plain_writes_and_a_commit_with_company_must_be_atomic() -> None:
    put, end = requests.Put(b"a", b"v"), requests.EndTxn(commit=True)
    assert outcome.atomic([put], PLAIN)
    assert outcome.atomic([requests.Get(b"a"), put], PLAIN)
    assert not outcome.atomic([requests.Get(b"a"), requests.Scan(b"a", b"z")], PLAIN)
    assert not outcome.atomic([put, put], IN_TXN)
    assert outcome.atomic([put, end], IN_TXN)
    assert not outcome.atomic([end], IN_TXN)


def test_followers_get_only_timestamped_reads() -> None:
    at = requests.Header(NO_RANGE, ts=Timestamp(5), follower_ok=True)
    assert outcome.follower_may_serve([requests.Get(b"a"), requests.Scan(b"a", b"b")], at)
    assert not outcome.follower_may_serve([requests.Get(b"a")], requests.Header(NO_RANGE, ts=Timestamp(5)))
    assert not outcome.follower_may_serve([requests.Get(b"a")], requests.Header(NO_RANGE, follower_ok=True))
    for request in (
        requests.EndTxn(commit=True),
        requests.Put(b"a", b""),
        requests.Refresh(b"a", b"b", MIN, Timestamp(5)),
        requests.LeaseInfo(),
    ):
        assert not outcome.follower_may_serve([request], at)


def test_the_worst_error_decides() -> None:
    conflict = errors.ConflictError("c", intents=[INTENT])
    ambiguous = errors.AmbiguousResult("a")
    aborted = errors.TransactionAborted("t")
    retry = errors.ReadWithinUncertainty("u")
    gone = errors.UnavailableError("g")
    bug = errors.InvariantViolation("I-18", {})
    assert outcome.worst([conflict, retry, aborted, ambiguous]) is ambiguous
    assert outcome.worst([conflict, retry, aborted]) is aborted
    assert outcome.worst([conflict, gone, retry]) is gone
    assert outcome.worst([conflict, retry]) is retry
    assert outcome.worst([ambiguous, bug]) is bug


def test_conflicts_of_several_shares_are_put_together() -> None:
    other = msgspec.structs.replace(INTENT, key=b"z")
    both = outcome.worst([errors.ConflictError("c", intents=[INTENT]), errors.ConflictError("c", intents=[other])])
    assert isinstance(both, errors.ConflictError)
    assert intents_of(both) == [INTENT, other]


def test_facts_survive_the_wire() -> None:
    mismatch = unpack(*pack(errors.RangeMismatch("m", descriptors=[DESCRIPTOR])))
    conflict = unpack(*pack(errors.ConflictError("c", intents=[INTENT])))
    assert isinstance(mismatch, errors.RangeMismatch)
    assert isinstance(conflict, errors.ConflictError)
    assert descriptors_of(mismatch) == [DESCRIPTOR]
    assert intents_of(conflict) == [INTENT]
    assert hint_of(unpack(*pack(errors.NotLeaseholder("n", hint=NodeId(3))))) == 3
    assert timestamp_of(unpack(*pack(errors.RetryableError("r", push_to=Timestamp(9)))), "push_to") == 9


def test_facts_that_cannot_be_read_count_as_missing() -> None:
    assert descriptors_of(errors.RangeMismatch("m", descriptors="[RangeDescriptor(…")) == []
    assert descriptors_of(errors.RangeMismatch("m", descriptors=[[1, 2], "x", DESCRIPTOR])) == [DESCRIPTOR]
    assert intents_of(errors.ConflictError("c", intents=[msgspec.msgpack.encode(INTENT), b"\xc1"])) == [INTENT]
    assert hint_of(errors.NotLeaseholder("n", hint=None)) == 0
    assert timestamp_of(errors.RetryableError("r"), "push_to") == MIN


def test_crossing_ranges_is_told_from_other_misuse() -> None:
    assert crosses_ranges(errors.UsageError("x", crosses_ranges=True))
    assert not crosses_ranges(errors.UsageError("x"))
