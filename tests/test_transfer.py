"""What is carried over when patterns change, against recursions on the dense network whose absent weights are zero."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from networks import BATCH, INPUTS, UNITS, loss, network
from oracles import flat, kept_entries, step_jacobians
from variants import case, relative_error

import snapgrad as sg
from snapgrad.algorithms import probes as probing
from snapgrad.algorithms.linearised import linearise
from snapgrad.algorithms.probes import Absent
from snapgrad.kernels.select import NATIVE
from snapgrad.sparsity.matrix import SparseMatrix, densify, map_matrices
from snapgrad.sparsity.moves import Move, carry_over, matrices, parameter_sources


def by_position(matrix):
    at = zip(matrix.pattern.rows.tolist(), matrix.pattern.cols.tolist(), strict=True)
    return dict(zip(at, np.asarray(matrix.values), strict=True))


def rewired_params(net, seed=1):
    """The network's parameters after an exchange of entries in all matrices, biases and readout untouched."""
    rule, draw = sg.rewiring.SET(share=0.4), np.random.default_rng(seed)
    moves = {
        path: Move.between(m.pattern, rule.rewire(m, net.cell.gates, 1000, None, draw))
        for path, m in matrices(net.params).items()
    }
    assert all(move.added for move in moves.values())
    return carry_over(net.params, moves), moves


def dense_columns(params):
    """For every parameter of unit-wise cells its place if all weights existed: columns of a dense J."""
    before, columns = 0, []
    for leaf in jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, SparseMatrix)):
        is_matrix = isinstance(leaf, SparseMatrix)
        columns.append(before + (leaf.pattern.flat if is_matrix else np.arange(leaf.size)))
        before += leaf.shape[0] * leaf.shape[1] if is_matrix else leaf.size
    return np.concatenate(columns), before


class Dense(NamedTuple):
    """The network as if all its weights existed; those that do not are zero."""

    params: sg.Params
    jacobians: object  # (flat params, flat s [B, states], x [B, inputs]) -> next flat s, D, I
    deltas: object  # (readout, flat s [B, states], targets) -> dL/ds, and dL/dh

    def at(self, params, values=None):
        """A flat vector of all weights: `values`, or those of `params`, where these exist, and zeros elsewhere."""
        columns, width = dense_columns(params.cell)
        everywhere = np.zeros(width)
        everywhere[columns] = flat(params.cell) if values is None else values
        return everywhere

    def structure(self, net):
        """Patterns of D and of all of I, with nonzero values in the weights that exist and zero in the others."""
        draw, columns = np.random.default_rng(5), dense_columns(net.params.cell)[0]
        states = flat(net.cell.initial_state()).size
        p, batch = self.at(net.params, draw.normal(size=columns.size)), len(net.xs[0])
        _, D, I = self.jacobians(p, draw.normal(size=(batch, states)), draw.normal(size=(batch, net.cell.inputs)))
        return (np.asarray(D) != 0).any(0), (np.asarray(I) != 0).any(0)


@cache
def dense(name):
    net = network(name)
    whole = net._replace(params=net.params._replace(cell=map_matrices(densify, net.params.cell)))
    unravel = ravel_pytree(net.cell.initial_state())[1]

    def deltas(readout, s, target):
        h, back = jax.vjp(lambda s: net.cell.output(unravel(s)), s)
        by_output = jax.grad(loss, argnums=1)(readout, h, target)
        return back(by_output)[0], by_output

    return Dense(whole.params, step_jacobians(whole), jax.jit(jax.vmap(deltas, in_axes=(None, 0, 0))))


def initial(net):
    return np.tile(flat(net.cell.initial_state()), (len(net.xs[0]), 1))


