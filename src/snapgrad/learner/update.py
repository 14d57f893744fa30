"""One update of the weights from a gradient: made where something was asked, and where all stays finite.

Optax computes it, in JAX. Adam with its defaults, which nearly everybody takes, is computed in one native pass: XLA
goes over the weights nine times, and for one sample that was half of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from snapgrad.algorithms.interface import Params
from snapgrad.kernels import adam, binding
from snapgrad.kernels.base import Kernel
from snapgrad.learner.guards import is_finite

Updated = tuple[Params, optax.OptState, jax.Array, jax.Array]


@dataclass(frozen=True, eq=False)
class Update:
    """An optimiser, and whether it makes a finite update and a finite state of every finite gradient."""

    optimiser: optax.GradientTransformation
    is_bounded: bool = False
    adam: adam.Adam | None = None  # what the optimiser is, over all weights as one vector, if it is that

    def __call__(
        self,
        kernel: Kernel,
        params: Params,
        opt_state: optax.OptState,
        grads: Params,
        asked: jax.Array,
        seen: jax.Array,
    ) -> Updated:
        """The weights and the optimiser's state after it, and whether all was finite; they stay as they are if not.

        `seen` comes back as it is. What was computed from the weights should be in it: they are overwritten where they
        stand if that needs them no longer, and copied before if it does.
        """
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(params)}
        if self.adam is not None and kernel.name == "native" and len(dtypes) == 1 and dtypes <= set(binding.DTYPES):
            return _in_one_pass(self.adam, params, opt_state, grads, asked, seen)
        with jax.numpy_dtype_promotion("standard"):  # whatever the process has set: Optax counts on it
            updates, new_opt_state = self.optimiser.update(grads, opt_state, params)
        # As vectors: for one sample, every operation on its own costs more than its arithmetic.
        (g, _), (u, _), (p, unravel) = map(ravel_pytree, (grads, updates, params))
        # A weight and an update whose squares are finite have a finite sum.
        whole = is_finite(g if self.is_bounded else (g, u, new_opt_state))
        accepted = asked & whole
        opt_state = jax.tree.map(lambda *both: jnp.where(accepted, *both), new_opt_state, opt_state)
        return unravel(jnp.where(accepted, p + u, p)), opt_state, whole, seen


def _in_one_pass(
    settings: adam.Adam, params: Params, opt_state: optax.OptState, grads: Params, asked: jax.Array, seen: jax.Array
) -> Updated:
    parts, structure = jax.tree.flatten(opt_state, is_leaf=_is_adam)
    (place,) = (place for place, part in enumerate(parts) if _is_adam(part))
    before: Any = parts[place]
    weights, of_params = jax.tree.flatten(params)
    # The cell's gradient is one array already, cut up into that of every weight.
    gradient = [ravel_pytree(part)[0] for part in grads]
    moments = adam.Moments(before.count, before.mu, before.nu)
    weights, moments, whole, seen = adam.update(settings, weights, moments, gradient, asked, seen)
    parts[place] = optax.ScaleByAdamState(*moments)
    return jax.tree.unflatten(of_params, weights), jax.tree.unflatten(structure, parts), whole, seen


def _is_adam(part: Any) -> bool:
    return isinstance(part, optax.ScaleByAdamState)
