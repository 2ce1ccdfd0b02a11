"""Closed timestamps: the time at and below which nothing in a range will ever move again.

A range *closes* a timestamp by promising that no write at or below it will ever apply again. From then on every
replica that has applied the promise may serve reads at that timestamp, with no lease and no message.

    evaluating writes          policy               lease
          │                      │                    │
       Tracker                target(now)         expiration − gap
          │ lower_bound() − 1    │                    │
          └──────────────┬───────┴────────────────────┘
                         ▼  min, then never back
                      assigned ──► busy range: carried by the command that takes the next lease applied index
                               ──► idle range: Sender ── one small update per tick and node ──► Receiver
                                                                                                   │ closed_for(range, applied)
    follower read ──► gate ──► serve, or WaitQueue ◄───────── max(applied closed, that) ◄──────────┘

The pieces are kept apart on purpose. A tracker only remembers which write timestamps are still in flight; it knows
nothing of closing. Which range closes, and how far, is decided by the proposal buffer (active ranges) and the
side transport (idle ones).

    policy           how far a range wants to close: lag, lead, off
    activation       which ranges close at all: all, those a zone names, those that are asked for
    tracker          what is being evaluated
    log_driven       commands close, and idle ranges close together: sender, receiver
    store_wide       the scheme of 2018, max_write_age that of 2017, each beside it
    waiting          follower reads that wait for their timestamp
    negotiate        resolved timestamps and bounded staleness
    explain          what holds a range's frontier back
    publisher        the interface by which idle ranges are closed; schemes stand beside each other behind it
    driver           the loops: ticking, streaming, waking

Rules
    I-09  Closed never moves back, not even when the lease moves.
    I-10  No command writes at or below a timestamp closed by an earlier command.
    I-11  A published closed timestamp is below every evaluating write.
    I-12  A side-transport update (ts, lai) is used for reads only once lai is applied.

Everything in this folder is pure except what is named `driver`, the folder here and a file in each scheme's: events in, answers
out, no clock and no I/O. `publisher` only declares.
Worked examples: `tests/scripts/closedts/`.
"""

from slackwater.closedts.tracker import BucketTracker, Token, Tracker

__all__ = ["BucketTracker", "Token", "Tracker"]
