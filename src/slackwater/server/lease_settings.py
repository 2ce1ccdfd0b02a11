"""How long leases on descriptors count: two settings, and the order in which they may change.

    catalog.lease.duration             a node writes by a lease until the end of its liveness record plus this
    catalog.lease.abandoned_duration   other nodes delete the lease of an ended epoch after the end of its record plus this

The second is never less than the first, on any node at any time, or a lease would be deleted that its node still relies on.
Deleting reads the second inside its transaction, so a change of it counts for everything deleted after it. A node that relies on
a lease says for how long in its liveness record (`Liveness.lease_ms`), so it is known when the last node has heard of a change.

    to raise both      abandoned_duration first, then duration
    to lower both      duration first; then, once no node's record says more, abandoned_duration

`change_in_order` is the only way to change either on a running cluster; it refuses every other order and says what to do first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import seconds_between
from slackwater.errors import UsageError
from slackwater.server.cluster_settings import put_setting, setting_in
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.descriptors import Liveness
    from slackwater.txn import Transaction

DURATION = "catalog.lease.duration"
ABANDONED = "catalog.lease.abandoned_duration"


def lease_s(settings: Settings) -> float:
    """How long after its liveness record has expired this node goes on writing by its leases."""
    return min(settings[DURATION], settings[ABANDONED])


async def abandoned_s(txn: Transaction, *, started_with: Callable[[str], float]) -> float:
    """How long after the end of an epoch its leases are deleted, as the transaction sees it."""
    found = await setting_in(txn, ABANDONED)
    return started_with(ABANDONED) if found is None else found


async def change_in_order(
    txn: Transaction,
    name: str,
    value: float | None,
    *,
    started_with: Callable[[str], float],
    records: Iterable[Liveness],
    now: Timestamp,
) -> None:
    """Set one of the two for the whole cluster, or unset it (None); `UsageError` if the other one has to change first.

    `records` are the liveness records of all nodes, which say how long each of them still relies on its leases.
    """
    if value is not None:
        Settings().set(name, value)  # refuses unsafe values
    wanted = started_with(name) if value is None else value
    other = ABANDONED if name == DURATION else DURATION
    found = await setting_in(txn, other)
    present = started_with(other) if found is None else found
    if name == DURATION:
        check_duration(wanted, abandoned_s=present)
    else:
        check_abandoned(wanted, duration_s=present, records=records, now=now)
    await put_setting(txn, name, value)


def check_duration(wanted_s: float, *, abandoned_s: float) -> None:
    """Refuse a `catalog.lease.duration` beyond the time after which leases are deleted."""
    if wanted_s > abandoned_s:
        raise UsageError(
            f"{DURATION} cannot be {wanted_s:g} s while {ABANDONED} is {abandoned_s:g} s: leases would be deleted that their"
            f" nodes still write by; set {ABANDONED} to {wanted_s:g} or more first, then {DURATION}"
        )


def check_abandoned(wanted_s: float, *, duration_s: float, records: Iterable[Liveness], now: Timestamp) -> None:
    """Refuse a `catalog.lease.abandoned_duration` below the time for which nodes rely, or may rely, on their leases."""
    if wanted_s < duration_s:
        raise UsageError(
            f"{ABANDONED} cannot be {wanted_s:g} s while {DURATION} is {duration_s:g} s: leases would be deleted that their"
            f" nodes still write by; set {DURATION} to {wanted_s:g} or less first, then {ABANDONED}"
        )
    late = [record for record in records if record.lease_ms > wanted_s * 1000 and record.promised_upto > now]
    if late:
        nodes = ", ".join(f"n{record.node_id} ({record.lease_ms / 1000:g} s)" for record in late)
        wait_s = max(seconds_between(now, record.promised_upto) for record in late)
        raise UsageError(
            f"{ABANDONED} cannot be {wanted_s:g} s yet: some nodes still rely on their leases for longer: {nodes}; they follow"
            f" {DURATION} with their next heartbeats, so try again in {wait_s:.0f} s"
        )
