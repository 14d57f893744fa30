"""UORO's estimate is random: its expectation is exact, and more rank means less noise."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg

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


def test_it_runs_in_bfloat16():
    cell = CELLS["lstm"]
    params, xs, targets = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), data(cell, 3, 2))
    assert np.isfinite(gradient(sg.uoro(cell, loss), params, xs, targets).astype(np.float32)).all()
