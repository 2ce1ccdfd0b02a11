"""Change feeds: every committed version once or more, in order per key, and a timestamp below which all has been said.

Feeds attach to the *apply stream* of any replica, so they need no lease and put nothing into the log. What makes them worth
having is the resolved timestamp: a consumer that has seen `Resolved(r)` holds exactly the table as of r, and can say so.

    range feed (one per range and replica, while it has consumers)
        replica applies an entry ─► effects ─► LockMap ─► UnresolvedQueue ──► ResolvedTimestamp
                                       │                                            │
                                       └───────────► Registration ◄─────────────────┘
                                 catch-up history ─────────┘ │ Changes, Resolved, Ended
                                                             ▼
    change feed (one per consumer)              Frontier over ranges ─► resolved of the whole, resume token
                                                             │
                                       model.envelope: Arrow batches, schema as of each event
                                                             │
                                              application, or files: `--into DIR`

    events         what a range says; columns, not objects
    effects        reading it off an applied batch; whose locks there are
    unresolved     transactions that may still commit here
    resolved       min(closed, oldest unresolved − 1); the barrier before an ambiguous abort is believed
    registration   one consumer: history, then live, through one bounded buffer
    rangefeed      all consumers of one range
    attached       between the apply path, which only hands over, and the range's feed
    recent, index  what was committed lately, in memory and on disk, for consumers that come back; `coverage`: how far they reach
    history        reading what a consumer has missed
    slots          whose catch-up scan runs next
    frontier       many spans, one minimum; resume tokens
    files          deterministic files for `--into DIR`
    validate       what a consumer can check of a feed, in simulation and in tests with real processes

Rules
    I-22  When a feed resolves r, what it delivered in (after, r] is exactly what was committed there.
    I-23  After r, nothing new at or below r; resolved never goes back; it is at most closed and below every unresolved intent.
    I-24  Per key, first deliveries come in timestamp order; a repeat is equal to what was delivered under its (key, ts).
    I-25  Resuming leaves no gap: `after` is exclusive on every interface, and a token resumes each span from its own place.

What these rules do not promise: order between keys, or between transactions, above the resolved timestamp. Below it a
consumer can group by commit timestamp and has whole transactions.

The feed of a range is pure: events in, effects out, no clock, no tasks. What awaits: `driver`, `links` and `pushing` beside the
replicas of a node; `session`, `client`, `initial`, `protection` and `watch` on the consumer's side.
Worked examples: `tests/scripts/feeds/`.
"""

from slackwater.feeds.frontier import Frontier, Token, decode_token, frontier_from, token_of
from slackwater.feeds.rangefeed import RangeFeed
from slackwater.feeds.slots import CatchUpSlots
from slackwater.protocol.feeds.events import ChangedValue, Changes, Ended, EndReason, Event, Resolved

__all__ = [
    "CatchUpSlots",
    "ChangedValue",
    "Changes",
    "EndReason",
    "Ended",
    "Event",
    "Frontier",
    "RangeFeed",
    "Resolved",
    "Token",
    "decode_token",
    "frontier_from",
    "token_of",
]
