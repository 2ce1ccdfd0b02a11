"""The awaiting side of a range: replicas, their store, leases, liveness. Decisions are made in the pure files above.

Store ── Replica ── Pipeline   proposals into the log, outcomes back
  │         ├────── Leasing    acquire, extend, transfer
  │         └────── Waiters    futures by what they wait for
  └── NodeLiveness             heartbeats and epochs
"""

from slackwater.replica.driver.context import (
    ApplyListener,
    ApplySubscriber,
    DetachReason,
    LivenessView,
    ReplicaContext,
    StoreHooks,
)
from slackwater.replica.driver.liveness import NodeLiveness, SystemKv
from slackwater.replica.driver.replica import Replica
from slackwater.replica.driver.store import Store

__all__ = [
    "ApplyListener",
    "ApplySubscriber",
    "DetachReason",
    "LivenessView",
    "NodeLiveness",
    "Replica",
    "ReplicaContext",
    "Store",
    "StoreHooks",
    "SystemKv",
]
