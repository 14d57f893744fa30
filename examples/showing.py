"""Tables and figures of the examples."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from snapgrad.report.style import PARAMETERS


def arguments(about: str) -> argparse.Namespace:
    """What every example takes: its size, and where the table and the figure go."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--small", action="store_true", help="seconds in place of minutes; shows that it runs, no more")
    parser.add_argument("--out", type=Path, help="a folder for the table and the figure")
    given = parser.parse_args()
    given.out = given.out or Path("examples/small" if given.small else "docs/streams")  # what is published stays
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table in Markdown: printed, and written to a file."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    print(text)


def write_figure(path: Path, draw: Any, size: tuple[float, float] = (9.2, 4.2)) -> None:
    """What `draw(figure)` draws, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(PARAMETERS):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(path, metadata={"Date": None})
    print(path)
