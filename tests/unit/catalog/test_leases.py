"""The leases of one node: who uses them, until when, and when they may go."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.catalog.leases import LeaseBook, abandoned_after
from slackwater.clock.timestamp import Timestamp, add_seconds, from_us
from slackwater.errors import InvariantViolation
from slackwater.model.descriptors import Epoch, Liveness
from slackwater.model.ids import NodeId
from slackwater.model.kinds import INT
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.tables import TableDescriptor

T0 = from_us(1_000_000_000)


def at(seconds: float) -> Timestamp:
    return add_seconds(T0, seconds)


def table(version: int, *, table_id: int = 100) -> TableDescriptor:
    schema = TableSchema(table_id, "t", version, (Column(1, "id", INT, nullable=False),), (KeyColumn(1),))
    return TableDescriptor(schema, at(version), next_column_id=2)


def record(epoch: int, expiration: float, *, lease_s: float = 5.0) -> Liveness:
    return Liveness(NodeId(1), Epoch(epoch), at(expiration), lease_ms=int(lease_s * 1000))


def book(epoch: int = 1, expiration: float = 10) -> LeaseBook:
    made = LeaseBook()
    made.renewed(record(epoch, expiration))
    return made


def test_a_frontier_is_the_end_of_the_record_plus_the_duration_and_never_moves_back() -> None:
    leases = book()
    lease = leases.add(table(1), leases.term, since=T0)
    assert lease.deadline == at(15)
    leases.renewed(record(1, 12))
    assert lease.deadline == at(17)
    leases.renewed(record(1, 11, lease_s=1))
    assert lease.deadline == at(17)


def test_the_frontier_of_an_epoch_that_has_ended_stays_where_it_was() -> None:
    leases = book()
    lease = leases.add(table(1), leases.term, since=T0)
    leases.renewed(record(2, 100))
    leases.renewed(record(1, 50))  # late news of the epoch that has ended
    assert lease.deadline == at(15)
    assert leases.usable(100) is None, "new writes need a lease of the present epoch"
    again = leases.add(table(1), leases.term, since=at(20))
    assert again is lease
    assert lease.deadline == at(105), (
        "its users go on: it could not have been acquired had the version been replaced twice"
    )


def test_new_writes_take_the_newest_version_and_old_ones_keep_theirs() -> None:
    leases = book()
    old = leases.add(table(1), leases.term, since=T0).take()
    new = leases.add(table(2), leases.term, since=T0)
    assert leases.usable(100) is new
    assert not leases.retire(old, now=at(1)), "it is in use"
    old.give_back()
    assert leases.retire(old, now=at(1))
    assert [lease.version for lease in leases.held()] == [2]
    late = leases.add(table(1), leases.term, since=T0)  # an acquisition that was overtaken
    assert leases.usable(100) is new
    assert leases.retire(late, now=at(1))


def test_a_write_of_unknown_outcome_keeps_the_lease_until_its_deadline_has_passed() -> None:
    leases = book()
    lease = leases.add(table(1), leases.term, since=T0).take()
    lease.give_back_after(lease.deadline)
    assert not leases.retire(lease, now=at(15))
    assert leases.retire(lease, now=Timestamp(at(15) + 1))


def test_a_lease_is_idle_after_a_while_without_users() -> None:
    leases = book()
    lease = leases.add(table(1), leases.term, since=T0).take()
    leases.tick()
    assert not lease.idle
    leases.tick()
    assert not lease.idle, "it is still in use"
    lease.give_back()
    leases.tick()
    assert lease.idle
    lease.take().give_back()
    leases.tick()
    assert not lease.idle


def test_a_lease_does_not_go_back_to_an_earlier_epoch() -> None:
    leases = book()
    first = leases.term
    leases.renewed(record(2, 100))
    leases.add(table(1), leases.term, since=T0)
    with pytest.raises(InvariantViolation, match="I-29"):
        leases.add(table(1), first, since=T0)


def test_abandoned_leases_wait_for_what_was_promised() -> None:
    ended = record(1, 10).next_epoch()
    assert (ended.epoch, ended.relied_upto) == (2, at(15))
    assert abandoned_after(ended, abandoned_s=5) == at(15)
    assert abandoned_after(ended, abandoned_s=9) == at(19)
    early = msgspec.structs.replace(ended, expiration=at(3))
    assert abandoned_after(early, abandoned_s=5) == at(15), "it ended its epoch before its time"
