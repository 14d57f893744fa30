"""`snapgrad report`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from snapgrad.report import page, tables
from snapgrad.report.collect import Collected, collect
from snapgrad.terminal import print_table


@dataclass(frozen=True)
class Report:
    """Turn runs into figures and one self-contained HTML page. Runs that differ only in their seed become one curve."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Directories of runs, or folders of them; all of one task."""

    out: Path = Path("report")
    """The folder to write report.html and the figures to."""

    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Reads the runs, writes the page, prints the results."""
        make_folder("out", self.out)
        show(collect(self.runs), self.out, self.json)


def make_folder(name: str, path: Path) -> None:
    """Makes the folder that an option names; refuses a file in its place."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"`{name}` must be a folder, got {str(path)!r}, which is a file or below one") from None


def show(collected: Collected, out: Path, as_json: bool) -> None:
    """Writes the page, and prints the results and where the page is."""
    path = page.write(collected, out)
    for left_out in collected.left_out:
        print(f"left out: {left_out}", file=sys.stderr)
    if as_json:
        results = [
            {
                "name": one.name,
                "metric": collected.metric,
                "finals": one.finals(collected.metric).tolist(),
                "runs": [str(run.path) for run in one.runs],
            }
            for one in collected.series
        ]
        print(json.dumps({"page": str(path.resolve()), "results": results}))
    else:
        table = tables.results(collected)
        print_table(table.title, table.columns, table.rows)
        print(f"page: {path.resolve()}")
