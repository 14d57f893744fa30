"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import rich.table
from rich.console import Console

WIDTH = 140  # where there is no terminal: wide enough for all of it


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table; the first column is names, the others numbers."""
    table = rich.table.Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)
