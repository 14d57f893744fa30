"""Random-Feedback Local Online learning (Murray 2019), as the paper compares it: with exact feedback.

    J_t = I_t + decay J_tm1          on the entries of I only: nothing ever spreads to other units

Menick et al. describe it as "accumulating I_t terms whilst ignoring the product D_t J_tm1": that is `decay=1`, the
default. Murray (2019) derives it for the leaky unit h_t = (1 - 1/tau) h_tm1 + (1/tau) phi(W_h h_tm1 + W_x x_t), where
the part of D that stays within a unit is the leak: `decay = 1 - 1/tau`. With `decay=0` it is truncated BPTT at T = 1.
Murray also replaces the readout's transpose by fixed random feedback; here, as in the paper's comparison, dL/dh is
exact.

Without decay the sum grows as long as a sequence lasts: on streams that are never reset, use `decay < 1`.
"""

from __future__ import annotations

import numbers

import jax

from snapgrad.algorithms.base import build
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.algorithms.snap import forward_in_time
from snapgrad.cells.base import Cell
from snapgrad.kernels import reference as kernel
from snapgrad.sparsity.reach import Blocks


def rflo(cell: Cell, loss: Loss, *, decay: float = 1.0) -> Algorithm:
    """Accumulates the immediate Jacobian and ignores how influence travels.

    Args:
        cell: the recurrent cell.
        loss: (readout, h, target) -> scalar for one example at one step.
        decay: in [0, 1], the share of the accumulated influence that is kept at every step.
    """
    if not isinstance(decay, numbers.Real) or not 0 <= decay <= 1:
        raise ValueError(f"`decay` must be a number in [0, 1], got {decay!r}")

    decay = float(decay)

    def update(blocks: Blocks, J_tm1: kernel.Influence, D_t: jax.Array, I_t: jax.Array) -> kernel.Influence:
        return kernel.add_immediate(blocks, tuple(decay * block for block in J_tm1), I_t)

    return build(f"rflo(decay={decay})", cell, loss, forward_in_time(cell, 1, update))
