"""How an influence is propagated: by D within a number of steps (SnAp, RTRL), or by a decay in place of D (RFLO)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from snapgrad.algorithms.base import param_dtype
from snapgrad.cells.base import Jacobians, Local, PyTree
from snapgrad.kernels.base import Kernel
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks, influence_blocks


class Propagation(NamedTuple):
    """J_t = I_t + D_t J_tm1 on what parameters reach within `order` steps; `decay`: D_t is that times the identity."""

    order: int | None  # None: without a limit; 1 with a decay, by which nothing is reached that I does not touch
    decay: float | None = None

    def blocks(self, jacobians: Jacobians) -> Blocks:
        """What is kept of J, and the part of D that it is multiplied with."""
        if self.decay is None:
            return influence_blocks(jacobians.groups, jacobians.dynamics, self.order)
        return influence_blocks(jacobians.groups, Pattern.diagonal(jacobians.dynamics.shape[0]), self.order)

    def dynamics_at(
        self, kernel: Kernel, jacobians: Jacobians, params: PyTree, lanes: int, *, by_column: bool = False
    ) -> Callable[[Local], jax.Array]:
        """The values of D of `blocks`, from what is known of a step."""
        pattern = self.blocks(jacobians).dynamics
        if self.decay is None:
            return jacobians.dynamics_at(kernel, params, pattern, by_column=by_column)
        decays = jnp.full((pattern.nnz, lanes), self.decay, param_dtype(params))
        return lambda local: decays
