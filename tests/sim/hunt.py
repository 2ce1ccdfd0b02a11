"""The hunt for a planted bug in a test: seeds in order from the one that kills it today, until one does.

Which seed kills a bug changes with everything that draws: a test that names a seed and tries no other fails when the code
around the bug moves, and says nothing of the oracle. So the seed that is named is where the hunt begins.
"""

from __future__ import annotations

import pytest

from slackwater.sim.run import DEFAULT_DURATION_S, SimJob, run_job
from slackwater.sim.scenario import find_planted

SEEDS_MAX = 40


def hunt(name: str, *, first: int = 0, duration_s: float = DEFAULT_DURATION_S) -> None:
    """Fail unless a seed from `first` on kills the bug, and the first that does so by an oracle that is named for it."""
    bug = find_planted(name)
    for seed in range(first, first + SEEDS_MAX):
        result = run_job(SimJob(seed=seed, play=bug.play, planted=(name,), duration_s=duration_s))
        if not result.passed:
            assert result.oracle in bug.expected, f"seed {seed}: {result.oracle} {result.summary}"
            return
    pytest.fail(f"{name} survived seeds {first} to {first + SEEDS_MAX - 1}")
