"""`snapgrad reproduce`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from snapgrad.commands.sweep import RayAddress, check_arguments, refuse_failed, train
from snapgrad.runs.options import CharsOptions
from snapgrad.sweep import experiment as experiments
from snapgrad.sweep.experiment import Experiment
from snapgrad.sweep.runner import Sweep
from snapgrad.sweep.study import Study
from snapgrad.tasks.corpora import corpus


@dataclass(frozen=True)
class Reproduce:
    """Carry out an experiment of the paper: train what has no result yet, then draw its figures and the page.

    Started again, it skips what has ended and goes on with what was broken off.
    """

    name: Annotated[str, tyro.conf.Positional]
    """ablations, copy, costs, influence, lm-dense, lm-sparse, pruning, rewiring, staleness, wide, or all."""

    size: Literal["smoke", "small", "paper"] = "small"
    """smoke: minutes; small: hours on two cores; paper: the paper's own settings, for a big machine."""

    draw: bool = False
    """Only draw, whatever the name, everything that has results."""

    jobs: int | None = None
    """Runs at once; by default one a core. Where seconds are compared it is always one."""

    ray: RayAddress = None
    """Train on the Ray cluster at HOST:PORT that this machine is part of; without an address, on a new one here.

    What is compared by its seconds is trained on this machine all the same.
    """

    results: Path = Path("results")
    """Where results are kept, a line for every run."""

    runs: Path = Path("runs/reproduce")
    """Where runs are trained; they may be deleted when they have ended."""

    out: Path | None = None
    """Where results.md and its figures are written; by default docs/, for other sizes than small beside the runs."""

    def run(self) -> None:
        """Trains, then draws."""
        check_arguments(self.jobs, self.ray)
        chosen = [experiments.load(name) for name in (experiments.names() if self.name == "all" else [self.name])]
        from snapgrad.reproduction import markdown

        out = self.out or (Path("docs") if self.size == "small" else self.runs / self.size)
        if self.draw:
            failed = []
        else:
            markdown.places(out)  # a wrong one is refused before anything is trained
            failed = self.train(chosen)
        everything = [experiments.load(name) for name in experiments.names()]
        if not failed or markdown.any_results(self.results, self.size):  # else there is nothing to draw
            for path in markdown.write(everything, self.size, self.results, out):
                print(path)
        refuse_failed(failed)

    def train(self, chosen: list[Experiment]) -> list[str]:
        """All experiments at once, but those whose seconds are compared one after the other, with nothing beside."""
        from snapgrad.reproduction import costs, influence, measurements

        studies = [one.study(self.size) for one in chosen if one.kind == "runs"]
        Sweep(studies, self.results, self.runs).refuse_other_machines()  # before hours are spent on the others
        if self.ray is None:
            self._find_texts(studies)
        own = {"costs": costs.measure, "influence": influence.measure}  # those that are not made of runs
        for one in chosen:
            if one.kind in own:
                measurements.carry_out(one, self.size, self.results, own[one.kind])
        together = [study for study in studies if not study.alone]
        failed = train(together, self.jobs, self.ray, self.results, self.runs) if together else []
        for study in studies:
            if study.alone:
                failed += train([study], 1, None, self.results, self.runs)
        return failed

    def _find_texts(self, studies: list[Study]) -> None:
        """Before runs look for them side by side: one that is missing is downloaded once, or refused once."""
        waiting = Sweep(studies, self.results, self.runs).missing()
        wanted = [run.options for _, run in waiting if isinstance(run.options, CharsOptions)]
        for text, folder in dict.fromkeys((options.corpus, options.data_dir) for options in wanted):
            corpus(text, folder)