@pytest.mark.parametrize(
    ("name", "order", "largest", "backend", "batch"),
    [
        case("gru", 2, None, "native", 3),
        case("gru", 2, None, "native", 9, quick=False),
        case("gru", 2, None, "reference", 3),
        case("lstm", 1, None, "native", 3, quick=False),
        case("odd", None, None, "native", 3, quick=False),
        case("gru", None, 3, "native", 3),
    ],
)
def test_gradients_after_a_rewiring_equal_a_dense_recursion_that_is_masked_anew(name, order, largest, backend, batch):
    first, oracle = network(name, batch=batch), dense(name)
    second = first._replace(params=rewired_params(first)[0])
    if largest is None:
        algorithm = sg.snap(first.cell, loss, order=order, backend=backend)
    else:
        algorithm = sg.snap_topk(first.cell, loss, k=largest, backend=backend)
    state, s, J, half = algorithm.init(first.params, batch), initial(first), None, len(first.xs) // 2
    for net, steps in ((first, range(half)), (second, range(half, len(first.xs)))):
        if net is second:
            state = algorithm.rewire(state, first.params, second.params)
        columns, width = dense_columns(net.params.cell)
        D, I = oracle.structure(net)
        kept = kept_entries(D, I & np.isin(np.arange(width), columns), order)
        J = np.zeros((batch, *kept.shape)) if J is None else J * kept
        if net is second:
            assert (J != 0).any()
        for t in steps:
            s, D, I = oracle.jacobians(oracle.at(net.params), s, net.xs[t])
            J = kept * (np.asarray(I) + np.asarray(D) @ J)
            if largest is not None:
                np.put_along_axis(J, np.argsort(np.abs(J), axis=1)[:, :-largest], 0.0, axis=1)
            delta, _ = oracle.deltas(net.params.readout, s, net.targets[t])
            expected = np.einsum("bs,bsp->p", delta, J)[columns] / batch
            gradient, state = algorithm.grad(net.params, state, net.xs[t : t + 1], net.targets[t : t + 1])
            assert relative_error(flat(gradient.grads.cell), expected) < 1e-10


@pytest.mark.parametrize("name", ["gru", case("lstm", quick=False)])  # two parts of J, and one
def test_kronecker_factors_have_the_influence_of_absent_weights_too(name):
    """With a rank that leaves nothing out: that of the dense network in which what is absent is zero."""
    net, oracle = network(name), dense(name)
    before, after = net.params, rewired_params(net)[0]
    algorithm = sg.ok(net.cell, loss, rank=UNITS + INPUTS + 1)
    state, s, J = algorithm.init(before, BATCH, key=jax.random.key(0)), initial(net), 0.0
    for t, params in enumerate((before, before, after, after)):
        if t == 2:
            state = algorithm.rewire(state, before, after)
        s, D, I = oracle.jacobians(oracle.at(params), s, net.xs[t])
        J = np.asarray(I) + np.asarray(D) @ J if t else np.asarray(I)
        delta, _ = oracle.deltas(params.readout, s, net.targets[t])
        expected = np.einsum("bs,bsp->p", delta, J)[dense_columns(params.cell)[0]] / BATCH
        gradient, state = algorithm.grad(params, state, net.xs[t : t + 1], net.targets[t : t + 1])
        assert relative_error(flat(gradient.grads.cell), expected) < 1e-10


def test_weights_and_moments_are_kept_where_an_entry_stays_and_zero_where_it_is_new():
    net = network("gru")
    params, moves = rewired_params(net)
    ones = jax.tree.map(lambda leaf: leaf + 1.0, net.params)
    is_cell = sg.Params(True, False)
    for optimiser in (optax.chain(optax.clip(1.0), optax.adam(1e-3)), optax.masked(optax.adam(1e-3), is_cell)):
        with jax.numpy_dtype_promotion("standard"):
            _, opt_state = optimiser.update(ones, optimiser.init(net.params), net.params)
        moved = carry_over(opt_state, moves)
        assert jax.tree.structure(moved) == jax.tree.structure(optimiser.init(params))
        pairs = list(zip(matrices(opt_state).values(), matrices(moved).values(), strict=True))
        assert len(pairs) == 4  # both moments of both matrices
        for before, after in [*pairs, *zip(matrices(net.params).values(), matrices(params).values(), strict=True)]:
            had = by_position(before)
            assert all(had.values())
            assert by_position(after) == {at: had.get(at, 0.0) for at in by_position(after)}
    sources = parameter_sources(net.params.cell, params.cell)
    old = np.append(flat(net.params.cell), 0.0)
    np.testing.assert_array_equal(old[sources], flat(params.cell))


