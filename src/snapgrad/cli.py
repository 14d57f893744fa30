"""The command line: `snapgrad bench` and `snapgrad info`."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from snapgrad.bench import machine, report, suite
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
    """GRU only and fewer rounds: a few minutes, for a first look."""

    out: Path | None = None
    """A folder to write the records (bench.json), the tables (bench.md) and, with matplotlib, the figures to."""


@dataclass(frozen=True)
class Info:
    """Tell which backend runs here, on what."""

    json: bool = False
    """Print JSON."""


Command = Annotated[Bench, tyro.conf.subcommand("bench")] | Annotated[Info, tyro.conf.subcommand("info")]


def bench(options: Bench) -> None:
    """Runs the benchmark and shows it."""
    if backend_info()["backend"] != "native":
        raise SystemExit(
            f"snapgrad bench measures the native part, which does not run here ({backend_info()['reason']})"
        )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    messages = Console(stderr=True)
    records: report.Records = []
    about = machine.describe()

    def save() -> None:
        if options.out is not None:
            text = json.dumps({"machine": about, "records": records}, indent=1)
            (options.out / "bench.json").write_text(text + "\n")
            (options.out / "bench.md").write_text(report.markdown(about, records))

    all_steps = list(suite.steps(options.quick))
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:
        task = progress.add_task("", total=len(all_steps))
        for label, measure in all_steps:
            progress.update(task, description=label)
            records += measure()
            save()  # what is measured is kept if a later measurement is interrupted
            progress.advance(task)
    if options.json:
        print(json.dumps({"machine": about, "records": records}))
    else:
        report.print_tables(Console(width=None if Console().is_terminal else 140), about, records)
    if options.out is not None:
        if importlib.util.find_spec("matplotlib") is None:
            messages.print("no figures: matplotlib is not installed (pip install 'snapgrad[plots]')")
        else:
            messages.print("figures:", *map(str, report.draw(records, options.out)))


def info(options: Info) -> None:
    """Prints what `sg.backend_info` and the machine say."""
    about = machine.describe()
    if options.json:
        print(json.dumps(about))
    else:
        for name, value in about.items():
            print(f"{name:13} {value}")


def main() -> None:
    """Entry point of the `snapgrad` command."""
    command = tyro.cli(Command, prog="snapgrad", description="Train recurrent networks online.")
    try:
        bench(command) if isinstance(command, Bench) else info(command)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
