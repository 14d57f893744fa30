"""Experiments that are not made of runs: each has code of its own, and one file of JSON for what it measured.

results/influence-small.json     what was measured, and the machine it was measured on
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapgrad import machine
from snapgrad.files import write_whole
from snapgrad.sweep.experiment import Experiment, Size

Found = dict[str, Any]


def path_of(folder: Path, experiment: Experiment, size: Size) -> Path:
    """The file of the results."""
    return folder / f"{experiment.name}-{size}.json"


def read(folder: Path, experiment: Experiment, size: Size) -> Found | None:
    """The results, or None if there are none yet."""
    path = path_of(folder, experiment, size)
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found["about"]  # written with the rest
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} must hold what `snapgrad reproduce {experiment.name}` measured ({error!r})") from None
    return found


def carry_out(experiment: Experiment, size: Size, folder: Path, measure: Callable[[Experiment, Size], Found]) -> None:
    """Measures, if that has not been done."""
    path = path_of(folder, experiment, size)
    if path.exists():
        return
    found = {**measure(experiment, size), "about": machine.describe()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(found, separators=(",", ":")) + "\n").encode())
