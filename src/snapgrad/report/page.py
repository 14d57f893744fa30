"""One self-contained HTML page about a set of runs, and its figures as files."""

from __future__ import annotations

import base64
import dataclasses
import io
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from snapgrad.algorithms.registry import takes
from snapgrad.report import curves, influence, tables
from snapgrad.report.collect import Collected, Series, differing
from snapgrad.report.style import PARAMETERS, colour
from snapgrad.runs.label import network
from snapgrad.runs.options import Options
from snapgrad.tasks.copy import THRESHOLD

TITLES = {
    "copy": "Learning to copy",
    "chars": "Predicting the next byte",
    "adding": "Learning to add",
    "mackey-glass": "Forecasting Mackey-Glass",
}


class Figure(NamedTuple):
    """A picture inside the page."""

    uri: str
    caption: str


def write(collected: Collected, out: Path) -> Path:
    """Writes figures (PNG and SVG) and report.html to the folder; returns the page's path."""
    import jinja2
    import matplotlib

    out.mkdir(parents=True, exist_ok=True)
    series, options = collected.series, collected.series[0].options
    with matplotlib.rc_context(PARAMETERS):
        shown = [
            _figure(curves.learning_curves(series, metric, against), out, f"{metric}-{against}", caption)
            for metric in _metrics(collected)
            for against, caption in _CAPTIONS.items()
        ]
        shown += [
            _figure(curves.learning_curves(changing, metric, "tokens"), out, metric, caption)
            for metric, caption in _CHANGES.items()
            if (changing := [one for one in series if all(len(run.column(metric)[0]) for run in one.runs)])
        ]
        networks = _networks(series)
        parts = [_network_part(ones, out, number) for number, ones in enumerate(networks)]
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        files("snapgrad.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    not_same = differing(collected.runs)
    text = page.render(
        title=f"{TITLES[options.task]}: {'; '.join(network(ones[0].options) for ones in networks)}",
        lead=_lead(collected),
        findings=_findings(collected),
        results=tables.results(collected),
        colours=[colour(one.options) for one in series],
        curves=shown,
        common=[
            (field.name.replace("_", " "), str(getattr(options, field.name)))
            for field in dataclasses.fields(options)
            if field.name not in not_same and getattr(options, field.name) is not None
        ],
        commands=[command(one.options) for one in series],
        networks=parts,
        about=[(name, str(value)) for name, value in collected.runs[0].about.items() if value != ""],
    )
    path = out / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


_CAPTIONS = {
    "tokens": "At the same amount of data. A line is the mean over seeds, a band their range.",
    "seconds": "At the same time on this machine, without compilation.",
}


_CHANGES = {
    "density": "How many of the cell's weights exist, where patterns change.",
    "churn": "How many of them were exchanged or pruned.",
}


def command(options: Options) -> str:
    """The command line that trains this run."""
    default, words = type(options)(), ["snapgrad", "train", options.task]
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), field.name.replace("_", "-")
        if value != getattr(default, field.name):
            words += (
                [f"--{name}" if value else f"--no-{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
            )
    return shlex.join(words)


def _lead(collected: Collected) -> str:
    runs, kinds = len(collected.runs), len(collected.series)
    tokens = max(run.records[-1]["tokens"] for run in collected.runs)
    left_out = f" Left out: {'; '.join(collected.left_out)}." if collected.left_out else ""
    return f"{runs} run{'s' * (runs > 1)} of {kinds} kind{'s' * (kinds > 1)}, of up to {tokens:,} tokens.{left_out}"


_SAID = {
    "level": "copies strings of up to L = {}",
    "bits": "needs {} bits per character",
    "error": "is left with a squared error of {}",
    "valid_bits": "needs {} bits per character of the validation text",
}


_TASKS = {
    "level": "The task is to copy: a string of random bits is read, and has to be said again from memory. L is the "
    f"length of the longest strings. It grows by one whenever a minibatch is copied with less than {THRESHOLD} bits of "
    "doubt a character, so that it tells how much of the past a network has learnt to keep.",
}


def _findings(collected: Collected) -> list[str]:
    """What there was to learn, where that needs words, and what the numbers say, in a sentence each."""
    metric, series = collected.metric, collected.series
    about = [_TASKS[metric]] if metric in _TASKS else []
    if len(series) == 1:
        return about
    said, ends = _SAID[metric], (series[0], series[-1])
    best, last = (f"{one.name}, {said.format(tables.ends(one.finals(metric), metric))}" for one in ends)
    return [*about, f"In the end the best of them, {best}; the last, {last}."]


def _metrics(collected: Collected) -> list[str]:
    """What there are curves of: what the runs are judged by, and training bits beside validation."""
    return ["valid_bits", "bits"] if collected.metric == "valid_bits" else [collected.metric]


def _networks(series: Sequence[Series]) -> list[list[Series]]:
    """The series of each network."""
    found: dict[tuple[Any, ...], list[Series]] = {}
    for one in series:
        o = one.options
        found.setdefault((o.cell, o.units, o.layers, o.sparsity, o.sparse_inputs), []).append(one)
    return list(found.values())


def _network_part(series: Sequence[Series], out: Path, number: int) -> dict[str, Any]:
    options = series[0].options
    suffix = f"-{number + 1}" if number else ""
    kept = influence.kept_of(options)
    orders = {one.options.snap_order for one in series if takes(one.options.algorithm, "order")} or {2}
    figures = [
        _figure(influence.spreading(kept), out, f"spreading{suffix}",
                "How the influence of one group of parameters spreads through the network's states: "
                "reached before (orange) and just now (red)."),
        _figure(influence.pattern(kept), out, f"pattern{suffix}",
                f"What SnAp keeps of J on {network(options)}. "
                "An entry is kept by every order from the one of its colour on."),
    ]  # fmt: skip
    return {"cost": tables.cost(options, sorted(orders)), "figures": figures}


def _figure(figure: Any, out: Path, name: str, caption: str) -> Figure:
    figure.savefig(out / f"{name}.png", dpi=160)
    text = io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    (out / f"{name}.svg").write_bytes(text.getvalue())
    return Figure("data:image/svg+xml;base64," + base64.b64encode(text.getvalue()).decode(), caption)
