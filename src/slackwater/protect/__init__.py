"""Protected timestamps: history that must not be collected, because something still needs it.

    ProtectionStore     protect(txn, ts, mode, meta_type, meta, spans | tables) -> id    protected, or `TooLate`
                        release(txn, id)                                              `NotFound` leaves the transaction usable
    ProtectionCatalog   list(txn), get_metadata(txn)                                  all, or the row that says if it changed
    ProtectionTracker   protected(span) -> (records, read_at)                         every node's copy, for garbage collection
    Protections         the same, each call in a small transaction of its own

Three tables of the system hold it: `system.protected_ts_meta` (one row: version and totals), `…_timestamps`, `…_spans`.

Why an answer is never *maybe*. A protection of `ts` reads the zones of its spans and may commit only below `ts + shortest ttl`.
Garbage collection reads the protections at a timestamp R, and goes no further than R − ttl. A protection that it did not see
commits above R, so its `ts` lies above R − ttl:

    ─────────────┬──────────────────┬──────────────┬──────────► time
             R − ttl               ts              R        commit < ts + ttl
     collected ◄─┘   never collected before R + …            not seen at R, not needed at R either

Both must mean the same ttl. A zone that is *shortened* at W counts for garbage collection only with protections that were read
after W (protections committed before W had the longer ttl). A zone that is *lengthened* remembers what the shorter ttl may have
collected (`config.zones`, "floor"), and garbage collection goes no further than the zones it has read, either. All of it is in
MVCC timestamps: it does not matter how far clocks differ. Every transaction that writes a zone reads the meta row, and every
protection writes it: the two kinds are ordered, also where their zones are not read by the same keys.

All files await, since all of it is transactions; what may be collected is decided by pure code (`model.retention`).
"""

from slackwater.protect.protections import Protections
from slackwater.protect.store import ProtectionCatalog, ProtectionStore
from slackwater.protect.tracker import ProtectionTracker

__all__ = ["ProtectionCatalog", "ProtectionStore", "ProtectionTracker", "Protections"]
