"""Next-byte prediction on an endless text: the sources of Python's own library, read once, from beginning to end.

A learner reads byte after byte and predicts the next one before it learns it; nothing is read twice, and there is no
training set. Beside it, by the same progressive validation, what needs no network: the bytes counted so far after the
last k bytes, each count begun at a share of the shorter context's prediction.

    python examples/text.py
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import numpy as np
from showing import arguments, write_figure, write_table

import snapgrad as sg
from snapgrad.report.style import COLOURS
from snapgrad.tasks.corpora import standard_library

BYTES, CHUNK = 256, 1024
COLUMNS = ("", "bits a byte, all of it", "the last fifth", "ms a byte", "memory")
NETWORKS: dict[str, dict[str, Any]] = {
    "SnAp-1, GRU of 128 units": {"order": 1},
    "frozen, GRU of 128 units": {"algorithm": "frozen"},
}
BACK = 4.0  # how many bytes the prediction of the shorter context counts as


def by_network(text: np.ndarray, **settings: Any) -> tuple[np.ndarray, int]:
    """Bits of every byte but the first, and the bytes that are kept."""
    learner = sg.OnlineLearner(BYTES, BYTES, symbols=True, loss="cross_entropy", units=128, **settings)
    xs, ys = text[:-1], text[1:]
    losses = [
        learner.learn_many(xs[start : start + CHUNK], ys[start : start + CHUNK])[1]
        for start in range(0, len(xs), CHUNK)
    ]
    return np.concatenate(losses) / math.log(2), sum(leaf.nbytes for leaf in learner._arrays)


def by_counting(text: np.ndarray, order: int) -> tuple[np.ndarray, int]:
    """The same from the counts of what followed the last `order` bytes so far, backing off to shorter contexts."""
    data, bits = text.tobytes(), np.zeros(len(text) - 1)
    counts: list[defaultdict[bytes, Counter[int]]] = [defaultdict(Counter) for _ in range(order + 1)]
    for place in range(1, len(data)):
        byte, share = data[place], 1 / BYTES
        for length in range(min(order, place) + 1):
            seen = counts[length][data[place - length : place]]
            share = (seen[byte] + BACK * share) / (seen.total() + BACK)
            seen[byte] += 1
        bits[place - 1] = -math.log2(share)
    entries = sum(len(seen) for table in counts for seen in table.values())
    return bits, 16 * entries  # a context, a byte and a count


def main() -> None:
    given = arguments("Next-byte prediction on an endless text.")
    length = 500 if given.small else 100_000
    text = np.frombuffer(standard_library(), np.uint8)[: length + 2]
    methods = {name: partial(by_network, text, **settings) for name, settings in NETWORKS.items()}
    methods |= {f"counts after {order} bytes": partial(by_counting, text, order) for order in (1, 2, 4)}
    found, rows = {}, []
    for name, method in methods.items():
        begun = time.perf_counter()
        bits, memory = method()
        seconds = time.perf_counter() - begun
        found[name] = bits
        ends = f"{bits.mean():.3f}", f"{bits[-len(bits) // 5 :].mean():.3f}"
        rows.append((name, *ends, f"{1e3 * seconds / len(bits):.3f}", f"{memory / 1e6:.1f} MB"))
    write_table(given.out / "text.md", COLUMNS, rows)
    write_figure(given.out / "text.svg", lambda figure: draw(figure, found))


def draw(figure: Any, found: dict[str, np.ndarray]) -> None:
    """Bits a byte over the text, a mean over its parts."""
    axes = figure.subplots()
    colours = [COLOURS["SnAp-1"], COLOURS["Frozen"], "#bbbbbb", "#888888", "#222222"]
    for (name, bits), colour in zip(found.items(), colours, strict=True):
        parts = np.array_split(bits, 40)
        ends = np.cumsum([len(part) for part in parts])
        axes.plot(ends, [part.mean() for part in parts], color=colour, label=name, linewidth=1.6)
    axes.set(xlabel="bytes read", ylabel="bits a byte", ylim=(0, 8))
    axes.set_title("The next byte of Python's library, predicted before it is learnt")
    axes.grid(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")


if __name__ == "__main__":
    main()
