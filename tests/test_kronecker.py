"""KF-RTRL and OK are random: their expectations are exact, OK's noise is the least possible, and UORO's the most."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.algorithms.kronecker import Terms, reads_sums
from snapgrad.algorithms.ok import compress

MASK = np.array([[True, False], [True, True]])  # of every gate
CELLS = {
    "vanilla": sg.Vanilla(3, 2),
    "lstm": sg.LSTM(3, 2, recurrent_bias=True),
    "gru": sg.GRU(3, 2, recurrent_bias=True),
}
ALGORITHMS = {"kf_rtrl": sg.kf_rtrl, "ok": sg.ok, "ok_2": lambda *a: sg.ok(*a, rank=2)}
RANK = {"kf_rtrl": 1, "ok": 1, "ok_2": 2}


def loss(readout, h, target):
    return (readout @ h - target) ** 2


def data(cell, steps, lanes, *, dense=False):
    """The same random sequence in every lane."""
    draw = np.random.default_rng(0)
    mask = np.ones((2 * cell.gates, 2), bool) if dense else np.tile(MASK, (cell.gates, 1))
    params = cell.init(jax.random.key(2), recurrent_mask=mask)
    params = jax.tree.map(lambda leaf: leaf + 0.5 * draw.normal(size=leaf.shape), params)
    xs, targets = draw.normal(size=(steps, 1, 3)), draw.normal(size=(steps, 1))
    lanes_of = lambda window: jnp.asarray(window).repeat(lanes, axis=1)  # noqa: E731
    return sg.Params(params, jnp.asarray(draw.normal(size=2))), lanes_of(xs), lanes_of(targets)


def all_signs(steps, bits):
    """[T, lanes, bits]: one lane for each of the 2^(T * bits) ways to choose them."""
    total = steps * bits
    signs = 2.0 * ((np.arange(2**total)[:, None] >> np.arange(total)) & 1) - 1
    return signs.reshape(2**total, steps, bits).swapaxes(0, 1)


def draw_these(monkeypatch, signs):
    """Makes these the random signs: the first step's for a window of one step, the last T for a longer one."""

    def rademacher(key, shape, dtype):
        part = signs[:1] if shape[0] == 1 else signs[-shape[0] :]
        return jnp.asarray(part, dtype).reshape(shape)

    monkeypatch.setattr(jax.random, "rademacher", rademacher)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def after(algorithm, params, xs, targets):
    """The gradient of a window from the start of the sequence, and the state behind it."""
    state = algorithm.init(params, batch_size=xs.shape[1], key=jax.random.key(0))
    gradient, state = jax.jit(algorithm.grad)(params, state, xs, targets)
    return flat(gradient.grads), state


@pytest.mark.parametrize(
    ("name", "method", "steps"),
    [("vanilla", "kf_rtrl", 4), ("lstm", "kf_rtrl", 4), ("gru", "kf_rtrl", 4), ("gru", "ok", 4), ("lstm", "ok_2", 4)],
)
def test_averaged_over_all_signs_it_is_rtrl(name, method, steps, monkeypatch):
    """The mean over the lanes of the batch is the expectation; on sparse weights, and with two parts for the GRU."""
    cell = CELLS[name]
    signs = all_signs(steps, RANK[method] * (2 if name == "gru" else 1))
    draw_these(monkeypatch, signs)
    window = data(cell, steps, signs.shape[1])
    estimate, state = after(ALGORITHMS[method](cell, loss), *window)
    exact, _ = after(sg.rtrl(cell, loss), *window)
    np.testing.assert_allclose(estimate, exact, rtol=0, atol=1e-10 * np.abs(exact).max())
    lanes = np.asarray(state.memory.parts[0].states)
    assert np.abs(lanes - lanes[:1]).max() > 1e-3 * np.abs(lanes).max()  # random indeed


