"""Engines and multi-version storage.

One store is one ordered engine with three families; on it lies, as pure functions, everything that knows about time.

    replica/evaluate ── reads.get scan scan_versions refresh ─┐
                     ── writes.put delete conditional_put … ──┤  functions over (Reader, Batch): explicit arguments in,
                     ── intents.resolve resolve_span ─────────┤  a batch and statistics out; no state, no await
                     ── gc.collect ───────────────────────────┤
    SQL, Spark       ── arrow.scan_arrow changes.scan_changes ┘
                                    │
                        Overlay(reader, batch)      reading one's own unapplied writes
                                    │
                 Engine    ┌────────┴─────────┐
                 memory.py (simulator)   rocks.py (RocksDB)        the same contract, tested as twins (I-32)

    DATA    key ++ ~ts  ->  value | empty = tombstone      versions.py   newest first; bounds that extend keys
                                                           window.py     what is new since, among much that is not
    LOCK    key         ->  at most one intent             intents.py    own writes, conflicts, resolve, push, abort
    LOCAL   range-local state of the replica layer

Rules that hold everywhere
    A batch is atomic and plain data (`batch.py`): it travels in log entries, and every engine takes it.
    Nothing is durable before `flush`; a crash leaves a prefix of the batches, never half a one, never one family ahead.
    Reads at a timestamp see the newest version at or below it; intents in the way raise `ConflictError`.
    Writes never go below what is there: `WriteTooOld` names the version to go above.
    GC removes no version visible at any t >= threshold or at a protected instant (I-26).
    Every write returns how it changes the statistics (`stats.py`); recomputing them from scratch gives the same.

Only engines await, in `flush` and `checkpoint`.

    functions   versions, reads, writes, intents, gc, stats, window, changes, arrow
    readers     overlay (a batch on top), through (decided intents as what they became), whole (the end of a stream is proven)
    engines     memory on cow, rocks with rocks_cursor and flushed (how far a store was flushed); files beside an engine
    columns/    closed history as files of columns

Worked examples: `tests/scripts/storage`. Figures: `bench/storage.py`.
"""

from slackwater.storage.batch import WriteBatch, decode_batch
from slackwater.storage.memory import MemoryDisk, MemoryEngine
from slackwater.storage.overlay import Overlay
from slackwater.storage.stats import Stats

__all__ = ["MemoryDisk", "MemoryEngine", "Overlay", "Stats", "WriteBatch", "decode_batch"]
