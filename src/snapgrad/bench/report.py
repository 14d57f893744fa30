"""Records of the benchmark as tables and figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from snapgrad.terminal import print_table

Records = list[dict[str, Any]]
COLOURS = {"Vanilla": "#4477aa", "GRU": "#228833", "LSTM": "#cc6677"}


def of_kind(records: Records, kind: str, **wanted: Any) -> Records:
    """The records of one kind with the wanted values."""
    return [r for r in records if r["kind"] == kind and all(r[name] == value for name, value in wanted.items())]


class Table(NamedTuple):
    """What was measured of one kind, as text."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def print_tables(machine: dict[str, Any], records: Records) -> None:
    """Everything that was measured, for a person."""
    print(f"\n{machine['processor']}, {machine['cores']} cores, {machine['instructions'] or 'no native part'}")
    for table in tables(records):
        print_table(*table)


def markdown(machine: dict[str, Any], records: Records) -> str:
    """The same as Markdown."""
    lines = [f"{machine['processor']}, {machine['cores']} cores, {machine['instructions']}; JAX {machine['jax']}.", ""]
    for title, columns, rows in tables(records):
        lines += [f"**{title}**", "", _line(columns), _line(("---", *("---:" for _ in columns[1:])))]
        lines += [*map(_line, rows), ""]
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def tables(records: Records) -> list[Table]:
    """One table for each kind of measurement."""
    made = []
    if cells := of_kind(records, "cell"):
        gemm, stream = (statistics.median(r[name] for r in cells) for name in ("gemm_gflops", "stream_gbytes"))
        made.append(
            Table(
                f"SnAp online, float32; matrix product {gemm:.0f} GFLOP/s, stream {stream:.0f} GB/s",
                ("cell", "sparsity", "SnAp", "batch", "fused step, ms", "whole step, ms", "GFLOP/s", "GB/s",
                 "of roofline", "dense product / fused", "whole / fused", "whole / BPTT"),
                [
                    (f"{r['cell']} {r['units']}", f"{r['sparsity']:.2%}", f"{r['order']}", f"{r['batch']}",
                     f"{r['fused_ms']:.3g}", f"{r['whole_ms']:.3g}", f"{r['gflops']:.0f}", f"{r['gbytes']:.0f}",
                     f"{r['roofline']:.2f}", f"{r['dense_over_fused']:.3g}", f"{r['whole_over_fused']:.2f}",
                     f"{r['whole_over_bptt']:.3g}")
                    for r in cells
                ],
            )
        )  # fmt: skip
    if grown := of_kind(records, "growth"):
        names = ("bptt_ms", "snap_1_ms", "snap_2_ms")
        made.append(
            Table(
                "Growth at a constant number of weights: GRU, batch 16, ms a step",
                ("units", "sparsity", "BPTT", "SnAp-1 online", "SnAp-2 online", "SnAp-2 / BPTT"),
                [
                    (str(r["units"]), f"{r['sparsity']:.3%}", *(f"{r[name]:.3g}" for name in names),
                     f"{r['snap_2_ms'] / r['bptt_ms']:.2f}")
                    for r in grown
                ],
            )
        )  # fmt: skip
    if whole := of_kind(records, "episodic") + of_kind(records, "language model"):
        what = {
            "episodic": "recurrent part, SnAp-2",
            "language model": "dense, with the language model's readout, SnAp-1",
        }
        made.append(
            Table(
                "Whole sequences of 128 steps (episodic), batch 32, ms a step",
                ("network", "SnAp", "BPTT", "SnAp / BPTT"),
                [
                    (f"GRU {r['units']}, {what[r['kind']]}", f"{r['snap_ms']:.3g}", f"{r['bptt_ms']:.3g}",
                     f"{r['over_bptt']:.2f}")
                    for r in whole
                ],
            )
        )  # fmt: skip
    if trained := of_kind(records, "trainer"):
        made.append(
            Table(
                "The trainer: BPTT on the dense language model, one update (128 steps, batch 32)",
                ("", "trainer, ms", "by hand, ms", "trainer / by hand", "tokens / s"),
                [
                    ("GRU 128", f"{r['trainer_ms']:.4g}", f"{r['by_hand_ms']:.4g}", f"{r['over_by_hand']:.2f}",
                     f"{r['tokens_per_second']:,.0f}")
                    for r in trained
                ],
            )
        )  # fmt: skip
    if shown := of_kind(records, "demo"):
        made.append(
            Table(
                "The trainer: SnAp-2 online on the demo's network (GRU 64, 75 % sparse, batch 16), one update",
                ("", "trainer, ms", "bare loop, ms", "trainer / bare loop"),
                [
                    ("GRU 64", f"{r['trainer_ms']:.3g}", f"{r['bare_ms']:.3g}", f"{r['over_bare']:.2f}")
                    for r in shown
                ],
            )
        )  # fmt: skip
    if single := of_kind(records, "sample"):
        made.append(
            Table(
                "One sample from Python: LSTM 64, SnAp-1, batch 1, microseconds",
                ("", "learn", "in a compiled loop", "beyond it"),
                [("LSTM 64", *(f"{r[name]:.0f}" for name in ("python_us", "loop_us", "beyond_us"))) for r in single],
            )
        )
    if rewired := of_kind(records, "rewiring"):
        made.append(
            Table(
                "Rewiring every 1000 updates, GRU 512, 98.4 % sparse, SnAp-2 online, batch 16: ms an update on average",
                ("rule", "rewired, ms", "fixed, ms", "rewired / fixed", "the rewiring alone, ms"),
                [
                    (r["rule"], f"{r['rewired_ms']:.3g}", f"{r['fixed_ms']:.3g}", f"{r['over_fixed']:.2f}",
                     f"{r['change_ms']:.3g}")
                    for r in rewired
                ],
            )
        )  # fmt: skip
    if long := of_kind(records, "memory"):
        made.append(
            Table(
                "The trainer: resident memory of an online run (SnAp-2, GRU 16), MB",
                ("steps", "after a hundredth", "in the end", "most"),
                [
                    (
                        f"{r['steps']:,}",
                        *(f"{r[name]:.1f}" for name in ("begin_megabytes", "end_megabytes", "most_megabytes")),
                    )
                    for r in long
                ],
            )
        )
    if half := of_kind(records, "bfloat16"):
        made.append(
            Table(
                "J stored in bfloat16: SnAp-2, batch 16",
                ("network", "fused step / float32", "gradient's relative error"),
                [(f"GRU {r['units']}", f"{r['time_over_float32']:.2f}", f"{r['gradient_error']:.1e}") for r in half],
            )
        )
    return made


