"""J stored in bfloat16: rounded without bias, by draws that depend on nothing but seed, step, lane and entry."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import flat
from test_native import factors, factors_of, large_network, values_for
from variants import case

import snapgrad as sg
from snapgrad.kernels import rounding
from snapgrad.kernels.base import Products
from snapgrad.kernels.select import NATIVE, REFERENCE
from snapgrad.sparsity.reach import influence_blocks

LARGEST = float(jnp.finfo(jnp.bfloat16).max)


def draws(steps, lanes, entries, seed=0):
    """[steps, lanes, entries], in units of the last bit kept."""
    state = jnp.array([seed, 0], jnp.uint32)
    word, turn = jnp.moveaxis(rounding.noise(state, steps, lanes), 1, 0)[..., None]
    return np.asarray(rounding.draw(word, turn, jnp.arange(entries, dtype=jnp.uint32)[None, None])) / 2**16


def test_every_sixteen_steps_an_entry_draws_sixteen_equidistant_points():
    u = draws(64, 3, 50).reshape(4, 16, 3, 50)
    assert u.min() >= 0
    assert u.max() < 1
    np.testing.assert_allclose(np.diff(np.sort(u, axis=1), axis=1), 1 / 16, atol=1e-9)
    first = u[:, 0]
    assert abs(first.mean() - 0.5) < 4 / np.sqrt(12 * first.size)


def test_draws_do_not_correlate():
    """Of neighbouring entries, lanes, sixteens of steps, and of streams with other seeds."""
    u = np.stack([draws(160, 8, 257, seed) for seed in (0, 1)])[:, ::16] - 0.5  # [seeds, sixteens, lanes, entries]
    for axis in range(4):
        for distance in (1, 2, 4, 8) if axis > 0 else (1,):
            if distance < u.shape[axis]:
                one = np.take(u, range(u.shape[axis] - distance), axis)
                other = np.take(u, range(distance, u.shape[axis]), axis)
                assert abs(12 * np.mean(one * other)) < 4 / np.sqrt(one.size), (axis, distance)


def test_the_mean_of_many_roundings_is_the_value():
    rng = np.random.default_rng(0)
    values = np.append(rng.normal(size=40), [1 + 2**-8, 1 + 2**-20, -1e-30, 3e-39, 2 - 2**-23]).astype(np.float32)
    steps = 4096
    word, turn = jnp.moveaxis(rounding.noise(rounding.start(jax.random.key(0)), steps, 1), 1, 0)
    entry = jnp.arange(len(values), dtype=jnp.uint32)[None]
    bits = rounding.draw(word, turn, entry)
    rounded = np.asarray(rounding.to_bfloat16(jnp.broadcast_to(values, bits.shape), bits)).astype(np.float64)
    down = (values.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    up = ((values.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32).astype(np.float64)
    assert np.all((rounded == down) | (rounded == up))
    part = (values - down) / (up - down)
    # Independent draws have this standard error; those of sixteen steps together can only do better.
    error = np.sqrt(part * (1 - part) / steps)
    assert np.all(np.abs(rounded.mean(axis=0) - values) <= (4 * error + 1 / steps) * np.abs(up - down))


def test_what_needs_no_rounding_is_kept_and_what_is_finite_stays_so():
    kept = np.array([0.0, -0.0, 1.0, -2.5, 2.0**-130, LARGEST, -LARGEST, np.inf, -np.inf], np.float32)
    values = np.concatenate([kept, np.array([np.finfo(np.float32).max], np.float32)])
    signalling = np.array([0x7F800001, 0xFF80FFFF], np.uint32).view(np.float32)  # their upper halves are infinities

    def rounded(values, bits):
        bits = jnp.full(values.shape, bits, np.uint32)
        return np.asarray(rounding.to_bfloat16(jnp.asarray(values), bits)).astype(np.float32)

    for bits in (0, 1, 2**16 - 1):
        np.testing.assert_array_equal(rounded(kept, bits).view(np.uint32), kept.view(np.uint32))
        assert rounded(values, bits)[-1] == LARGEST
        assert np.isnan(rounded(signalling, bits)).all()


def test_its_derivative_is_that_of_the_mean():
    x, bits = jnp.linspace(0.1, 2, 5, dtype=np.float32), jnp.full(5, 77, np.uint32)
    slope = jax.grad(lambda x: jnp.sum(rounding.to_bfloat16(3 * x, bits).astype(np.float32)))(x)
    np.testing.assert_array_equal(slope, 3)


def gru_blocks(order):
    """Every state entry of a GRU leads to itself."""
    cell = sg.GRU(5, 9)
    jacobians = cell.jacobians(cell.init(jax.random.key(0), sparsity=0.8, dtype=np.float32))
    return influence_blocks(jacobians.groups, jacobians.dynamics, order)


def entries_of(kernel, blocks, J, lanes):
    """J as [lanes, states, params], whatever the layout: what each state's delta picks if J is only passed on."""
    identity = (blocks.dynamics.rows == blocks.dynamics.cols).astype(np.float32)
    D = jnp.broadcast_to(identity[:, None], (blocks.dynamics.nnz, lanes))
    I = Products(*factors(jnp.zeros((blocks.groups.nnz, lanes), np.float32)), factors_of(blocks.groups.nnz))
    noise = jnp.zeros((2, lanes), np.uint32)

    @jax.jit
    @jax.vmap
    def picked(delta):
        return kernel.influence_step(blocks, J, D, I, delta, noise)[1]

    every = jnp.eye(blocks.states * lanes, dtype=np.float32).reshape(-1, blocks.states, lanes)
    return np.moveaxis(np.asarray(picked(every)).reshape(blocks.states, lanes, -1), 1, 0)


