"""Slackwater: a replicated, transactional, multi-version table store that answers questions about time.

Slack water is the moment between tides when nothing moves. A closed timestamp is exactly that: the time at and
below which nothing in a range will ever move again. Everything here is built on knowing which times are finished.

The layers, lowest first; each imports only what stands below it (checked by import-linter):

    runtime   the only door to the world: clocks, network, tasks, randomness, disk, log
    clock     64-bit timestamps and the hybrid logical clock
    model     keys, spans, rows, requests: the nouns everybody shares
    storage   engines (RocksDB and its in-memory twin) and multi-version reads and writes on them
    log       ordered logs: memory, SQLite, NATS JetStream
    closedts  which timestamps are finished
    replica   one range: evaluate, propose, apply
    routing   which replica gets a request
    txn       serializable transactions
    …         jobs, protect, feeds, catalog, sql, server, and the simulator on top
"""

__version__ = "0.1.0"
