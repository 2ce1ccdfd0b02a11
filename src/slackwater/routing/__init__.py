"""From keys to the replica that can answer.

A caller has requests that name keys. This folder finds the ranges that hold those keys, divides the requests among
them, sends each share to a replica that may answer, and puts the results together again as if there were one range.

    requests ──► split.divide ──► one share per range ──► Route: which replica next ──► Transport ──► replica
                     ▲                                        ▲        │
                     │ descriptors                            │ hints  │ NotLeaseholder, RangeMismatch, lost
                 RangeCache ◄── meta lookup on range 1 ◄──────┴────────┘

Everything known here is a *guess*: the cache may be old, the lease may have moved, the index of ranges may lag behind a
split. A wrong guess costs one round trip, never a wrong answer, because the replica checks every claim (range, bounds,
generation, lease) and its refusal carries what it knows better.

What may be tried again
    A refusal (NotLeaseholder, RangeMismatch, Overloaded, Unavailable) says that nothing happened: try on, in rounds
    with growing, jittered pauses, up to `routing.retries_max` rounds and the deadline. A *lost* answer says nothing.
    Reads, pushes and resolutions are repeatable by nature and go on; a write that may have been executed becomes
    `AmbiguousResult` (pitfall 54) and only the transaction layer, which has a record to ask, can settle it. There is
    no silent retry of a write anywhere in this folder.

Rules
    - A leaseholder is learnt from a refusal's hint and from answers given under the lease; never from a follower's
      answer, which proves only that it was fresh enough (pitfall 22).
    - Only read-only requests with a timestamp chosen by the client go to followers (pitfall 20); after one refusal they
      go to the leaseholder and stay there (pitfall 21), and for one tick so does the like of them. Draining and dead nodes
      come last (pitfall 23). A plain read of the past that is older than its range's followers are behind is asked of the
      nearest replica by itself, unless its caller wants the leaseholder (`leader_only`).
    - A batch that must be atomic (writes without a transaction, EndTxn with company) is refused when it does not fit
      one range. It is never divided behind its owner's back.
    - A batch with a row limit visits ranges one after the other, in the direction of the scan; without, all at once, up
      to `routing.fanout`.

Files. Pure: `range_cache`, `split` with `merge`, `choose` with `nodes`, `route`, `refusals`, `outcome` (what an error
means), `facts` (what it carries). Awaiting: `directory` (lookups), `call` (one batch's bounds), `parallel`, `sender`,
`transport`. Golden scripts: `tests/scripts/routing/`; against real nodes: `tests/sim/test_routing.py`.
"""

from slackwater.routing.range_cache import RangeCache
from slackwater.routing.sender import RangeSender
from slackwater.routing.transport import KV_BATCH, LocalTransport, RpcTransport, Transport

__all__ = ["KV_BATCH", "LocalTransport", "RangeCache", "RangeSender", "RpcTransport", "Transport"]
