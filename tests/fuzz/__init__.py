"""Fuzzing of a real cluster over its real protocol: `make fuzz SECONDS=60`.

    shapes    makes request bodies from the types that methods declare: valid ones, odd ones, and bytes that are neither
    siege     sends them to nodes over many connections, beside a bystander that reads and writes a table
    judge     what must hold afterwards: no traceback, memory flat, the bystander served, the cluster the same

A frame that ever crashed a handler is kept in `corpus/` and sent first by every run.
"""
