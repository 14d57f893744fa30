"""Samples as a person has them, and as the compiled step takes them.

A person's have no axis for lanes where there is one stream, and are numbers where there is one output; the step's are
always [B, ...], in the parameters' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.learner.guards import Events
from snapgrad.learner.settings import Settings

SAFE = 6e4  # fits every dtype
NONE = -1  # as a symbol: no input; as a class: nothing is asked


@dataclass(eq=False)
class Samples:
    """Shapes of x and y, and their conversion."""

    lead: tuple[int, ...]  # (lanes,), or () for one stream
    batch: int
    inputs: int
    outputs: int
    symbols: bool
    loss: Any
    dtype: Any
    target: Any = None  # the structure and the shapes of y, for a loss that is a function: those of the first one

    @classmethod
    def of(cls, settings: Settings) -> Samples:
        """Those of a learner."""
        lead = () if settings.lanes is None else (settings.lanes,)
        dtype = np.dtype(jnp.result_type(float))
        loss = settings.loss
        return cls(lead, settings.lanes or 1, settings.inputs, settings.outputs, settings.symbols, loss, dtype)

    def x(self, value: Any) -> np.ndarray:
        """One x as [B, inputs], or [B] symbols."""
        # What nearly always comes, at a third of the price: between two steps of the network nothing is in the caches.
        is_vector = type(value) is np.ndarray and value.dtype is self.dtype and value.shape == (self.inputs,)
        if is_vector and not self.lead and not self.symbols:
            return value.reshape(1, self.inputs)
        return self._x(value, ())

    def xs(self, value: Any) -> np.ndarray:
        """Several, as [T, B, ...]."""
        return self._x(value, (-1,))

    def _x(self, value: Any, time: tuple[int, ...]) -> np.ndarray:
        name = "xs" if time else "x"
        if self.symbols:
            return self._integers(name, value, time, self.inputs, "symbols")
        return self._floats(name, value, time, self.inputs).reshape(*time, self.batch, self.inputs)

    def y(self, value: Any) -> Any:
        """One y as [B, ...]."""
        if self.loss == "squared" and not self.lead:  # as in `x`
            if type(value) in (float, self.dtype.type) and self.outputs == 1 and abs(value) < SAFE:
                return np.array((value,), self.dtype)
            if type(value) is np.ndarray and value.dtype is self.dtype and value.shape == (self.outputs,):
                return value if self.outputs == 1 else value.reshape(1, self.outputs)
        return self._y(value, ())

    def ys(self, value: Any) -> Any:
        """Several, as [T, B, ...]."""
        return self._y(value, (-1,))

    def _y(self, value: Any, time: tuple[int, ...]) -> Any:
        name = "ys" if time else "y"
        if self.loss == "cross_entropy":
            return self._integers(name, value, time, self.outputs, "classes")
        if self.loss == "squared":
            wide = () if self.outputs == 1 else (self.outputs,)
            return self._floats(name, value, time, self.outputs).reshape(*time, self.batch, *wide)
        return self._tree(name, value, time)

    def _floats(self, name: str, value: Any, time: tuple[int, ...], width: int) -> np.ndarray:
        try:
            given = np.asarray(value)
            if given.dtype.kind in "USc":  # NumPy would read strings as numbers, and drop imaginary parts
                raise TypeError
            with np.errstate(over="ignore"):  # what does not fit becomes inf, which the guards know
                array = given.astype(self.dtype, copy=False)
        except (TypeError, ValueError):
            raise TypeError(f"`{name}` must be numbers, got {arguments.shown(value)}") from None
        shape = array.shape[1:] if time and array.ndim else array.shape
        if shape != (*self.lead, width) and not (width == 1 and shape == self.lead):
            raise ValueError(f"`{name}` must have shape {self._said(time, width)}, got {_shape(array)}")
        return array

    def _integers(self, name: str, value: Any, time: tuple[int, ...], known: int, what: str) -> np.ndarray:
        array = np.asarray(value)
        shape = array.shape[1:] if time and array.ndim else array.shape
        if array.dtype.kind not in "iub" or shape != self.lead:
            got = f"{array.dtype} of shape {_shape(array)}" if array.dtype.kind in "iubf" else arguments.shown(value)
            raise TypeError(f"`{name}` must be integers of shape {self._said(time)}, got {got}")
        if array.size and (array.min() < NONE or array.max() >= known):
            worst = array.min() if array.min() < NONE else array.max()
            raise ValueError(f"`{name}` must be {what} in [0, {known}), or {NONE} for none, got {worst}")
        return array.astype(np.int32).reshape(*time, self.batch)

    def _tree(self, name: str, value: Any, time: tuple[int, ...]) -> Any:
        """A target for a loss of one's own: any pytree of numbers, of the same structure and shapes every time."""

        def one(leaf: Any) -> np.ndarray:
            array = np.asarray(arguments.array(name, leaf))
            array = array.astype(self.dtype) if array.dtype.kind == "f" else array
            lead = array.shape[len(time) : len(time) + len(self.lead)]
            if array.ndim < len(time) or lead != self.lead:
                raise ValueError(f"`{name}` must have shapes that begin with {self._said(time)}, got {_shape(array)}")
            return array.reshape(*array.shape[: len(time)], self.batch, *array.shape[len(time) + len(self.lead) :])

        tree = jax.tree.map(one, value)
        leaves, structure = jax.tree.flatten(tree)
        found = structure, [(leaf.shape[len(time) :], leaf.dtype) for leaf in leaves]
        if self.target is None:
            self.target = found
        elif found != self.target:
            raise ValueError(f"`{name}` must have the structure, shapes and dtypes of the first one, got another")
        return tree

    def _said(self, time: tuple[int, ...], *rest: int) -> str:
        return "(" + ", ".join(map(str, (*("T" for _ in time), *self.lead, *rest))) + ")"

    def steps(self, xs: np.ndarray, ys: Any) -> int:
        """How many samples there are."""
        found = {len(leaf) for leaf in jax.tree.leaves((xs, ys))}
        if len(found) > 1:
            raise ValueError(f"`ys` must have as many samples as `xs`, {len(xs)}, got {sorted(found - {len(xs)})[0]}")
        if not len(xs):
            raise ValueError("`xs` must have at least one sample, got none")
        return len(xs)

    def where(self, lanes: Any) -> np.ndarray:
        """The lanes to reset, as booleans [B]."""
        if lanes is None:
            return np.ones(self.batch, bool)
        where = np.asarray(lanes)
        if where.dtype != bool or where.shape != self.lead or not self.lead:
            wanted = f"booleans of shape {self.lead}" if self.lead else "None for a learner without lanes"
            raise ValueError(f"`lanes` must be {wanted}, got {arguments.shown(lanes)}")
        return where

    def split(self, told: np.ndarray) -> tuple[Any, Any, Any]:
        """Predictions, losses and events of what the step says, [..., n]."""
        wide, time = self.batch * self.outputs, told.shape[:-1]
        if wide == 1 and not (time or self.lead):
            prediction, loss, *events = told.tolist()
            return prediction, loss, events
        losses: Any = told[..., wide : wide + self.batch]
        losses = losses.reshape(*time, *self.lead) if time or self.lead else float(losses[0])
        return self.prediction(told[..., :wide], time), losses, told[..., -len(Events()) :]

    def prediction(self, values: np.ndarray, time: tuple[int, ...] = ()) -> Any:
        """Predictions as a person wants them: a number, where there is one output and one stream."""
        if self.outputs > 1:
            return values.reshape(*time, *self.lead, self.outputs)
        return values.reshape(*time, *self.lead) if time or self.lead else values.item()


def _shape(array: np.ndarray) -> tuple[int, ...]:
    return array.shape
