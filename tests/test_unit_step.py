"""One step of a unit-wise cell in one native pass: equal to what XLA makes of it, accurate, and checked."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.cells.rule import apply_with_derivatives, rule_table, step_with_derivatives
from snapgrad.cells.unit import UnitCell
from snapgrad.kernels import elementwise
from snapgrad.kernels.base import Affine
from snapgrad.kernels.elementwise import Elementwise
from snapgrad.kernels.native import MOST_LANES, _call
from snapgrad.kernels.select import NATIVE
from snapgrad.sparsity.matrix import SparseMatrix, multiply

CELLS = [sg.Vanilla(3, 21), sg.GRU(3, 21), sg.LSTM(3, 21), sg.GRU(3, 21, recurrent_bias=True)]
FUNCTIONS = jnp.exp, jax.nn.sigmoid, jnp.tanh


def network(cell, lanes, dtype, sparsity):
    """Parameters, a state and inputs, all random."""
    rng = np.random.default_rng(lanes)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    params = cell.init(jax.random.key(1), sparsity=sparsity, dtype=dtype)
    params = jax.tree.map(lambda leaf: draw(*leaf.shape), params)
    return params, draw(cell.states, cell.units, lanes), draw(cell.inputs, lanes)


def natively(cell, params, s, x):
    ready = NATIVE.ready(params)
    input, recurrent = Affine(ready.input, x, ready.bias), Affine(ready.recurrent, s[0], ready.recurrent_bias)
    return NATIVE.unit_step(step_with_derivatives(cell), s, input, recurrent)


def by_xla(cell, params, s, x):
    preactivations = jax.vmap(lambda s, x: cell.preactivations(params, s, x), in_axes=-1, out_axes=-1)
    return apply_with_derivatives(cell, s, *preactivations(s, x))


def on_elements(function, x):
    """A function of one scalar to several on every element of x, by way of a cell with a state and nothing else."""
    rule = Elementwise(lambda s, u, v: function(s), 3)
    rows, lanes = x.shape
    nothing = Affine(jnp.zeros((rows, 0), x.dtype), jnp.zeros((0, lanes), x.dtype), jnp.zeros(rows, x.dtype))
    first, others = NATIVE.unit_step(rule, x[None], nothing, nothing)
    return [np.asarray(first[0]), *np.asarray(others).reshape(-1, rows, lanes)]


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 1e-5)])
@pytest.mark.parametrize("lanes", [8, 13, 16, 40, MOST_LANES])
@pytest.mark.parametrize("sparsity", [0.0, 0.8])  # dense products are XLA's
def test_every_cell_and_its_derivatives(cell, dtype, tolerance, lanes, sparsity):
    params, s, x = network(cell, lanes, dtype, sparsity)
    for found, wanted in zip(natively(cell, params, s, x), by_xla(cell, params, s, x), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sparsity", [0.0, 0.8])
def test_inputs_that_name_columns(sparsity):
    cell = sg.GRU(7, 21)
    params, s, _ = network(cell, 16, np.float64, sparsity)
    x = jnp.arange(16) % 9 - 1  # two of them out of range
    for found, wanted in zip(natively(cell, params, s, x), by_xla(cell, params, s, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)


def test_networks_side_by_side():
    cell = sg.LSTM(3, 21)
    parts = [network(cell, lanes, np.float64, 0.8)[0] for lanes in (1, 2, 3)]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    _, s, x = network(cell, 16, np.float64, 0.8)
    native = jax.vmap(lambda params: natively(cell, params, s, x))(params)
    for nth, part in enumerate(parts):
        for found, wanted in zip(native, by_xla(cell, part, s, x), strict=True):
            np.testing.assert_allclose(found[nth], wanted, rtol=1e-13, atol=1e-13)


def test_what_is_left_to_xla():
    known, unknown = sg.GRU(3, 5), UnitCell(lambda s, u, v: (jnp.sin(u[0] + v[0]) * s[0],), 3, 5)
    for cell, lanes in ((known, 7), (known, MOST_LANES + 1), (unknown, 16)):
        assert natively(cell, *network(cell, lanes, np.float32, 0.0)) is None
    assert natively(known, *network(known, 8, np.float32, 0.0)) is not None


def fraction(s, u, v):
    """Division by what changes, and values that nothing needs."""
    jnp.sin(u[0])
    return (s[0] * v[0] ** 3 / (1.0 + u[0] ** 2),)


def test_divisions_powers_and_what_nothing_needs():
    cell = UnitCell(fraction, 3, 5)
    params, s, x = network(cell, 16, np.float64, 0.5)
    for found, wanted in zip(natively(cell, params, s, x), by_xla(cell, params, s, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("order", [1, 2])
def test_a_rule_that_the_kernel_does_not_know_learns_all_the_same(order):
    cell = UnitCell(lambda s, u, v: (jnp.sin(u[0] + v[0]) * s[0],), 3, 9)
    params = sg.Params(cell.init(jax.random.key(0), sparsity=0.7), jnp.ones((1, 9)))
    xs = jax.random.normal(jax.random.key(1), (4, 16, 3))
    loss = lambda readout, h, y: jnp.sum((readout @ h - y[:1]) ** 2)  # noqa: E731
    found = []
    for backend in ("native", "reference"):
        algorithm = sg.snap(cell, loss, order=order, backend=backend)
        found.append(algorithm.grad(params, algorithm.init(params, 16), xs, xs)[0].grads)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), *found)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_functions_are_accurate_to_a_few_units_in_the_last_place(dtype):
    most = 80 if dtype == np.float32 else 700
    x = np.concatenate([np.linspace(-most, most, 20001), np.linspace(-1, 1, 2001), 1e-4 * np.linspace(-1, 1, 102)])
    x = x.astype(dtype).reshape(-1, 8)
    exact = x.astype(np.longdouble)
    wanted = np.exp(exact), 1 / (1 + np.exp(-exact)), np.tanh(exact)
    for found, value in zip(on_elements(lambda x: [f(x) for f in FUNCTIONS], jnp.asarray(x)), wanted, strict=True):
        units = np.abs(found - value) / np.spacing(np.abs(value).astype(dtype))
        assert units.max() < 5


@pytest.mark.parametrize("lanes", [9, 16])  # the rest of a vector, and whole ones
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_what_is_not_finite_or_very_large(dtype, lanes):
    x = jnp.asarray([0.0, -0.0, 1000.0, -1000.0, np.inf, -np.inf, np.nan], dtype)[:, None].repeat(lanes, 1)
    exp, logistic, tanh = (found[:, -1] for found in on_elements(lambda x: [f(x) for f in FUNCTIONS], x))
    np.testing.assert_array_equal(exp, [1, 1, np.inf, 0, np.inf, 0, np.nan])
    np.testing.assert_array_equal(logistic, [0.5, 0.5, 1, 0, 1, 0, np.nan])
    np.testing.assert_array_equal(tanh, [0, 0, 1, -1, 1, -1, np.nan])


def test_exponentials_near_the_ends_of_float32():
    x = np.concatenate([np.linspace(-87.3, 88.7, 2000), np.linspace(-103.0, -87.3, 200)]).astype(np.float32)
    found = on_elements(lambda x: [jnp.exp(x), jax.nn.sigmoid(x)], jnp.asarray(x).reshape(-1, 8))
    exp, logistic = (values.ravel() for values in found)
    wanted = np.exp(x.astype(np.float64))
    normal = wanted >= np.finfo(np.float32).tiny  # below, zero is as near as XLA comes
    np.testing.assert_allclose(exp[normal], wanted[normal], rtol=4e-7)
    np.testing.assert_allclose(logistic[normal], (wanted / (1 + wanted))[normal], rtol=4e-7)
    assert np.all(exp[~normal] <= np.finfo(np.float32).tiny)


def test_outputs_that_are_inputs_constants_or_the_same():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 11)))
    function = lambda x: [x, x * x, jnp.ones_like(x), x * x, (x * 0) + x * 1, 2.0 + -x, x**5, x / -0.0, x / 0.0]  # noqa: E731
    for found, wanted in zip(on_elements(function, x), function(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-15)


def test_values_are_computed_once_and_registers_used_again():
    def function(x):
        terms = [jnp.tanh(x + 1.0), jnp.tanh(x + 1.0)]
        for _ in range(20):
            terms.append(terms[-1] * terms[-2])
        return (terms[-1],)

    made = elementwise.program(Elementwise(function, 1), jnp.dtype(float))
    assert len(made.code) // 4 == 22  # one sum, one tanh, twenty products
    assert made.registers <= 3


def test_no_derivative_is_computed_that_no_entry_needs():
    cell = sg.GRU(3, 5)
    assert elementwise.program(step_with_derivatives(cell), jnp.dtype(float)).outputs == 1 + len(rule_table(cell).first)


def step_of(**changes):
    """A call of the handler on a cell s' = s + u of 4 units and 2 inputs, one of whose arguments is another."""
    made = elementwise.program(Elementwise(lambda s, u, v: (s + u,), 3), jnp.dtype(float))
    matrix = NATIVE.ready(SparseMatrix.from_dense(jnp.ones((4, 2)), np.eye(4, 2, dtype=bool)))
    given = {
        "s": jnp.ones((4, 8)),
        "W": matrix.values,
        "x": jnp.ones((2, 8)),
        "bias": jnp.ones(4),
        "V": jnp.ones((4, 8)),
        "recurrent_bias": jnp.zeros(0),
        "input": matrix.plan,
        "recurrent": "",
        "code": made.code,
        "constants": made.constants,
        "registers": np.int64(made.registers),
        "units": np.int64(4),
    } | changes
    operands = [given.pop(name) for name in ("s", "W", "x", "bias", "V", "recurrent_bias")]
    out = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((4, 8), (0, 8))]
    return jax.block_until_ready(_call("unit_step", out)(*operands, **given))[0]


