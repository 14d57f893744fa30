"""`snapgrad analyse`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

from snapgrad import analysis, arguments
from snapgrad.analysis import Kept
from snapgrad.report.hinton import hinton
from snapgrad.report.style import PARAMETERS
from snapgrad.runs.build import CROP, named_task
from snapgrad.runs.checkpoint import Checkpoint
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.label import network as network_label
from snapgrad.runs.loading import load_network
from snapgrad.runs.options import CopyOptions, Options
from snapgrad.tasks.base import Window
from snapgrad.tasks.copy import Copy
from snapgrad.terminal import print_table

LARGEST = 32  # state entries that a diagram stays readable with


@dataclass(frozen=True)
class Analyse:
    """Compare the true influence, at the run's newest checkpoint, with what SnAp of each order keeps of it."""

    run_directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """The run's directory."""

    sequences: int = 16
    """Fresh sequences of the run's task that magnitudes and gradients are averaged over."""

    out: Path | None = None
    """Where analysis.json and, up to 32 state entries, the diagram go; by default the folder analysis in the run."""

    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Restores the newest checkpoint, analyses it, and writes down what was found."""
        arguments.positive_integer("sequences", self.sequences)
        run = RunDirectory.open(self.run_directory)
        (cell, readout, params, options, _), checkpoint = load_network(run)
        totals, window = checkpoint.totals, sequences(options, checkpoint, self.sequences)
        rows = analysis.analyse(cell, named_task(options)[0].loss(readout), params, window.xs, window.targets)
        out = self.out or run.path / "analysis"
        out.mkdir(parents=True, exist_ok=True)
        result: dict[str, Any] = {
            **totals._asdict(),
            "steps": len(window.xs),
            "orders": [{name: _plain(value) for name, value in row._asdict().items()} for row in rows],
        }
        (out / "analysis.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        influence = analysis.true_influence(cell, params.cell, window.xs[:, 0])
        drawn = influence.J.shape[0] <= LARGEST
        if drawn:
            title = f"{network_label(options)}, after {totals.updates:,} updates: J after {len(window.xs)} steps"
            write_diagram(title, influence, params.cell, out)
        if self.json:
            print(json.dumps({"out": str(out.resolve()), **result}))
        else:
            title = f"What SnAp keeps of J after {len(window.xs)} steps, at {totals.updates:,} updates"
            print_table(title, COLUMNS, [cells(row) for row in rows])
            more = "" if drawn else f" (no diagram: more than {LARGEST} state entries)"
            print(f"written to: {out.resolve()}{more}")


COLUMNS = ("order", "entries", "magnitude", "mean if kept", "mean if dropped", "cosine of the gradient")


def cells(row: Kept) -> tuple[str, ...]:
    """A row of the table as text."""
    dropped = "-" if np.isnan(row.dropped_mean) else f"{row.dropped_mean:.2e}"
    shares = f"{row.entries:.1%}", f"{row.magnitude:.1%}"
    return f"SnAp-{row.order}", *shares, f"{row.kept_mean:.2e}", dropped, f"{row.cosine:.4f}"


def sequences(options: Options, checkpoint: Checkpoint, number: int) -> Window:
    """Whole sequences that the run has not seen, from reset; copies of the length that the curriculum has reached."""
    task, _ = named_task(options)
    reached = checkpoint.part("task", task.start(jax.random.key(0), options.batch))
    steps, level = task.sequence_steps(reached), task.level(reached)
    if isinstance(options, CopyOptions) and level is not None:
        task = Copy(int(level))  # all strings of that length; `steps` ends before the flag that a fixed length adds
    state = task.start(jax.random.fold_in(jax.random.key(options.seed), 1), number)
    return task.window(task.data, state, CROP if steps is None else int(steps))[1]


def write_diagram(title: str, influence: analysis.Influence, params: Any, out: Path) -> None:
    """The Hinton diagram as PNG and SVG, with the parameters' names under the columns."""
    import matplotlib

    columns = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        columns.append((jax.tree_util.keystr(path).removesuffix(".values").strip("."), leaf.size))
    with matplotlib.rc_context(PARAMETERS):
        figure = hinton({title: influence}, columns)
        for kind in ("png", "svg"):
            figure.savefig(out / f"hinton.{kind}", dpi=160)


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value
