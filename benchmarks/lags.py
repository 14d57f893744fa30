"""How far back a learner finds what it needs: y is what x was `lag` rows ago, and nothing else helps.

The mean squared error over the last 1000 of so many rows, where guessing the mean gives 1; mean and range over seeds.

    python benchmarks/lags.py     # some minutes
"""

from __future__ import annotations

from typing import Any

import numpy as np

import snapgrad as sg
from snapgrad.terminal import print_table

LAGS, ROWS, SEEDS, JUDGED = (2, 4, 6, 10, 15), 20_000, 3, 1000
CHOICES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "sparsity=0.9, order=2": {"sparsity": 0.9, "order": 2},
    'sparsity=0.9, order=2, units=128, cell="vanilla"': {"sparsity": 0.9, "order": 2, "units": 128, "cell": "vanilla"},
    'algorithm="rtrl", units=16': {"algorithm": "rtrl", "units": 16},
}


def error(lag: int, seed: int, given: dict[str, Any]) -> float:
    xs = np.random.default_rng(seed).normal(size=(ROWS, 1))
    learner = sg.OnlineLearner(inputs=1, outputs=1, seed=seed, **given)
    _, losses = learner.learn_many(xs, np.roll(xs[:, 0], lag))
    return float(np.mean(losses[-JUDGED:]))


def main() -> None:
    rows = []
    for name, given in CHOICES.items():
        row = [name]
        for lag in LAGS:
            found = [error(lag, seed, given) for seed in range(SEEDS)]
            row.append(f"{np.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    print_table(f"error after {ROWS:,} rows, by lag", ("", *map(str, LAGS)), rows)


if __name__ == "__main__":
    main()