def test_a_call_by_hand():
    wanted = 1 + multiply(jnp.eye(4, 2), jnp.ones(2)) + 1
    np.testing.assert_array_equal(step_of(), np.repeat(wanted[:, None], 8, 1))


# Places: 0 to 2 are inputs, 3 is the output, 4 and 5 a constant and a register.
@pytest.mark.parametrize(
    "code",
    [[2, 3, 0], [9, 3, 0, 0], [-1, 3, 0, 0], [2, 0, 1, 1], [2, 4, 0, 0], [2, 3, 0, 6], [2, 3, -1, 0], [2, 6, 0, 0]],
)
def test_code_that_no_program_has_is_refused(code):
    with pytest.raises(jax.errors.JaxRuntimeError, match="`code` must have"):
        step_of(code=np.asarray(code, np.int32), constants=np.ones(1), registers=np.int64(1))


@pytest.mark.parametrize(
    "changes",
    [
        {"s": jnp.ones((5, 8))},
        {"s": jnp.ones((0, 8))},
        {"W": jnp.ones(3)},
        {"W": jnp.ones(2, jnp.float32)},
        {"x": jnp.ones((3, 8))},
        {"x": jnp.ones((2, 9))},
        {"bias": jnp.ones(3)},
        {"bias": jnp.ones(8)},
        {"V": jnp.ones((4, 7))},
        {"recurrent_bias": jnp.ones(3)},
        {"units": np.int64(3)},
        {"units": np.int64(0)},
        {"registers": np.int64(-1)},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_operands_of_other_sizes_are_refused(changes):
    with pytest.raises(jax.errors.JaxRuntimeError, match="snapgrad: `"):
        step_of(**changes)
