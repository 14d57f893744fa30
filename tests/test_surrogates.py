"""Derivatives that are not those of the forward program: surrogate gradients, straight-through estimators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from networks import INPUTS, SPARSE, UNITS, loss, network
from oracles import flat, unrolled_gradient
from variants import Compiled, case, relative_error, run

import snapgrad as sg

EXACT = 1e-10


@jax.custom_jvp
def spike(x):
    """A step with the derivative of a fast sigmoid in place of its own, which is zero."""
    return (x > 0).astype(x.dtype)


@spike.defjvp
def spike_jvp(primals, tangents):
    return spike(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2


@jax.custom_vjp
def rounded(x):
    """Rounding to quarters that lets gradients straight through, known in reverse mode only."""
    return jnp.round(4 * x) / 4


rounded.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (cotangent,))


def stopped(x):
    """The same, as it is most often written."""
    return x + jax.lax.stop_gradient(jnp.round(4 * x) / 4 - x)


def spiking_rule(s, u, v):
    h, membrane = s
    membrane = 0.8 * membrane * (1 - h) + u[0] + v[0]
    return spike(membrane - 0.3), membrane


def rounded_rule(s, u, v):
    return (rounded(0.5 * s[0] + jnp.tanh(u[0] + v[0])),)


def stopped_rule(s, u, v):
    return (stopped(0.5 * s[0] + jnp.tanh(u[0] + v[0])),)


class QuantisedParams(NamedTuple):
    gate: Any
    candidate: Any
    input: Any


@dataclass(frozen=True)
class Quantised(sg.GeneralCell):
    """Two matrices in a row with something between them whose derivative is not its own."""

    between: Callable[[Any], Any]
    inputs: int
    units: int

    def init(self, key, sparsity=0.0):
        first, second, third = jax.random.split(key, 3)
        matrix = lambda key, cell: cell.init(key, sparsity).recurrent  # noqa: E731
        square = sg.Vanilla(1, self.units)
        return QuantisedParams(
            matrix(first, square), matrix(second, square), sg.Vanilla(self.inputs, self.units).init(third).input
        )

    def initial_state(self):
        return jnp.zeros(self.units)

    def step(self, params, s, x):
        gate = self.between(sg.multiply(params.gate, s) + sg.multiply(params.input, x))
        return 0.5 * s + jnp.tanh(sg.multiply(params.candidate, gate * s) + gate)

    def output(self, s):
        return s


CELLS = {
    "custom_jvp": sg.UnitCell(spiking_rule, INPUTS, UNITS, states=2),
    "custom_vjp": sg.UnitCell(rounded_rule, INPUTS, UNITS),
    "stop_gradient": sg.UnitCell(stopped_rule, INPUTS, UNITS),
    "general custom_jvp": Quantised(spike, INPUTS, UNITS),
    "general custom_vjp": Quantised(rounded, INPUTS, UNITS),
    "general stop_gradient": Quantised(stopped, INPUTS, UNITS),
}
every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
# A stop_gradient is in the program itself: its patterns, which are compared as well, are all that can go wrong.
custom = {name: cell for name, cell in CELLS.items() if "custom" in name}
every_custom_cell = pytest.mark.parametrize("cell", custom.values(), ids=custom)
every_backend = pytest.mark.parametrize("backend", ["native", case("reference", quick=False)])


def n_recurrent(cell):
    return jax.tree.leaves(network(cell).params.cell)[0].size


def gradient(make, cell, windows):
    algorithm = make(cell, loss)
    return run(Compiled(algorithm, jax.jit(algorithm.grad)), network(cell), windows)[1]


@every_cell
def test_patterns_are_those_of_the_derivative(cell):
    """Against reverse-mode autodiff of the step at random points, which obeys the surrogate as backpropagation does."""
    net, draw = network(cell), np.random.default_rng(5)
    jacobians = cell.jacobians(net.params.cell)
    params, unravel_params = ravel_pytree(net.params.cell)
    state, unravel_state = ravel_pytree(cell.initial_state())

    def step(p, s, x):
        return ravel_pytree(cell.step(unravel_params(p), unravel_state(s), x))[0]

    at = jax.jit(jax.vmap(jax.jacrev(step, argnums=(0, 1)), in_axes=(None, 0, 0)))
    I, D = at(draw.normal(size=params.size), draw.normal(size=(6, state.size)), draw.normal(size=(6, cell.inputs)))
    np.testing.assert_array_equal(jacobians.dynamics.mask(), (np.asarray(D) != 0).any(0))
    np.testing.assert_array_equal(
        jacobians.groups.entries.mask()[jacobians.groups.of_param].T, (np.asarray(I) != 0).any(0)
    )


@every_backend
@every_custom_cell
def test_influence_gives_what_backpropagation_gives(cell, backend):
    """Online and episodic, native and in plain JAX, against `jax.grad` of the unrolled loss."""
    expected = flat(unrolled_gradient(cell, SPARSE)[1])
    assert np.abs(expected[: n_recurrent(cell)]).max() > 1e-2
    online = lambda *a: sg.snap(*a, order=None, backend=backend)  # noqa: E731
    episodic = lambda *a: sg.snap(*a, order=None, episodic=True, backend=backend)  # noqa: E731
    assert relative_error(gradient(online, cell, (4, 4)), expected) < EXACT
    assert relative_error(gradient(episodic, cell, (8,)), expected) < EXACT


@every_custom_cell
def test_the_immediate_part_is_that_of_backpropagation_through_one_step(cell):
    expected = gradient(sg.bptt, cell, (1,) * 8)
    assert np.abs(expected[: n_recurrent(cell)]).max() > 1e-2
    assert relative_error(gradient(lambda *a: sg.rflo(*a, decay=0.0), cell, (4, 4)), expected) < EXACT


def test_what_needs_forward_mode_says_so():
    cell = sg.UnitCell(rounded_rule, 2, 2)
    params = sg.Params(cell.init(jax.random.key(0)), ())
    algorithm = sg.uoro(cell, lambda readout, h, target: h.sum())
    state = algorithm.init(params, 1, key=jax.random.key(1))
    with pytest.raises(ValueError, match="`cell` must have derivatives in forward mode for this algorithm"):
        algorithm.grad(params, state, jnp.zeros((1, 1, 2)), jnp.zeros((1, 1)))