def test_uoro_keeps_its_estimate_of_what_stays():
    net = network("gru")
    params, _ = rewired_params(net)
    algorithm = sg.uoro(net.cell, loss, rank=2)
    state = algorithm.init(net.params, 3, key=jax.random.key(0))
    (old, width), (new, _) = dense_columns(net.params.cell), dense_columns(params.cell)
    everywhere = np.zeros((3, 2, width))
    everywhere[..., old] = np.random.default_rng(0).normal(size=(3, 2, len(old)))
    state = dataclasses.replace(state, memory=state.memory._replace(params=jnp.asarray(everywhere[..., old])))
    moved = algorithm.rewire(state, net.params, params)
    np.testing.assert_array_equal(moved.memory.params, everywhere[..., new])
    assert (everywhere[..., new] == 0).any()


@pytest.mark.parametrize(("name", "order"), [("gru", 2), case("lstm", 1, quick=False), ("stack", 2)])
def test_a_probe_has_the_gradient_of_a_weight_of_zero(name, order):
    net, oracle = network(name), dense(name)
    rule, draw = sg.rewiring.Probe(share=0.5, pool=2), np.random.default_rng(0)
    patterns = [rule.candidates(m.pattern, net.cell.gates, draw) for m in matrices(net.params).values()]
    # What a candidate reaches is what the network as it stands says, not what other candidates would add to it.
    kept, s, J, expected, deltas = kept_entries(*oracle.structure(net), order), initial(net), 0.0, 0.0, []
    for x, target in zip(net.xs, net.targets, strict=True):
        s, D, I = oracle.jacobians(oracle.at(net.params), s, x)
        J = kept * (np.asarray(I) + np.asarray(D) @ J) if deltas else kept * np.asarray(I)
        by_state, by_output = oracle.deltas(net.params.readout, s, target)
        expected += np.einsum("bs,bsp->p", by_state, J) / BATCH
        deltas.append(by_output / BATCH)
    expected = ravel_pytree(oracle.params.cell)[1](expected)

    layers = [Absent(*patterns[n : n + 2]) for n in range(0, len(patterns), 2)]
    absent = tuple(layers) if isinstance(net.cell, sg.Stack) else layers[0]
    probes = probing.start(NATIVE, net.cell, net.params.cell, order, absent, BATCH)
    probes = probes._replace(gradients=jax.tree.map(lambda g: g + 1.0, probes.gradients))

    @jax.jit
    def follow(probes, params, deltas):
        s_0 = jax.tree.map(lambda leaf: jnp.zeros((BATCH, *leaf.shape)), net.cell.initial_state())
        trajectory = linearise(NATIVE, net.cell, net.cell.jacobians(params), params, s_0, net.xs)
        return probing.follow(NATIVE, net.cell, params, order, probes, trajectory, deltas)

    probes = follow(probes, net.params.cell, jnp.stack(deltas))
    for found, whole in zip(matrices(probes.gradients).values(), matrices(expected).values(), strict=True):
        at = whole.to_dense()[found.pattern.rows, found.pattern.cols]
        assert relative_error(found.values - 1.0, at) < 1e-10  # they are summed
    restarted = probing.restart(NATIVE, probes, jnp.array([False, True, False]))
    assert restarted.gradients is probes.gradients
    np.testing.assert_array_equal(restarted.influence.fresh, [False, True, False])
    assert restarted.influence.J is probes.influence.J


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_state_that_was_rewired_is_loaded_like_a_new_one(backend, tmp_path):
    net = network("gru")
    algorithm = sg.snap(net.cell, loss, order=2, backend=backend)
    state = algorithm.init(net.params, BATCH)
    for seed in (1, 2):
        params, _ = rewired_params(net, seed)
        state = algorithm.rewire(state, net.params, params)
        net = net._replace(params=params)
        sg.save(tmp_path / "state", state)
        loaded = sg.load(tmp_path / "state", like=algorithm.init(params, BATCH))
        assert jax.tree.structure(loaded) == jax.tree.structure(state)
