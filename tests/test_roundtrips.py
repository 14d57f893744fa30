"""States, parameters and cells survive copying, pickling and `jax.tree`, and are taken for what they are."""

from __future__ import annotations

import copy
import pickle
from functools import cache

import jax
import numpy as np
import pytest
from networks import loss, network

import snapgrad as sg
from snapgrad.kernels.native import NativeKernel
from snapgrad.kernels.select import NATIVE, REFERENCE


def through_leaves(tree):
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, leaves)


TRIPS = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "deepcopy": copy.deepcopy,
    "jax.tree": through_leaves,
    "pickled structure": lambda tree: jax.tree.unflatten(
        pickle.loads(pickle.dumps(jax.tree.structure(tree))), jax.tree.leaves(tree)
    ),
}


calls = []


def counted(*args):
    calls.append(1)
    return loss(*args)


@cache
def algorithm_of(name):
    return sg.snap(network(name).cell, counted, order=2)


@pytest.mark.parametrize("name", ["gru", "two_layers"])
@pytest.mark.parametrize("trip", TRIPS)
def test_a_state_and_parameters_go_on_after_a_trip(trip, name):
    net, algorithm = network(name), algorithm_of(name)
    window = net.xs[:2], net.targets[:2]
    expected = algorithm.grad(net.params, algorithm.init(net.params, 3), *window)
    expected = algorithm.grad(net.params, expected[1], *window)
    traced = len(calls)
    _, state = algorithm.grad(net.params, TRIPS[trip](algorithm.init(net.params, 3)), *window)
    found = algorithm.grad(TRIPS[trip](net.params), TRIPS[trip](state), *window)
    assert len(calls) == traced  # the same program: nothing was compiled again
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    algorithm.reset(TRIPS[trip](state), np.ones(3, bool))


def test_a_state_with_a_key_goes_on_after_a_trip():
    net = network("gru")
    algorithm = sg.uoro(net.cell, loss)
    state = algorithm.init(net.params, 3, key=jax.random.key(1))
    losses = [
        algorithm.grad(net.params, trip(state), net.xs[:1], net.targets[:1])[0].grads.cell.bias
        for trip in (lambda s: s, TRIPS["pickle"], TRIPS["deepcopy"])
    ]
    for bias in losses[1:]:
        np.testing.assert_array_equal(bias, losses[0])


@pytest.mark.parametrize("trip", ["pickle", "deepcopy"])
def test_patterns_and_cells_are_equal_after_a_trip_and_stay_immutable(trip):
    pattern = network("gru").params.cell.recurrent.pattern
    assert pattern.rows.size > 0  # worked out before the trip
    after = TRIPS[trip](pattern)
    assert after == pattern
    assert hash(after) == hash(pattern)
    for array in (after.flat, after.rows, after.cols):
        assert not array.flags.writeable
    full = TRIPS[trip](sg.Pattern.full((3, 4)))
    assert full.is_full
    for name in ("gru", "leaky", "gru_original", "two_layers"):
        cell = network(name).cell
        assert TRIPS[trip](cell) == cell
    assert TRIPS[trip](sg.Readout(3, (4,)).loss) == sg.Readout(3, (4,)).loss


def test_kernels_are_what_they_are():
    assert NativeKernel() == NATIVE
    assert hash(NativeKernel()) == hash(NATIVE)
    assert NATIVE != REFERENCE


def test_outputs_are_what_the_readout_saw():
    net = network("two_layers")
    for algorithm in (sg.bptt(net.cell, loss), sg.frozen(net.cell, loss)):
        gradient, _ = algorithm.grad(net.params, algorithm.init(net.params, 3), net.xs, net.targets)
        each = jax.vmap(jax.vmap(loss, in_axes=(None, 0, 0)), in_axes=(None, 0, 0))
        losses = each(net.params.readout, gradient.info.outputs, net.targets)
        np.testing.assert_allclose(losses, gradient.info.losses, rtol=1e-12)
