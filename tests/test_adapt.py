"""Cells made of a JAX step, from Equinox, Flax and plain functions, against whole Jacobians and `jax.grad`."""

from __future__ import annotations

import copy
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree
from networks import INPUTS, UNITS, loss, network
from oracles import flat, step_jacobians, unrolled_gradient
from variants import Compiled, case, relative_error, run

import snapgrad as sg
from snapgrad.kernels.select import REFERENCE
from snapgrad.sparsity.reach import influence_blocks

EXACT, KEY = 1e-10, jax.random.key(0)


def equinox_gru():
    params, static = eqx.partition(eqx.nn.GRUCell(INPUTS, UNITS, key=KEY), eqx.is_array)
    return sg.cell(lambda params, h, x: eqx.combine(params, static)(x, h), params, jnp.zeros(UNITS), inputs=INPUTS)


def equinox_lstm():
    params, static = eqx.partition(eqx.nn.LSTMCell(INPUTS, UNITS, key=KEY), eqx.is_array)
    start = jnp.zeros(UNITS), jnp.zeros(UNITS)
    return sg.cell(
        lambda params, s, x: eqx.combine(params, static)(x, s), params, start, inputs=INPUTS, output=lambda s: s[0]
    )


def flax_gru():
    module = nnx.GRUCell(INPUTS, UNITS, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    structure, params = nnx.split(module, nnx.Param)
    return sg.cell(lambda params, h, x: nnx.merge(structure, params)(h, x)[0], params, jnp.zeros(UNITS), inputs=INPUTS)


def normalised(params, s, x):
    """A residual path around a layer that is normalised; sparse recurrent weights."""
    pre = sg.multiply(params["recurrent"], s) + params["input"] @ x
    pre = (pre - jnp.mean(pre)) * jax.lax.rsqrt(jnp.var(pre) + 1e-3)
    return 0.7 * s + jnp.tanh(params["gain"] * pre + params["shift"])


def residual():
    recurrent, input, *_ = sg.Vanilla(INPUTS, UNITS).init(KEY, 0.6)
    params = {"recurrent": recurrent, "input": input.to_dense(), "gain": jnp.ones(UNITS), "shift": jnp.zeros(UNITS)}
    return sg.cell(normalised, params, jnp.zeros(UNITS), inputs=INPUTS)


def rotated(params, re, im):
    """exp(-exp(decay) + i angle) (re + i im), the complex diagonal as two reals."""
    size = jnp.exp(-jnp.exp(params["decay"]))
    cos, sin = size * jnp.cos(params["angle"]), size * jnp.sin(params["angle"])
    return {"re": cos * re - sin * im, "im": sin * re + cos * im}


def diagonal_step(params, s, x):
    """s_t = Lambda (s_tm1 + B x_t)."""
    return rotated(params, s["re"] + params["B_re"] @ x, s["im"] + params["B_im"] @ x)


def usual_diagonal_step(params, s, x):
    """s_t = Lambda s_tm1 + B x_t (Orvieto et al. 2023)."""
    return jax.tree.map(jnp.add, rotated(params, **s), {"re": params["B_re"] @ x, "im": params["B_im"] @ x})


def diagonal(step=diagonal_step):
    draw = np.random.default_rng(1)
    params = {"decay": draw.normal(size=UNITS) - 1, "angle": draw.uniform(0, 3, UNITS)}
    params |= {name: draw.normal(size=(UNITS, INPUTS)) for name in ("B_re", "B_im")}
    start = {"re": jnp.zeros(UNITS), "im": jnp.zeros(UNITS)}
    return sg.cell(step, jax.tree.map(jnp.asarray, params), start, inputs=INPUTS, output=lambda s: s["re"])


CELLS = {make.__name__: make() for make in (equinox_gru, equinox_lstm, flax_gru, residual, diagonal)}
every_cell = pytest.mark.parametrize("name", CELLS)


def gradient(cell, windows, **options):
    algorithm = sg.snap(cell, loss, **options)
    return run(Compiled(algorithm, jax.jit(algorithm.grad)), network(cell, 0.0), windows)[1]


@every_cell
def test_both_jacobians_equal_autodiff(name):
    """Of the whole step, at its own parameters: nothing that exists is left out, and every value is right."""
    net, cell = network(CELLS[name], 0.0), CELLS[name]
    jacobians, params = cell.jacobians(net.params.cell), net.params.cell
    flat_state, unravel = ravel_pytree(cell.initial_state())
    s, x = np.random.default_rng(3).normal(size=flat_state.size)[None], net.xs[0, :1]

    @jax.jit
    def values_at(params, s, x):
        at = jax.vmap(unravel)(s), x
        at = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), at)
        _, local = jacobians.forward_at(REFERENCE, params)(*at)
        D = jacobians.dynamics_at(REFERENCE, params, jacobians.dynamics)(local)
        I = jacobians.immediate_at(REFERENCE, params)(local)
        return D[:, 0], REFERENCE.sums(I.at, I.left, I.right)[:, 0]

    D, I = np.zeros((flat_state.size,) * 2), np.zeros((flat_state.size, flat(params).size))
    groups, (D_values, I_values) = jacobians.groups, values_at(params, s, x)
    D[jacobians.dynamics.rows, jacobians.dynamics.cols] = D_values
    I[groups.entries.cols[groups.entry_credit], groups.entry_param] = I_values
    _, exact_D, exact_I = (result[0] for result in step_jacobians(net)(flat(params), s, x))
    assert relative_error(D, exact_D) < EXACT
    assert relative_error(I, exact_I) < EXACT


