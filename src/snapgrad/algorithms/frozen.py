"""The recurrent cell stays as it was initialised; only the readout learns.

The paper's "surprisingly strong baseline". The cell's gradient is zero.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from snapgrad.algorithms.base import Outcome, build, memoryless, unroll
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels.base import Kernel
from snapgrad.kernels.select import Backend


def frozen(cell: Cell, loss: Loss, *, backend: Backend = "auto") -> Algorithm:
    """The readout's gradient, and zeros for the cell. For `backend` see `sg.snap`."""

    def window(kernel: Kernel, params: PyTree, s_0: PyTree, memory: PyTree, xs: Any) -> tuple[jax.Array, Any]:
        trajectory = unroll(kernel, cell, params, s_0, xs)
        return trajectory.outputs, lambda deltas: Outcome(jax.tree.map(jnp.zeros_like, params), trajectory.last, ())

    return build("frozen", cell, loss, memoryless(window), backend)
