"""How long leases on descriptors count: two settings, and the order in which they may change.

    catalog.lease.duration             a node writes by a lease until the end of its liveness record plus this
    catalog.lease.abandoned_duration   other nodes delete the lease of an ended epoch after the end of its record plus this

The second is never less than the first, on any node at any time, or a lease would be deleted that its node still relies on.
Deleting reads the second inside its transaction, so a change of it counts for everything deleted after it. A node that relies on
a lease says for how long in its liveness record (`Liveness.lease_ms`), so it is known when the last node has heard of a change.

    to raise both      abandoned_duration first, then duration
    to lower both      duration first; then, once no node's record says more, abandoned_duration
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.server.cluster_settings import setting_in

if TYPE_CHECKING:
    from slackwater.settings import Settings
    from slackwater.txn import Transaction

DURATION = "catalog.lease.duration"
ABANDONED = "catalog.lease.abandoned_duration"


def lease_s(settings: Settings) -> float:
    """How long after its liveness record has expired this node goes on writing by its leases."""
    return min(settings[DURATION], settings[ABANDONED])


async def abandoned_s(txn: Transaction, *, settings: Settings) -> float:
    """How long after the end of an epoch its leases are deleted, as the transaction sees it."""
    found = await setting_in(txn, ABANDONED)
    return settings[ABANDONED] if found is None else found