def draw(records: Records, folder: Path) -> list[Path]:
    """The roofline and the growth, as PNG and SVG; needs matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    drawn = []
    for name, figure in (("roofline", _roofline(records)), ("growth", _growth(records))):
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=150, bbox_inches="tight")
            drawn.append(path)
    return drawn


def _roofline(records: Records) -> Any:
    from matplotlib.figure import Figure

    points = of_kind(records, "cell", order=2, batch=16)
    figure = Figure(figsize=(7, 4.6))
    axes = figure.subplots()
    gemm, stream = (statistics.median(r[name] for r in points) for name in ("gemm_gflops", "stream_gbytes"))
    low, high = min(r["intensity"] for r in points) / 2, max(r["intensity"] for r in points) * 2
    ridge = gemm / stream
    axes.plot([low, ridge, high], [low * stream, gemm, gemm], color="black", linewidth=1.2)
    axes.annotate(f"{stream:.0f} GB/s ", (ridge / 2, ridge / 2 * stream), ha="right", va="bottom", fontsize=9)
    axes.annotate(f"{gemm:.0f} GFLOP/s", (high, gemm), ha="right", va="bottom", fontsize=9)
    for cell, colour in COLOURS.items():
        own = [r for r in points if r["cell"] == cell]
        axes.plot([r["intensity"] for r in own], [r["gflops"] for r in own], "o", color=colour, label=cell)
        for r in own:
            axes.annotate(f" {r['units']}", (r["intensity"], r["gflops"]), va="top", fontsize=8, color=colour)
    axes.set(xscale="log", yscale="log", xlabel="flops a byte of J read or written", ylabel="GFLOP/s")
    axes.set_xlim(low, high)
    axes.set_ylim(min(r["gflops"] for r in points) / 2, 1.5 * gemm)
    _plain_ticks(axes.xaxis, (0.25, 0.5, 1, 2, 4, 8, 16, 32))
    _plain_ticks(axes.yaxis, (10, 20, 50, 100, 200, 500, 1000))
    axes.set_title("Fused step of SnAp-2, batch 16, under the machine's roofline", fontsize=11)
    axes.grid(True, linewidth=0.3)
    axes.legend(loc="lower right")
    return figure


def _growth(records: Records) -> Any:
    from matplotlib.figure import Figure

    points = of_kind(records, "growth")
    figure = Figure(figsize=(7, 4.6))
    axes = figure.subplots()
    units = [r["units"] for r in points]
    for name, label, colour in (
        ("snap_2_ms", "SnAp-2, an update at every step", "#aa3377"),
        ("snap_1_ms", "SnAp-1, an update at every step", "#ccbb44"),
        ("bptt_ms", "BPTT, windows of 128", "#777777"),
    ):
        axes.plot(units, [r[name] for r in points], "o-", color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="units", ylabel="ms a step")
    _plain_ticks(axes.xaxis, units)
    _plain_ticks(axes.yaxis, (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50))
    axes.set_title("Sparse GRU with as many weights at every size, batch 16", fontsize=11)
    axes.grid(True, linewidth=0.3)
    axes.legend()
    return figure


def _plain_ticks(axis: Any, places: Sequence[float]) -> None:
    """Numbers as a person writes them, in place of powers of ten; those outside the figure are left out."""
    low, high = axis.get_view_interval()
    inside = [place for place in places if low <= place <= high]
    axis.set_ticks(inside, [f"{place:g}" for place in inside])
    axis.set_ticks([], minor=True)
