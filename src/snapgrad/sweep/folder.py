"""A folder of configs as a study: every TOML file in it is one run, as `snapgrad train TASK --config` takes it."""

from __future__ import annotations

from pathlib import Path

from snapgrad.runs import toml
from snapgrad.runs.build import build
from snapgrad.runs.label import label
from snapgrad.runs.options import TASKS, CharsOptions, Options
from snapgrad.runs.resolve import resolved
from snapgrad.sweep.study import Choice, Planned, Series, Study


def study(folder: Path) -> Study:
    """The runs that the files name, by the names of the files; refuses what could not be trained, by its file."""
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise ValueError(f"`folder` must have a TOML file for every run, got {str(folder)!r}, where there is none")
    found = [(path, _options(path)) for path in paths]
    planned = [Planned(path.stem, path.stem, label(options), options) for path, options in found]
    first: dict[object, Planned] = {}
    for run in planned:
        if (other := first.setdefault(run.identity, run)) is not run:
            raise ValueError(
                f"`folder` must name every run once, got the same one in {other.name}.toml and {run.name}.toml"
            )
    choices = (Choice(None, (Series(run.network, run.method, (), (run,)),)) for run in planned)
    return Study(folder.resolve().name, tuple(choices), metric="bits")


def _options(path: Path) -> Options:
    values = toml.read(path)
    task = values.get("task")
    if not isinstance(task, str) or task not in TASKS:
        raise ValueError(f"`task` must be one of {', '.join(TASKS)} in {path}, got {task!r}")
    options = TASKS[task](**toml.checked(values, task, path))
    try:
        options = resolved(options)
        if not isinstance(options, CharsOptions):  # its text may be where it is trained only
            build(options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return options
