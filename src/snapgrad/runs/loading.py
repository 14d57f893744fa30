"""A trained network from its run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from snapgrad.algorithms.interface import Params
from snapgrad.cells.base import Cell
from snapgrad.files import check_path
from snapgrad.readouts import Readout
from snapgrad.runs.build import build
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.options import Options
from snapgrad.tasks.base import Task


class LoadedRun(NamedTuple):
    """What a run has trained: `sg.evaluate(*run[:3], text)`, `sg.generate(*run[:3], prompt, length, key)`."""

    cell: Cell
    readout: Readout
    params: Params  # of the newest checkpoint
    options: Options
    task: Task
    tokens: int  # that it was trained on


def load_run(path: str | os.PathLike[str]) -> LoadedRun:
    """The network of a run, finished or interrupted, as its newest checkpoint has it.

    Args:
        path: the run's directory. Its text, if it has one, must still be there; nobody may be training it. The
            precision of this process (`jax_enable_x64`) must be that of the run.
    """
    check_path(path)
    run = RunDirectory.open(Path(path))
    options = run.options()
    experiment = build(options)
    with run.locked():
        found = run.restore(experiment.start())
    if found is None:
        raise ValueError(f"a run must have a checkpoint to be loaded, got none in {os.fspath(path)!r}")
    carry, totals = found
    return LoadedRun(experiment.cell, experiment.readout, carry.params, options, experiment.trainer.task, totals.tokens)
