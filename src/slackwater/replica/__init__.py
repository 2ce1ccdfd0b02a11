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

Everything here is pure except the folder `driver`, which awaits, sleeps and writes: events in, effects out, no clock and no
I/O. Each clever structure has a naive twin in `tests/twins` that the tests hold it against.

    before evaluation   admission (what is refused), declare (what a batch touches), latches, tscache on spanmap, read_summary
    evaluation          evaluate dispatches to evaluate_data, _txn, _range, _gc and _bulk, which share evaluation; records (of
                        transactions), fates (outcomes a read may rely on), bulk_arrow (columns, off the loop)
    the range itself    state, lease, propose, apply, closing, load, snapshot (a range as a stream), rebuild (a store without its
                        damage), allocator (which nodes should hold a range)
"""
