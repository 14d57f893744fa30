"""Patterns of the Jacobians and of the kept influence, against brute force."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import BATCH, CELLS, SPARSITIES, loss, network
from oracles import flat, jacobians_of, kept_entries, structure
from variants import case, relative_error

import snapgrad as sg
from snapgrad.cells.rule import KNOWN, detected_structure
from snapgrad.kernels.select import REFERENCE
from snapgrad.sparsity.reach import influence_blocks

every_network = pytest.mark.parametrize(
    ("name", "sparsity"),
    [
        case(name, share, id=f"{name}-{label}", quick=share > 0 or name == "gru")
        for name in CELLS
        for label, share in SPARSITIES.items()
    ],
)


THREE_LAYERS = sg.stack(sg.GRU(3, 4), sg.LSTM(4, 3), sg.Vanilla(3, 5))
every_network_and_a_deeper_stack = pytest.mark.parametrize(
    ("name", "sparsity"),
    [*every_network.args[1], pytest.param(THREE_LAYERS, SPARSITIES["sparse"], id="three_layers")],
)


@every_network_and_a_deeper_stack
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


@every_network_and_a_deeper_stack
def test_of_the_dynamics_what_lies_within_some_block_is_used(name, sparsity):
    net = network(name, sparsity)
    jacobians = net.cell.jacobians(net.params.cell)
    for order in (1, 2):
        blocks = influence_blocks(jacobians.groups, jacobians.dynamics, order)
        reach = blocks.reach.mask()
        together = np.einsum("gi,gj->ij", reach.astype(int), reach.astype(int)) > 0
        np.testing.assert_array_equal(blocks.dynamics.mask(), jacobians.dynamics.mask() & together)


@every_network_and_a_deeper_stack
def test_values_of_both_jacobians_equal_autodiff(name, sparsity):
    net = network(name, sparsity)
    jacobians, params = net.cell.jacobians(net.params.cell), net.params.cell
    unravel = jax.vmap(jax.flatten_util.ravel_pytree(net.cell.initial_state())[1])
    s = np.random.default_rng(3).normal(size=flat(net.cell.initial_state()).size)

    @jax.jit
    def values_at(params, s, x):
        at = unravel(s), x
        at = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), at)
        _, local = jacobians.forward_at(REFERENCE, params)(*at)
        D = jacobians.dynamics_at(REFERENCE, params, jacobians.dynamics)(local)
        I = jacobians.immediate_at(REFERENCE, params)(local)
        return D[:, 0], REFERENCE.sums(I.at, I.left, I.right)[:, 0]

    D_values, I_values = values_at(params, s[None], net.xs[0, :1])
    _, D, I = (result[0] for result in jacobians_of(name, sparsity)(flat(params), np.tile(s, (BATCH, 1)), net.xs[0]))

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


def by_fft(x):
    return jnp.fft.irfft(jnp.fft.rfft(x), len(x))


def by_solve(x):
    return jnp.linalg.solve(jnp.eye(len(x)) + jnp.outer(x, x), x)


def by_convolution(x):
    return jnp.convolve(x, x, mode="same")


@dataclass(frozen=True)
class Mixing(sg.GeneralCell):
    """A cell whose units are mixed by `mix`, with `given` as its patterns."""

    mix: Any
    given: Any = None
    inputs: int = 2

    def init(self, key, sparsity=0.0):
        return {"leak": jnp.full(4, 0.3), "input": jnp.ones((4, 2))}

    def initial_state(self):
        return jnp.zeros(4)

    def step(self, params, s, x):
        return jnp.tanh(params["leak"] * s + self.mix(0.5 * s) + params["input"] @ x)

    def output(self, s):
        return s

    def patterns(self, params):
        return self.given


@pytest.mark.parametrize(
    ("mix", "primitive"),
    [(by_fft, "fft"), (by_solve, "custom_linear_solve"), (by_convolution, "conv_general_dilated")],
)
def test_a_primitive_without_a_rule_is_named_with_the_way_out(mix, primitive):
    cell = Mixing(mix)
    message = (
        "the patterns of a cell must be given by hand (`patterns` of sg.GeneralCell) if its derivative has a primitive "
        f"that sparsity detection has no rule for, got {primitive!r}"
    )
    with pytest.raises(ValueError, match="must be given by hand") as refused:
        sg.rtrl(cell, loss).init(sg.Params(cell.init(None), ()), batch_size=1)
    assert str(refused.value) == message  # without JAX's notes


def test_patterns_given_by_hand_are_used_and_checked():
    whole, own, touched = np.ones((4, 4), bool), np.eye(4, dtype=bool), np.repeat(np.eye(4, dtype=bool), 2, axis=1)
    immediate = np.concatenate([touched, own], axis=1)  # "input" [4, 2] before "leak" [4]
    cell = Mixing(by_fft, sg.Patterns(sg.Pattern.from_mask(whole), sg.Pattern.from_mask(immediate)))
    params = sg.Params(cell.init(None), jnp.ones(4))
    xs, targets = np.random.default_rng(0).normal(size=(5, 2, 2)), np.zeros((5, 2))
    exact, online = (
        make(cell, lambda readout, h, target: readout @ h**2) for make in (sg.bptt, lambda *a: sg.snap(*a, order=None))
    )
    expected, found = (
        flat(algorithm.grad(params, algorithm.init(params, batch_size=2), xs, targets)[0].grads)
        for algorithm in (exact, online)
    )
    assert relative_error(found, expected) < 1e-10
    assert sg.costs(cell, params.cell, order=1).kept == immediate.sum()

    lacking = immediate.copy()
    lacking[3, 7] = False
    for name, pair in {"dynamics": (own, immediate), "immediate": (whole, lacking)}.items():
        wrong = Mixing(lambda s: by_fft(s[::-1]), tuple(map(sg.Pattern.from_mask, pair)))
        with pytest.raises(ValueError, match=f"must have every entry that exists, got `{name}` without some"):
            wrong.jacobians(params.cell)
    with pytest.raises(ValueError, match=r"must return a Pattern dynamics \[4, 4\] and a Pattern immediate \[4, 12\]"):
        Mixing(by_fft, sg.Patterns(*map(sg.Pattern.from_mask, (immediate, whole)))).jacobians(params.cell)


@pytest.mark.parametrize("cell", [sg.Vanilla(3, 2), sg.GRU(3, 2), sg.LSTM(3, 2)], ids=str)
def test_structures_that_are_known_are_those_that_detection_finds(cell):
    for known, found in zip(KNOWN[cell.rule], detected_structure(cell), strict=True):
        np.testing.assert_array_equal(known, found)
