"""Optimal Kronecker-Sum approximation of RTRL (Benzing, Gauy, Mujika, Martinsson and Steger 2019), of rank r.

    J_t ~ sum_n u_n (x) A_n   of r terms;  with the new one,  sum_n u_n (x) D_t A_n  +  z_t (x) M_t   has r + 1:

    L = [u_1 .. u_r, z_t],  R = [vec D_t A_1 .. vec D_t A_r, vec M_t]          the sum as the matrix  L R^T
    L = Q_L T_L,  R = Q_R T_R,  T_L T_R^T = U diag(d) V^T                      QR, QR, and a small SVD
    L' = Q_L U X,  R' = Q_R V X,  E[X X^T] = diag(d)                           X [r + 1, r], random

Of all such X the one that is chosen has the least variance. Let m be the smallest number such that what follows the m
largest values, d_{m+1} .. d_{r+1} with the sum s, has none above s / (r - m). The m largest are kept as they are. The
others become (s / (r - m)) (1 - z z^T) with z_i = sqrt(1 - d_i (r - m) / s): a multiple of a projection of rank r - m
that has them on its diagonal. Random signs c, by which row i of X is multiplied, make what stands beside the diagonal
vanish in expectation.

Where a part of J (algorithms/kronecker.py) has no more than r presynaptic values, nothing is left out: exact RTRL.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from snapgrad import arguments
from snapgrad.algorithms.base import build
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.algorithms.kronecker import Compress, Terms, kronecker_sum
from snapgrad.cells.base import Cell
from snapgrad.kernels.select import Backend


def ok(cell: Cell, loss: Loss, *, rank: int = 1, backend: Backend = "auto") -> Algorithm:
    """An unbiased gradient with the least noise that `rank` Kronecker products allow; `init` needs a `key`.

    Where patterns change, the factors stay: they estimate the influence of absent weights too, taken as zeros, and a
    weight that is new starts with that.

    Args:
        cell: the recurrent cell, an `sg.UnitCell`: vanilla, the cuDNN variant of the GRU, LSTM, or one of your own.
        loss: (readout, h, target) -> scalar for one example at one step.
        rank: r, number of Kronecker products that are kept.
        backend: "native" (C++, CPU), "reference" (plain JAX, any device), or "auto": native wherever it can run.
    """
    arguments.positive_integer("rank", rank)
    return build(f"ok(rank={rank})", cell, loss, kronecker_sum("ok", cell, rank, compress), backend)


def _compress(terms: Terms, signs: jax.Array) -> Terms:
    """r + 1 terms to r: unbiased over the signs [r], with the least variance."""
    rank, (n_terms, *grid), dtype = len(signs), terms.states.shape, terms.states.dtype
    working = dtype if dtype.itemsize >= 4 else jnp.dtype("float32")  # no factorisation takes less
    left, left_small = jnp.linalg.qr(terms.sources.astype(working).T)
    right, right_small = jnp.linalg.qr(terms.states.astype(working).reshape(n_terms, -1).T)
    U, d, Vt = jnp.linalg.svd(left_small @ right_small.T, full_matrices=False)
    if len(d) <= rank:  # as many as there can be: nothing is left out
        X = jnp.pad(jnp.diag(jnp.sqrt(d)), ((0, 0), (0, rank - len(d))))
    else:
        # Where r terms are enough the last value is rounding; `root` would make noise of the root of it, step by step.
        largest = jnp.sum(jnp.linalg.norm(left_small, axis=0) * jnp.linalg.norm(right_small, axis=0))
        d = jnp.where(d > 8 * jnp.finfo(working).eps * largest, d, 0)
        X = jnp.append(signs.astype(working), jnp.ones(1, working))[:, None] * root(d)
    sources, states = (left @ (U @ X)).T, (right @ (Vt.T @ X)).T
    return Terms(sources.astype(dtype), states.reshape(rank, *grid).astype(dtype))


# One example after the other: for a batch, JAX's factorisations on CPU wait inside a thread of XLA's pool for others of
# the same pool, and where as many wait as there are threads, two on two cores, none is left to work (jaxlib 0.10.2).
compress: Compress = jax.custom_batching.sequential_vmap(_compress)


def root(d: jax.Array) -> jax.Array:
    """X [r + 1, r] such that X X^T has the diagonal d, sorted from large to small, and the least norm."""
    rank = len(d) - 1
    place = jnp.arange(len(d))
    tails = jnp.cumsum(d[::-1])[::-1]  # the sum of d_i and all that are smaller
    directions = (rank - place).astype(d.dtype)  # left for those from i on, if all before them are kept as they are
    m = jnp.argmax((directions * d <= tails)[:-1])  # the first: at the last but one it always holds
    share = tails[m] / directions[m]
    # One vector is left out of the directions: z, which is zero at what is kept as it is. The difference comes first:
    # where it is zero, 1 - d / share might not be.
    rest = jnp.maximum(share - d, 0) / jnp.where(share > 0, share, 1)
    rest = jnp.where(share > 0, rest, (place == rank).astype(d.dtype))
    z = jnp.where(place < m, 0, jnp.sqrt(rest))
    # The reflection that takes the last unit vector to -z takes the others to a basis of all that is orthogonal to z.
    w = z.at[-1].add(1)
    basis = (jnp.eye(len(d), dtype=d.dtype) - 2 * jnp.outer(w, w) / (w @ w))[:, :-1]
    return basis * jnp.sqrt(jnp.where(place < m, d, share))[None, :-1]
