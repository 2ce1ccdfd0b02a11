"""Ordered logs: where a range's commands become durable and get their order.

A replicated state machine needs one thing from the outside: a sequence of entries that is the same for all readers and
does not forget. That is the whole contract (`log.contract.OrderedLog`, rules L-1 to L-6), small enough that several things can
fulfil it. There is no conditional append, no transaction, no consumer group and no election in it: which node may write, and
whether an entry counts, is decided by the replicas when they apply it.

                    node 1                      node 2
               append      tail            append      tail            one handle per node
                  |          ^                |          ^
                  v          |                v          |
             +------------------------------------------------+
             |  r1 r3 r1 r1 r2 r3 r1 ...      one physical log |      many ranges share it
             +------------------------------------------------+
                 MemoryLog | SqliteLog | NatsLog

    memory        one process, not durable: the reference, with faults on demand
    sqlite        one machine, several processes: a file, group commit, bells instead of polling
    nats          several machines: a JetStream stream, one subject per range, group commit in the client

How they are built, and where to read on:

    blocks        payloads that became durable together travel and rest as one block       (sqlite, nats)
    tails         one source of new entries, many tails, bounded buffers, no gaps          (sqlite, nats)
    threads       the only threads                                                         (sqlite)
    sqlite_file   the tables and the one statement that is a group commit
    sqlite_bell   how processes wake each other
    nats_publish  what each answer to an append means
    nats_reader   live and catch-up consumers, trims
    nats_checks   which server settings lose acknowledged entries, and how we can know
    nats_server   one or three servers on this machine
    identity      refusing a log that is not the one the store was built on
    urls          open_log("sqlite:///var/lib/slackwater/log.db")

An append ends in one of three ways, and callers must tell them apart (L-2): a position (it is durable and has its
place), `AppendUnknown` (it may be in the log, now or later, perhaps twice: read the log), or any other error (it never
will be).

All of them pass one conformance suite, `tests/property/test_log_conformance.py` (I-32); the contract by example is in
`tests/scripts/log`.
"""

from slackwater.log.identity import check_identity
from slackwater.log.memory import LogFault, MemoryLog
from slackwater.log.urls import open_log

__all__ = ["LogFault", "MemoryLog", "check_identity", "open_log"]
