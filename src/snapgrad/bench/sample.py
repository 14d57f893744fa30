"""One sample of a stream from Python: `learn` of a learner, beside the same steps inside one compiled loop.

In a process of its own (`python -m snapgrad.bench.sample ROUNDS`): where JAX runs its programs, in the thread that
calls them or in another, is settled when it is first used (learner/dispatch.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from snapgrad.bench.timing import medians

INPUTS, UNITS = 8, 64
CHUNK = 256  # samples of one call of the compiled loop


def sample(rounds: int) -> list[dict[str, Any]]:
    """Microseconds of a sample, from Python and in the loop."""
    done = subprocess.run(
        [sys.executable, "-m", "snapgrad.bench.sample", str(rounds)], stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(done.stdout)]


def _measure(rounds: int) -> dict[str, Any]:
    from snapgrad import OnlineLearner

    rng = np.random.default_rng(0)
    xs = rng.normal(size=(CHUNK, INPUTS)).astype(np.float32)
    ys = xs.sum(axis=1)

    def from_python(learner: OnlineLearner) -> Callable[[int], None]:
        def run(chunks: int) -> None:
            for _ in range(chunks):
                for x, y in zip(xs, ys, strict=True):
                    learner.learn(x, y)

        return run

    def in_a_loop(learner: OnlineLearner) -> Callable[[int], None]:
        def run(chunks: int) -> None:
            for _ in range(chunks):
                learner.learn_many(xs, ys)

        return run

    made = [OnlineLearner(inputs=INPUTS, outputs=1, cell="lstm", units=UNITS, order=1) for _ in range(2)]
    seconds = medians({"python": from_python(made[0]), "loop": in_a_loop(made[1])}, rounds)
    python, loop = (1e6 * seconds[name] / CHUNK for name in ("python", "loop"))
    return {"kind": "sample", "python_us": python, "loop_us": loop, "beyond_us": python - loop}


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
