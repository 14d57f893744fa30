"""A trained network from its run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from snapgrad.algorithms.interface import Params
from snapgrad.cells.base import Cell
from snapgrad.files import check_path
from snapgrad.readouts import Readout
from snapgrad.runs.build import network
from snapgrad.runs.checkpoint import Checkpoint
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.options import Options


class LoadedRun(NamedTuple):
    """What a run has trained: `sg.evaluate(*run[:3], text)`, `sg.generate(*run[:3], prompt, length, key)`."""

    cell: Cell
    readout: Readout
    params: Params  # of the newest checkpoint
    options: Options
    tokens: int  # that it was trained on


def load_run(path: str | os.PathLike[str]) -> LoadedRun:
    """The network of a run, finished, interrupted or going on, as its newest checkpoint has it.

    Args:
        path: the run's directory. The precision of this process (`jax_enable_x64`) must be that of the run.
    """
    check_path(path)
    return load_network(RunDirectory.open(Path(path)))[0]


def load_network(run: RunDirectory) -> tuple[LoadedRun, Checkpoint]:
    """The network of a run, and the checkpoint that it is from. Neither its text nor its lock is needed."""
    options, found = run.options(), run.checkpoint()
    if found is None:
        raise ValueError(f"a run must have a checkpoint to be loaded, got none in {str(run.path)!r}")
    cell, readout, params = network(options)
    return LoadedRun(cell, readout, found.part("params", params), options, found.totals.tokens), found