@pytest.mark.parametrize("method", ["kf_rtrl", "ok"])
def test_its_expectation_goes_stale_across_a_weight_update_as_rtrl_does(method, monkeypatch):
    """A window of one step, a weight update, a window of three: the influence of the old weights is carried on."""
    cell, signs = CELLS["gru"], all_signs(4, 2)
    draw_these(monkeypatch, signs)
    lanes = signs.shape[1]
    params, xs, targets = data(cell, 4, lanes)
    moved = jax.tree.map(lambda leaf: leaf + 0.3, params)

    def second_window(algorithm, *, forget=False):
        state = algorithm.init(params, batch_size=lanes, key=jax.random.key(0))
        _, state = algorithm.grad(params, state, xs[:1], targets[:1])
        if forget:
            state = algorithm.reset(state, jnp.ones(lanes, bool))
        return flat(algorithm.grad(moved, state, xs[1:], targets[1:])[0].grads)

    exact, algorithm = second_window(sg.rtrl(cell, loss)), ALGORITHMS[method](cell, loss)
    np.testing.assert_allclose(second_window(algorithm), exact, rtol=0, atol=1e-10 * np.abs(exact).max())
    assert np.abs(second_window(algorithm, forget=True) - exact).max() > 1e-3 * np.abs(exact).max()


def influences(memory):
    """The estimate of J in every lane, as numbers in some order: [lanes, states * params] of a dense network."""
    if hasattr(memory, "parts"):
        products = [np.einsum("lrs,lrgt->lsgt", *map(np.asarray, part)) for part in memory.parts]
    else:
        products = [np.einsum("lrs,lrp->lsp", np.asarray(memory.state), np.asarray(memory.params))]
    return np.concatenate([product.reshape(len(product), -1) for product in products], axis=1)


@pytest.mark.parametrize("name", ["vanilla", "gru"])
def test_ok_varies_less_than_kf_rtrl_and_that_less_than_uoro(name, monkeypatch):
    """The exact variance of J after five steps, over all signs, as a share of |J|^2.

    Seen: vanilla 3.64, 1.89, 0.83 and with a second term 0.006; GRU 4.14, 2.18, 0.94.
    """
    cell, steps, parts = CELLS[name], 5, 2 if name == "gru" else 1

    def variance(algorithm, bits):
        signs = all_signs(steps, bits)
        draw_these(monkeypatch, signs)
        _, state = after(algorithm, *data(cell, steps, signs.shape[1], dense=True))
        J = influences(state.memory)
        return np.mean(np.sum((J - J.mean(0)) ** 2, axis=1)) / np.sum(J.mean(0) ** 2)

    uoro, kf = variance(sg.uoro(cell, loss), 2), variance(sg.kf_rtrl(cell, loss), parts)
    ok = variance(sg.ok(cell, loss), parts)
    assert ok < 0.6 * kf
    assert kf < 0.6 * uoro
    if parts == 1:
        assert variance(sg.ok(cell, loss, rank=2), 2) < 0.1 * ok


@pytest.mark.parametrize(
    "spectrum", [(3.0, 2.9, 2.8, 2.7), (50.0, 2.0, 1.9, 1.8), (9.0, 8.0, 0.1, 0.05), (2.0, 1.0, 0, 0)]
)
def test_compression_is_unbiased_and_its_variance_the_least_possible(spectrum):
    """Four terms to three: E|Q|^2 is the bound that holds for every unbiased Q of rank three (Benzing et al. 2019)."""
    draw, d = np.random.default_rng(1), np.array(spectrum)
    left, right = (np.linalg.qr(draw.normal(size=(n, 4)))[0] for n in (6, 10))
    mixed = draw.normal(size=(4, 4))  # the same matrix as a sum of four terms that are not orthogonal
    terms = Terms(jnp.asarray((left * d @ mixed).T), jnp.asarray((right @ np.linalg.inv(mixed).T).T.reshape(4, 5, 2)))
    compressed = jax.vmap(compress, in_axes=(None, 0))(terms, jnp.asarray(all_signs(1, 3)[0]))
    assert compressed.sources.shape == (8, 3, 6)
    Q = np.einsum("lrs,lrp->lsp", compressed.sources, compressed.states.reshape(8, 3, 10))
    np.testing.assert_allclose(Q.mean(0), left * d @ right.T, rtol=0, atol=1e-10 * d.max())
    bounds = [
        np.sum(d[:m] ** 2) + d[m:].sum() ** 2 / (3 - m) for m in range(3) if (3 - m) * d[m] <= d[m:].sum() + 1e-12
    ]
    assert np.mean(np.sum(Q**2, axis=(1, 2))) == pytest.approx(min(bounds), rel=1e-7)


