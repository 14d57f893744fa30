"""Every algorithm, with the oracle of its gradient, and a way to run it over a sequence in windows."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from networks import loss, network
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
    "rflo": Variant(
        lambda cell, backend: sg.rflo(cell, loss, backend=backend),
        lambda *net: influence_gradient(*net, 1, decay=1.0).sum(0),
    ),
    "uoro": Variant(
        lambda cell, backend: sg.uoro(cell, loss, rank=2, backend=backend), None
    ),  # random: its expectation has a test of its own
    "frozen": Variant(
        lambda cell, backend: sg.frozen(cell, loss, backend=backend),
        lambda *net: 0 * influence_gradient(*net, 1).sum(0),
    ),
}


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
