"""The log-driven scheme (2020, seed 000), the default: closed timestamps travel in the commands themselves.

    busy range   a request enters the tracker, is evaluated, gets its index and leaves; the command that takes the index carries
                 min(policy target, lowest write still inside − 1, end of the lease − gap), and never less than before
    idle range   the side transport: a range that is asked once joins its policy's group and moves with it, until touched

        n1 ── tick: groups {lag: 140}, members that changed {r7 @ index 2} ──► n2, n3     the same few bytes, idle

    follower     max(what the applied state says, a promise of the side transport whose index is applied)

Per range, nothing is shared: a slow request on one range holds back that range alone. Promises name indexes that are applied,
so a follower needs to know nothing of leases, and a closed timestamp is part of the applied state: in snapshots, on both
sides of a split, after a restart. Those are the three things that the store-wide scheme could not have.

    sender     which ranges are closed together, and what peers are told
    receiver   what followers make of it
    driver     the loop and the streams

The tracker and the proposal buffer (`replica.propose`) belong to every scheme: what a command closes is limited by them in
all. Walk-throughs: `tests/scripts/closedts/tracker_seed_000.txt`, `tests/scripts/closedts/side_transport_*.txt`.

    I-09 … I-12 hold here and under the other schemes by the same checks; I-13 says that they agree
"""
