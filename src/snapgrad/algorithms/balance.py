"""The scaling under which the two factors of a random product have one norm, and the product the least variance."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def balance(above: jax.Array, below: jax.Array) -> jax.Array:
    """sqrt(above / below) of two norms, and 1 where either is (nearly) zero, as at the start of a sequence."""
    tiny = float(jnp.finfo(above.dtype).tiny) ** 0.5
    usable = (above > tiny) & (below > tiny)
    return jnp.where(usable, jnp.sqrt(jnp.where(usable, above, 1) / jnp.where(usable, below, 1)), 1)
