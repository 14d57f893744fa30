"""Next-byte prediction on endless streams: every lane reads on and on from its own place, and is never reset."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.tasks.base import SymbolTask, Window
from snapgrad.tasks.characters import BYTES, check_text


@dataclass(frozen=True, eq=False)
class Streams(SymbolTask):
    """Lanes begin at random places of the text; after its last byte comes its first. The state is their places [B]."""

    text: np.ndarray  # uint8
    inputs = BYTES
    classes = BYTES

    def __post_init__(self) -> None:
        check_text(self.text, 2)

    @property
    def data(self) -> jax.Array:
        return jnp.asarray(self.text)

    def start(self, key: jax.Array, batch: int) -> jax.Array:
        return jax.random.randint(key, (batch,), 0, len(self.text), jnp.int32)

    def window(self, data: jax.Array, state: jax.Array, steps: int) -> tuple[jax.Array, Window]:
        offsets = jnp.arange(steps + 1, dtype=jnp.int32)
        places = jax.vmap(lambda offset: (state + offset) % len(data))(offsets)  # [T + 1, B]
        symbols = data[places].astype(jnp.int32)
        never = jnp.zeros(state.shape, bool)
        return places[-1], Window(symbols[:-1], symbols[1:], never, jnp.int32(steps * len(state)))

    def sequence_steps(self, state: jax.Array) -> None:
        return None
