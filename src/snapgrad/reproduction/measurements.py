"""Experiments that are not made of runs: each has code of its own, and one file of JSON for what it measured.

results/influence-small.json     what was measured, with which settings, and the machine it was measured on

Beside it, while it is being measured, a file of what there is so far, so that one that was killed goes on.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from snapgrad import machine
from snapgrad.runs import disk
from snapgrad.runs.training import Interrupted
from snapgrad.sweep import results
from snapgrad.sweep.experiment import Experiment, Size

Found = dict[str, Any]
HOLDS = {"costs": ("networks", "gradients", "growth", "about"), "influence": ("seeds",)}
Measure = Callable[[Experiment, Size, Found], Iterator[Found]]  # what there is so far, from what there was


def path_of(folder: Path, experiment: Experiment, size: Size) -> Path:
    """The file of the results."""
    return folder / f"{experiment.name}-{size}.json"


def read(folder: Path, experiment: Experiment, size: Size) -> Found | None:
    """The results, or None if there are none yet; refuses what was measured with other settings than are asked for."""
    path = path_of(folder, experiment, size)
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        asked, _ = found["asked"], [found[name] for name in HOLDS.get(experiment.kind, ())]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} must hold what `snapgrad reproduce {experiment.name}` measured ({error!r})") from None
    if asked != _asked(experiment, size):
        raise ValueError(
            f"{path} must be measured with the settings of {experiment.name}.toml, got others in it: "
            "delete it to have them measured"
        )
    return dict(found)


def carry_out(experiment: Experiment, size: Size, folder: Path, measure: Measure) -> None:
    """Measures what has not been measured."""
    if read(folder, experiment, size) is not None:
        return
    path = path_of(folder, experiment, size)
    so_far = path.with_name(f".{path.name}.so-far")
    asked = _asked(experiment, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with results.held_by_one(folder, path.stem):
        if path.exists():  # another process has measured it meanwhile
            return
        found: Found = {}
        with suppress(OSError, ValueError):  # there is none, or it is damaged
            begun = disk.read_json(so_far, ["asked"])
            found = begun if begun["asked"] == asked else {}
        try:
            for found in measure(experiment, size, found):  # noqa: B020  it begins with what there was
                _write(so_far, {**found, "asked": asked})
        except KeyboardInterrupt:
            raise Interrupted("stopped; to go on, start it again in the same way", signal.SIGINT) from None
        _write(path, {**found, "asked": asked, "about": machine.describe()})
        so_far.unlink(missing_ok=True)


def _asked(experiment: Experiment, size: Size) -> Found:
    """What a measurement depends on, as JSON has it."""
    settings = {name: value for name, value in experiment.content[size].items() if name != "scaled"}
    shared = {name: experiment.content[name] for name in ("options", "networks") if name in experiment.content}
    return dict(json.loads(json.dumps({"settings": settings, **shared})))


def _write(path: Path, found: Found) -> None:
    disk.write(path, json.dumps(found, separators=(",", ":")) + "\n")
