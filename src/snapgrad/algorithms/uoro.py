"""Unbiased Online Recurrent Optimization (Tallec and Ollivier 2017): J as a random outer product.

    J_t ~ s~_t theta~_t^T,  in expectation over random signs nu exactly J_t:

    s~_t     = rho_0 D_t s~_tm1  +  rho_1 nu_t
    theta~_t = theta~_tm1 / rho_0  +  nu_t^T I_t / rho_1
    rho_0 = sqrt(|theta~_tm1| / |D_t s~_tm1|)        rho_1 = sqrt(|nu_t^T I_t| / |nu_t|)

The scalings rho equalise the norms of the two factors, which minimises the variance; any positive ones are unbiased.
With `rank` r > 1 the mean of r independent estimates is used. D_t s~ is one forward-mode product of the cell's step and
nu^T I_t one reverse-mode product, so it works for every cell, with work and memory of the order of the parameters.
Over windows of a dense unit-wise cell the same is done without theta~ at every step: algorithms/uoro_window.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.numpy.linalg import norm

from snapgrad import arguments
from snapgrad.algorithms import checks, uoro_window
from snapgrad.algorithms.balance import balance
from snapgrad.algorithms.base import (
    Outcome,
    Rule,
    build,
    param_dtype,
    propagation,
    select_lanes,
    state_deltas,
    unroll,
)
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.algorithms.placement import EVERYWHERE, LANES
from snapgrad.algorithms.uoro_window import Factors
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels.base import Kernel
from snapgrad.kernels.select import Backend
from snapgrad.kernels.share import varying
from snapgrad.sparsity.matrix import append_zero
from snapgrad.sparsity.moves import parameter_sources


class Estimate(NamedTuple):
    """The two factors of each rank-one estimate, and the randomness still to come."""

    state: jax.Array  # s~ [B, rank, states]
    params: jax.Array  # theta~ [B, rank, params]
    key: jax.Array


def uoro(cell: Cell, loss: Loss, *, rank: int = 1, backend: Backend = "auto") -> Algorithm:
    """An unbiased but noisy gradient, in memory of the order of the parameters; `init` needs a `key`.

    Args:
        cell: the recurrent cell.
        loss: (readout, h, target) -> scalar for one example at one step.
        rank: number of independent estimates that are averaged.
        backend: "native" (C++, CPU), "reference" (plain JAX, any device), or "auto": native wherever it can run.
    """
    arguments.positive_integer("rank", rank)

    def start(kernel: Kernel, params: PyTree, batch_size: int, key: Any) -> Estimate:
        checks.key("uoro", key)
        n_states = ravel_pytree(cell.initial_state())[0].size
        n_params = ravel_pytree(params)[0].size
        dtype = param_dtype(params)
        return Estimate(
            jnp.zeros((batch_size, rank, n_states), dtype), jnp.zeros((batch_size, rank, n_params), dtype), key
        )

    def window(kernel: Kernel, params: PyTree, s_0: PyTree, memory: Estimate, xs: Any) -> tuple[jax.Array, Any]:
        trajectory = unroll(kernel, cell, params, s_0, xs)

        def backward(deltas: jax.Array) -> Outcome:
            key, sign_key = jax.random.split(memory.key)
            steps, (lanes, *factor) = xs.shape[0], memory.state.shape

            def draw(lanes: int) -> jax.Array:  # [T, B, rank, states]
                return jax.random.rademacher(sign_key, (steps, lanes, *factor), memory.state.dtype)

            signs = varying(kernel.share.of_lanes(draw, lanes, axis=1), xs)
            factors = memory.state, memory.params
            at = trajectory.before, xs, state_deltas(cell, trajectory, deltas), signs
            if uoro_window.applies(cell, params, steps):
                g, factors = uoro_window.follow(kernel, cell, params, factors, *at)
            else:
                g, factors = follow_steps(kernel, cell, params, factors, *at)
            return Outcome(ravel_pytree(params)[1](g), trajectory.last, Estimate(*factors, key))

        return trajectory.outputs, backward

    def restart(kernel: Kernel, memory: Estimate, where: jax.Array) -> Estimate:
        zero = jnp.zeros((), memory.state.dtype)
        return memory._replace(
            state=select_lanes(where, zero, memory.state), params=select_lanes(where, zero, memory.params)
        )

    def transfer(kernel: Kernel, memory: Estimate, old: PyTree, new: PyTree) -> Estimate:
        params = append_zero(memory.params)[..., parameter_sources(old, new)]
        return memory._replace(params=params)

    axes = Estimate(LANES, LANES, EVERYWHERE)
    rule = Rule(start, window, restart, transfer, structures=lambda params: (), axes=lambda kernel: axes)
    return build(f"uoro(rank={rank})", cell, loss, rule, backend)


def follow_steps(
    kernel: Kernel,
    cell: Cell,
    params: PyTree,
    factors: Factors,
    before: PyTree,
    xs: Any,
    deltas: jax.Array,
    signs: jax.Array,
) -> tuple[jax.Array, Factors]:
    """The flat gradient of a window of any cell, and the factors after it; `uoro_window.follow` says what it takes."""
    ready, rank = kernel.ready(params), signs.shape[2]
    over_lanes = jax.vmap(_advance, in_axes=(None, None, None, None, 0, 0, 0, 0, 0))

    def step(carry: Any, at_t: Any) -> tuple[Any, None]:
        g, (s_tilde, theta_tilde) = carry
        s_tm1, x_t, delta_t, signs_t = at_t
        s_tilde, theta_tilde = over_lanes(kernel, cell, params, ready, s_tm1, x_t, s_tilde, theta_tilde, signs_t)
        along = jnp.einsum("bs,brs->br", delta_t, s_tilde) / rank
        return (g + jnp.einsum("br,brp->p", along, theta_tilde), (s_tilde, theta_tilde)), None

    flat = ravel_pytree(params)[0]
    g = jnp.zeros(flat.shape, flat.dtype)  # of one piece, which XLA knows to be zero
    at = before, xs, deltas, signs
    return jax.lax.scan(step, varying((g, factors), at), at)[0]


def _advance(
    kernel: Kernel,
    cell: Cell,
    params: PyTree,
    ready: PyTree,
    s_tm1: PyTree,
    x_t: Any,
    s_tilde: jax.Array,
    theta_tilde: jax.Array,
    signs: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One step of all estimates [rank, ...] of one example."""
    by_D = propagation(cell, ready, s_tm1, x_t)

    def by_params(params: PyTree) -> jax.Array:
        return ravel_pytree(cell.step(kernel.ready(params), s_tm1, x_t))[0]

    _, transpose = jax.vjp(by_params, params)

    def one(s_tilde: jax.Array, theta_tilde: jax.Array, signs: jax.Array) -> tuple[jax.Array, jax.Array]:
        Ds = by_D(s_tilde)
        nuI = ravel_pytree(transpose(signs)[0])[0]
        rho_0 = balance(norm(theta_tilde), norm(Ds))
        rho_1 = balance(norm(nuI), norm(signs))
        return rho_0 * Ds + rho_1 * signs, theta_tilde / rho_0 + nuI / rho_1

    return jax.vmap(one)(s_tilde, theta_tilde, signs)
