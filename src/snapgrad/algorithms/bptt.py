"""Backpropagation through time over a window.

    g = sum_t dL/ds_t . I_t        dL/ds_t = dL_t/ds_t + dL/ds_{t+1} . D_{t+1}

Exact when one window holds the whole sequence. With shorter windows the state is carried on and the gradient is cut at
their borders: that is truncated BPTT, and T = 1 sees no past at all.
"""

from __future__ import annotations

from typing import Any

import jax

from snapgrad import arguments
from snapgrad.algorithms.base import Outcome, batched_step, build, memoryless
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels.base import Kernel
from snapgrad.kernels.select import Backend


def bptt(cell: Cell, loss: Loss, *, rematerialise: int | None = None, backend: Backend = "auto") -> Algorithm:
    """Backpropagation through the steps of a window.

    Args:
        cell: the recurrent cell.
        loss: (readout, h, target) -> scalar for one example at one step.
        rematerialise: keep the state only every so many steps and compute the rest again on the way back. Memory
            falls from T steps to T / n + n of them, for one more forward pass; None keeps everything.
        backend: "native" (C++, CPU), "reference" (plain JAX, any device), or "auto": native wherever it can run.
    """
    if rematerialise is not None:
        arguments.positive_integer("rematerialise", rematerialise)

    def window(kernel: Kernel, params: PyTree, s_0: PyTree, memory: PyTree, xs: Any) -> tuple[jax.Array, Any]:
        def outputs(params: PyTree) -> tuple[jax.Array, PyTree]:
            step = batched_step(kernel, cell, params)
            s_T, hs = _scan_in_segments(step, s_0, xs, rematerialise)
            return hs, s_T

        hs, transpose, s_T = jax.vjp(outputs, params, has_aux=True)
        return hs, lambda deltas: Outcome(transpose(deltas)[0], s_T, ())

    return build("bptt", cell, loss, memoryless(window), backend)


def _scan_in_segments(step: Any, carry: PyTree, xs: jax.Array, length: int | None) -> tuple[PyTree, jax.Array]:
    """`lax.scan` that, when differentiated, stores the carry only at the borders of segments of `length` steps."""
    steps = xs.shape[0]
    if length is None:
        return jax.lax.scan(step, carry, xs)

    @jax.checkpoint
    def segment(carry: PyTree, xs: jax.Array) -> tuple[PyTree, jax.Array]:
        return jax.lax.scan(step, carry, xs)

    whole = steps - steps % length
    carry, ys = jax.lax.scan(segment, carry, xs[:whole].reshape(whole // length, length, *xs.shape[1:]))
    ys = ys.reshape(whole, *ys.shape[2:])
    if whole == steps:
        return carry, ys
    carry, rest = segment(carry, xs[whole:])
    return carry, jax.numpy.concatenate([ys, rest])
