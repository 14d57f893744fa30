"""Every algorithm, with the oracle of its gradient, and a way to run it over a sequence in windows."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from networks import CELLS, INPUTS, SPARSE, UNITS, loss, network
from oracles import flat, influence_gradient, unrolled_gradient

import snapgrad as sg

WINDOW = 4  # the sequence of 8 steps is run in two windows


class Variant(NamedTuple):
    make: Any  # (cell, backend) -> Algorithm
    oracle: Any  # (name, sparsity) -> gradient of the cell's parameters, summed over both windows


def snap(order):
    return Variant(
        lambda cell, backend: sg.snap(cell, loss, order=order, backend=backend),
        lambda name, sparsity: influence_gradient(name, sparsity, order).sum(0),
    )


def episodic(order):
    return Variant(
        lambda cell, backend: sg.snap(cell, loss, order=order, episodic=True, backend=backend),
        lambda name, sparsity: influence_gradient(name, sparsity, order, restart=WINDOW).sum(0),
    )


def top(k):
    return Variant(
        lambda cell, backend: sg.snap_topk(cell, loss, k=k, backend=backend),
        lambda name, sparsity: influence_gradient(name, sparsity, None, largest=k).sum(0),
    )


def unrolled(make, cut):
    def oracle(name, sparsity):
        return flat(unrolled_gradient(name, sparsity, cut)[1].cell)

    return Variant(make, oracle)


VARIANTS = {
    "bptt": unrolled(lambda cell, backend: sg.bptt(cell, loss, backend=backend), WINDOW),
    "bptt_rematerialised": unrolled(
        lambda cell, backend: sg.bptt(cell, loss, rematerialise=3, backend=backend), WINDOW
    ),
    "rtrl": unrolled(lambda cell, backend: sg.rtrl(cell, loss, backend=backend), None),
    "snap_1": snap(1),
    "snap_2": snap(2),
    "snap_3": snap(3),
    "snap_1_episodic": episodic(1),
    "snap_2_episodic": episodic(2),
    "snap_3_episodic": episodic(3),
    "snap_topk": top(3),
    "rflo": Variant(
        lambda cell, backend: sg.rflo(cell, loss, backend=backend),
        lambda *net: influence_gradient(*net, 1, decay=1.0).sum(0),
    ),
    "rflo_episodic": Variant(
        lambda cell, backend: sg.rflo(cell, loss, decay=0.6, episodic=True, backend=backend),
        lambda *net: influence_gradient(*net, 1, decay=0.6, restart=WINDOW).sum(0),
    ),
    # Random: their expectations have tests of their own.
    "uoro": Variant(lambda cell, backend: sg.uoro(cell, loss, rank=2, backend=backend), None),
    "kf_rtrl": Variant(lambda cell, backend: sg.kf_rtrl(cell, loss, backend=backend), None),
    # Of a rank that leaves nothing out.
    "ok": unrolled(lambda cell, backend: sg.ok(cell, loss, rank=UNITS + INPUTS + 1, backend=backend), None),
    "frozen": Variant(
        lambda cell, backend: sg.frozen(cell, loss, backend=backend),
        lambda *net: 0 * influence_gradient(*net, 1).sum(0),
    ),
}
RANDOM = ("uoro", "kf_rtrl")

# A cell of every kind: unit-wise with one state component and with two, a general one, layers.
KINDS = ("gru", "lstm", "two_layers", "stack")
# Every algorithm once, with SnAp and RFLO in both of their forms.
EACH_ALGORITHM = (
    *("bptt", "rtrl", "snap_2", "snap_2_episodic", "snap_topk", "rflo", "rflo_episodic"),
    *("uoro", "kf_rtrl", "ok", "frozen"),
)
# What reads D and I in all the ways there are.
EACH_READING = ("bptt", "snap_2", "snap_2_episodic")


def is_quick(variant, name, sparsity=SPARSE):
    """Whether a combination is in the quick set: every algorithm on every kind of cell, and every cell and variant."""
    if sparsity == 0:
        return name == "gru" and variant in EACH_READING
    if name == "gru":
        return True
    return variant in (EACH_ALGORITHM if name in KINDS else EACH_READING)


def case(*arguments, quick=True, id=None):
    """A case of a parametrised test, which only `make test-all` runs if it is not a quick one."""
    return pytest.param(*arguments, id=id, marks=() if quick else pytest.mark.exhaustive)


def runs_on(variant, name, sparsity=SPARSE):
    """Which combinations the suite has, where an algorithm is not for every cell or would teach nothing new."""
    if variant == "kf_rtrl":  # which shares all but a few lines with OK
        return name in ("gru", "lstm")
    if variant == "ok":
        return isinstance(CELLS[name], sg.UnitCell)
    return not (variant == "snap_topk" and sparsity == 0 and name != "gru")


class Compiled(NamedTuple):
    algorithm: sg.Algorithm
    grad: Any


@cache
def compiled(variant, name, backend="native"):
    algorithm = VARIANTS[variant].make(network(name).cell, backend)
    return Compiled(algorithm, jax.jit(algorithm.grad))


def run(compiled, net, windows=(WINDOW, WINDOW), key=None):
    """Loss, gradient and state after consecutive windows of the given lengths, with weights held fixed."""
    assert sum(windows) == len(net.xs)
    state = compiled.algorithm.init(
        net.params, batch_size=net.xs.shape[1], key=jax.random.key(0) if key is None else key
    )
    total, grads, start = 0.0, 0.0, 0
    for length in windows:
        part = slice(start, start + length)
        gradient, state = compiled.grad(net.params, state, net.xs[part], net.targets[part])
        total, grads, start = total + gradient.loss, grads + flat(gradient.grads), start + length
    return total, grads, state


def relative_error(value, expected):
    value, expected = np.asarray(value), np.asarray(expected)
    assert value.shape == expected.shape
    scale = np.abs(expected).max()
    return np.abs(value - expected).max() / (scale if scale > 0 else 1.0)
