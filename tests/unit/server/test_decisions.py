"""The pure decisions of the queues, the index of ranges and span configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock.timestamp import Timestamp, add_seconds
from slackwater.codec.layout import check_split_key, kv, meta, system, table_prefix, versioned
from slackwater.config.zones import ZoneConfig, bound_inside, factor_of
from slackwater.errors import DecodeError, UnavailableError, UsageError
from slackwater.model.descriptors import NO_LEASE, RangeDescriptor
from slackwater.model.txns import Intent, TxnRecord, TxnStatus
from slackwater.protocol.node.services import ReplicaStatus
from slackwater.protocol.node.snapshots import Examination
from slackwater.protocol.range.requests import ConditionalPut, Delete
from slackwater.replica.allocator import Add, Move, NodeInfo, NodeState, Remove
from slackwater.replica.lease import LeaseState
from slackwater.replica.load import KEYS_KEPT, SAMPLE_EVERY, LoadMeter
from slackwater.runtime.seam import Family
from slackwater.server.meta import MetaRecord, decode, plan
from slackwater.server.queues import splits
from slackwater.server.queues.check import judge
from slackwater.server.queues.leases import should_nudge
from slackwater.server.queues.merges import Side, should_merge
from slackwater.server.queues.replicate import after
from slackwater.server.queues.splits import middle_key
from slackwater.server.queues.trim import trim_upto
from slackwater.server.queues.txns import sort_out
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryEngine

if TYPE_CHECKING:
    from slackwater.model.ids import NodeId


def described(range_id: int, start: bytes, end: bytes, generation: int) -> RangeDescriptor:
    return RangeDescriptor(range_id, start, end, (1, 2, 3), generation)


def record(descriptor: RangeDescriptor) -> MetaRecord:
    return decode(meta(descriptor.end), msgspec.msgpack.encode(descriptor))


# --- the index of ranges


def test_a_split_is_published_in_one_batch() -> None:
    old = described(5, b"a", b"z", 7)
    left, right = described(5, b"a", b"k", 8), described(9, b"k", b"z", 8)
    requests = plan([record(old)], [left, right])
    assert requests == [
        ConditionalPut(meta(b"k"), msgspec.msgpack.encode(left), None),
        ConditionalPut(meta(b"z"), msgspec.msgpack.encode(right), msgspec.msgpack.encode(old)),
    ]
    assert plan([record(left), record(right)], [left, right]) == []


def test_a_merge_deletes_what_it_absorbed() -> None:
    left, right = described(5, b"a", b"k", 8), described(9, b"k", b"z", 8)
    merged = described(5, b"a", b"z", 9)
    requests = plan([record(left), record(right)], [merged])
    assert requests == [
        ConditionalPut(meta(b"z"), msgspec.msgpack.encode(merged), msgspec.msgpack.encode(right)),
        Delete(meta(b"k")),
    ]


@pytest.mark.parametrize("generation", [7, 8])
def test_what_is_older_than_the_index_is_not_published(generation: int) -> None:
    newer = described(5, b"a", b"k", 8)
    assert plan([record(newer)], [described(5, b"a", b"z", generation)]) == []


def test_the_left_half_alone_leaves_the_old_record_for_the_rest() -> None:
    old, left = described(5, b"a", b"z", 7), described(5, b"a", b"k", 8)
    assert plan([record(old)], [left]) == [ConditionalPut(meta(b"k"), msgspec.msgpack.encode(left), None)]


def test_an_entry_that_cannot_be_read() -> None:
    with pytest.raises(DecodeError):
        decode(meta(b"k"), b"\xc1")


# --- trimming


def status(durable: int, *, position: int = 100) -> ReplicaStatus:
    return ReplicaStatus(described(5, b"a", b"z", 7), NO_LEASE, 1, position, durable, Timestamp(0), (), False, "")


def states(**by_node: NodeState):
    return lambda node: by_node.get(f"n{node}", NodeState.LIVE)


def test_a_log_is_trimmed_to_the_lowest_durable_position() -> None:
    assert trim_upto({1: status(30), 2: status(20)}, states()) == 20
    assert trim_upto({1: status(30, position=30), 2: status(0, position=30)}, states()) == 0, "applied is not durable"
    assert trim_upto({}, states()) == 0


@pytest.mark.parametrize("answer", [None, UnavailableError("silent")])
def test_a_replica_that_cannot_be_asked_holds_the_log(answer: object) -> None:
    members = {1: status(30), 2: answer}
    assert trim_upto(members, states()) == 0  # type: ignore[arg-type]
    assert trim_upto(members, states(n2=NodeState.UNKNOWN)) == 0  # type: ignore[arg-type]
    assert trim_upto(members, states(n2=NodeState.DEAD)) == 30  # type: ignore[arg-type]


# --- checks


def _vote(digest: bytes, versions: int = 10, expected: int = 10) -> Examination:
    return Examination(digest, versions, expected, versions == expected)


@pytest.mark.parametrize(
    ("votes", "wrong", "asks"),
    [
        ({}, [], False),
        ({1: _vote(b"x"), 2: _vote(b"x")}, [], False),
        ({1: _vote(b"x"), 2: _vote(b"y"), 3: _vote(b"x")}, [2], False),
        ({1: _vote(b"x"), 2: _vote(b"y")}, [], True),
        ({1: _vote(b"x"), 2: _vote(b"y"), 3: _vote(b"z")}, [], True),
        ({1: _vote(b"x"), 2: _vote(b"x"), 3: _vote(b"y"), 4: _vote(b"y")}, [], True),
        # Two copies that lost the same rows do not outvote the one that has them: they contradict their own statistics.
        ({1: _vote(b"x", 5), 2: _vote(b"x", 5), 3: _vote(b"y")}, [1, 2], False),
        ({1: _vote(b"x", 5), 2: _vote(b"y")}, [1], False),
        # One of them could not be read and has no vote; the one that is whole is right.
        ({1: _vote(b"x", 5), 3: _vote(b"y")}, [1], False),
        # None is whole: even two that agree may be two that lost the same.
        ({1: _vote(b"x", 5), 2: _vote(b"x", 5), 3: _vote(b"y", 7)}, [], True),
        ({1: _vote(b"x", 5), 2: _vote(b"x", 5), 3: _vote(b"x", 5)}, [], True),
        # All are whole by their own count, and the minority has more: an operator decides.
        ({1: _vote(b"x", 9, 9), 2: _vote(b"x", 9, 9), 3: _vote(b"y")}, [], True),
        ({1: _vote(b"x"), 2: _vote(b"x"), 3: _vote(b"y", 9, 9)}, [3], False),
    ],
)
def test_which_replicas_are_wrong_is_decided_by_evidence_not_by_number(
    votes: dict[NodeId, Examination], wrong: list[int], asks: bool
) -> None:
    verdict = judge(votes)
    assert verdict.wrong == wrong
    assert bool(verdict.question) == asks


# --- splits and merges


def test_the_middle_key_is_a_whole_key() -> None:
    engine, batch = MemoryEngine(), WriteBatch()
    for name in (b"a", b"b", b"c", b"d"):
        for ts in range(10, 20):
            batch.put(Family.DATA, versioned(kv(name), Timestamp(ts)), b"v" * 50)
    engine.write(batch)
    span = kv(b""), b"\x05"
    assert middle_key(engine, *span, half_bytes=1200) == kv(b"c")
    assert middle_key(engine, *span, half_bytes=0) == kv(b"b"), "never at the lowest key"
    assert middle_key(engine, kv(b"c"), b"\x05", half_bytes=0) == kv(b"d"), "never at the start"
    assert middle_key(engine, *span, half_bytes=1 << 30) is None
    assert middle_key(engine, kv(b"d"), b"\x05", half_bytes=1) is None, "one key cannot be divided"


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), min_size=1, max_size=40),
    st.integers(0, 2000),
    st.sampled_from([1, 3, 7, 1000]),
)
def test_the_middle_key_is_where_counting_version_by_version_finds_it(
    keys: list[tuple[int, int]], half_bytes: int, block: int
) -> None:
    engine, batch, stored = MemoryEngine(), WriteBatch(), []
    for number, (versions, size) in enumerate(keys):
        for ts in range(versions, 0, -1):
            stored.append((kv(b"%02d" % number), versioned(kv(b"%02d" % number), Timestamp(ts)), b"v" * size))
            batch.put(Family.DATA, *stored[-1][1:])
    engine.write(batch)
    seen, expected = 0, None
    for key, name, value in stored:
        if seen >= half_bytes and key != stored[0][0]:
            expected = key
            break
        seen += len(name) + len(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "READ_BLOCK", block)
        assert middle_key(engine, kv(b""), b"\x05", half_bytes=half_bytes) == expected


def test_split_keys() -> None:
    for good in (kv(b"m"), kv(b"a\x00b"), b"\x04abc", b"\x05", table_prefix(7), system("jobs"), system("jobs", b"x")):
        assert check_split_key(good) == good
    for bad in (kv(b"m") + b"\x00", system("jobs", b"x") + b"1", b"\x02k", b"\x01k", b"\xff", b"\x00"):
        with pytest.raises(UsageError):
            check_split_key(bad)


LIMITS = {"min_bytes": 100.0, "max_bytes": 1000.0, "max_requests": 50.0}


def side(start: bytes, end: bytes, *, size: int = 10, rate: float = 0.0, range_id: int = 5) -> Side:
    return Side(described(range_id, start, end, 3), size, rate)


def test_which_neighbours_merge() -> None:
    small = side(b"\x04a", b"\x04k"), side(b"\x04k", b"\x04z")
    assert should_merge(*small, **LIMITS)
    assert should_merge(small[0], side(b"\x04k", b"\x04z", size=490), **LIMITS), "one small one is enough"
    assert not should_merge(small[0], side(b"\x04k", b"\x04z", size=491), **LIMITS), "they would soon split again"
    assert not should_merge(side(b"\x04a", b"\x04k", size=100), side(b"\x04k", b"\x04z", size=100), **LIMITS)
    assert not should_merge(side(b"\x04a", b"\x04k", rate=26), small[1], **LIMITS)
    assert should_merge(side(b"\x04a", b"\x04k", rate=26), small[1], **{**LIMITS, "max_requests": 0.0})
    assert not should_merge(side(b"\x04a", b"\x04k", range_id=1), small[1], **LIMITS)
    assert not should_merge(side(b"\x03a", b"\x04"), side(b"\x04", b"\x04z"), **LIMITS), "different kinds of keys"
    assert not should_merge(small[0], side(b"\x04m", b"\x04z"), **LIMITS), "not neighbours any more"


def test_span_configurations() -> None:
    configs = [ZoneConfig(b"c", b"f", 5), ZoneConfig(b"m", b"p", 1)]
    assert factor_of(configs, described(5, b"c", b"d", 1), default=3) == 5
    assert factor_of(configs, described(5, b"f", b"m", 1), default=3) == 3
    assert bound_inside(configs, described(5, b"a", b"z", 1)) == b"c"
    assert bound_inside(configs, described(5, b"c", b"f", 1)) is None
    assert bound_inside(configs, described(5, b"d", b"n", 1)) == b"f"


# --- load


def test_the_rate_follows_the_load_and_forgets_it() -> None:
    meter = LoadMeter(now_ns=0)
    for second in range(1, 31):
        for _ in range(100):
            meter.wants_key()
        meter.rate(now_ns=second * 10**9)
    assert 80 < meter.rate(now_ns=30 * 10**9) <= 100
    assert meter.rate(now_ns=60 * 10**9) == 0.0


def test_the_load_is_halved_unless_it_is_one_key() -> None:
    meter = LoadMeter(now_ns=0)
    assert meter.split_key() is None, "too little is known"
    assert sum(meter.wants_key() for _ in range(SAMPLE_EVERY * 4)) == 4
    for i in range(KEYS_KEPT):
        meter.sample(b"%03d" % i)
    assert meter.split_key() == b"032"
    for _ in range(KEYS_KEPT):
        meter.sample(b"hot")
    assert meter.split_key() is None


# --- leases and replicas


def test_one_node_takes_up_a_lease_that_nobody_holds() -> None:
    nodes = {1: NodeInfo(1, NodeState.UNKNOWN), 2: NodeInfo(2, NodeState.LIVE), 3: NodeInfo(3, NodeState.LIVE)}
    takers = [n for n in (1, 2, 3) if should_nudge(LeaseState.EXPIRED, (1, 2, 3), nodes, own=n)]
    assert takers == [2]
    assert should_nudge(LeaseState.NONE, (7,), nodes, own=7), "nobody is known to be live: try"
    later = [n for n in (1, 2, 3) if should_nudge(LeaseState.EXPIRED, (1, 2, 3), nodes, own=n, turns=1)]
    assert len(later) == 2, "the next one's turn, when the first let his pass"
    for state in (LeaseState.VALID, LeaseState.STASIS, LeaseState.UNKNOWN):
        assert not should_nudge(state, (2,), nodes, own=2)


def test_what_actions_lead_to() -> None:
    assert after((1, 2), Add(3)) == (1, 2, 3)
    assert after((1, 2, 3), Remove(2)) == (1, 3)
    assert after((1, 2, 3), Move(2, 4)) == (1, 3, 4)


# --- transactions


def test_chores_for_transactions() -> None:
    now = add_seconds(Timestamp(0), 1000)

    def at(age_s: float) -> Timestamp:
        return add_seconds(now, -age_s)

    def kept(name: bytes, state: TxnStatus, age_s: float, *, resolved: bool) -> TxnRecord:
        return TxnRecord(name * 16, b"k", at(age_s), 0, state, at(age_s), at(age_s), (b"x",), (), resolved)

    records = [
        kept(b"p", TxnStatus.PENDING, 500, resolved=False),
        kept(b"q", TxnStatus.PENDING, 4, resolved=False),
        kept(b"u", TxnStatus.COMMITTED, 6, resolved=False),
        kept(b"y", TxnStatus.COMMITTED, 4, resolved=False),
        kept(b"a", TxnStatus.ABORTED, 61, resolved=True),
        kept(b"c", TxnStatus.COMMITTED, 59, resolved=True),
    ]
    intents = [
        Intent(b"k1", b"1" * 16, b"k", at(9), 0, at(9)),
        Intent(b"k2", b"1" * 16, b"k", at(9), 0, at(9)),
        Intent(b"k3", b"2" * 16, b"k", at(1), 0, at(1)),
    ]
    chores = sort_out(intents, records, now=now, expiration_s=5, retention_s=60)
    assert chores.push == [intents[:2]]
    assert [r.txn_id[:1] for r in chores.expire] == [b"p"], "silent, and maybe no intent leads to it"
    assert [r.txn_id[:1] for r in chores.finish] == [b"u"]
    assert chores.collect == [(b"k", b"a" * 16)]
