"""Figure 6 and table 4 of the paper: the true influence of a small network at several points of its training.

Of every seed what each order keeps at each step, of the first J itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from snapgrad import analysis
from snapgrad.analysis import Influence
from snapgrad.report.hinton import hinton
from snapgrad.report.tables import Table, spread
from snapgrad.reproduction.claims import Said, spread_of_difference, unmeasured, verdict
from snapgrad.reproduction.measurements import Found
from snapgrad.runs.build import build
from snapgrad.runs.options import CopyOptions
from snapgrad.sweep.experiment import Experiment, Size

ORDERS = (1, 2)
SEQUENCES = 16  # that magnitudes are averaged over
SMALL = 0.25  # of the magnitude of what is kept


def measure(experiment: Experiment, size: Size, found: Found) -> Iterator[Found]:
    """Trains and analyses, seed by seed."""
    seeds, wanted = list(found.get("seeds", [])), experiment.content[size]["seeds"]
    for seed in range(len(seeds), wanted):
        print(f"{experiment.name}-{size}: seed {seed + 1} of {wanted}", file=sys.stderr)
        seeds.append(_analysed(experiment, size, seed))
        yield {"seeds": seeds}


def _analysed(experiment: Experiment, size: Size, seed: int) -> dict[str, Any]:
    """One run, looked at after so many updates."""
    settings = experiment.content[size]
    options = CopyOptions(**experiment.content["options"], learning_rate=settings["learning_rate"], seed=seed)
    run = build(options)
    task, carry, updates, snapshots = run.trainer.task, run.start(), 0, []
    length = int(task.sequence_steps(carry.task))  # type: ignore[arg-type]  # sequences of the copy task end
    fresh = task.start(jax.random.fold_in(jax.random.key(seed), 1), SEQUENCES)
    window = task.window(task.data, fresh, length)[1]
    for step in settings["steps"]:
        carry, progress = run.trainer.run(carry, (step - updates) * length * options.batch)
        updates = step
        rows = analysis.analyse(run.cell, run.readout.loss, carry.params, window.xs, window.targets, orders=ORDERS)
        snapshot: dict[str, Any] = {"step": step, "bits": progress.cost / progress.asked}
        snapshot["orders"] = [row._asdict() for row in rows]
        if seed == 0:
            J = analysis.true_influence(run.cell, carry.params.cell, window.xs[:, 0]).J
            snapshot["J"] = [[float(f"{value:.3g}") for value in row] for row in J]
        snapshots.append(snapshot)
    leaves = jax.tree_util.tree_leaves_with_path(carry.params.cell)
    names = [(jax.tree_util.keystr(path).removesuffix(".values").strip("."), leaf.size) for path, leaf in leaves]
    return {"snapshots": snapshots, "first_order": _orders(run.cell, carry.params.cell), "columns": names}


def _orders(cell: Any, params: Any) -> list[list[int]]:
    return analysis.first_orders(cell, params).tolist()


# ---- the page


def said(experiment: Experiment, found: Found | None) -> list[Said]:
    """What the paper says of the beginning of training, and of its course, held against what each order keeps."""
    words, source = experiment.content["words"], experiment.source
    if found is None:
        return [unmeasured(one, source) for one in (words["early"], words["later"])]
    several = f"{len(found['seeds'])} seed{'s' * (len(found['seeds']) > 1)}"
    ratios, falls = [], []
    for number in range(len(ORDERS)):
        kept, ignored = (_over_seeds(found, 0, number, name).mean() for name in ("kept_mean", "dropped_mean"))
        ratios.append(ignored / kept)
        shares = np.array([_over_seeds(found, place, number, "magnitude") for place in range(_looks(found))])
        first, later = shares[0], shares[1:].mean(axis=0)
        falls.append(bool(first.mean() - later.mean() > spread_of_difference(first, later)))
    early = (
        f"by SnAp-1 and 2: {' and '.join(f'{100 * ratio:.0f}' for ratio in ratios)} % of that of those kept, {several}"
    )
    later = f"{sum(falls)} of {len(falls)} orders keep a smaller share of all magnitude later, {several}"
    return [
        Said(words["early"], source, verdict([ratio <= SMALL for ratio in ratios]), early),
        Said(words["later"], source, verdict(falls), later),
    ]


def table(experiment: Experiment, found: Found) -> Table:
    """Table 4: what is kept at each step, ours with the spread of the seeds, and the paper's."""
    rows = []
    for place, snapshot in enumerate(found["seeds"][0]["snapshots"]):
        cells: list[str] = []
        printed = experiment.content["printed"].get(str(snapshot["step"]))
        for number in range(len(ORDERS)):
            mean, share = (_over_seeds(found, place, number, name) for name in ("kept_mean", "magnitude"))
            theirs = f"{printed[2 * number]:.1e} ({printed[2 * number + 1]} %)" if printed else ""
            cells += [f"{mean.mean():.1e} ({spread(100 * share, 0)} %)", theirs]
        cosines = [spread(_over_seeds(found, place, number, "cosine"), 2) for number in range(len(ORDERS))]
        bits = np.array([seed["snapshots"][place]["bits"] for seed in found["seeds"]])
        rows.append((f"{snapshot['step']:,}", *cells, *cosines, spread(bits, 2)))
    columns = (
        "training step", "SnAp-1 keeps", "printed", "SnAp-2 keeps", "printed", "cosine of SnAp-1's gradient",
        "of SnAp-2's", "bits / character",
    )  # fmt: skip
    return Table("Table 4", "", columns, rows)


def figure(found: Found, *, ends: bool = False) -> Any:
    """Figure 6: the Hinton diagram of the first seed at every step, or at the first and the last."""
    first = found["seeds"][0]
    orders = np.array(first["first_order"])
    looks = first["snapshots"][:: len(first["snapshots"]) - 1] if ends else first["snapshots"]
    shown = {f"step {look['step']:,}": Influence(np.array(look["J"]), orders) for look in looks}
    return hinton(shown, [(name, size) for name, size in first["columns"]])


def _looks(found: Found) -> int:
    return len(found["seeds"][0]["snapshots"])


def _over_seeds(found: Found, place: int, number: int, name: str) -> np.ndarray:
    return np.array([seed["snapshots"][place]["orders"][number][name] for seed in found["seeds"]])
