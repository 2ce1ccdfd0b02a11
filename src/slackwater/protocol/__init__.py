"""Every message that crosses a wire or the log, by partner. Pure: message types and the table of methods, no behavior.

    client     what an application asks any node: tables, rows, transactions, snapshots, changes, staged writes
    range      what is asked of a range: batches of requests, bulk reads, and how a read was served
    node       what nodes ask each other besides batches
    feeds      range feeds between nodes
    closedts   the side transport's updates
    log        what stands in a range's log

Messages are frozen `msgspec` structs. A field is only ever added, at the end and with a default, so that an older process
reads what a newer one wrote; what cannot be added that way needs a new protocol version.
"""
