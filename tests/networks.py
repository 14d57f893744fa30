"""The cells, networks and data that the tests share. All shapes are non-square."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import snapgrad as sg

INPUTS, UNITS, OUTPUTS, BATCH, STEPS = 3, 5, 4, 3, 8


def leaky_rule(s, u, v):
    (h,) = s
    return (0.7 * h + 0.3 * jnp.tanh(u[0] + v[0]),)


def minimal_gated_rule(s, u, v):
    (h,) = s
    f = jax.nn.sigmoid(u[0] + v[0])
    return ((1 - f) * h + f * jnp.tanh(u[1] + f * v[1]),)


def odd_rule(s, u, v):
    """Three components; input and recurrence touch different ones; one is fed by neither."""
    a, b, c = s
    return (jnp.tanh(u[0] + b), 0.5 * b + jnp.tanh(v[1] + 0.3 * a), 0.9 * c * jnp.tanh(a) + 0.1)


class StackedParams(NamedTuple):
    lower: Any
    upper: Any
    leak: Any


@dataclass(frozen=True)
class TwoLayers(sg.GeneralCell):
    """A general cell: two layers in one step, a state that is a dict, an output that is not linear."""

    inputs: int
    units: int

    def init(self, key, sparsity=0.0):
        low, high = jax.random.split(key)
        lower, upper = sg.Vanilla(self.inputs, self.units), sg.Vanilla(self.units, self.units + 1)
        return StackedParams(lower.init(low, sparsity), upper.init(high, sparsity), 0.3 * jnp.ones(self.units + 1))

    def initial_state(self):
        return {"lower": jnp.zeros(self.units), "upper": jnp.zeros(self.units + 1)}

    def step(self, params, s, x):
        def layer(p, h, x):
            return sg.multiply(p.input, x) + p.bias + sg.multiply(p.recurrent, h)

        low = jnp.tanh(layer(params.lower, s["lower"], x))
        return {"lower": low, "upper": params.leak * s["upper"] + jnp.tanh(layer(params.upper, s["upper"], low))}

    def output(self, s):
        return jnp.tanh(s["upper"][: self.units]) * s["lower"]


CELLS = {
    "vanilla": sg.Vanilla(INPUTS, UNITS),
    "gru": sg.GRU(INPUTS, UNITS, recurrent_bias=True),
    "lstm": sg.LSTM(INPUTS, UNITS),
    "leaky": sg.UnitCell(leaky_rule, INPUTS, UNITS),
    "minimal_gated": sg.UnitCell(minimal_gated_rule, INPUTS, UNITS, gates=2),
    "odd": sg.UnitCell(odd_rule, INPUTS, UNITS, gates=2, states=3),
    "gru_original": sg.GRU(INPUTS, UNITS, variant="original"),
    "two_layers": TwoLayers(INPUTS, UNITS),
    "stack": sg.stack(sg.GRU(INPUTS, 4), sg.GRU(4, UNITS)),
}
SPARSE = 0.8
SPARSITIES = {"dense": 0.0, "sparse": SPARSE}


class Readout(NamedTuple):
    weight: Any
    bias: Any


def loss(readout, h, target):
    return jnp.sum((readout.weight @ jnp.tanh(h) + readout.bias - target) ** 2)


class Network(NamedTuple):
    cell: Any
    params: Any
    xs: Any
    targets: Any


@cache
def network(name, sparsity=SPARSE, *, steps=STEPS, batch=BATCH, dtype=np.float64):
    """A network with random parameters (biases too, so that nothing is zero by accident) and data for it."""
    cell = CELLS[name] if isinstance(name, str) else name
    draw = np.random.default_rng(0)

    def random(*shape):
        return jnp.asarray(draw.normal(size=shape), dtype)

    def fresh(cell):
        if isinstance(cell, sg.Stack):
            return tuple(map(fresh, cell.cells))
        if not isinstance(cell, sg.UnitCell) or sparsity == 0:
            return cell.init(jax.random.key(0), sparsity)
        # One weight at least in every row: with none, v would be zero, and the reset gate of a GRU that multiplies it
        # would look to a numerical oracle as if it had no influence.
        mask = draw.random((cell.gates * cell.units, cell.units)) > sparsity
        mask[np.arange(len(mask)), draw.integers(0, cell.units, len(mask))] = True
        return cell.init(jax.random.key(0), sparsity, recurrent_mask=mask)

    cell_params = fresh(cell)
    cell_params = jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf) + 0.5 * draw.normal(size=leaf.shape), dtype), cell_params
    )
    params = sg.Params(cell_params, Readout(random(OUTPUTS, UNITS), random(OUTPUTS)))
    return Network(cell, params, random(steps, batch, cell.inputs), random(steps, batch, OUTPUTS))
