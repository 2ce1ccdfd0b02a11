"""Upkeep of ranges: one scheduler, one small file per concern, every decision a pure function.

A sweep looks at each range with one concern after the other:

    scheduler    sweeps over the ranges of this node, a few at a time
    context      what queues have at hand
    leases       ranges without a lease; leases off draining nodes; even counts
    lost         ranges without a replica on any node that is there: made again from the log
    frozen       merges whose coordinator died
    index        the index of ranges says what the range says
    replicate    the right number of replicas in the right places
    splits       too large, too busy, or across a bound of the configuration
    merges       small neighbors
    trim         logs, up to what every replica has made durable
    check        replicas compared with each other
    columns      which tables get files of columns, and when
    gc           history that nothing needs any more
    txns         intents and records whose coordinator is gone
"""

from slackwater.server.queues.scheduler import Queues

__all__ = ["Queues"]
