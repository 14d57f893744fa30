"""Cells of any form: patterns by sparsity detection, values by compressed (coloured) derivatives, both from asdex."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import asdex
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from snapgrad.cells.base import AtBatch, Cell, Jacobians, Pull, PyTree, as_vector
from snapgrad.kernels.base import Kernel, to_tiles
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import group_columns


class GeneralCell(Cell, abc.ABC):
    """A cell known only by its `step`. Subclass it, as a frozen dataclass, for a cell that has no unit-wise form.

    `step` must take a float vector [inputs], because derivatives with respect to the weights are found with one; with
    `sg.multiply(matrix, x)` it takes an integer index as well, and detection sees the matrix's exact pattern.
    """

    def check(self, params: PyTree) -> None:
        try:
            x = jnp.zeros(self.inputs, jnp.result_type(*jax.tree.leaves(params)))
            s = jax.tree.map(lambda leaf: leaf.astype(x.dtype), self.initial_state())
            after = jax.eval_shape(self.step, params, s, x)
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            needed = f"`params.cell` must let {self} step from a float vector [{self.inputs}]"
            raise ValueError(f"{needed}, got: {str(error).splitlines()[0]}") from None
        if after != jax.eval_shape(lambda: s):
            raise ValueError(f"`step` of {self} must return a state shaped like its argument, got {after}")

    def jacobians(self, params: PyTree) -> Jacobians:
        leaves, structure = jax.tree.flatten(params)
        return _detect(self, structure, tuple((leaf.shape, jnp.dtype(leaf.dtype)) for leaf in leaves))


@lru_cache(maxsize=32)
def _detect(cell: GeneralCell, structure: Any, leaves: tuple[Any, ...]) -> DetectedJacobians:
    # A concrete zero of every parameter: detection reads the program, never these values.
    # That a small or dense cell gains nothing from colouring is no news to its user.
    with jax.ensure_compile_time_eval(), warnings.catch_warnings(action="ignore", category=asdex.DenseColoringWarning):
        return DetectedJacobians(cell, jax.tree.unflatten(structure, [jnp.zeros(*leaf) for leaf in leaves]))


class DetectedJacobians(Jacobians):
    """D and I of a general cell, for parameters of one structure."""

    def __init__(self, cell: GeneralCell, params: PyTree):
        flat_params, self._unravel_params = ravel_pytree(params)
        state = jax.tree.map(lambda leaf: leaf.astype(flat_params.dtype), cell.initial_state())
        flat_state, self._unravel_state = ravel_pytree(state)
        self.cell = cell

        def flat_step(flat_params: jax.Array, flat_s: jax.Array, x: jax.Array) -> jax.Array:
            s = cell.step(self._unravel_params(flat_params), self._unravel_state(flat_s), x)
            return ravel_pytree(s)[0]

        # Inputs are differentiated as float vectors: an integer index would hide which weights it can pick.
        example = flat_params, flat_state, jnp.zeros(cell.inputs, flat_params.dtype)
        by_params = asdex.jacobian_coloring(flat_step, *example, argnums=0)
        by_state = asdex.jacobian_coloring(flat_step, *example, argnums=1)
        self._immediate_of = asdex.jacobian_from_coloring(flat_step, by_params)
        self._dynamics_of = asdex.jacobian_from_coloring(flat_step, by_state)

        self.dynamics = Pattern(by_state.sparsity.rows, by_state.sparsity.cols, by_state.sparsity.shape)
        self._dynamics_order = np.lexsort((by_state.sparsity.cols, by_state.sparsity.rows))
        immediate = Pattern(by_params.sparsity.rows, by_params.sparsity.cols, by_params.sparsity.shape)
        self.groups = group_columns(immediate)
        entry_state = self.groups.entries.cols[self.groups.entry_credit]
        by_row = np.lexsort((by_params.sparsity.cols, by_params.sparsity.rows))
        self._immediate_order = by_row[immediate.find(entry_state, self.groups.entry_param)]

    def dynamics_at(self, kernel: Kernel, params: PyTree, wanted: Pattern, tile: int) -> AtBatch:
        return self._at(self._dynamics_of, params, self._dynamics_order[self._find(wanted)], tile)

    def immediate_at(self, kernel: Kernel, params: PyTree, tile: int) -> AtBatch:
        return self._at(self._immediate_of, params, self._immediate_order, tile)

    def _at(self, jacobian_of: Any, params: PyTree, order: Any, tile: int) -> AtBatch:
        flat_params = ravel_pytree(params)[0]

        def one(s_tm1: PyTree, x_t: jax.Array) -> jax.Array:
            x_t = as_vector(x_t, self.cell.inputs, flat_params.dtype)
            return jacobian_of(flat_params, ravel_pytree(s_tm1)[0], x_t).data[order]

        return lambda s_tm1, x_t: to_tiles(jax.vmap(one)(s_tm1, x_t), tile)

    def backward_at(
        self, kernel: Kernel, params: PyTree, wanted: Pattern, tile: int
    ) -> Callable[[PyTree, jax.Array], tuple[jax.Array, Pull]]:
        order = self._dynamics_order[self._find(wanted)[wanted.column_order]]
        dynamics_at = self._at(self._dynamics_of, params, order, tile)
        return lambda s_tm1, x_t: (dynamics_at(s_tm1, x_t), lambda credit: credit)

    def _find(self, wanted: Pattern) -> Any:
        return self.dynamics.find(wanted.rows, wanted.cols)

    def collect(self, kernel: Kernel, params: PyTree, s_tm1: PyTree, x_t: jax.Array, pulled: PyTree) -> PyTree:
        immediate_at = self.immediate_at(kernel, params, 1)

        def one_step(total: jax.Array, at_t: Any) -> tuple[jax.Array, None]:
            s, x, credit = at_t
            products = jnp.sum(immediate_at(s, x)[..., 0] * credit[:, self.groups.entry_credit], axis=0)
            return total.at[self.groups.entry_param].add(products), None

        zero = jnp.zeros_like(ravel_pytree(params)[0])
        total, _ = jax.lax.scan(one_step, zero, (s_tm1, x_t, pulled))
        return self._unravel_params(total)
