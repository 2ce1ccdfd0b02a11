"""Columns on disk: what is closed, kept as columns, so that reading much of it costs a tenth of reading rows.

Below the closed timestamp of a range nothing changes. So a store may keep what was live at an *anchor* A there as a file of
columns, a *segment*, and answer every read at T >= A from it and from what was written in (A, T], the *delta*:

    rows      RocksDB: every version of every key            the truth; single keys, transactions, histories
    segment   live at A, sorted by key, never changes        derived: may be dropped at any moment, and is made again
    delta     stored keys of what was written since A        small; when it grows, the segment is made anew

ipc.py        messages of record batches, taken apart and put together without decompressing
segment.py    the file: batches of columns, an index with checksums and statistics
delta.py      what has changed since, and what a read at T sees of it
reading.py    a batch with its changes merged, as a plan asks for it
build.py      from rows, or from the older segment and its delta

Segments belong to a store, not to a range: they cover a span of keys of one table. Splits, merges and moves of leases leave
them as they are; a replica that is removed or replaced takes those in its span along. They are never replicated and never
the only copy of anything: a file that is damaged or missing means a slower read, never a wrong one.
"""
