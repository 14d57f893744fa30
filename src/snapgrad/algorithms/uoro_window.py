"""UORO over a window of a dense unit-wise cell, with theta~ at its two ends only.

A step scales theta~ and adds n_t = nu_t^T I_t. In a unit-wise cell whose matrices are full, that is a pair of outer
products: of what came in, with the derivatives a_t = nu_t^T dF/du and b_t = nu_t^T dF/dv. So inside a window

    theta~_t = w_0 theta~_0 + sum_tau w_tau n_tau        n_tau = (a_tau (x) [x_tau, 1],  b_tau (x) [h_taum1, (1)])

and all that a step asks of theta~ is its norm, which needs no more than inner products:

    |theta~_t|^2 = |theta~_tm1|^2 / rho_0^2  +  2 <theta~_tm1, n_t> / (rho_0 rho_1)  +  |n_t|^2 / rho_1^2
    <n_t, n_tau> = (a_t . a_tau) (x_t . x_tau + 1)  +  (b_t . b_tau) (h_tm1 . h_taum1 (+ 1))

The weights w are carried in place of theta~. The gradient, the sum of c_t theta~_t, and theta~ at the end of the window
are products of whole matrices, as backpropagation's are: no array of the size of batch times parameters is read and
written at every step.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from snapgrad.algorithms.balance import balance
from snapgrad.cells.base import Cell, PyTree, as_vector
from snapgrad.cells.rule import RuleDerivatives, rule_derivatives
from snapgrad.cells.unit import UnitCell, UnitParams
from snapgrad.kernels.base import Kernel
from snapgrad.kernels.share import varying
from snapgrad.sparsity.matrix import multiply

FEWEST = 8  # steps from which on it pays
MOST = 128  # steps at once: their inner products are a square

Factors = tuple[jax.Array, jax.Array]  # s~ [B, rank, states], theta~ [B, rank, params]


def applies(cell: Cell, params: PyTree, steps: int) -> TypeGuard[UnitCell]:
    """Whether the immediate Jacobian has this form, and windows are long enough."""
    if steps < FEWEST or not isinstance(cell, UnitCell):
        return False
    return params.recurrent.pattern.is_full and params.input.pattern.is_full


def follow(
    kernel: Kernel,
    cell: UnitCell,
    params: UnitParams,
    factors: Factors,
    before: jax.Array,
    xs: jax.Array,
    deltas: jax.Array,
    signs: jax.Array,
) -> tuple[jax.Array, Factors]:
    """The flat gradient of a window, and the factors after it.

    `before` [T, B, S, k] has the states s_0 .. s_{T-1}, `deltas` [T, B, states] dL/ds, `signs` [T, B, rank, states].
    """
    steps = xs.shape[0]
    whole = steps - steps % MOST
    at = before, xs, deltas, signs

    def part(carry: tuple[jax.Array, Factors], at: Any) -> tuple[tuple[jax.Array, Factors], None]:
        g, factors = carry
        more, factors = _part(kernel, cell, params, factors, *at)
        return (g + more, factors), None

    carry = varying((jnp.zeros_like(ravel_pytree(params)[0]), factors), at)
    if whole:
        cut = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, MOST, *leaf.shape[1:]), at)
        carry, _ = jax.lax.scan(part, carry, cut)
    if whole < steps:
        carry, _ = part(carry, jax.tree.map(lambda leaf: leaf[whole:], at))
    return carry


def _part(
    kernel: Kernel,
    cell: UnitCell,
    params: UnitParams,
    factors: Factors,
    before: jax.Array,
    xs: jax.Array,
    deltas: jax.Array,
    signs: jax.Array,
) -> tuple[jax.Array, Factors]:
    s_tilde, theta_0 = factors
    ready, (steps, lanes, rank, _) = kernel.ready(params), signs.shape
    u, v = jax.vmap(jax.vmap(cell.preactivations, in_axes=(None, 0, 0)), in_axes=(None, 0, 0))(ready, before, xs)
    derivatives = jax.vmap(jax.vmap(lambda *at: rule_derivatives(cell, *at)))(before, u, v)
    nu = signs.reshape(steps, lanes, rank, cell.states, cell.units)
    a, b = (jnp.einsum("tbrsi,tbsgi->tbrgi", nu, by) for by in derivatives[1:])
    with_start, with_others = _products(cell, params, theta_0, before, xs, a, b)

    def step(carry: Any, at_t: Any) -> tuple[Any, None]:
        s_tilde, w_0, w, sum_0, sum, square = carry
        t, signs_t, delta_t, derivatives_t, start_t, others_t = at_t
        own = others_t[..., t]
        Ds = _propagated(cell, ready, derivatives_t, s_tilde)
        rho_0 = balance(jnp.sqrt(square), jnp.linalg.norm(Ds, axis=-1))
        rho_1 = balance(jnp.sqrt(own), jnp.linalg.norm(signs_t, axis=-1))
        s_tilde = rho_0[..., None] * Ds + rho_1[..., None] * signs_t
        cross = w_0 * start_t + jnp.sum(w * others_t, axis=-1)
        square = square / rho_0**2 + 2 * cross / (rho_0 * rho_1) + own / rho_1**2
        w_0, w = w_0 / rho_0, (w / rho_0[..., None]).at[..., t].set(1 / rho_1)
        along = jnp.einsum("bs,brs->br", delta_t, s_tilde) / rank
        sums = sum_0 + along * w_0, sum + along[..., None] * w
        return (s_tilde, w_0, w, *sums, jnp.maximum(square, 0)), None

    at = jnp.arange(steps), signs, deltas, derivatives, with_start, with_others
    none, nothing = jnp.zeros((lanes, rank), u.dtype), jnp.zeros((lanes, rank, steps), u.dtype)
    start = s_tilde, none + 1, nothing, none, nothing, jnp.sum(theta_0**2, axis=-1)
    (s_tilde, w_0, w, sum_0, sum, _), _ = jax.lax.scan(step, varying(start, at), at)

    def weighted(a: jax.Array, b: jax.Array, before: jax.Array, xs: jax.Array) -> jax.Array:
        """The sum over any number of steps of outer products, flat: linear in the parameters, its transpose."""
        each = jax.vmap(cell.preactivations, in_axes=(None, 0, 0))
        (summed,) = jax.vjp(lambda params: each(params, before, xs), params)[1]((a, b))
        return ravel_pytree(summed)[0]

    c_a, c_b = (jnp.einsum("brt,tbrgi->tbgi", sum, one).reshape(-1, *one.shape[3:]) for one in (a, b))
    flat = (part.reshape(-1, *part.shape[2:]) for part in (before, xs))
    g = weighted(c_a, c_b, *flat) + jnp.einsum("br,brp->p", sum_0, theta_0)
    w_a, w_b = (jnp.einsum("brt,tbrgi->brtgi", w, one) for one in (a, b))
    ends = jax.vmap(jax.vmap(weighted, in_axes=(0, 0, None, None)), in_axes=(0, 0, 1, 1))(w_a, w_b, before, xs)
    return g, (s_tilde, w_0[..., None] * theta_0 + ends)


def _products(
    cell: UnitCell,
    params: UnitParams,
    theta_0: jax.Array,
    before: jax.Array,
    xs: jax.Array,
    a: jax.Array,
    b: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """<theta~_0, n_t> [T, B, rank] and <n_t, n_tau> [T, B, rank, T]."""
    unravel = ravel_pytree(params)[1]

    def with_start(theta: jax.Array, before: jax.Array, xs: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        u, v = jax.vmap(cell.preactivations, in_axes=(None, 0, 0))(unravel(theta), before, xs)
        return jnp.sum(a * u + b * v, axis=(1, 2))

    over_ranks = jax.vmap(with_start, in_axes=(0, None, None, 1, 1), out_axes=1)
    of_start = jax.vmap(over_ranks, in_axes=(0, 1, 1, 1, 1), out_axes=1)(theta_0, before, xs, a, b)
    h, x = before[:, :, 0], jax.vmap(jax.vmap(lambda x: as_vector(x, cell.inputs, before.dtype)))(xs)
    by_input, by_recurrent = (jnp.einsum("tbi,obi->tbo", z, z)[:, :, None] for z in (x, h))
    of_a, of_b = (jnp.einsum("tbrgi,obrgi->tbro", one, one) for one in (a, b))
    return of_start, of_a * (by_input + 1) + of_b * (by_recurrent + float(cell.recurrent_bias))


def _propagated(cell: UnitCell, ready: UnitParams, derivatives: RuleDerivatives, s_tilde: jax.Array) -> jax.Array:
    """D_t s~ of a batch of estimates [B, rank, states]."""
    by_state, _, by_recurrent = derivatives
    s = s_tilde.reshape(*s_tilde.shape[:2], cell.states, cell.units)
    v = jax.vmap(jax.vmap(lambda h: multiply(ready.recurrent, h)))(s[:, :, 0])
    through = jnp.einsum("bsgi,brgi->brsi", by_recurrent, v.reshape(*v.shape[:2], cell.gates, cell.units))
    return (jnp.einsum("bsoi,broi->brsi", by_state, s) + through).reshape(s_tilde.shape)
