"""The queue of unresolved transactions and the map of locks, against their twins, with the first scan racing live news."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import InvariantViolation
from slackwater.feeds.effects import LockMap, lock_of, read_effects
from slackwater.feeds.unresolved import UnresolvedQueue
from slackwater.model.spans import Span
from slackwater.model.txns import Intent
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.intents import StoredIntent, encode_intent
from tests.twins.unresolved import UnresolvedNaive

KEYS = [bytes([97 + i]) for i in range(6)]
TXNS = [bytes([i]) * 16 for i in range(1, 5)]


def intent(key: bytes, txn: bytes, ts: int, epoch: int = 0) -> Intent:
    return Intent(key, txn, b"anchor", Timestamp(1), epoch, Timestamp(ts))


def stored(txn: bytes, ts: int, epoch: int = 0) -> bytes:
    return encode_intent(StoredIntent(txn, b"anchor", Timestamp(1), epoch, Timestamp(ts), 1, b"\x00value"))


class Both:
    """The queue and its twin, fed alike."""

    complete = False

    def __init__(self) -> None:
        self.queue, self.naive = UnresolvedQueue(), UnresolvedNaive()

    def __getattr__(self, name: str):
        def call(*args, **options):
            getattr(self.naive, name)(*args, **options)
            getattr(self.queue, name)(*args, **options)
            self.complete = self.queue.complete
            assert self.queue.complete == self.naive.complete
            assert self.queue.oldest() == self.naive.oldest()
            assert len(self.queue) == len(self.naive.counts)
            assert len(self.queue._heap) <= 2 * len(self.queue) + 65

        return call


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lock", "lock", "unlock", "move", "restart", "forward", "abort", "scan", "scan", "both"]),
        st.integers(0, len(KEYS) - 1),
        st.integers(0, len(TXNS) - 1),
        st.integers(1, 9),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), st.tuples(st.sampled_from(TXNS), st.integers(1, 20))), STEPS)
def test_queue_and_lock_map_know_what_the_store_holds(first, steps) -> None:
    """`store` is the truth; the scan brings what was there at the start, block by block, while it changes."""
    store = dict(first)
    to_scan = sorted(first.items())
    both = Both()
    locks = LockMap(Span(b"a", b"z"), both)
    dead: set[bytes] = set()
    epochs = dict.fromkeys(TXNS, 0)
    now = 20
    for what, key_at, txn_at, number in steps:
        key, txn = KEYS[key_at], TXNS[txn_at]
        batch = WriteBatch()
        now += number
        if what == "lock" and (key not in store or store[key][0] == txn):
            store[key] = (txn, max(now, store.get(key, (txn, 0))[1]))
            batch.put(Family.LOCK, key, stored(*store[key], epoch=epochs[txn]))
        elif what == "restart":
            epochs[txn] += 1
        elif what == "both" and key in store:  # two commands of one entry: the first one's lock goes, another comes
            store[key] = (txn, now)
            batch.put(Family.LOCK, key, stored(txn, now, epoch=epochs[txn]))
        elif what == "move" and key in store:
            store[key] = (store[key][0], now)
            batch.put(Family.LOCK, key, stored(*store[key]))
        elif what == "unlock" and key in store:
            del store[key]
            batch.delete(Family.LOCK, key)
        elif what == "forward":
            both.forward(txn, Timestamp(now), epoch=max(0, epochs[txn] - number % 2))
        elif what == "abort" and any(t == txn for t, _ in store.values()) and both.complete:
            both.abort(txn)
            dead.add(txn)
        elif what == "scan" and to_scan:
            block, to_scan = to_scan[:2], to_scan[2:]
            locks.scanned([(k, stored(*lock)) for k, lock in block])
            if not to_scan:
                locks.finish_scan()
        locks.apply(read_effects(batch))
        dead = {t for t in dead if any(owner == t for owner, _ in store.values())}
        if both.complete:
            check(store, locks, both, dead)
    locks.scanned([(k, stored(*lock)) for k, lock in to_scan])
    if not both.complete:
        locks.finish_scan()
    check(store, locks, both, dead)


def check(store, locks, both, dead) -> None:
    assert {k: lock.txn_id for k, lock in locks.locks.items()} == {k: txn for k, (txn, _) in store.items()}
    for txn in TXNS:
        assert both.queue.references(txn) == sum(owner == txn for owner, _ in store.values())
        assert locks.keys_of(txn) == sorted(k for k, (owner, _) in store.items() if owner == txn)
    oldest = both.queue.oldest()
    alive = {txn for txn, _ in store.values()} - dead
    assert (oldest is None) == (not alive)


def test_a_new_epoch_may_begin_below_an_intent_that_its_coordinator_never_heard_of() -> None:
    """Else resolved would pass the commit of the new epoch."""
    both = Both()
    both.finish_scan()
    both.written(intent(KEYS[0], TXNS[0], 25))
    assert both.queue.oldest() == 25
    both.written(intent(KEYS[1], TXNS[0], 22, epoch=1))
    assert both.queue.oldest() == 22
    both.moved(intent(KEYS[0], TXNS[0], 30))
    assert both.queue.oldest() == 22, "an old epoch's intent that is moved up says nothing"
    both.forward(TXNS[0], Timestamp(26), epoch=0)
    assert both.queue.oldest() == 22, "nor does what a push has heard of it"
    both.forward(TXNS[0], Timestamp(27), epoch=1)
    assert both.queue.oldest() == 27
    both.moved(intent(KEYS[1], TXNS[0], 24, epoch=2))
    assert both.queue.oldest() == 24
    both.forward(TXNS[0], Timestamp(40), epoch=3)
    assert both.queue.oldest() == 40, "it goes on elsewhere: what is left here is of epochs that are over"


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(TXNS), st.integers(1, 30)), max_size=8),
    st.lists(st.tuples(st.booleans(), st.sampled_from(TXNS), st.integers(1, 30)), max_size=30),
    st.randoms(use_true_random=False),
)
def test_references_taken_before_the_scan_brings_them(scanned, live, random) -> None:
    """Whoever knows transaction ids in the stream may take a reference away first; at the end the counts are exact."""
    both = Both()
    held: dict[bytes, int] = {}
    for txn, _ in scanned:
        held[txn] = held.get(txn, 0) + 1
    arrivals = [("scan", txn, ts) for txn, ts in scanned]
    stream = []
    for writes, txn, ts in live:
        if writes:
            held[txn] = held.get(txn, 0) + 1
            stream.append(("write", txn, ts))
        elif held.get(txn, 0):
            held[txn] -= 1
            stream.append(("gone", txn, ts))
    while arrivals or stream:
        source = arrivals if arrivals and (not stream or random.random() < 0.4) else stream
        what, txn, ts = source.pop(0)
        if what == "gone":
            both.gone(txn)
        else:
            both.written(intent(b"k", txn, ts))
    both.finish_scan()
    for txn in TXNS:
        assert both.queue.references(txn) == held.get(txn, 0)
    assert (both.queue.oldest() is None) == (not any(held.values()))


def test_a_reference_too_many_is_a_bug_once_the_scan_is_done() -> None:
    queue = UnresolvedQueue()
    queue.gone(TXNS[0])
    with pytest.raises(InvariantViolation, match="A-feed-references"):
        queue.finish_scan()
    queue = UnresolvedQueue()
    queue.finish_scan()
    with pytest.raises(InvariantViolation, match="A-feed-references"):
        queue.gone(TXNS[0])


def test_the_oldest_are_pushed_first_and_the_dead_not_at_all() -> None:
    queue = UnresolvedQueue()
    second = 1_000_000 << 10
    for at, txn in enumerate(TXNS):
        queue.written(intent(KEYS[at], txn, (10 - at) * second))
    queue.finish_scan()
    found = queue.to_push(now=Timestamp(20 * second), older_than_s=11)
    assert [i.txn_id for i in found] == [TXNS[3], TXNS[2], TXNS[1]]
    assert len(queue.to_push(now=Timestamp(20 * second), older_than_s=1, limit=2)) == 2
    queue.abort(TXNS[3])
    assert queue.to_push(now=Timestamp(20 * second), older_than_s=11)[0].txn_id == TXNS[2]
    assert queue.oldest() == 8 * second


def test_a_lock_is_read_without_its_value() -> None:
    assert lock_of(b"k", stored(TXNS[0], 7)) == intent(b"k", TXNS[0], 7)
