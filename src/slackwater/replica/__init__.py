"""One replica of one range: a pure state machine over an ordered log.

The leaseholder's replica decides, every replica applies. A request passes these rooms in order, and only the last two
touch the store:

    latches     which request may decide on keys             short, in memory, first come first served
    tscache     how high must a write go                    the largest timestamp each key was read at
    evaluate    what would it do                            effects, not side effects
    propose     its place in the log, what it closes        one step, no await
    apply       the one rule that accepts or rejects it     the same on every replica

Latches and the timestamp cache exist on the leaseholder only and are lost with it. Latches may be: the requests that held them
has no answer yet. Reads that were answered may not be forgotten: the cache's summary travels with a lease transfer or a
merge, and without a summary a new leaseholder assumes that everything was read up to the start of its lease.

Everything here is pure except a file named `driver.py`: events in, effects out, no clock and no I/O. Each clever
structure has a naive twin in `tests/twins` that the tests hold it against.
"""
