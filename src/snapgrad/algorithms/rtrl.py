"""Real-Time Recurrent Learning (Williams and Zipser 1989), exact.

    J_t = I_t + D_t J_tm1            g_t = dL_t/ds_t . J_t

It is SnAp without a limit on the number of steps, so it works on the columns of existing parameters only, and on a
sparse network uses the sparsity of D as well (the paper's "sparse RTRL").
"""

from __future__ import annotations

from typing import Any

from snapgrad.algorithms.base import build
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.algorithms.propagation import Propagation
from snapgrad.algorithms.snap import forward_in_time, stored_in
from snapgrad.cells.base import Cell
from snapgrad.kernels.select import Backend


def rtrl(cell: Cell, loss: Loss, *, influence_dtype: Any = None, backend: Backend = "auto") -> Algorithm:
    """Exact gradients forward in time: the memory is states x parameters, the work states times that.

    `influence_dtype` and `backend` are as in `sg.snap`.
    """
    rule = forward_in_time(cell, Propagation(None), influence_dtype)
    return build(f"rtrl{stored_in(influence_dtype)}", cell, loss, rule, backend)
