"""Kronecker-Factored RTRL (Mujika, Meier and Steger 2018): J as one random Kronecker product.

    J_t ~ u_t (x) A_t,  in expectation over random signs c exactly J_t:

    u_t = p_0 u_tm1  +  c_t p_1 z_t                  z_t: the presynaptic values,  I_t = z_t (x) M_t
    A_t = D_t A_tm1 / p_0  +  c_t M_t / p_1
    p_0 = sqrt(|D_t A_tm1| / |u_tm1|)                p_1 = sqrt(|M_t| / |z_t|)

The scalings p equalise the norms of the two factors, which minimises the variance; any positive ones are unbiased. The
paper draws a sign for each of the two terms; only their product matters, so one is drawn here. It is less noisy than
UORO, whose second factor is as long as all parameters, for more work: D_t A is one product with D for every gate of
every unit. algorithms/kronecker.py says how J is laid out, and what becomes of a cell, such as the GRU, whose
derivatives by u and by v differ.
"""

from __future__ import annotations

import jax
from jax.numpy.linalg import norm

from snapgrad.algorithms.balance import balance
from snapgrad.algorithms.base import build
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.algorithms.kronecker import Terms, kronecker_sum
from snapgrad.cells.base import Cell
from snapgrad.kernels.select import Backend


def kf_rtrl(cell: Cell, loss: Loss, *, backend: Backend = "auto") -> Algorithm:
    """An unbiased gradient with less noise than UORO's, for unit-wise cells; `init` needs a `key`.

    Where patterns change, the factors stay: they estimate the influence of absent weights too, taken as zeros, and a
    weight that is new starts with that.

    Args:
        cell: the recurrent cell, an `sg.UnitCell`: vanilla, the cuDNN variant of the GRU, LSTM, or one of your own.
        loss: (readout, h, target) -> scalar for one example at one step.
        backend: "native" (C++, CPU), "reference" (plain JAX, any device), or "auto": native wherever it can run.
    """
    return build("kf_rtrl", cell, loss, kronecker_sum("kf_rtrl", cell, 1, _compress), backend)


def _compress(terms: Terms, signs: jax.Array) -> Terms:
    """Two terms to one, unbiased: the sum over both of each factor, with a random sign between them."""
    (u_0, u_1), (A_0, A_1) = terms
    p_0, p_1 = balance(norm(A_0), norm(u_0)), balance(norm(A_1), norm(u_1))
    return Terms((p_0 * u_0 + signs[0] * p_1 * u_1)[None], (A_0 / p_0 + signs[0] * A_1 / p_1)[None])
