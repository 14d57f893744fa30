"""Cells of any form: patterns by sparsity detection or by hand, values by compressed (coloured) derivatives (asdex)."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from snapgrad.cells.base import Cell, Jacobians, PyTree, as_vector
from snapgrad.cells.detection import jacobian_patterns
from snapgrad.kernels.base import Kernel, Products, Sums
from snapgrad.kernels.share import varying
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import group_columns

if TYPE_CHECKING:
    import asdex  # half a second, which processes without such cells do without


class Patterns(NamedTuple):
    """Which entries of a cell's derivatives can be other than zero.

    State entries and parameters are numbered as `ravel_pytree` of the cell's state and parameters numbers them.
    """

    dynamics: Pattern  # D [states, states]
    immediate: Pattern  # I [states, params]


class GeneralCell(Cell, abc.ABC):
    """A cell known only by its `step`. Subclass it, as a frozen dataclass, for a cell that has no unit-wise form.

    `step` must take a float vector [inputs], because derivatives with respect to the weights are found with one; with
    `sg.multiply(matrix, x)` it takes an integer index as well, and detection sees the matrix's exact pattern.
    """

    def patterns(self, params: PyTree) -> Patterns | None:
        """The patterns of D and I for `params`, of which only the structure counts; None: find them by detection.

        Override it where detection has no rule for what the step is made of, or is slow or conservative. An entry too
        many costs time; one that is missing is refused if derivatives at a few random points show it, and is a silent
        error if they do not.
        """
        return None

    def check(self, params: PyTree) -> None:
        try:
            x = jax.ShapeDtypeStruct((self.inputs,), jnp.result_type(*jax.tree.leaves(params)))
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
    import asdex

    # A concrete zero of every parameter: detection reads the program, never these values.
    # That a small or dense cell gains nothing from colouring is no news to its user.
    # What is found serves on every mesh: none of its arrays may belong to that of the program which asks first.
    on_no_mesh = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
    no_news = warnings.catch_warnings(action="ignore", category=asdex.DenseColoringWarning)
    with jax.ensure_compile_time_eval(), on_no_mesh, no_news:
        return DetectedJacobians(cell, jax.tree.unflatten(structure, [jnp.zeros(*leaf) for leaf in leaves]))


class GeneralLocal(NamedTuple):
    """What D and I of one step of a batch follow from."""

    s: PyTree  # [..., B] before the step
    x: jax.Array  # [inputs, B], or indices [B]


class DetectedJacobians(Jacobians):
    """D and I of a general cell, for parameters of one structure."""

    def __init__(self, cell: GeneralCell, params: PyTree):
        import asdex

        flat_params, self._unravel_params = ravel_pytree(params)
        state = jax.tree.map(lambda leaf: leaf.astype(flat_params.dtype), cell.initial_state())
        flat_state, self._unravel_state = ravel_pytree(state)
        self.cell = cell

        def flat_step(flat_params: jax.Array, flat_s: jax.Array, x: jax.Array) -> jax.Array:
            s = cell.step(self._unravel_params(flat_params), self._unravel_state(flat_s), x)
            return ravel_pytree(s)[0]

        # Inputs are differentiated as float vectors: an integer index would hide which weights it can pick.
        example = flat_params, flat_state, jnp.zeros(cell.inputs, flat_params.dtype)
        given = cell.patterns(params)
        if given is None:
            (immediate, dynamics), mode = jacobian_patterns(flat_step, example[:2], example[2:])
        else:
            dynamics, immediate = _check_shapes(cell, given, flat_state.size, flat_params.size)
            mode = "rev"  # which exists wherever backpropagation does

        shapes = tuple(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in example)

        def coloured(pattern: Pattern, argument: int) -> asdex.ColoredPattern:
            found = asdex.SparsityPattern.from_coo(
                pattern.rows, pattern.cols, pattern.shape, input_avals=shapes, argnums=argument
            )
            return asdex.jacobian_coloring_from_sparsity(found, mode=mode)

        by_params, by_state = coloured(immediate, 0), coloured(dynamics, 1)
        if given is not None:
            _check_entries(cell, flat_step, example, (by_params, by_state))
        self._immediate_of = asdex.jacobian_from_coloring(flat_step, by_params)
        self._dynamics_of = asdex.jacobian_from_coloring(flat_step, by_state)

        self._example = shapes
        self.dynamics, self.groups = dynamics, group_columns(immediate)
        entry_state = self.groups.entries.cols[self.groups.entry_credit]
        self._immediate_order = immediate.find(entry_state, self.groups.entry_param)

    @cached_property
    def unseen(self) -> int:
        """Entries of D and I that are zero at all of eight random points: there detection may be conservative."""
        draw = np.random.default_rng(0)
        points = [jnp.asarray(0.3 * draw.normal(size=(8, *part.shape)), part.dtype) for part in self._example]

        def exists(at: list[jax.Array]) -> list[jax.Array]:
            return [jacobian_of(*at).data != 0 for jacobian_of in (self._dynamics_of, self._immediate_of)]

        # One point after the other: a Jacobian may be large.
        found = jax.jit(lambda points: [jnp.any(seen, axis=0) for seen in jax.lax.map(exists, points)])(points)
        return sum(int(jnp.sum(~seen)) for seen in found)

    def forward_at(self, kernel: Kernel, params: PyTree) -> Callable[[PyTree, jax.Array], tuple[PyTree, GeneralLocal]]:
        ready = kernel.ready(params)
        step = jax.vmap(lambda s, x: self.cell.step(ready, s, x), in_axes=-1, out_axes=-1)
        return lambda s_tm1, x_t: (step(s_tm1, x_t), GeneralLocal(s_tm1, x_t))

    def dynamics_at(
        self, kernel: Kernel, params: PyTree, wanted: Pattern, *, by_column: bool = False
    ) -> Callable[[GeneralLocal], jax.Array]:
        order = self.dynamics.find(wanted.rows, wanted.cols)
        return self._at(self._dynamics_of, params, order[wanted.column_order] if by_column else order)

    def immediate_at(self, kernel: Kernel, params: PyTree) -> Callable[[GeneralLocal], Products]:
        values_at = self._at(self._immediate_of, params, self._immediate_order)

        def products(local: GeneralLocal) -> Products:
            values = values_at(local)
            return Products(values, jnp.ones((1, values.shape[1]), values.dtype), self._times_one)

        return products

    @cached_property
    def _times_one(self) -> Sums:
        entries = np.arange(self.groups.nnz)
        return Sums.of((self.groups.nnz, 1), self.groups.nnz, entries, entries, np.zeros_like(entries))

    def _at(self, jacobian_of: Any, params: PyTree, order: Any) -> Callable[[GeneralLocal], jax.Array]:
        flat_params = ravel_pytree(params)[0]

        def one(s_tm1: PyTree, x_t: jax.Array) -> jax.Array:
            x_t = as_vector(x_t, self.cell.inputs, flat_params.dtype)
            return jacobian_of(flat_params, ravel_pytree(s_tm1)[0], x_t).data[order]

        return lambda local: jax.vmap(one, in_axes=-1, out_axes=-1)(*local)

    def pull_at(self, kernel: Kernel, params: PyTree) -> Callable[[GeneralLocal, jax.Array], jax.Array]:
        return lambda local, credit: credit

    def collect(self, kernel: Kernel, params: PyTree, local: GeneralLocal, pulled: jax.Array) -> PyTree:
        immediate_at = self._at(self._immediate_of, params, self._immediate_order)

        def one_step(total: jax.Array, at_t: Any) -> tuple[jax.Array, None]:
            local_t, credit = at_t
            products = jnp.sum(immediate_at(local_t) * credit[self.groups.entry_credit], axis=1)
            return total.at[self.groups.entry_param].add(products), None

        zero = varying(jnp.zeros_like(ravel_pytree(params)[0]), local, pulled)
        total, _ = jax.lax.scan(one_step, zero, (local, pulled))
        return self._unravel_params(total)


def _check_shapes(cell: GeneralCell, given: Any, states: int, params: int) -> Patterns:
    """Refuses patterns given by hand that are not this cell's."""
    wanted = {"dynamics": (states, states), "immediate": (states, params)}
    if not isinstance(given, tuple) or [getattr(pattern, "shape", None) for pattern in given] != list(wanted.values()):
        needed = " and ".join(f"a Pattern {name} {list(shape)}" for name, shape in wanted.items())
        raise ValueError(f"`patterns` of {cell} must return {needed}, got {given!r}")
    return Patterns(*given)


