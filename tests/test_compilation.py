"""Compiled once a shape, also in a whole online loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from networks import loss, network
from variants import VARIANTS, case, relative_error

import snapgrad as sg


def counted(calls):
    def counting_loss(readout, h, target):
        calls.append(h.shape)
        return loss(readout, h, target)

    return counting_loss


@pytest.mark.parametrize(
    "make",
    [
        sg.bptt,
        sg.rtrl,
        lambda *a: sg.snap(*a, order=2),
        lambda *a: sg.snap_topk(*a, k=2),
        sg.rflo,
        sg.uoro,
        sg.kf_rtrl,
        sg.ok,
        sg.frozen,
    ],
    ids=["bptt", "rtrl", "snap", "snap_topk", "rflo", "uoro", "kf_rtrl", "ok", "frozen"],
)
def test_grad_compiles_once_a_shape(make):
    net, calls = network("gru"), []
    algorithm = make(net.cell, counted(calls))
    grad = jax.jit(algorithm.grad)
    state = algorithm.init(net.params, batch_size=3, key=jax.random.key(0))
    params, traced = net.params, []
    for _ in range(3):
        gradient, state = grad(params, state, net.xs[:2], net.targets[:2])
        state = algorithm.reset(state, jnp.array([True, False, False]))
        params = optax.apply_updates(params, jax.tree.map(lambda g: -0.01 * g, gradient.grads))
        traced.append(len(calls))
    assert traced[0] > 0
    assert traced == traced[:1] * 3
    assert grad._cache_size() == 1
    grad(params, state, net.xs[:3], net.targets[:3])
    assert grad._cache_size() == 2


@pytest.mark.parametrize(
    "variant",
    [
        case(variant, quick=variant in ("bptt", "snap_2", "uoro"))
        for variant in ("bptt", "rtrl", "snap_1", "snap_2", "snap_topk", "rflo", "uoro", "kf_rtrl", "frozen")
    ],
)
def test_a_whole_online_loop_runs_inside_one_jit(variant):
    """A scan over windows of one step, with an Optax update in each, equals the same loop written in Python."""
    net = network("gru")
    algorithm, optimiser = VARIANTS[variant].make(net.cell, "native"), optax.adam(1e-2)

    def update(carry, window):
        params, opt_state, state = carry
        gradient, state = algorithm.grad(params, state, *window)
        with jax.numpy_dtype_promotion("standard"):  # Optax's Adam mixes integers and floats
            updates, opt_state = optimiser.update(gradient.grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, state), gradient.loss

    windows = net.xs[:, None], net.targets[:, None]
    start = net.params, optimiser.init(net.params), algorithm.init(net.params, batch_size=3, key=jax.random.key(0))
    (params, _, _), losses = jax.jit(lambda start: jax.lax.scan(update, start, windows))(start)

    carry, step = start, jax.jit(update)
    for t in range(len(net.xs)):
        carry, value = step(carry, (windows[0][t], windows[1][t]))
        assert relative_error(losses[t], value) < 1e-10
    for leaf, expected in zip(jax.tree.leaves(params), jax.tree.leaves(carry[0]), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-10, atol=1e-12)
    assert not np.array_equal(params.readout.weight, net.params.readout.weight)


def test_eager_equals_jitted():
    net = network("lstm")
    algorithm = sg.snap(net.cell, loss, order=2)
    state = algorithm.init(net.params, batch_size=3)
    window = net.params, state, net.xs[:2], net.targets[:2]
    for a, b in zip(*map(jax.tree.leaves, (algorithm.grad(*window), jax.jit(algorithm.grad)(*window))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_rematerialisation_stores_fewer_states():
    """What the backward pass keeps of a long window shrinks from T states to T / n + n."""
    cell = sg.GRU(3, 64)
    params = sg.Params(cell.init(jax.random.key(0)), jnp.zeros((4, 64)))
    xs, targets = jnp.zeros((400, 8, 3)), jnp.zeros((400, 8, 4))

    def peak(algorithm):
        state = algorithm.init(params, batch_size=8)
        compiled = jax.jit(algorithm.grad).lower(params, state, xs, targets).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def readout_loss(readout, h, target):
        return jnp.sum((readout @ h - target) ** 2)

    assert peak(sg.bptt(cell, readout_loss, rematerialise=20)) < 0.5 * peak(sg.bptt(cell, readout_loss))
