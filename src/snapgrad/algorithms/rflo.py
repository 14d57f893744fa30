"""Random-Feedback Local Online learning (Murray 2019), as the paper compares it: with exact feedback.

    J_t = I_t + decay J_tm1          on the entries of I only: nothing ever spreads to other units

Menick et al. describe it as "accumulating I_t terms whilst ignoring the product D_t J_tm1": that is `decay=1`, the
default. Murray (2019) derives it for the leaky unit h_t = (1 - 1/tau) h_tm1 + (1/tau) phi(W_h h_tm1 + W_x x_t), where
the part of D that stays within a unit is the leak: `decay = 1 - 1/tau`. With `decay=0` it is truncated BPTT at T = 1.
On such units it is e-prop (Bellec et al. 2020): J is the eligibility trace and dL/dh the learning signal. Murray also
replaces the readout's transpose by fixed random feedback; here, as in the paper's comparison, dL/dh is exact.

Over whole sequences (`episodic`) no J is needed (algorithms/episodic.py); a step's credit is what follows it, decayed:

    g = sum_t lambda_t . I_t         lambda_t = dL_t/ds_t + decay lambda_{t+1}

Without decay the sum grows as long as a sequence lasts: on streams that are never reset, use `decay < 1`.
"""

from __future__ import annotations

import numbers
from typing import Any

from snapgrad import arguments
from snapgrad.algorithms import checks
from snapgrad.algorithms.base import build
from snapgrad.algorithms.episodic import backward_in_time
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.algorithms.propagation import Propagation
from snapgrad.algorithms.snap import forward_in_time, stored_in
from snapgrad.cells.base import Cell
from snapgrad.kernels.select import Backend


def rflo(
    cell: Cell,
    loss: Loss,
    *,
    decay: float = 1.0,
    episodic: bool = False,
    influence_dtype: Any = None,
    backend: Backend = "auto",
) -> Algorithm:
    """Accumulates the immediate Jacobian and ignores how influence travels.

    Args:
        cell: the recurrent cell.
        loss: (readout, h, target) -> scalar for one example at one step.
        decay: in [0, 1], the share of the accumulated influence that is kept at every step.
        episodic: as in `sg.snap`.
        influence_dtype: as in `sg.snap`.
        backend: as in `sg.snap`.
    """
    if not isinstance(decay, numbers.Real) or not 0 <= decay <= 1:
        raise ValueError(f"`decay` must be a number in [0, 1], got {arguments.shown(decay)}")
    checks.episodic(episodic, influence_dtype)
    propagation, name = Propagation(order=1, decay=float(decay)), f"rflo(decay={float(decay)}"
    if episodic:
        return build(f"{name}, episodic)", cell, loss, backward_in_time(cell, propagation), backend, episodic=True)
    rule = forward_in_time(cell, propagation, influence_dtype)
    return build(f"{name}){stored_in(influence_dtype)}", cell, loss, rule, backend)
