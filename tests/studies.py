"""A small experiment, and results of its runs that nobody trained."""

import dataclasses

from snapgrad.sweep.experiment import Experiment
from snapgrad.sweep.results import Result


def tiny(networks=None, methods=("BPTT", "SnAp-1"), **size) -> Experiment:
    """Two methods on one network, three learning rates to choose from, three seeds."""
    return Experiment(
        "x",
        {
            "title": "A title",
            "source": "nowhere",
            "task": "copy",
            "networks": networks or {"one": {"units": 8}},
            "methods": {
                "BPTT": {"algorithm": "bptt", "update_every": "sequence"},
                "SnAp-1": {"algorithm": "snap", "order": 1},
            },
            "smoke": {
                "seeds": 3,
                "tokens": 100,
                "scaled": "small",
                "runs": [
                    {
                        "networks": ["one"] if networks is None else list(networks),
                        "methods": list(methods),
                        "select": "learning_rate",
                        "learning_rate": [1e-3, 1e-2, 1e-4],
                        **size,
                    }
                ],
            },
        },
    )


def result(run, level, status="finished", bits=1.0) -> Result:
    options = {name: value for name, value in dataclasses.asdict(run.options).items() if value is not None}
    final = {"tokens": 100, "updates": 7, "seconds": 2.0, "level": level, "bits": bits}
    curve = {"tokens": [50, 100], "seconds": [1.0, 2.0], "level": [1, level], "bits": [None, bits]}
    return Result("copy", options, status, final, curve, {"processor": "a machine", "instructions": "avx2"})
