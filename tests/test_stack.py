"""Stacks of unit-wise cells: what the conformance suite, which has one of them, does not ask."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import CELLS, SPARSE, loss, network
from oracles import flat, unrolled_gradient
from variants import Compiled, relative_error, run

import snapgrad as sg

THREE = sg.stack(sg.GRU(3, 4), sg.LSTM(4, 3), sg.Vanilla(3, 5))
TWO_GRUS = CELLS["stack"]


@pytest.mark.parametrize("episodic", [False, True], ids=["online", "episodic"])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_three_layers_are_differentiated_exactly(backend, episodic):
    algorithm = sg.snap(THREE, loss, order=None, episodic=episodic, backend=backend)
    _, grads, _ = run(Compiled(algorithm, jax.jit(algorithm.grad)), network(THREE), (8,) if episodic else (4, 4))
    assert relative_error(grads, flat(unrolled_gradient(THREE, SPARSE)[1])) < 1e-10


def test_the_layers_are_run_within_one_step():
    net, (low, high) = network(TWO_GRUS), TWO_GRUS.cells
    s_low, s_high = (jax.random.normal(jax.random.key(n), (1, cell.units)) for n, cell in enumerate((low, high)))
    after = TWO_GRUS.step(net.params.cell, (s_low, s_high), net.xs[0, 0])
    expected = low.step(net.params.cell[0], s_low, net.xs[0, 0])
    np.testing.assert_array_equal(after[0], expected)
    np.testing.assert_array_equal(after[1], high.step(net.params.cell[1], s_high, low.output(expected)))
    np.testing.assert_array_equal(TWO_GRUS.output(after), after[1][0])


def test_a_parameter_of_layer_1_reaches_layer_2_at_once():
    cell = sg.stack(sg.Vanilla(2, 3), sg.Vanilla(3, 4))
    masks = {"recurrent_mask": np.ones((4, 4), bool), "input_mask": np.zeros((4, 3), bool)}
    masks["input_mask"][2, 1] = True  # unit 2 of the second layer reads unit 1 of the first
    params = cell.cells[0].init(jax.random.key(0)), cell.cells[1].init(jax.random.key(1), **masks)
    groups = cell.jacobians(params).groups
    touched = groups.entries.mask()[groups.of_param]  # [params, states]
    bias = 3 * 3 + 3 * 2  # the first layer's, behind its weights
    assert [np.flatnonzero(touched[bias + unit]).tolist() for unit in range(3)] == [[0], [1, 3 + 2], [2]]


def test_fresh_parameters():
    cell = sg.stack(sg.GRU(3, 4), sg.GRU(4, 5))
    low, high = cell.init(jax.random.key(0), 0.75, sparse_inputs=False, dtype=jnp.float32)
    assert low.input.pattern.is_full
    assert (low.recurrent.pattern.nnz, high.recurrent.pattern.nnz, high.input.pattern.nnz) == (12, 18, 15)
    assert {leaf.dtype for leaf in jax.tree.leaves((low, high))} == {jnp.dtype("float32")}
    same, other = (layer.recurrent for layer in sg.stack(sg.GRU(4, 4), sg.GRU(4, 4)).init(jax.random.key(0), 0.5))
    assert same.pattern != other.pattern


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (sg.stack, "`cells` must be one unit-wise cell or more, got none"),
        (lambda: sg.stack(sg.GRU(3, 4, variant="original")), "`cells` must be unit-wise cells such as sg.GRU"),
        (
            lambda: sg.stack(sg.GRU(3, 4), sg.GRU(3, 5)),
            r"`cells` must each read the one below, with inputs=4 in layer 1, the units of GRU\(.*\), got inputs=3",
        ),
        (
            lambda: TWO_GRUS.check(network(TWO_GRUS).params.cell[:1]),
            r"`params.cell` must be a tuple of 2 for stack\(.*\), one a layer, got tuple of 1",
        ),
        (
            lambda: TWO_GRUS.check((network(TWO_GRUS).params.cell[0],) * 2),
            r"`params.cell\[1\].recurrent` must be a SparseMatrix of shape \(15, 5\)",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        make()
