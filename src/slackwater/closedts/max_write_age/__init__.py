"""The max-write-age scheme (2017, seed 001): a write may not be older than the newest one by more than `max_write_age`.

    leaseholder   remembers the highest write it has proposed (max_proposed); nothing is proposed at or below
                  max_proposed − max_write_age, and every command carries that bound
    follower      serves what lies at or below the highest bound it has applied: max_write_timestamp − max_write_age
    idle range    an empty command every `closed_timestamp.empty_command_interval`, or followers would stand still
    delayed       an entry that is under way for longer than the age is pushed out: an empty command takes a higher index, so
                  that it can no longer apply, wherever it turns up
    new lease     starts at the start of the lease; the former one could write nothing after its own end

Nothing travels but commands, so there are no heartbeats, no epochs and no indexes to compare. The price is one log entry per
range and interval, for ever, read or not: it keeps every range awake (docs/closed_timestamp_schemes.md).

The age is the zone's own lag (`slackwater zone set … --duration-ms`), or `closed_timestamp.max_write_age`. It is applied by
the leaseholder and carried as a timestamp: followers that took the age from their own settings would serve too much while
a setting changes. Walk-through: `tests/scripts/closedts/max_write_age_seed_001.txt`.

    ages       max_proposed per range, and the bound that follows
    driver     the loop that proposes empty commands
"""
