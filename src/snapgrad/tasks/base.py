"""What a trainer asks of a task: windows of data, made inside the compiled loop.

A task is immutable; what changes while it runs (keys, position, curriculum) is its state, a pytree that goes into
checkpoints with everything else. Data is a function of that state alone: a resumed run sees what it would have seen.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PADDING = -1  # as an input: no input; as a target: nothing is asked


def count_outside(symbols: jax.Array, known: int) -> jax.Array:
    """How many integers of any width are neither in [0, known) nor padding."""
    if jnp.iinfo(symbols.dtype).max < jnp.iinfo(jnp.int32).max:
        symbols = symbols.astype(jnp.int32)  # in which every number of symbols can be said
    outside = symbols >= known
    if jnp.issubdtype(symbols.dtype, jnp.signedinteger):
        outside |= symbols < PADDING
    return jnp.sum(outside, dtype=jnp.int32)


class Window(NamedTuple):
    """T consecutive steps of every lane of a batch of B.

    xs: [T, B] integers, symbols below `Task.inputs`, or PADDING (-1) for no input.
    targets: [T, B] integers, classes below `Task.classes`, or PADDING where nothing is asked.
    is_start: [B] booleans, the lanes in which a new sequence begins with this window.
    tokens: how many of the T * B steps belong to a sequence; the others only fill up.
    """

    xs: jax.Array
    targets: jax.Array
    is_start: jax.Array
    tokens: jax.Array


class Task(abc.ABC):
    """Sequences of symbols with something to predict at some of them.

    A subclass has attributes `inputs`, the number of symbols, and `classes`, how many are told apart, and the methods
    `start`, `window` and `sequence_steps`.
    """

    inputs: int  # symbols
    classes: int  # that are told apart

    @property
    def data(self) -> Any:
        """Arrays that the compiled loop reads, such as a text; passed to `window`."""
        return ()

    @abc.abstractmethod
    def start(self, key: jax.Array, batch: int) -> Any:
        """The state before the first window."""

    @abc.abstractmethod
    def window(self, data: Any, state: Any, steps: int) -> tuple[Any, Window]:
        """The next `steps` steps. Where a sequence ends, the window is filled up; the next one begins another."""

    def learn(self, state: Any, bits: jax.Array) -> Any:
        """Told the bits [T, B] that the window's targets have cost, a task may change (curriculum)."""
        return state

    @abc.abstractmethod
    def sequence_steps(self, state: Any) -> jax.Array | int | None:
        """Steps of the longest sequence that may come next; None if sequences never end."""

    def level(self, state: Any) -> jax.Array | None:
        """How far a curriculum has come; None if there is none."""
        return None
