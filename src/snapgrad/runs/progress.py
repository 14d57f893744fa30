"""How a run is shown to a person: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from snapgrad.runs.disk import Record
from snapgrad.runs.training import Show


@contextmanager
def bar(title: str, tokens: int) -> Iterator[Show]:
    """A function that shows a run's records as they come: tokens a second, bits, level, time left."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[now]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=tokens, now="compiling")

        def show(record: Record) -> None:
            progress.update(task, completed=min(record["tokens"], tokens), now=brief(record))

        yield show


def brief(record: Record) -> str:
    """A record in a few words."""
    parts = [f"{record['tokens_per_second']:,.0f} tokens/s"]
    if record.get("bits") is not None:
        parts.append(f"{record['bits']:.3f} bits" if record["bits"] < 1e4 else f"{record['bits']:.1e} bits")
    if record.get("error") is not None:
        parts.append(f"error {record['error']:.3g}")
    if "level" in record:
        parts.append(f"L = {record['level']}")
    if "valid_bits" in record:
        parts.append(f"valid {record['valid_bits']:.3f}")
    return ", ".join(parts)