def run(kernel, blocks, lanes, D, I, steps, state):
    """J after so many steps of the same D [B, n] and I [B, n]."""
    I = Products(*factors(I.T), factors_of(blocks.groups.nnz))
    delta = jnp.zeros((blocks.states, lanes), np.float32)

    @jax.jit
    def scanned(J, noise):
        def step(J, words):
            return kernel.influence_step(blocks, J, D.T, I, delta, words)[0], None

        return jax.lax.scan(step, J, noise)[0]

    return scanned(kernel.zeros(blocks, lanes, jnp.bfloat16), rounding.noise(state, steps, lanes))


@pytest.mark.parametrize(
    ("lanes", "order"), [(3, 2), (9, 2), case(9, None, quick=False)]
)  # columns as vectors, lanes as vectors
def test_both_kernels_round_to_the_same_bits(lanes, order):
    """D holds powers of two and I has few bits, so that sums are exact and only the rounding can differ."""
    blocks = gru_blocks(order)
    rng = np.random.default_rng(0)
    elsewhere = 0.125 if order == 2 else 0.0  # long paths would make values too small for exact sums
    powers = np.where(blocks.dynamics.rows == blocks.dynamics.cols, 0.5, elsewhere)
    D = jnp.broadcast_to(powers.astype(np.float32), (lanes, blocks.dynamics.nnz))
    I = jnp.asarray(np.round(rng.uniform(0.5, 1.5, (lanes, blocks.groups.nnz)) * 2**12) / 2**12, np.float32)
    state = rounding.start(jax.random.key(1))
    native, reference = (
        entries_of(kernel, blocks, run(kernel, blocks, lanes, D, I, 20, state), lanes) for kernel in (NATIVE, REFERENCE)
    )
    assert np.count_nonzero(native) == lanes * (blocks.kept if elsewhere else blocks.groups.nnz)
    np.testing.assert_array_equal(native, reference)


SLOW = {"leak": 0.99, "forget gate": 0.999, "no decay": 1.0}


def test_slow_influence_does_not_stagnate():
    """500 steps of J <- d J + I; to the nearest it would stop a fifth to a half below."""
    blocks = gru_blocks(1)
    decays, lanes = np.repeat(list(SLOW.values()), 3), 9
    D = jnp.asarray(decays[:, None] * (blocks.dynamics.rows == blocks.dynamics.cols), np.float32)
    I = np.random.default_rng(0).uniform(0.5, 1, (lanes, blocks.groups.nnz)).astype(np.float32)
    J = run(NATIVE, blocks, lanes, D, jnp.asarray(I), 500, rounding.start(None))
    entries = entries_of(NATIVE, blocks, J, lanes)
    credit, param = blocks.groups.entries.cols[blocks.groups.entry_credit], blocks.groups.entry_param
    found = entries[:, credit, param]
    expected = I * np.array([sum(d**t for t in range(500)) for d in decays])[:, None]
    for i, name in enumerate(SLOW):
        one, other = found[3 * i : 3 * i + 3], expected[3 * i : 3 * i + 3]
        assert np.linalg.norm(one - other) < 0.015 * np.linalg.norm(other), name
        assert np.abs(one / other - 1).max() < 0.06, name
        assert abs(np.mean(one / other - 1)) < 0.002, name


def summed(s, u, v):
    return (u[0] + 0 * v[0],)


def first_weight(readout, h, target):
    return jnp.sum(h)


def test_a_stream_is_rounded_alike_however_it_is_cut_and_by_its_key():
    """RFLO with decay 1 and a constant input: J counts the steps."""
    cell = sg.UnitCell(summed, 1, 3)
    params = sg.Params(cell.init(jax.random.key(0), dtype=np.float32), ())
    algorithm = sg.rflo(cell, first_weight, decay=1, influence_dtype="bfloat16")
    xs = jnp.ones((500, 2, 1), np.float32)

    def last(keys, windows):
        """The gradient of the last step, and J after it."""
        state = algorithm.init(params, 2, *keys)
        for window in jnp.split(xs[:-1], windows):
            _, state = algorithm.grad(params, state, window, window)
        gradient, state = algorithm.grad(params, state, xs[-1:], xs[-1:])
        return flat(gradient.grads.cell), np.asarray(state.memory.J.J.astype(np.float32))

    whole, cut = last((), 1), last((), [250])
    np.testing.assert_array_equal(whole[0], cut[0])
    np.testing.assert_array_equal(whole[1], cut[1])
    weights = whole[0][whole[0] != 0]
    assert np.abs(weights / 500 - 1).max() < 0.03
    other = last((jax.random.key(1),), 1)
    assert np.any(other[1] != whole[1])
    with pytest.raises(TypeError, match="`key` must be one PRNG key, such as"):
        algorithm.init(params, 2, key=0)


def test_networks_side_by_side_round_as_they_do_alone():
    blocks = large_network(units=8, sparsity=0.5)
    for lanes in (3, 9):
        D, I, delta = values_for(blocks, lanes, np.float32)
        I = Products(*factors(I), factors_of(len(I)))
        states = jnp.stack([rounding.start(jax.random.key(seed)) for seed in (0, 1)])
        noise = jnp.stack([rounding.noise(state, 1, lanes)[0] for state in states])
        J = NATIVE.zeros(blocks, lanes, jnp.bfloat16)
        step = jax.jit(partial(NATIVE.influence_step, blocks, J, D, I, delta))
        together = np.asarray(jax.vmap(step)(noise)[0].J.astype(np.float32))
        for i in range(2):
            np.testing.assert_array_equal(together[i], np.asarray(step(noise[i])[0].J.astype(np.float32)))
        assert np.any(together[0] != together[1])
