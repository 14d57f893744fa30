"""Adam in one native pass: Optax's numbers, and nothing is changed where nothing may be."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from snapgrad.kernels import adam, binding

pytestmark = pytest.mark.skipif(not binding.available, reason="without the native part")


def start(n, dtype, seed=0):
    rng = np.random.default_rng(seed)
    params = jnp.asarray(rng.normal(size=n), dtype)
    return params, adam.Moments(jnp.int32(0), jnp.zeros(n, dtype), jnp.zeros(n, dtype))


def gradients(n, steps, seed=1):
    """Some far below, some far above the norm at which they are clipped, with zeros and tiny entries among them."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(steps, n)) * 10.0 ** rng.integers(-6, 4, size=(steps, 1)) / np.sqrt(n)
    return np.where(rng.random((steps, n)) < 0.1, 0.0, found)


@jax.numpy_dtype_promotion("standard")  # which Optax counts on
def by_optax(settings, params, gs):
    optimiser = optax.chain(optax.clip_by_global_norm(settings.clip), optax.adam(settings.rate))
    state = optimiser.init(params)
    for g in gs:
        updates, state = optimiser.update(jnp.asarray(g, params.dtype), state, params)
        params = optax.apply_updates(params, updates)
    (inner,) = (part for part in jax.tree.leaves(state, is_leaf=_is_adam) if _is_adam(part))
    return params, inner


def by_native(settings, params, moments, gs, asked=True):
    step = jax.jit(partial(adam.update, settings))
    n, seen = len(params), jnp.arange(3)
    pieces, of_gradient = (jnp.split(params, [n // 3, n // 2]), [n // 5])  # cut in different places
    for g in gs:
        gradient = jnp.split(jnp.asarray(g, params.dtype), of_gradient)
        pieces, moments, whole, seen = step(pieces, moments, gradient, jnp.asarray(asked), seen)
    np.testing.assert_array_equal(seen, np.arange(3))
    return jnp.concatenate(pieces), moments, whole


def _is_adam(part):
    return isinstance(part, optax.ScaleByAdamState)


@pytest.mark.parametrize("n", [1, 7, 8, 33, 4096, 4097, 50_001])
def test_float64_is_as_optax_computes_it(n):
    settings = adam.Adam(rate=3e-3, clip=1.0)
    with jax.enable_x64(True):
        params, moments = start(n, jnp.float64)
        gs = gradients(n, steps=20)
        wanted, inner = by_optax(settings, params, gs)
        got, moments, whole = by_native(settings, params, moments, gs)
        assert bool(whole)
        assert int(moments.updates) == int(inner.count) == 20
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(moments.first, inner.mu, rtol=1e-12, atol=1e-16)  # a sum, which may nearly cancel
        np.testing.assert_allclose(moments.second, inner.nu, rtol=1e-12, atol=1e-300)


def test_float32_is_as_near_to_float64_as_optax_is():
    settings = adam.Adam(rate=3e-3, clip=1.0)
    n, gs = 5000, gradients(5000, steps=50).astype(np.float32)
    with jax.enable_x64(True):
        exact, _ = by_optax(settings, start(n, jnp.float32)[0].astype(jnp.float64), gs)
    params, moments = start(n, jnp.float32)
    ours = np.abs(np.asarray(by_native(settings, params, moments, gs)[0]) - np.asarray(exact))
    optax_s = np.abs(np.asarray(by_optax(settings, params, gs)[0]) - np.asarray(exact))
    assert ours.max() < 2e-6  # fifty updates of 3e-3, and weights up to four
    assert ours.mean() <= 1.05 * optax_s.mean()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("place", [0, 4095, 4999])
def test_a_gradient_without_a_finite_square_changes_nothing(bad, place):
    settings = adam.Adam(rate=3e-3, clip=1.0)
    params, moments = start(5000, jnp.float32)
    params, moments, _ = by_native(settings, params, moments, gradients(5000, steps=3))
    g = gradients(5000, steps=1)
    g[0, place] = bad
    after, then, whole = by_native(settings, params, moments, g)
    assert not bool(whole)
    for before, now in zip((params, *moments), (after, *then), strict=True):
        np.testing.assert_array_equal(before, now)


def test_nothing_is_updated_where_nothing_is_asked():
    settings = adam.Adam(rate=3e-3, clip=1.0)
    params, moments = start(100, jnp.float32)
    after, then, whole = by_native(settings, params, moments, gradients(100, steps=1), asked=False)
    assert bool(whole)
    for before, now in zip((params, *moments), (after, *then), strict=True):
        np.testing.assert_array_equal(before, now)


def test_the_count_stays_at_its_largest():
    most = np.iinfo(np.int32).max
    params, moments = start(10, jnp.float32)
    g = gradients(10, steps=1)
    params, moments, _ = by_native(adam.Adam(3e-3, 1.0), params, moments._replace(updates=jnp.int32(most)), g)
    assert int(moments.updates) == most
    assert np.isfinite(params).all()


def test_operands_of_other_shapes_are_refused():
    params, moments = start(10, jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="`gradient` must"):
        by_native(adam.Adam(3e-3, 1.0), params, moments, gradients(11, steps=1))
