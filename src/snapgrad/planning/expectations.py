"""What SnAp and BPTT are expected to cost on a network with uniformly random patterns, in closed form.

`sg.costs` counts a given pattern; these are means over all of them, from a handful of numbers, for sliders and for
networks that are too large to be drawn. page.html holds the same formulas in JavaScript.

Influence spreads over units as an epidemic does. A unit leads to any other one with probability e, where one of the
G gates' matrices, of density q each, has a weight:

    e = 1 - (1 - q)^G

A parameter of unit i reaches i within one step, and the N successors of i within two; N is binomial, and everything
below is the mean over it. From then on a generation of m units, each there with probability p, misses a unit with
probability (1 - p e)^m, which makes the next generation (Reed and Frost's chain). Units of all but the last
generation keep all of their successors within reach; those of the last one keep those that were reached anyway. That
gives nnz(D[R, R]).

An LSTM has two entries a unit. Its h spreads as above, by four gates; c is reached by three of them, and leads nowhere
but to the unit's own h. Parameters of the output gate touch h alone, and are a kind of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

STEPS = 200  # without a limit of order, at most: by then everything that can be reached is
NEGLIGIBLE = 1e-9  # relative to the likeliest number of successors


class Cell(NamedTuple):
    """What the formulas need to know of a cell."""

    gates: int
    kept_by_itself: bool  # whether a unit's h depends on its own h without a weight
    output_gates: int = 0  # that touch h and not c; a cell without c has none

    @property
    def has_c(self) -> bool:
        return self.output_gates > 0

    @property
    def states(self) -> int:
        return 2 if self.has_c else 1


CELLS = {"vanilla": Cell(1, False), "gru": Cell(3, True), "lstm": Cell(4, False, output_gates=1)}


class Network(NamedTuple):
    """A network with uniformly random patterns."""

    cell: str
    units: int
    inputs: int
    sparsity: float


class Counts(NamedTuple):
    """Of one example: what `sg.costs` counts, and the blocks that J can be split into."""

    states: float  # state entries
    params: float  # existing parameters of the cell
    blocks: float  # of J
    kept: float  # entries of J that SnAp keeps
    forward: float  # flops of a step of the cell
    influence: float  # flops of D J and of dL/ds . J
    bptt: float  # flops of a step of BPTT


class Reach(NamedTuple):
    """Of one parameter: state entries within reach, and entries of D between them."""

    entries: float
    products: float


def expected(network: Network, order: int | None) -> Counts:
    """The expected counts of SnAp-`order`, None for exact, and of BPTT."""
    cell, k = CELLS[network.cell], network.units
    recurrent = _entries(k * k, network.sparsity)  # of one gate
    input = _entries(k * network.inputs, network.sparsity)
    per_gate = recurrent + input + k
    q = recurrent / (k * k)
    kept = influence = 0.0
    kinds = [(cell.gates - cell.output_gates, True), (cell.output_gates, False)]
    for gates, touches_c in kinds:
        if gates:
            reach = _mean_reach(cell, k, q, order, touches_c)
            kept += gates * per_gate * reach.entries
            influence += 2 * gates * per_gate * (reach.products + reach.entries)
    weights = cell.gates * (recurrent + input)
    return Counts(
        states=cell.states * k,
        params=cell.gates * per_gate,
        blocks=(2 if cell.has_c else 1) * k,
        kept=kept,
        forward=2 * weights,
        influence=influence,
        bptt=4 * weights + 2 * cell.gates * recurrent,
    )


def _entries(size: int, sparsity: float) -> int:
    """That a random matrix keeps, as `random_pattern` draws it."""
    return max(1, math.floor((1 - sparsity) * size + 0.5))


def _mean_reach(cell: Cell, k: int, q: float, order: int | None, touches_c: bool) -> Reach:
    """Over the number of successors of the parameter's unit."""
    e = 1 - (1 - q) ** cell.gates
    total = entries = products = 0.0
    for successors, weight in _binomial(k - 1, e):
        reach = _reach(cell, k, q, order, touches_c, successors)
        total += weight
        entries += weight * reach.entries
        products += weight * reach.products
    return Reach(entries / total, products / total)


def _reach(cell: Cell, k: int, q: float, order: int | None, touches_c: bool, successors: int) -> Reach:
    """Of a parameter whose unit has that many successors."""
    e = 1 - (1 - q) ** cell.gates
    e_c = 1 - (1 - q) ** (cell.gates - cell.output_gates) if cell.has_c else 0.0  # an edge that leads to c as well
    inner, trials, p = 0.0, 1.0, 1.0  # units of earlier generations; the last one: so many, each with probability p
    c_source, c_others = (1.0 if touches_c else 0.0), 0.0  # shares of the unit's own c, of those of the other units
    for step in range(1, STEPS if order is None else order):
        last = trials * p
        missed_c = 1 - successors * (e_c / e) / (k - 1) if step == 1 and k > 1 else (1 - p * e_c) ** trials
        c_source = 1 - (1 - c_source) * ((1 - e_c) if step == 1 else (1 - p * e_c) ** trials)
        c_others = 1 - (1 - c_others) * missed_c
        hit = 1 - (1 - p * e) ** trials
        inner += last
        trials, p = (float(successors), 1.0) if step == 1 else (k - inner, hit)
        if trials * p < NEGLIGIBLE * inner:
            break
    last = trials * p
    h, c = inner + last, (c_source + (k - 1) * c_others if cell.has_c else 0.0)
    between_last = last * inner + last * last + last * (1 - p) - last  # E[last (h - 1)]
    outgoing = successors + (inner - 1) * (k - 1) * e if inner else 0.0
    own = h * (1.0 if cell.kept_by_itself else e)
    products = outgoing + e * between_last + own
    if cell.has_c:
        outgoing_c = successors * (e_c / e) + (inner - 1) * (k - 1) * e_c if inner else 0.0
        products += outgoing_c + e_c * (inner + last * c) + 2 * c
    return Reach(h + c, products)


def _binomial(trials: int, p: float) -> Iterator[tuple[int, float]]:
    """The likely outcomes with their weights, relative to the likeliest; from there outwards, without factorials."""
    if p >= 1:
        yield trials, 1.0
        return
    mode = min(trials, math.floor((trials + 1) * p))
    weight, number = 1.0, mode
    while number <= trials and weight > NEGLIGIBLE:
        yield number, weight
        weight *= (trials - number) / (number + 1) * p / (1 - p)
        number += 1
    weight, number = mode / (trials - mode + 1) * (1 - p) / p, mode - 1
    while number >= 0 and weight > NEGLIGIBLE:
        yield number, weight
        weight *= number / (trials - number + 1) * (1 - p) / p
        number -= 1
