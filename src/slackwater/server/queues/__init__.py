"""Upkeep of ranges: one scheduler, one small file per concern, every decision a pure function.

scheduler.py     sweeps over the ranges of this node, a few at a time
context.py          what queues have at hand
leases.py        ranges without a lease; leases off draining nodes; even counts
frozen.py        merges whose coordinator died
index.py         the index of ranges says what the range says
replicate.py     the right number of replicas in the right places
splits.py        too large, too busy, or across a bound of the configuration
merges.py        small neighbours
trim.py          logs, up to what every replica has made durable
check.py         replicas compared with each other
columns.py       which tables get files of columns, and when
gc.py            history that nothing needs any more
txns.py          intents and records whose coordinator is gone
"""

from slackwater.server.queues.scheduler import Queues

__all__ = ["Queues"]
