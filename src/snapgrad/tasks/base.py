"""What a trainer asks of a task: windows of data, made inside the compiled loop.

A task is immutable; what changes while it runs (keys, position, curriculum) is its state, a pytree that goes into
checkpoints with everything else. Data is a function of that state alone: a resumed run sees what it would have seen.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from snapgrad.readouts import Readout

BITS = 1 / math.log(2)  # in a nat
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

    xs: [T, B, inputs] floats, or [T, B] integers: symbols below `Task.inputs`, or PADDING (-1) for no input.
    targets: any pytree of [T, B, ...], as the task's loss takes it.
    is_start: [B] booleans, the lanes in which a new sequence begins with this window.
    tokens: how many of the T * B steps belong to a sequence; the others only fill up.
    """

    xs: jax.Array
    targets: Any
    is_start: jax.Array
    tokens: jax.Array


class Task(abc.ABC):
    """Sequences with something to predict at some of their steps, and what a prediction costs.

    For symbols and classes subclass `SymbolTask`, for numbers `NumberTask`; both leave `start`, `window` and
    `sequence_steps` to be written. A task with targets or a loss of its own subclasses this.
    """

    inputs: int  # width of an input, or number of symbols
    outputs: int  # of the readout
    metric: str  # what the mean cost of a prediction is called in records
    guessing: float | None  # what it is without looking at the input; None if that is not known

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

    def learn(self, state: Any, costs: jax.Array) -> Any:
        """Told what the window's predictions have cost [T, B], a task may change (curriculum)."""
        return state

    @abc.abstractmethod
    def sequence_steps(self, state: Any) -> jax.Array | int | None:
        """Steps of the longest sequence that may come next; None if sequences never end."""

    def level(self, state: Any) -> jax.Array | None:
        """How far a curriculum has come; None if there is none."""
        return None

    @abc.abstractmethod
    def loss(self, readout: Readout) -> Callable[[Any, jax.Array, Any], jax.Array]:
        """The loss (params, h, target) -> scalar of one step of one lane, zero where nothing is asked."""

    @abc.abstractmethod
    def costs(self, losses: jax.Array) -> jax.Array:
        """Losses [T, B] in the unit of the metric."""

    @abc.abstractmethod
    def asked(self, targets: Any) -> jax.Array:
        """Where [T, B] something is to be predicted."""

    @abc.abstractmethod
    def count_wrong(self, window: Window) -> jax.Array:
        """How many inputs and targets are none of this task; training stops at the first."""

    @property
    @abc.abstractmethod
    def allowed(self) -> str:
        """What inputs and targets may be, in words."""

    @abc.abstractmethod
    def shapes(self, steps: int, batch: int) -> dict[str, tuple[str, Any, tuple[int, ...]]]:
        """What `xs` and the leaves of `targets` must be: a word, a dtype and a shape, by name."""


class SymbolTask(Task):
    """Sequences of symbols with classes to predict at some of them; costs are bits.

    A subclass has attributes `inputs`, the number of symbols, and `classes`, how many are told apart. Targets are
    [T, B] integers, classes, or PADDING where nothing is asked.
    """

    classes: int  # that are told apart
    metric = "bits"

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.classes

    @property
    def guessing(self) -> float:  # type: ignore[override]
        return math.log2(self.classes)

    def loss(self, readout: Readout) -> Callable[[Any, jax.Array, Any], jax.Array]:
        return readout.loss

    def costs(self, losses: jax.Array) -> jax.Array:
        return losses * BITS

    def asked(self, targets: jax.Array) -> jax.Array:
        return targets != PADDING

    def count_wrong(self, window: Window) -> jax.Array:
        return count_outside(window.xs, self.inputs) + count_outside(window.targets, self.classes)

    @property
    def allowed(self) -> str:
        return f"symbols in [0, {self.inputs}) and targets in [0, {self.classes}), or {PADDING} for none"

    def shapes(self, steps: int, batch: int) -> dict[str, tuple[str, Any, tuple[int, ...]]]:
        return dict.fromkeys(("xs", "targets"), ("integers", jnp.integer, (steps, batch)))


class Numbers(NamedTuple):
    """The targets of a `NumberTask`."""

    value: jax.Array  # [T, B, outputs]
    asked: jax.Array  # [T, B] booleans


class NumberTask(Task):
    """Sequences of vectors with numbers to predict at some steps; the loss and the cost are the mean squared error.

    A subclass has attributes `inputs`, `outputs` and, if it is known, `guessing`. Targets are `Numbers`.
    """

    metric = "error"
    guessing: float | None = None

    def loss(self, readout: Readout) -> Callable[[Any, jax.Array, Any], jax.Array]:
        return SquaredError(readout)

    def costs(self, losses: jax.Array) -> jax.Array:
        return losses

    def asked(self, targets: Numbers) -> jax.Array:
        return targets.asked

    def count_wrong(self, window: Window) -> jax.Array:
        asked = window.targets.asked[..., None]
        wrong = (~jnp.isfinite(window.xs)).any(axis=-1), (~jnp.isfinite(window.targets.value) & asked).any(axis=-1)
        return jnp.sum(jnp.stack(wrong), dtype=jnp.int32)

    @property
    def allowed(self) -> str:
        return "finite numbers"

    def shapes(self, steps: int, batch: int) -> dict[str, tuple[str, Any, tuple[int, ...]]]:
        return {
            "xs": ("floats", jnp.floating, (steps, batch, self.inputs)),
            "targets.value": ("floats", jnp.floating, (steps, batch, self.outputs)),
            "targets.asked": ("booleans", jnp.bool_, (steps, batch)),
        }


@dataclass(frozen=True)
class SquaredError:
    """The mean squared error of a readout's outputs: (params, h, target) -> scalar of one step of one lane."""

    readout: Readout

    def __call__(self, params: Any, h: jax.Array, target: Numbers) -> jax.Array:
        """The loss, zero where nothing is asked."""
        return jnp.where(target.asked, jnp.mean(jnp.square(self.readout.logits(params, h) - target.value)), 0)