def _check_entries(cell: GeneralCell, step: Any, example: tuple[Any, ...], coloured: tuple[Any, ...]) -> None:
    """Refuses patterns given by hand that lack an entry: at random points a random vector times I or D shows it."""
    import asdex

    draw = np.random.default_rng(0)

    def random(like: jax.Array, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(scale * draw.normal(size=like.shape), like.dtype)

    @jax.jit
    def errors(v: jax.Array, *at: jax.Array) -> list[jax.Array]:
        found = []
        for pattern, exact in zip(coloured, jax.vjp(step, *at)[1](v), strict=False):
            entries, values = pattern.sparsity, asdex.jacobian_from_coloring(step, pattern)(*at).data
            by_pattern = jnp.zeros_like(exact).at[entries.cols].add(v[entries.rows] * values)
            found.append(jnp.max(jnp.abs(by_pattern - exact)) / (1 + jnp.max(jnp.abs(exact))))
        return found

    # Small values, so that nothing saturates, and large ones, which alone may switch something on.
    for scale in (0.3, 0.3, 1.0, 3.0, 10.0):
        at = [random(part, scale) for part in example]
        for name, error in zip(("immediate", "dynamics"), errors(random(example[1]), *at), strict=True):
            if not error < jnp.finfo(error.dtype).eps ** 0.5:
                raise ValueError(f"`patterns` of {cell} must have every entry that exists, got `{name}` without some")
