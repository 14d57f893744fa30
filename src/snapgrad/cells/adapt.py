"""A cell from any JAX step: one's own function, a Flax or an Equinox module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.cells.base import PyTree, as_vector
from snapgrad.cells.general import GeneralCell, Patterns


def cell(
    step: Callable[[PyTree, PyTree, jax.Array], PyTree],
    params: PyTree,
    state: PyTree,
    *,
    inputs: int,
    output: Callable[[PyTree], jax.Array] | None = None,
    patterns: Patterns | None = None,
) -> AdaptedCell:
    """A cell that steps by a given function; which parameters and states influence which is found in its program.

    Args:
        step: (params, s_tm1, x_t) -> s_t of one example, differentiable; x_t is a float vector [inputs]. Weights may be
            `sg.SparseMatrix`, multiplied with `sg.multiply`.
        params: what `init` returns: a pytree of floating-point arrays.
        state: the state at the start of a sequence, a pytree of floating-point arrays; or one array.
        inputs: width of the input.
        output: s_t -> what the readout sees; the state itself if it is one array and nothing is given.
        patterns: the patterns of D and I, given by hand where detection has no rule for what the step is made of.

    Two cells are equal, and share compiled code, if they are made of the same functions and equal states.
    """
    for name, function in {"step": step, "output": output}.items():
        if not callable(function) and not (name == "output" and function is None):
            raise TypeError(f"`{name}` must be a function, got {type(function).__name__}")
    arguments.positive_integer("inputs", inputs)
    for name, tree in {"params": params, "state": state}.items():
        leaves = jax.tree.leaves(tree)
        others = [leaf for leaf in leaves if not _is_floating(leaf)]
        if others or not leaves:
            got = getattr(others[0], "dtype", type(others[0]).__name__) if others else "none"
            raise TypeError(f"`{name}` must be a pytree of floating-point arrays only, got {got}")
    leaves, structure = jax.tree.flatten(state)
    if output is None and not hasattr(state, "dtype"):
        raise ValueError(f"`output` must be given for a state that is not one array, got None for {structure}")
    start = tuple((leaf.shape, str(leaf.dtype), np.asarray(leaf).tobytes()) for leaf in leaves)
    adapted = AdaptedCell(step, inputs, output, patterns, (structure, start), params, state)
    adapted.check(params)
    return adapted


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


@dataclass(frozen=True, repr=False)
class AdaptedCell(GeneralCell):
    """A cell that steps by a given function; made by `sg.cell`."""

    function: Callable[[PyTree, PyTree, jax.Array], PyTree]
    inputs: int
    seen: Callable[[PyTree], jax.Array] | None
    given: Patterns | None
    start: Any  # the state's structure and content, by which cells are told apart
    params: PyTree = field(compare=False)
    state: PyTree = field(compare=False)

    def init(self, key: jax.Array | None = None, sparsity: float = 0.0) -> PyTree:
        """The parameters that the cell was made with; they have the sparsity that they have."""
        if sparsity != 0:
            raise ValueError(f"`sparsity` must be 0 for {self}, whose parameters were given with it, got {sparsity!r}")
        return self.params

    def initial_state(self) -> PyTree:
        return self.state

    def step(self, params: PyTree, s: PyTree, x: jax.Array) -> PyTree:
        return self.function(params, s, as_vector(x, self.inputs, jnp.result_type(*jax.tree.leaves(params))))

    def output(self, s: PyTree) -> jax.Array:
        return s if self.seen is None else self.seen(s)

    def patterns(self, params: PyTree) -> Patterns | None:
        return self.given

    def __repr__(self) -> str:
        return f"cell({getattr(self.function, '__name__', self.function)}, inputs={self.inputs})"