def test_what_has_just_that_rank_stays_exact():
    """Two of eight symbols occur and there are two units: two terms a part are enough, and rounding must not add up."""
    cell = sg.GRU(8, 2)
    params = sg.Params(cell.init(jax.random.key(0)), jnp.ones(2))
    xs = jax.random.randint(jax.random.key(1), (200, 1), 0, 2)
    targets = jax.random.normal(jax.random.key(2), (200, 1))

    def gradient(algorithm):
        state = algorithm.init(params, batch_size=1, key=jax.random.key(3))
        return flat(jax.jit(algorithm.grad)(params, state, xs, targets)[0].grads)

    exact = gradient(sg.rtrl(cell, loss))
    np.testing.assert_allclose(gradient(sg.ok(cell, loss, rank=2)), exact, rtol=0, atol=1e-10 * np.abs(exact).max())


MANY_LANES = """
import jax, jax.numpy as jnp, snapgrad as sg
cell = sg.GRU(4, 64)
algorithm = sg.ok(cell, lambda readout, h, target: jnp.sum((readout @ h - target) ** 2))
params = sg.Params(cell.init(jax.random.key(0)), jnp.zeros((2, 64)))
state = algorithm.init(params, 32, key=jax.random.key(1))
for _ in range(3):
    jax.block_until_ready(jax.jit(algorithm.grad)(params, state, jnp.ones((16, 32, 4)), jnp.ones((16, 32, 2))))
"""


def test_factorisations_of_many_lanes_do_not_wait_for_each_other():
    """With those of a batch at once, all threads of XLA's pool could wait for one of them to become free."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", MANY_LANES], env=environment | {"PJRT_NPROC": "2"}, check=True, timeout=120)


def test_a_rule_that_reads_u_and_v_apart_is_recognised():
    def hidden(s, u, v):
        return (jnp.tanh(u[0] + v[0]) * v[0],)

    def as_it_comes(s, u, v):
        return (u[0],)

    assert [reads_sums(CELLS[name]) for name in ("vanilla", "lstm", "gru")] == [True, True, False]
    assert not any(reads_sums(sg.UnitCell(rule, 3, 2)) for rule in (hidden, as_it_comes))


def test_successive_windows_use_different_signs():
    """Two steps at once and one after the other: were the signs the same, so would be the ratio of the terms."""
    cell, algorithm = CELLS["vanilla"], sg.kf_rtrl(CELLS["vanilla"], loss)
    params, xs, targets = data(cell, 2, 16)
    state, seen = algorithm.init(params, batch_size=16, key=jax.random.key(0)), []
    for _ in range(2):
        _, state = algorithm.grad(params, algorithm.reset(state, jnp.ones(16, bool)), xs, targets)
        seen.append(np.asarray(state.memory.parts[0].sources))
    assert not np.allclose(*seen)
    assert len(np.unique(np.abs(seen[0]).sum(axis=(1, 2)).round(9))) == 2  # of the two signs, one matters


@pytest.mark.parametrize("method", ["kf_rtrl", "ok_2"])
def test_it_runs_in_bfloat16(method):
    cell = CELLS["gru"]
    params, xs, targets = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), data(cell, 3, 2))
    grads, state = after(ALGORITHMS[method](cell, loss), params, xs, targets)
    assert np.isfinite(grads.astype(np.float32)).all()
    assert {leaf.dtype for leaf in jax.tree.leaves(state.memory.parts)} == {jnp.dtype("bfloat16")}
