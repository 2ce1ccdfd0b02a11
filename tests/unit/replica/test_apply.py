"""The acceptance rule and what applying does to the replicated state."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import InvariantViolation
from slackwater.model.descriptors import Lease, RangeDescriptor
from slackwater.protocol.log.commands import (
    NO_LAI,
    AdoptTrigger,
    Command,
    DescriptorTrigger,
    FreezeTrigger,
    LeaseExtension,
    LeaseTrigger,
    MergeTrigger,
    Packet,
    SplitTrigger,
    ThawTrigger,
    decode_packet,
    encode_packet,
)
from slackwater.protocol.range.requests import SubsumeResult
from slackwater.replica.apply import Absorbed, ApplyVerdict, Created, LeaseChanged, apply_packet, verdict
from slackwater.replica.state import RangeState, decode_state, encode_state, state_key
from slackwater.runtime.seam import Family
from slackwater.sim import mutants
from slackwater.storage.batch import WriteBatch

DESCRIPTOR = RangeDescriptor(7, b"a", b"z", (1, 2, 3), 4)
LEASE = Lease(1, 5, Timestamp(100), epoch=2)
STATE = RangeState(DESCRIPTOR, lease=LEASE, lai=10, position=20, closed=Timestamp(150))


def command(**changes: object) -> Command:
    fields: dict[str, object] = {
        "command_id": b"c" * 12,
        "lease_sequence": 5,
        "lai": 11,
        "closed": Timestamp(160),
        "min_write_ts": Timestamp(155),
    }
    return Command(**(fields | changes))  # type: ignore[arg-type]


def effects(**pairs: bytes) -> bytes:
    batch = WriteBatch()
    for key, value in pairs.items():
        batch.put(Family.DATA, key.encode(), value)
    return batch.encode()


def one(state: RangeState, *commands: Command, position: int = 21):
    return apply_packet(state, position, Packet(7, list(commands)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ApplyVerdict.ACCEPTED),
        ({"lease_sequence": 4}, ApplyVerdict.WRONG_LEASE),
        ({"lease_sequence": 6}, ApplyVerdict.WRONG_LEASE),
        ({"lai": 10}, ApplyVerdict.STALE_INDEX),
        ({"lai": 500}, ApplyVerdict.ACCEPTED),
        ({"min_write_ts": Timestamp(150)}, ApplyVerdict.BELOW_CLOSED),
        ({"min_write_ts": Timestamp(151)}, ApplyVerdict.ACCEPTED),
        ({"min_write_ts": MIN}, ApplyVerdict.ACCEPTED),
        ({"generation": 3}, ApplyVerdict.STALE_GENERATION),
        ({"generation": 4}, ApplyVerdict.ACCEPTED),
        ({"lai": NO_LAI}, ApplyVerdict.BAD_LEASE),
    ],
)
def test_verdict(changes: dict[str, object], expected: ApplyVerdict) -> None:
    assert verdict(STATE, command(**changes)) is expected


def test_a_rejected_command_leaves_nothing_but_the_position() -> None:
    applied = one(STATE, command(lai=10, effects=effects(k=b"v"), closed=Timestamp(999)))
    assert applied.state == msgspec.structs.replace(STATE, position=21)
    assert [dict(w) for w in applied.batch.writes[:2]] == [{}, {}]


def test_effects_and_state_are_in_one_batch() -> None:
    applied = one(STATE, command(effects=effects(k=b"v"), stats=(1, 2)))
    assert applied.batch.writes[Family.DATA] == {b"k": b"v"}
    stored = applied.batch.writes[Family.LOCAL][state_key(7)]
    assert stored is not None
    assert decode_state(stored) == applied.state
    assert (applied.state.lai, applied.state.closed, applied.state.stats) == (11, 160, (1, 2))


def test_a_duplicate_applies_once() -> None:
    first = command(effects=effects(k=b"v"), stats=(1,))
    applied = one(STATE, first, first)
    assert [o.verdict for o in applied.outcomes] == [ApplyVerdict.ACCEPTED, ApplyVerdict.STALE_INDEX]
    assert applied.state.stats == (1,)


def test_positions_and_ranges_must_fit() -> None:
    with pytest.raises(InvariantViolation, match="I-04"):
        one(STATE, command(), position=20)
    with pytest.raises(InvariantViolation, match="I-04"):
        apply_packet(STATE, 21, Packet(8, [command()]))


def test_a_lease_request_replaces_exactly_the_lease_it_names() -> None:
    new = Lease(2, 6, Timestamp(200), epoch=1)
    request = command(lai=NO_LAI, min_write_ts=MIN, closed=MIN, trigger=LeaseTrigger(new))
    applied = one(STATE, request, request)
    assert [o.verdict for o in applied.outcomes] == [ApplyVerdict.ACCEPTED, ApplyVerdict.WRONG_LEASE]
    assert applied.state.lease == new
    assert applied.state.closed == 200, "the start of a lease acts as closed"
    assert applied.aftermath == [LeaseChanged(5, 6)]


@pytest.mark.parametrize(
    "lease",
    [
        Lease(9, 6, Timestamp(200), epoch=1),  # no replica there
        Lease(2, 7, Timestamp(200), epoch=1),  # skips a sequence
    ],
)
def test_bad_lease_requests(lease: Lease) -> None:
    assert verdict(STATE, command(lai=NO_LAI, min_write_ts=MIN, trigger=LeaseTrigger(lease))) is ApplyVerdict.BAD_LEASE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ApplyVerdict.ACCEPTED),
        ({"trigger": AdoptTrigger(STATE.descriptor.replicas[0])}, ApplyVerdict.BAD_ADOPTION),
        ({"effects": effects(k=b"v")}, ApplyVerdict.BAD_ADOPTION),
        ({"closed": Timestamp(160)}, ApplyVerdict.BAD_ADOPTION),
        ({"lai": 11}, ApplyVerdict.BAD_ADOPTION),
        ({"generation": 3}, ApplyVerdict.STALE_GENERATION),
        ({"generation": 0}, ApplyVerdict.STALE_GENERATION),
        ({"lease_sequence": 4}, ApplyVerdict.WRONG_LEASE),
    ],
)
def test_an_adoption_adds_a_replica_and_nothing_else(changes: dict[str, object], expected: ApplyVerdict) -> None:
    whole = {"lai": NO_LAI, "closed": MIN, "min_write_ts": MIN, "generation": 4, "trigger": AdoptTrigger(9), **changes}
    adoption = command(**whole)
    applied = one(STATE, adoption, adoption)
    assert applied.outcomes[0].verdict is expected
    assert applied.outcomes[1].verdict is not ApplyVerdict.ACCEPTED, "once"
    before, after = STATE.descriptor, applied.state.descriptor
    if expected is ApplyVerdict.ACCEPTED:
        assert (after.replicas, after.generation) == ((*before.replicas, 9), 5)
        after = msgspec.structs.replace(after, replicas=before.replicas, generation=before.generation)
    assert msgspec.structs.replace(applied.state, descriptor=after, position=STATE.position) == STATE


def test_a_frozen_range_is_not_adopted() -> None:
    frozen = msgspec.structs.replace(STATE, frozen=FreezeTrigger(6, 3))
    adoption = command(lai=NO_LAI, closed=MIN, min_write_ts=MIN, generation=4, trigger=AdoptTrigger(9))
    assert verdict(frozen, adoption) is ApplyVerdict.FROZEN


def test_an_expiration_lease_cannot_be_taken_before_its_end() -> None:
    held = msgspec.structs.replace(STATE, lease=Lease(1, 5, Timestamp(100), expiration=Timestamp(300)))
    early = command(
        lai=NO_LAI, min_write_ts=MIN, trigger=LeaseTrigger(Lease(2, 6, Timestamp(300), expiration=Timestamp(500)))
    )
    late = command(
        lai=NO_LAI, min_write_ts=MIN, trigger=LeaseTrigger(Lease(2, 6, Timestamp(301), expiration=Timestamp(500)))
    )
    assert verdict(held, early) is ApplyVerdict.BAD_LEASE
    assert verdict(held, late) is ApplyVerdict.ACCEPTED


def test_a_lease_asked_for_anew_ends_no_sooner_than_an_extension_that_overtook_it() -> None:
    """Found by `slackwater sim --scenario frontier --seed 33`: the holder went on under the extension it had applied."""
    held = msgspec.structs.replace(STATE, lease=Lease(1, 5, Timestamp(100), expiration=Timestamp(300)))
    extension = command(min_write_ts=MIN, trigger=LeaseExtension(Timestamp(600)))
    asked = LeaseTrigger(Lease(1, 6, Timestamp(290), expiration=Timestamp(490)))
    anew = one(held, extension, command(lai=NO_LAI, min_write_ts=MIN, closed=MIN, trigger=asked))
    assert (anew.state.lease.sequence, anew.state.lease.expiration) == (6, 600)
    given_up = command(
        lai=12, min_write_ts=MIN, trigger=LeaseTrigger(Lease(1, 6, Timestamp(290), expiration=Timestamp(291)))
    )
    assert one(held, given_up).state.lease.expiration == 291, "the holder itself ends it, in the order of its commands"


def test_extensions_never_shorten_a_lease() -> None:
    held = msgspec.structs.replace(STATE, lease=Lease(1, 5, Timestamp(100), expiration=Timestamp(300)))
    longer = one(held, command(min_write_ts=MIN, trigger=LeaseExtension(Timestamp(400))))
    assert longer.state.lease.expiration == 400
    with pytest.raises(InvariantViolation, match="I-07"):
        one(held, command(min_write_ts=MIN, trigger=LeaseExtension(Timestamp(200))))


def test_the_right_side_of_a_split_inherits_the_commands_closed_timestamp() -> None:
    left = RangeDescriptor(7, b"a", b"m", (1, 2, 3), 5)
    right = RangeDescriptor(8, b"m", b"z", (1, 2, 3), 5)
    state = msgspec.structs.replace(STATE, stats=(10, 100))
    applied = one(state, command(min_write_ts=MIN, generation=4, trigger=SplitTrigger(left, right, (4, 40))))
    (created,) = applied.aftermath
    assert isinstance(created, Created)
    assert created.state.closed == 160
    assert (created.state.lai, created.state.position) == (0, 0)
    assert created.state.lease == LEASE
    assert (created.state.stats, applied.state.stats) == ((4, 40), (6, 60))
    assert applied.batch.writes[Family.LOCAL][state_key(8)] == encode_state(created.state)


FROZEN = msgspec.structs.replace(STATE, frozen=FreezeTrigger(3, 9))


def test_a_frozen_range_applies_nothing_and_closes_nothing() -> None:
    assert verdict(FROZEN, command()) is ApplyVerdict.FROZEN
    new = Lease(2, 6, Timestamp(900), epoch=1)
    applied = one(FROZEN, command(lai=NO_LAI, min_write_ts=MIN, closed=MIN, trigger=LeaseTrigger(new)))
    assert applied.state.lease == new, "somebody must be able to thaw it"
    assert applied.state.closed == STATE.closed, "pitfall 4: not even a lease closes a frozen range"
    thawed = one(FROZEN, command(min_write_ts=MIN, trigger=ThawTrigger(), closed=Timestamp(777)))
    assert thawed.state.frozen is None
    assert thawed.state.closed == STATE.closed


def test_a_planted_bug_lets_a_lease_close_a_frozen_range() -> None:
    with mutants.applied(["M01"]):
        new = Lease(2, 6, Timestamp(900), epoch=1)
        applied = one(FROZEN, command(lai=NO_LAI, min_write_ts=MIN, closed=MIN, trigger=LeaseTrigger(new)))
    assert applied.state.closed == 900


def test_a_merge_turns_the_right_sides_closed_into_a_read_floor() -> None:
    right = RangeDescriptor(8, b"z", b"zz", (1, 2, 3), 2)
    merged = RangeDescriptor(7, b"a", b"zz", (1, 2, 3), 5)
    frozen = SubsumeResult(33, 3, Timestamp(500), Timestamp(450), 4, Timestamp(20), Timestamp(30), (1, 1))
    state = msgspec.structs.replace(STATE, stats=(1, 1))
    applied = one(state, command(min_write_ts=MIN, generation=4, trigger=MergeTrigger(merged, right, frozen)))
    assert applied.state.descriptor == merged
    assert applied.state.closed == 160
    assert applied.state.read_floor == 500
    assert (applied.state.gc_threshold, applied.state.txn_floor, applied.state.stats) == (20, 30, (2, 2))
    assert applied.aftermath == [Absorbed(right, frozen.position)]
    assert applied.batch.writes[Family.LOCAL][state_key(8)] is None


def test_a_merge_proposed_under_an_older_generation_is_dead() -> None:
    raised = msgspec.structs.replace(DESCRIPTOR, generation=5)
    right = RangeDescriptor(8, b"z", b"zz", (1, 2, 3), 2)
    frozen = SubsumeResult(33, 3, MIN, MIN, 4, MIN, MIN, ())
    merge = command(lai=12, min_write_ts=MIN, generation=4, trigger=MergeTrigger(raised, right, frozen))
    applied = one(STATE, command(min_write_ts=MIN, trigger=DescriptorTrigger(raised), generation=4), merge)
    assert [o.verdict for o in applied.outcomes] == [ApplyVerdict.ACCEPTED, ApplyVerdict.STALE_GENERATION]


@given(
    st.lists(
        st.tuples(st.integers(4, 6), st.integers(9, 16), st.integers(140, 180), st.integers(0, 180)),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_the_log_holds_closed_and_index_never_regress_and_writes_stay_above(rows) -> None:
    state = STATE
    for position, (sequence, lai, closed, write) in enumerate(rows, start=21):
        before = state
        applied = one(
            state,
            command(lease_sequence=sequence, lai=lai, closed=Timestamp(closed), min_write_ts=Timestamp(write)),
            position=position,
        )
        state = applied.state
        assert state.closed >= before.closed
        assert state.lai >= before.lai
        if applied.outcomes[0].verdict is ApplyVerdict.ACCEPTED and write:
            assert write > before.closed


def test_packets_round_trip_and_damage_is_noticed() -> None:
    from slackwater.errors import DecodeError

    packet = Packet(7, [command(trigger=LeaseTrigger(LEASE)), command(trigger=ThawTrigger(), effects=b"x")])
    payload = encode_packet(packet)
    assert decode_packet(payload) == packet
    for at in range(0, len(payload), 3):
        damaged = bytearray(payload)
        damaged[at] ^= 0x40
        with pytest.raises(DecodeError):
            decode_packet(bytes(damaged))
    with pytest.raises(DecodeError):
        decode_packet(b"abc")


def test_nothing_is_applied_under_another_lease_even_if_the_rule_were_wrong() -> None:
    """The acceptance rule decides; an assertion beside it stops the replica should it ever decide wrongly (I-08)."""
    late = command(lease_sequence=4)
    assert one(STATE, late).outcomes[0].verdict is ApplyVerdict.WRONG_LEASE
    with mutants.applied(["X-LATE-APPEND"]):
        with pytest.raises(InvariantViolation, match="I-08"):
            one(STATE, late)
        assert one(STATE, command(lease_sequence=4, lai=10)).outcomes[0].verdict is ApplyVerdict.WRONG_LEASE
