"""Element-wise programs of the native kernel: equal to what XLA makes of the same function, accurate, and checked."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.cells.rule import rule_table, step_with_derivatives
from snapgrad.cells.unit import UnitCell
from snapgrad.kernels import elementwise
from snapgrad.kernels.elementwise import Elementwise
from snapgrad.kernels.native import _attributes, _call
from snapgrad.kernels.select import NATIVE

CELLS = [sg.Vanilla(2, 21), sg.GRU(2, 21), sg.LSTM(2, 21)]


def operands_of(function, rows, lanes, dtype, shared=0):
    """Arguments of one operand each; the last are for all lanes."""
    rng = np.random.default_rng(lanes)
    widths = [lanes] * (function.inputs - shared) + [1] * shared
    return [jnp.asarray(2 * rng.normal(size=(rows, width)), dtype) for width in widths]


def both(function, rows, operands, results):
    return NATIVE.elementwise(function, rows, operands, results), function.by_xla(rows, operands, results)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-14), (np.float32, 4e-6)])
@pytest.mark.parametrize("lanes", [1, 5, 16, 700])
def test_the_rule_of_every_cell_and_its_derivatives(cell, dtype, tolerance, lanes):
    step, derivatives = step_with_derivatives(cell, 1), len(rule_table(cell).first)
    assert elementwise.program(step, jnp.dtype(dtype)) is not None
    operands = operands_of(step, cell.units, lanes, dtype, shared=cell.gates)
    native, by_xla = both(step, cell.units, operands, (cell.states, derivatives))
    for found, wanted in zip(native, by_xla, strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_functions_are_accurate_to_a_few_units_in_the_last_place(dtype):
    function = Elementwise(lambda x: (jnp.exp(x), jax.nn.sigmoid(x), jnp.tanh(x)), 1)
    most = 80 if dtype == np.float32 else 700
    x = np.concatenate([np.linspace(-most, most, 20001), np.linspace(-1, 1, 2001), 1e-4 * np.linspace(-1, 1, 101)])
    x = x.astype(dtype)
    exact = x.astype(np.longdouble)
    native = NATIVE.elementwise(function, len(x), [jnp.asarray(x)[:, None]], (1, 1, 1))
    wanted = np.exp(exact), 1 / (1 + np.exp(-exact)), np.tanh(exact)
    for found, value in zip(native, wanted, strict=True):
        units = np.abs(np.asarray(found)[:, 0] - value) / np.spacing(np.abs(value).astype(dtype))
        assert units.max() < 5


@pytest.mark.parametrize("lanes", [1, 16])  # the rest of a vector, and whole ones
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_what_is_not_finite_or_very_large(dtype, lanes):
    function = Elementwise(lambda x: (jnp.exp(x), jax.nn.sigmoid(x), jnp.tanh(x)), 1)
    x = jnp.asarray([0.0, -0.0, 1000.0, -1000.0, np.inf, -np.inf, np.nan], dtype)[:, None].repeat(lanes, 1)
    exp, logistic, tanh = (np.asarray(found)[:, -1] for found in NATIVE.elementwise(function, 7, [x], (1, 1, 1)))
    np.testing.assert_array_equal(exp, [1, 1, np.inf, 0, np.inf, 0, np.nan])
    np.testing.assert_array_equal(logistic, [0.5, 0.5, 1, 0, 1, 0, np.nan])
    np.testing.assert_array_equal(tanh, [0, 0, 1, -1, 1, -1, np.nan])


def test_exponentials_near_the_ends_of_float32():
    function = Elementwise(lambda x: (jnp.exp(x), jax.nn.sigmoid(x)), 1)
    x = np.concatenate([np.linspace(-87.3, 88.7, 2000), np.linspace(-103.0, -87.3, 200)]).astype(np.float32)
    found = NATIVE.elementwise(function, len(x), [jnp.asarray(x)[:, None]], (1, 1))
    exp, logistic = (np.asarray(values)[:, 0] for values in found)
    wanted = np.exp(x.astype(np.float64))
    normal = wanted >= np.finfo(np.float32).tiny  # below, zero is as near as XLA comes
    np.testing.assert_allclose(exp[normal], wanted[normal], rtol=4e-7)
    np.testing.assert_allclose(logistic[normal], (wanted / (1 + wanted))[normal], rtol=4e-7)
    assert np.all(exp[~normal] <= np.finfo(np.float32).tiny)


def test_outputs_that_are_inputs_constants_or_the_same():
    function = Elementwise(lambda x, y: (y, x * y, jnp.ones_like(x), x * y, (x * 0) + y * 1, x + -y, x / y**2), 2)
    operands = operands_of(function, 3, 4, np.float64)
    native, by_xla = both(function, 3, operands, (2, 5))
    for found, wanted in zip(native, by_xla, strict=True):
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


def test_a_rule_that_the_kernel_does_not_know_is_left_to_xla():
    cell = UnitCell(lambda s, u, v: (jnp.sin(u[0] + v[0]) * s[0],), 2, 5, gates=1, states=1)
    step = step_with_derivatives(cell, 1)
    assert elementwise.program(step, jnp.dtype(float)) is None
    native, by_xla = both(step, 5, operands_of(step, 5, 3, np.float64), (1, len(rule_table(cell).first)))
    for found, wanted in zip(native, by_xla, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_networks_side_by_side():
    function = Elementwise(lambda x, y: (x - y, jnp.tanh(x)), 2)
    x, y = jnp.arange(24.0).reshape(3, 4, 2) / 7, jnp.arange(12.0).reshape(3, 4, 1)
    run = lambda kernel: jax.vmap(lambda x, y: kernel(4, [x, y], (1, 1)))(x, y)  # noqa: E731
    native = run(lambda *of: NATIVE.elementwise(function, *of))
    for found, wanted in zip(native, run(function.by_xla), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-15)


@pytest.mark.parametrize(
    "code", [[2, 1, 0], [9, 1, 0, 0], [-1, 1, 0, 0], [2, 0, 1, 1], [2, 1, 0, 5], [2, 1, -1, 0], [2, 5, 0, 0]]
)
def test_code_that_no_program_has_is_refused(code):
    made = elementwise.Program(np.asarray(code, np.int32), np.ones(1), 1)  # places: 0 input, 1 output, 2 and 3
    out = [jax.ShapeDtypeStruct((4, 2), jnp.float64)]
    with pytest.raises(jax.errors.JaxRuntimeError, match="`code` must have"):
        jax.block_until_ready(_call("elementwise", out)(jnp.ones((4, 2)), rows=np.int64(4), **_attributes(made)))


def test_operands_of_other_sizes_are_refused():
    made = elementwise.program(Elementwise(lambda x: (x + 1.0,), 1), jnp.dtype(float))
    out = [jax.ShapeDtypeStruct((4, 2), jnp.float64)]
    for operand in (jnp.ones((5, 2)), jnp.ones((4, 3)), jnp.ones((4, 2), jnp.float32)):
        with pytest.raises(jax.errors.JaxRuntimeError, match="operand"):
            jax.block_until_ready(_call("elementwise", out)(operand, rows=np.int64(4), **_attributes(made)))
