"""The results on the README's first screen: one figure and one table, generated between two markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snapgrad.report.tables import Table
from snapgrad.reproduction.claims import NOT_MEASURED, VERDICTS, Said
from snapgrad.reproduction.measured import Measured
from snapgrad.reproduction.tables import MORE_TO_COME, NOTE, end
from snapgrad.runs import disk

START, END = "<!-- results: written by `snapgrad reproduce all --draw` -->", "<!-- end of results -->"
COLUMNS = ("BPTT", "Truncated BPTT, T = 1", "RFLO", "SnAp-1", "SnAp-2", "SnAp-3")
FIGURE = "influence-ends"
SHOWN = f"""\
![What SnAp keeps of the influence, early and late in training](docs/results/{FIGURE}.svg)

The influence of every parameter (across, in two rows) on every unit (down) of a GRU of 8 units, early and late in its
training. The larger a square, the larger the influence: red is what SnAp-1 keeps, blue what SnAp-2 adds, white what
both leave out. Below, how far networks have got in learning to copy ever longer strings: the length that they are at
after a million tokens (GRU 128: half a million), with the better of two learning rates (GRU 1024: one). All but BPTT
update the weights at every step."""


def copy_table(measured: Sequence[Measured]) -> Table:
    """The copy task: a row for each network, a column for each method."""
    by_name = {(one.network, one.method): one for one in measured}
    networks = [n for n in dict.fromkeys(one.network for one in measured) if (n, "BPTT") in by_name]
    columns = [method for method in COLUMNS if any((network, method) in by_name for network in networks)]
    rows = [(network, *(_cell(by_name.get((network, method))) for method in columns)) for network in networks]
    return Table("", "", ("network", *columns), rows)


def _cell(one: Measured | None) -> str:
    return "" if one is None else end(one, "level")


def text(copied: str, said: Sequence[Said]) -> str:
    """What stands between the markers; `copied` is the table in Markdown."""
    claims = [one for one in said if not one.question]
    whole, partly, none = (sum(one.verdict.startswith(verdict) for one in claims) for verdict in VERDICTS)
    unfinished = [one for one in claims if one.verdict not in VERDICTS]
    unseen = sum(one.verdict == NOT_MEASURED for one in claims)
    summary = (
        f"Of {len(claims)} claims of the paper {whole} are reproduced, {partly} in part and {none} not"
        + (f", and {unseen} not yet measured" if unseen else "")
        + (f" (for {len(unfinished)} of them runs are still to come)" if unfinished else "")
        + ": [docs/results.md](docs/results.md)."
    )
    note = [NOTE] if MORE_TO_COME in copied else []
    return "\n\n".join([START, SHOWN, copied, *note, summary, END])


def update(path: Path, new: str) -> bool:
    """Replaces what stands between the markers of a file, if it exists and has them; whether it has."""
    if not path.is_file():
        return False
    before, start, rest = path.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        return False
    disk.write(path, f"{before}{new}{after}")
    return True
