"""Two million samples through one learner: memory stays flat, latency steady, and nothing is compiled twice.

The stream has what real ones have: missing values, spikes, targets that are not there. It is cut into ten parts; of
each are printed the resident memory at its end and percentiles of the time of `predict` and `learn` together. The
program fails, with exit code 1 and a sentence for each violation, if anything was compiled after the first sample, if
memory has grown by more than 8 MB since the first part, if the median latency of the last three parts is more than 1.5
times that of the first three (3 times, for the 99th percentile), or if a weight is not finite.

    python benchmarks/soak.py [--samples 2000000]
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import jax
import numpy as np

import snapgrad as sg
from snapgrad.terminal import print_table

PARTS, INPUTS = 10, 8
AT_ONCE = 1000  # samples that are made at a time: large arrays of the program itself would move the memory it watches
MOST_GROWTH = 8e6  # bytes
MOST_SLOWER = {50.0: 1.5, 99.0: 3.0}  # by percentile
PERCENTILES = (50.0, 99.0, 99.9)
COMPILED = "/jax/core/compile/backend_compile_duration"


def resident_bytes() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def stream(rng: np.random.Generator, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """A piece of the stream: what came three samples ago is asked, and one sample in a hundred is broken somehow."""
    xs = rng.normal(size=(samples, INPUTS))
    ys = np.roll(xs[:, 0], 3)
    for value in (np.nan, np.inf, 1e12):
        xs[rng.integers(samples, size=samples // 400), rng.integers(INPUTS)] = value
    ys[rng.integers(samples, size=samples // 400)] = np.nan
    return xs, ys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2_000_000)
    samples = max(1, parser.parse_args().samples // PARTS // AT_ONCE) * AT_ONCE  # of a part
    compiled: list[float] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILED:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    learner, rng = sg.OnlineLearner(INPUTS, 1, cell="lstm"), np.random.default_rng(0)
    learner.predict(np.zeros(INPUTS))
    learner.learn(np.zeros(INPUTS), 0.0)
    before = len(compiled)
    memory, latency, rows = [], [], []
    seconds, losses = np.empty(samples), np.empty(samples)
    for part in range(PARTS):
        for first in range(0, samples, AT_ONCE):
            for n, (x, y) in enumerate(zip(*stream(rng, AT_ONCE), strict=True), start=first):
                begun = time.perf_counter()
                learner.predict(x)
                _, losses[n] = learner.learn(x, y)
                seconds[n] = time.perf_counter() - begun
        print(f"{(part + 1) * samples:,} of {PARTS * samples:,} samples", file=sys.stderr)
        latency.append(np.percentile(seconds, PERCENTILES))
        memory.append(resident_bytes())
        rows.append(
            (
                f"{(part + 1) * samples:,}",
                f"{memory[-1] / 1e6:,.1f}",
                *(f"{1e6 * value:,.0f}" for value in latency[-1]),
                f"{np.nanmean(losses):.3f}",
            )
        )
    columns = ("samples", "resident, MB", *(f"p{percentile:g}, µs" for percentile in PERCENTILES), "squared error")
    print_table("predict and learn, LSTM of 64 units, SnAp-1", columns, rows)
    print(", ".join(f"{name} {count:,}" for name, count in learner.counts.items()))
    violations = []
    if len(compiled) > before:
        violations.append(f"{len(compiled) - before} programs were compiled after the first sample")
    if (growth := memory[-1] - memory[0]) > MOST_GROWTH:
        violations.append(f"memory has grown by {growth / 1e6:.1f} MB since the first part")
    for number, percentile in enumerate(PERCENTILES):
        early, late = (np.median([part[number] for part in parts]) for parts in (latency[:3], latency[-3:]))
        if late > MOST_SLOWER.get(percentile, np.inf) * early:
            violations.append(f"p{percentile:g} has gone from {1e6 * early:.0f} to {1e6 * late:.0f} µs")
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(learner.params)):
        violations.append("a weight is not finite")
    for violation in violations:
        print(f"violation: {violation}", file=sys.stderr)
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
