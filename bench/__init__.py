"""Benchmarks: each a module with `run`, each figure a ratio to a peer in the same run. See `harness`."""
