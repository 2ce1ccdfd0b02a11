"""The oracles of the cluster scenario: watchers with global knowledge, and judges of the recorded history.

witness.py       passes on what every replica of every node applies and serves
replication.py   I-04 I-05 I-06 I-08                one log, one order, one state
closing.py       I-09 I-10 I-11 I-12                what is closed stays closed
following.py     I-14 I-15 I-16 I-17                reads of the past on any replica
leases.py        I-01 I-07                          which node serves when, in true time
versions.py      I-02, and V for the others         what is closed does not change
history.py       I-03 I-15 I-18 I-19 I-20           what clients were told
stopping.py      I-31                               graceful stops
jobs.py          I-36                               durable jobs, by all versions of their rows and effects
settled.py       I-21 I-31                          what must be gone and equal in the end
"""
