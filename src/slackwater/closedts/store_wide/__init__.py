"""The store-wide scheme (2018, seed 002): one closed timestamp for all ranges that a store leads, told in heartbeats.

    leaseholder   every command of every range counts for the store's minimum proposal timestamp while it is evaluated and
                  given its index (`mpt`), and writes above `cur`
    heartbeat     { closed timestamp, epoch, number, ranges that were active: minimum lease applied index, quiesced }

        n1 #7  closed 120  r1 @ 5                      r1 was active: followers may serve up to 120 once they applied 5
        n1 #8  closed 130  r1 @ 6 quiesced             r1 has gone quiet: what heartbeats close from now on holds for it, too
        n1 #9  closed 140                              r1 is closed up to 140, for the price of nothing
        n1 #10 closed 150  r1 @ 7                      r1 was written to; it is named before anything of it can be proposed

    follower      three steps for a read (`receiver`): confirmed, told with an index, quiesced under a live lease

What it costs, and why the log-driven scheme took its place (docs/closed_timestamp_schemes.md): one slow command holds back every
range of its store; a lost heartbeat opens every quiet range again; a follower must know leases and liveness; every range
closes by the same lag; and nothing of it is in the applied state, so a new leaseholder or a restarted follower starts anew.

    mpt        `last` and `cur` with their counts
    sender     which ranges a heartbeat names; missed ones merged into the next
    receiver   what followers make of it
    driver     the loop and the streams; leaseholders are woken for followers that know too little

Departures from the document: heartbeats have a stream of their own instead of riding on Raft's (its own open question); a
replica that lags keeps several promises that wait for their index, not one; missed heartbeats are merged.
Walk-throughs: `tests/scripts/closedts/store_wide_*.txt`, one for each row of the document's table of state transitions. Every
order of a few operations: `tests/unit/closedts/test_exhaustive.py`; under load and all faults: `tests/sim/test_schemes.py`.
"""
