"""`snapgrad bench`."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from snapgrad import machine
from snapgrad.bench import report, suite
from snapgrad.commands.report import make_folder
from snapgrad.kernels.select import backend_info


@dataclass(frozen=True)
class Bench:
    """Measure how fast SnAp runs on this machine, against its limits, a dense product and BPTT.

    Takes about ten minutes; let nothing else run beside it. Times are medians of rounds in which everything that is
    compared takes turns.
    """

    json: bool = False
    """Print the records as JSON in place of tables."""

    quick: bool = False
    """GRU only, up to 1024 units, and fewer rounds: a few minutes, for a first look."""

    out: Path | None = None
    """A folder to write the records (bench.json), the tables (bench.md) and, with matplotlib, the figures to."""

    def run(self) -> None:
        """Runs the benchmark and shows it."""
        if backend_info()["backend"] != "native":
            raise ValueError(
                f"snapgrad bench measures the native part, which does not run here ({backend_info()['reason']})"
            )
        if self.out is not None:
            make_folder("out", self.out)
        messages = Console(stderr=True)
        records: report.Records = []
        about = machine.describe()

        def save() -> None:
            if self.out is not None:
                text = json.dumps({"machine": about, "records": records}, indent=1)
                (self.out / "bench.json").write_text(text + "\n")
                (self.out / "bench.md").write_text(report.markdown(about, records))

        all_steps = list(suite.steps(self.quick))
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:
            task = progress.add_task("", total=len(all_steps))
            for label, measure in all_steps:
                progress.update(task, description=label)
                records += measure()
                save()  # what is measured is kept if a later measurement is interrupted
                progress.advance(task)
        if self.json:
            print(json.dumps({"machine": about, "records": records}))
        else:
            report.print_tables(about, records)
        if self.out is not None:
            if importlib.util.find_spec("matplotlib") is None:
                messages.print("no figures: matplotlib is not installed (the extra `train` has it)", markup=False)
            else:
                messages.print("figures:", *map(str, report.draw(records, self.out)))
