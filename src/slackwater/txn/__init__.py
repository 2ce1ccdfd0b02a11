"""Serializable transactions over any number of ranges, and the small API everything above is written with.

A transaction reads at one timestamp and writes *intents*: provisional values that others can see are in the way. One
record, on the range of its first written key (the *anchor*), decides for all of them. Committing is one write to that
record; turning intents into values comes after and can be done by any node.

    Transaction                                    ranges
    ├─ get, scan     ── read_ts ────────────────►  remember the span, to refresh it
    ├─ put, delete   ── held back in a buffer
    ├─ cput, …       ── intent at write_ts ─────►  server may move write_ts up
    ├─ heartbeat     ──────────────────────────►  anchor: "the coordinator lives"
    └─ commit        ── refresh reads to write_ts, EndTxn ──► anchor: COMMITTED at write_ts
                         └─ afterwards, in the background: resolve intents, forget the locks

    nothing written          no message at all
    one range, no intents    writes and EndTxn in one batch: no intents, one log entry (one-phase commit)

Why it is serializable (I-18). All reads hold at the commit timestamp: either it is the read timestamp, or a *refresh*
proved that nothing in the spans read was written in (read_ts, commit_ts]. The server's timestamp cache keeps later
writers above what was read or refreshed; an intent keeps all others off the key. Where a refresh fails, the
transaction restarts at a new epoch: closure run again, old intents void but still held as locks, so that the next
attempt meets fewer rivals. It is refreshed, not restarted, whenever its write timestamp moves: a transaction that
takes longer than the closed timestamp lags behind is moved up at every write and still commits (pitfall 14).

Which transaction waits (`pushing.py`). Wound-wait by age: the older transaction pushes the younger out of its way, the
younger waits for the older to end; even the older one first gives a short transaction time to end by itself. Age is
the first start, kept over restarts and even over an abort, so each becomes the oldest in the end: no deadlock,
no starvation.

What is uncertain (I-20). A read at "now" that meets a value up to `clock.max_offset` above its timestamp cannot tell
whether it came first; it moves its read timestamp above the value by a refresh. An EndTxn without an answer is
settled by the record: the coordinator pushes itself by force, after which it is COMMITTED or can never be. Only when
the record cannot be reached does the caller see `AmbiguousResult`. A *write* without an answer is never sent again in
the same epoch: a late copy could arrive after the commit. The epoch goes up, and the copy is void.

Files. Pure: `state`, `spanbook`, `buffer`, `reads`, `pushing`, `check`. Awaiting: `coordinator` with `operations`,
`heartbeat`, `refresh`, `contention`, `finish`, `resolving`, `settle`, and `kv` with `at_once`; `context` is what they share.
Built on it: `staleness` (which timestamp to read at), `system_rows` (rows of the system's tables). Golden scripts:
`tests/scripts/txn/`; against a real node in virtual time: `tests/sim/test_txn.py`, `test_txn_faults.py`.
"""

from slackwater.txn.coordinator import Transaction
from slackwater.txn.kv import KV

__all__ = ["KV", "Transaction"]
