"""Patterns of the Jacobians and of the kept influence, against brute force."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from networks import CELLS, SPARSITIES, network
from oracles import flat, kept_entries, step_jacobians, structure
from variants import relative_error

import snapgrad as sg
from snapgrad.kernels.select import REFERENCE
from snapgrad.sparsity.reach import influence_blocks

every_network = pytest.mark.parametrize(
    ("name", "sparsity"),
    [pytest.param(name, share, id=f"{name}-{label}") for name in CELLS for label, share in SPARSITIES.items()],
)


@every_network
def test_patterns_are_the_structure_of_the_jacobians(name, sparsity):
    net = network(name, sparsity)
    jacobians = net.cell.jacobians(net.params.cell)
    D_mask, I_mask = structure(name, sparsity)
    np.testing.assert_array_equal(jacobians.dynamics.mask(), D_mask)
    np.testing.assert_array_equal(jacobians.groups.entries.mask()[jacobians.groups.of_param].T, I_mask)


@every_network
def test_kept_entries_equal_brute_force_reachability(name, sparsity):
    net = network(name, sparsity)
    counts = [kept_entries(*structure(name, sparsity), order).sum() for order in (1, 2, 3, None)]
    assert [sg.costs(net.cell, net.params.cell, order=order).kept for order in (1, 2, 3, None)] == counts
    assert counts[0] < counts[1] <= counts[2] <= counts[3]


@every_network
def test_a_saturated_order_keeps_what_rtrl_keeps(name, sparsity):
    net = network(name, sparsity)
    jacobians = net.cell.jacobians(net.params.cell)
    exact = influence_blocks(jacobians.groups, jacobians.dynamics, None)
    assert influence_blocks(jacobians.groups, jacobians.dynamics, 30).reach == exact.reach
    assert influence_blocks(jacobians.groups, jacobians.dynamics, 1).reach != exact.reach
    if sparsity == 0 and name != "odd":  # whose third component takes a step more
        assert influence_blocks(jacobians.groups, jacobians.dynamics, 2).reach == exact.reach


@every_network
def test_values_of_both_jacobians_equal_autodiff(name, sparsity):
    net = network(name, sparsity)
    jacobians, params = net.cell.jacobians(net.params.cell), net.params.cell
    unravel = jax.vmap(jax.flatten_util.ravel_pytree(net.cell.initial_state())[1])
    s = np.random.default_rng(3).normal(size=flat(net.cell.initial_state()).size)

    @jax.jit
    def values_at(params, s, x):
        at = unravel(s), x
        D = jacobians.dynamics_at(REFERENCE, params, jacobians.dynamics, 1)(*at)
        return D[0, :, 0], jacobians.immediate_at(REFERENCE, params, 1)(*at)[0, :, 0]

    D_values, I_values = values_at(params, s[None], net.xs[0, :1])
    _, D, I = (result[0] for result in step_jacobians(net)(flat(params), s[None], net.xs[0, :1]))

    dynamics, immediate, groups = np.zeros(D.shape), np.zeros(I.shape), jacobians.groups
    dynamics[jacobians.dynamics.rows, jacobians.dynamics.cols] = D_values
    for group, (start, end) in enumerate(itertools.pairwise(groups.starts)):
        rows = groups.entries.cols[groups.entries.rows == group]
        columns = np.flatnonzero(groups.of_param == group)
        immediate[np.ix_(rows, columns)] = I_values[start:end].reshape(len(rows), len(columns))
    assert relative_error(dynamics, D) < 1e-10
    assert relative_error(immediate, I) < 1e-10


def test_patterns_do_not_depend_on_values():
    """h_0 = 0, zero weights and one-hot inputs make numerical zeros; none of them is structural."""
    net = network("lstm")
    zeroed = jax.tree.map(lambda leaf: 0 * leaf, net.params.cell)
    assert net.cell.jacobians(zeroed).dynamics == net.cell.jacobians(net.params.cell).dynamics
    original = network("gru_original")
    zeroed = jax.tree.map(lambda leaf: 0 * leaf, original.params.cell)
    assert original.cell.jacobians(zeroed).dynamics == original.cell.jacobians(original.params.cell).dynamics


def test_the_output_gate_of_an_lstm_does_not_reach_the_cell_state_at_once():
    """h and c are nodes of their own: SnAp-1 keeps one entry for an output gate's parameter and two for the others."""
    cell = sg.LSTM(3, 5)
    params = cell.init(jax.random.key(0), sparsity=0.7)
    groups = cell.jacobians(params).groups
    entries = np.diff(groups.entries.row_starts)[groups.of_param]
    gate = np.concatenate([params.recurrent.pattern.rows, params.input.pattern.rows, np.arange(20)]) // 5
    assert set(entries[gate == 3]) == {1}
    assert set(entries[gate != 3]) == {2}
