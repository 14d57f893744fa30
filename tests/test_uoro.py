"""UORO's estimate is random: its expectation is exact, and more rank means less noise."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.algorithms import uoro_window
from snapgrad.algorithms.base import state_deltas, unroll
from snapgrad.algorithms.uoro import follow_steps
from snapgrad.kernels.select import REFERENCE

CELLS = {"vanilla": sg.Vanilla(3, 2), "lstm": sg.LSTM(3, 2), "gru_original": sg.GRU(3, 2, variant="original")}


def loss(readout, h, target):
    return (readout @ h - target) ** 2


def data(cell, steps, lanes):
    """The same random sequence in every lane."""
    draw = np.random.default_rng(0)
    params = sg.Params(cell.init(jax.random.key(2)), jnp.asarray(draw.normal(size=2)))
    xs, targets = draw.normal(size=(steps, 1, 3)), draw.normal(size=(steps, 1))
    return params, jnp.asarray(xs).repeat(lanes, axis=1), jnp.asarray(targets).repeat(lanes, axis=1)


def gradient(algorithm, params, xs, targets, seed=0):
    state = algorithm.init(params, batch_size=xs.shape[1], key=jax.random.key(seed))
    grads = jax.jit(algorithm.grad)(params, state, xs, targets)[0].grads
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)])


@pytest.mark.parametrize("name", CELLS)
def test_averaged_over_all_signs_it_is_rtrl(name, monkeypatch):
    """One lane for each of the 2^(steps * states) sign vectors: the mean over the batch is the expectation."""
    cell, steps = CELLS[name], 3
    states = cell.initial_state().size
    bits = steps * states
    signs = 2.0 * ((np.arange(2**bits)[:, None] >> np.arange(bits)) & 1) - 1
    signs = signs.reshape(2**bits, steps, 1, states).swapaxes(0, 1)  # [T, B, rank, states]
    monkeypatch.setattr(jax.random, "rademacher", lambda key, shape, dtype: jnp.asarray(signs, dtype).reshape(shape))

    window = data(cell, steps, 2**bits)
    estimate, exact = gradient(sg.uoro(cell, loss), *window), gradient(sg.rtrl(cell, loss), *window)
    np.testing.assert_allclose(estimate, exact, rtol=0, atol=1e-10 * np.abs(exact).max())


def test_its_expectation_goes_stale_across_a_weight_update_as_rtrl_does(monkeypatch):
    """A window of one step, a weight update, a window of two: the influence of the old weights is carried on."""
    cell = CELLS["vanilla"]
    signs = 2.0 * ((np.arange(64)[:, None] >> np.arange(6)) & 1) - 1
    signs = signs.reshape(64, 3, 1, 2).swapaxes(0, 1)
    part = {1: signs[:1], 2: signs[1:]}  # by the length of the window
    monkeypatch.setattr(jax.random, "rademacher", lambda key, shape, dtype: jnp.asarray(part[shape[0]], dtype))
    params, xs, targets = data(cell, 3, 64)
    moved = jax.tree.map(lambda leaf: leaf + 0.3, params)

    def second_window(algorithm, *, forget=False):
        state = algorithm.init(params, batch_size=64, key=jax.random.key(0))
        _, state = algorithm.grad(params, state, xs[:1], targets[:1])
        if forget:
            state = algorithm.reset(state, jnp.ones(64, bool))
        grads = algorithm.grad(moved, state, xs[1:], targets[1:])[0].grads
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)])

    exact = second_window(sg.rtrl(cell, loss))
    np.testing.assert_allclose(second_window(sg.uoro(cell, loss)), exact, rtol=0, atol=1e-10 * np.abs(exact).max())
    assert np.abs(second_window(sg.uoro(cell, loss), forget=True) - exact).max() > 1e-3 * np.abs(exact).max()


def test_signs_are_drawn_anew_and_more_rank_means_less_noise():
    cell = CELLS["vanilla"]
    window = data(cell, 6, 8)
    exact = gradient(sg.rtrl(cell, loss), *window)

    def errors(rank):
        algorithm = sg.uoro(cell, loss, rank=rank)
        return [np.linalg.norm(gradient(algorithm, *window, seed=seed) - exact) for seed in range(4)]

    single, many = errors(1), errors(32)
    assert len(set(single)) == len(single)
    assert np.mean(many) < 0.5 * np.mean(single)  # 1 / sqrt(32) in expectation


def test_successive_windows_use_different_signs():
    cell = CELLS["vanilla"]
    algorithm = sg.uoro(cell, loss)
    params, xs, targets = data(cell, 1, 16)
    state = algorithm.init(params, batch_size=16, key=jax.random.key(0))
    signs = []
    for _ in range(2):
        _, state = algorithm.grad(params, algorithm.reset(state, jnp.ones(16, bool)), xs, targets)
        signs.append(np.sign(state.memory.state))  # after the first step s~ is a multiple of the signs
    assert not np.array_equal(*signs)
    assert set(np.unique(signs)) == {-1.0, 1.0}


DENSE = {
    "vanilla": sg.Vanilla(3, 4),
    "gru": sg.GRU(3, 4),
    "gru with two biases": sg.GRU(3, 4, recurrent_bias=True),
    "lstm": sg.LSTM(3, 4),
}


@pytest.mark.parametrize("symbols", [False, True], ids=["vectors", "symbols"])
@pytest.mark.parametrize("name", DENSE)
def test_a_window_at_once_is_its_steps(name, symbols, monkeypatch):
    """From factors that are not zero, in parts of 5, 5 and 2 steps; in one lane everything begins with zeros."""
    monkeypatch.setattr(uoro_window, "MOST", 5)
    cell, draw, (steps, lanes, rank) = DENSE[name], np.random.default_rng(3), (12, 3, 2)
    states = cell.initial_state().size
    params = jax.tree.map(lambda leaf: leaf + jnp.asarray(draw.normal(size=leaf.shape)), cell.init(jax.random.key(0)))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    xs = jnp.asarray(draw.integers(-1, 3, (steps, lanes)) if symbols else draw.normal(size=(steps, lanes, 3)))
    trajectory = unroll(REFERENCE, cell, params, jnp.zeros((lanes, *cell.initial_state().shape)), xs)
    started = jnp.asarray([0.0, 1.0, 30.0])[:, None, None]
    factors = (started * draw.normal(size=(lanes, rank, n)) for n in (states, count))
    deltas = state_deltas(cell, trajectory, jnp.asarray(draw.normal(size=(steps, lanes, 4))))
    signs = jnp.asarray(2.0 * draw.integers(0, 2, (steps, lanes, rank, states)) - 1)
    window = REFERENCE, cell, params, tuple(factors), trajectory.before, xs, deltas, signs

    assert uoro_window.applies(cell, params, steps)
    for got, wanted in zip(*map(jax.tree.leaves, (uoro_window.follow(*window), follow_steps(*window))), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())


def test_a_window_is_taken_at_once_where_its_products_are_whole_matrices():
    dense, sparse = (sg.GRU(3, 4).init(jax.random.key(0), sparsity=share) for share in (0.0, 0.5))
    assert uoro_window.applies(sg.GRU(3, 4), dense, 8)
    assert not uoro_window.applies(sg.GRU(3, 4), dense, 1)
    assert not uoro_window.applies(sg.GRU(3, 4), sparse, 8)
    general = sg.GRU(3, 4, variant="original")
    assert not uoro_window.applies(general, general.init(jax.random.key(0)), 8)


def test_it_runs_in_bfloat16():
    cell = CELLS["lstm"]
    params, xs, targets = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), data(cell, 3, 2))
    assert np.isfinite(gradient(sg.uoro(cell, loss), params, xs, targets).astype(np.float32)).all()