@every_cell
def test_gradients_are_exact_online_and_episodic(name):
    cell = CELLS[name]
    expected = flat(unrolled_gradient(cell, 0.0)[1])
    assert relative_error(gradient(cell, (4, 4), order=None), expected) < EXACT
    assert relative_error(gradient(cell, (8,), order=None, episodic=True), expected) < EXACT


@pytest.mark.parametrize("name", [case(name, quick=name in ("equinox_lstm", "residual")) for name in CELLS])
def test_the_reference_backend_too(name):
    cell = CELLS[name]
    expected = flat(unrolled_gradient(cell, 0.0)[1])
    assert relative_error(gradient(cell, (4, 4), order=None, backend="reference"), expected) < EXACT
    assert relative_error(gradient(cell, (8,), order=None, episodic=True, backend="reference"), expected) < EXACT


def test_on_a_diagonal_recurrence_the_first_order_is_exact():
    cell = CELLS["diagonal"]
    expected = flat(unrolled_gradient(cell, 0.0)[1])
    assert relative_error(gradient(cell, (4, 4), order=1), expected) < EXACT
    assert sg.costs(cell, cell.init(), order=1).kept == 2 * flat(cell.init()).size  # both parts of one's own unit


def test_a_state_entry_is_a_real_number_so_that_turning_it_takes_a_step():
    """In the usual form a weight of the real part reaches the imaginary one a step later: there it is order 2."""
    cell = diagonal(usual_diagonal_step)
    jacobians = cell.jacobians(cell.init())
    reach = [influence_blocks(jacobians.groups, jacobians.dynamics, order).reach for order in (1, 2, None)]
    assert reach[0] != reach[2]
    assert reach[1] == reach[2]


def test_integer_inputs_are_one_hots():
    cell = CELLS["equinox_gru"]
    params, s = cell.init(), jnp.ones(UNITS)
    np.testing.assert_array_equal(
        cell.step(params, s, jnp.asarray(1)), cell.step(params, s, jnp.zeros(INPUTS).at[1].set(1.0))
    )


def test_cells_of_the_same_functions_and_states_are_one():
    first, second = diagonal_cell(0.0), diagonal_cell(0.0)
    assert first == second == copy.deepcopy(first)
    assert hash(first) == hash(second)
    assert first != diagonal_cell(0.5)


def diagonal_cell(start):
    return sg.cell(leak, {"leak": jnp.ones(2)}, jnp.full(2, start), inputs=2)


def leak(params, s, x):
    return params["leak"] * s + x


def cancelling(params, s, x):
    return params["leak"] * s + x + (s[::-1] - s[::-1])


def test_costs_say_where_detection_may_be_conservative():
    exact, conservative = (sg.cell(step, {"leak": jnp.ones(2)}, jnp.zeros(2), inputs=2) for step in (leak, cancelling))
    assert "conservative" not in str(sg.costs(exact, exact.init()))
    said = "detection may be conservative: 2 entries of D and I were zero at random points"
    assert said in str(sg.costs(conservative, conservative.init()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 3}, "`step` must be a function, got int"),
        ({"output": 3}, "`output` must be a function, got int"),
        ({"inputs": 0}, "`inputs` must be an integer >= 1, got 0"),
        ({"params": {"leak": np.arange(2)}}, "`params` must be a pytree of floating-point arrays only, got int64"),
        ({"params": {}}, "`params` must be a pytree of floating-point arrays only, got none"),
        ({"state": 0.0}, "`state` must be a pytree of floating-point arrays only, got float"),
        ({"state": jnp.zeros(2, complex)}, "`state` must be a pytree of floating-point arrays only, got complex128"),
        ({"state": (jnp.zeros(2),)}, "`output` must be given for a state that is not one array, got None for"),
        ({"inputs": 3}, "`params.cell` must let cell(leak, inputs=3) step from a float vector [3], got:"),
        ({"state": jnp.zeros(1)}, "`step` of cell(leak, inputs=2) must return a state shaped like its argument, got"),
    ],
)
def test_refusals(changes, message):
    good = {"step": leak, "params": {"leak": jnp.ones(2)}, "state": jnp.zeros(2), "inputs": 2}
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}"):
        sg.cell(**good | changes)


def test_its_sparsity_is_that_of_the_parameters():
    with pytest.raises(ValueError, match=r"`sparsity` must be 0 for .*, whose parameters were given with it, got 0\.5"):
        diagonal_cell(0.0).init(KEY, 0.5)
