"""What a sample of a stream costs: `learn_one` and `predict_one`, beside deep-river's rolling LSTM.

All models see the same samples in turns, in one process, so that they share whatever else the machine does. Medians
over rounds are printed, and for ours the parts: the compiled calls alone, and what Python adds to them. deep-river asks
for an older PyTorch than this project is tested with, but runs with that one too; River must be the one it asks for:

    pip install --no-deps deep-river torchviz && pip install 'river<0.26' 'pandas<3' scikit-learn sortedcontainers tqdm
    python benchmarks/streams.py
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from deep_river.regression.zoo import LSTMRegressor

from snapgrad.river import SnapRegressor
from snapgrad.terminal import print_table

FEATURES, UNITS, WINDOW = 8, 64, 10


def samples(count: int) -> list[tuple[dict[str, float], float]]:
    """A stream of numbers with a target that depends on the sample before."""
    values = np.random.default_rng(0).normal(size=(count + 1, FEATURES))
    return [
        ({f"f{number}": float(v) for number, v in enumerate(x)}, float(before.sum()))
        for before, x in itertools.pairwise(values)
    ]


def both(model: Any) -> Callable[[list[Any]], None]:
    """Predicts, then learns, sample by sample."""

    def run(stream: list[Any]) -> None:
        for x, y in stream:
            model.predict_one(x)
            model.learn_one(x, y)

    return run


def compiled(model: SnapRegressor) -> Callable[[list[Any]], None]:
    """The same two compiled programs on arrays that are there already: what no Python could be faster than."""
    learner = model._model.learner
    predict, learn = learner._programs["predict"], learner._programs["learn"]
    x, y = np.zeros((1, FEATURES), np.float32), np.zeros(1, np.float32)
    leaves = [jax.numpy.copy(leaf) for leaf in learner._arrays]

    def run(stream: list[Any]) -> None:
        nonlocal leaves
        for _ in stream:
            np.array(predict(leaves, x))
            leaves, told = learn(leaves, x, y)
            np.array(told)

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=300, help="of one round")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    stream = samples(given.samples)
    ours = {
        "SnAp-1, dense": SnapRegressor(features=FEATURES, cell="lstm", units=UNITS, order=1),
        "SnAp-2, 90 % sparse": SnapRegressor(features=FEATURES, cell="lstm", units=UNITS, order=2, sparsity=0.9),
    }
    rolling = LSTMRegressor(n_features=FEATURES, hidden_size=UNITS, window_size=WINDOW)
    runs = {"deep-river": both(rolling), **{name: both(model) for name, model in ours.items()}}
    for run in runs.values():
        run(stream[: 2 * WINDOW])  # compiles, and fills the window
    runs |= {f"{name}, compiled part": compiled(model) for name, model in ours.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(given.rounds):
        for name, run in runs.items():
            begun = time.perf_counter()
            run(stream)
            times[name].append((time.perf_counter() - begun) / len(stream))
    medians = {name: statistics.median(found) for name, found in times.items()}
    rows = []
    for name in ("deep-river", *ours):
        inner = medians.get(f"{name}, compiled part")
        parts = ("", "") if inner is None else (f"{1e6 * inner:.0f}", f"{1e6 * (medians[name] - inner):.0f}")
        rows.append((name, f"{1e6 * medians[name]:.0f}", *parts, f"{medians['deep-river'] / medians[name]:.1f}"))
    title = f"LSTM of {UNITS} units: microseconds of predict_one + learn_one (deep-river: a window of {WINDOW})"
    print_table(title, ("", "whole", "compiled calls", "Python around them", "times faster"), rows)


if __name__ == "__main__":
    main()
