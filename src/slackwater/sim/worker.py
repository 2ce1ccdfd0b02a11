"""A process that runs seeds: one JSON job per line in, one JSON result per line out.

Started by the runner with a `PYTHONHASHSEED` of its own and its heap perturbed, so that two workers that agree on a
trace hash have proved that neither hashing nor addresses leak into a run.

    python -m slackwater.sim.worker PERTURBATION
"""

from __future__ import annotations

import gc
import sys

import msgspec

from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import load


def perturb(amount: int) -> list[object]:
    """Fill part of the heap with objects of odd sizes and free every other one, to shift every later address."""
    kept = [bytearray(17 + (i * 37 + amount * 101) % 900) for i in range(97 * amount)]
    del kept[::2]
    return list(kept)


def main() -> None:
    """Serve until the input ends."""
    load()
    kept = perturb(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    gc.collect()
    gc.freeze()  # modules live as long as the process: no run's collections need to look at them again
    decode, encode = msgspec.json.Decoder(SimJob).decode, msgspec.json.Encoder().encode
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(encode(run_job(decode(line))) + b"\n")
        sys.stdout.buffer.flush()
    kept.clear()


if __name__ == "__main__":
    main()
