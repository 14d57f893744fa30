"""`snapgrad demo`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from snapgrad import arguments
from snapgrad.commands.report import make_folder, show
from snapgrad.report.collect import collect
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.label import directory_name, label
from snapgrad.runs.options import CopyOptions
from snapgrad.runs.progress import bar
from snapgrad.runs.training import Diverged, Interrupted, run_training

KINDS = (
    CopyOptions(algorithm="bptt", update_every="sequence"),
    CopyOptions(algorithm="bptt"),
    CopyOptions(algorithm="rflo"),
    CopyOptions(algorithm="snap", order=1),
    CopyOptions(algorithm="snap", order=2),
)


@dataclass(frozen=True)
class Demo:
    """Train a sparse GRU to copy strings, by five algorithms on as much data each, and show who learns longer ones.

    Backpropagation gets whole sequences; the others update the weights at every step. A demo that was interrupted
    goes on where it was, if it is started again with the same options.
    """

    tokens: int = 1_000_000
    """Data for each algorithm."""

    seeds: int = 1
    """Repetitions with other weights and data; the page shows their spread."""

    out: Path = Path("demo")
    """The folder for runs and report."""

    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Trains what is not trained yet, then reports."""
        arguments.positive_integer("tokens", self.tokens)
        arguments.positive_integer("seeds", self.seeds)
        make_folder("out", self.out)
        messages = Console(stderr=True, highlight=False)
        wanted = [replace(kind, tokens=self.tokens, seed=seed) for seed in range(self.seeds) for kind in KINDS]
        for number, options in enumerate(wanted, 1):
            run, title = self.open(options), f"{number}/{len(wanted)}  {label(options)}"
            try:
                with bar(title, options.tokens) as progress:
                    outcome = run_training(run, progress)
            except Interrupted as stop:
                raise Interrupted("stopped; to go on, start the demo again in the same way", stop.number) from None
            except Diverged as error:
                messages.print(f"{title}: {error}", markup=False)
                continue
            took = f"{outcome['seconds']:.0f} s of training"
            messages.print(f"{title}: L = {outcome['level']} after {took}", markup=False)
            if "warning" in outcome:
                messages.print(f"warning: {outcome['warning']}", markup=False)
        show(collect([self.directory(options) for options in wanted]), self.out, self.json)

    def directory(self, options: CopyOptions) -> Path:
        """Of one of its runs."""
        return self.out / "runs" / f"{directory_name(options)}-{options.tokens}"

    def open(self, options: CopyOptions) -> RunDirectory:
        """The run as it was left, or a new one."""
        path = self.directory(options)
        if not path.exists():
            return RunDirectory.create(path, options, data="")
        run = RunDirectory.open(path)
        if run.options() != options:
            raise ValueError(f"`out` must be another folder: the run in {path} was made with other options")
        return run
