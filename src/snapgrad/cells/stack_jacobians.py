"""Derivatives of layered cells, put together from those of the layers.

Every layer l has its own D_l and I_l, and U W_x, the derivative of its state by what it reads (`UnitJacobians`). What a
layer reads is the new h of the one below, so within one step whatever moves h_m moves the layers above:

    Q_lm = ds_l/dh_m = (U W_x)_l Q_(l-1)m [h rows]          Q_(m+1)m = (U W_x)_(m+1)          m < l

    D_lm = Q_lm D_m [h rows]            I_lm = Q_lm I_m [h rows]            D_ll = D_l            I_ll = I_l

All of these are sums of products of two factors at positions that are known beforehand (`Sums`): the values of all Q,
followed by a one, times those of all layers' D or I. Nothing is detected, coloured or differentiated here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.cells.base import Jacobians
from snapgrad.cells.unit_jacobians import UnitJacobians, UnitLocal
from snapgrad.kernels.base import Kernel, Products, Sums
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Groups

if TYPE_CHECKING:
    from snapgrad.cells.stack import Stack, StackParams, StackState


StackLocal = tuple[UnitLocal, ...]  # one a layer


class Terms(NamedTuple):
    """The products that a product of two sparse matrices is made of."""

    rows: Any
    cols: Any
    left: Any  # entry of the left matrix
    right: Any  # entry of the right one


def product_terms(left: Pattern, right: Pattern) -> Terms:
    """All left[i, r] right[r, j]; `right` may have more rows than `left` has columns, and only the first count."""
    counts = np.diff(right.row_starts)[left.cols]
    left_of = np.repeat(np.arange(left.nnz), counts)
    nth = np.arange(len(left_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    right_of = right.row_starts[left.cols[left_of]] + nth
    return Terms(left.rows[left_of], right.cols[right_of], left_of, right_of)


class StackJacobians(Jacobians):
    """D and I of a stack whose layers' weights have the given patterns.

    With `absent`, I is that of weights which do not exist, as in `UnitJacobians`.
    """

    def __init__(
        self,
        cell: Stack,
        patterns: tuple[tuple[Pattern, Pattern], ...],
        absent: tuple[tuple[Pattern, Pattern], ...] | None = None,
    ):
        self.cell = cell
        self.layers = [
            UnitJacobians.of(own, *pair, candidates)
            for own, pair, candidates in zip(cell.cells, patterns, absent or (None,) * len(patterns), strict=True)
        ]
        self._state_starts = _starts(layer.dynamics.shape[0] for layer in self.layers)
        self._build_through()
        self._build_dynamics()
        self._build_immediate()

    @staticmethod
    @lru_cache(maxsize=32)
    def of(
        cell: Stack,
        patterns: tuple[tuple[Pattern, Pattern], ...],
        absent: tuple[tuple[Pattern, Pattern], ...] | None = None,
    ) -> StackJacobians:
        return StackJacobians(cell, patterns, absent)

    def _build_through(self) -> None:
        """The patterns of all Q, and how each is made of the one a layer below."""
        self._through: dict[tuple[int, int], Pattern] = {}
        self._through_sums: dict[tuple[int, int], Sums] = {}
        for above in range(1, len(self.layers)):
            by_input = self._through[above, above - 1] = self.layers[above].by_input
            for below in range(above - 1):
                onwards = self._through[above - 1, below]
                terms = product_terms(by_input, onwards)
                made = Pattern.merged(terms.rows, terms.cols, (by_input.shape[0], onwards.shape[1]))
                self._through[above, below] = made
                self._through_sums[above, below] = Sums.of(
                    (by_input.nnz, onwards.nnz), made.nnz, made.find(terms.rows, terms.cols), terms.left, terms.right
                )
        starts = _starts(pattern.nnz for pattern in self._through.values())
        self._through_starts = dict(zip(self._through, starts, strict=False))
        self._one = int(starts[-1])  # behind the values of all Q stands a one

    def _build_dynamics(self) -> None:
        self._dynamics_starts = _starts(layer.dynamics.nnz for layer in self.layers)
        parts = []
        for own, layer in enumerate(self.layers):
            D, entries = layer.dynamics, np.arange(layer.dynamics.nnz)
            parts.append((own, own, Terms(D.rows, D.cols, np.full(D.nnz, self._one), entries)))
        for (above, below), through in self._through.items():
            terms = product_terms(through, self.layers[below].dynamics)
            parts.append((above, below, terms._replace(left=terms.left + self._through_starts[above, below])))
        rows = np.concatenate([terms.rows + self._state_starts[above] for above, _, terms in parts])
        cols = np.concatenate([terms.cols + self._state_starts[below] for _, below, terms in parts])
        self.dynamics = Pattern.merged(rows, cols, (int(self._state_starts[-1]),) * 2)
        self._dynamics_terms = (
            self.dynamics.find(rows, cols),
            np.concatenate([terms.left for *_, terms in parts]),
            np.concatenate([terms.right + self._dynamics_starts[below] for _, below, terms in parts]),
        )

    def _build_immediate(self) -> None:
        """Groups are those of the layers. Each has its own entries and, through its h, those of the layers above."""
        own_entries = [layer.groups.entries for layer in self.layers]
        self._entry_starts = _starts(entries.nnz for entries in own_entries)
        group_starts = _starts(entries.shape[0] for entries in own_entries)
        parts = []
        for own, entries in enumerate(own_entries):
            numbers = np.arange(entries.nnz)
            parts.append((own, own, Terms(entries.rows, entries.cols, numbers, np.full(entries.nnz, self._one))))
        for (above, below), through in self._through.items():
            entries, by_column = own_entries[below], through.column_order
            touches_h = np.flatnonzero(entries.cols < self.cell.cells[below].units)
            h = Pattern(entries.rows[touches_h], entries.cols[touches_h], (entries.shape[0], through.shape[1]))
            back = Pattern(through.cols[by_column], through.rows[by_column], through.shape[::-1])
            terms = product_terms(h, back)
            right = by_column[terms.right] + self._through_starts[above, below]
            parts.append((above, below, terms._replace(left=touches_h[terms.left], right=right)))
        rows = np.concatenate([terms.rows + group_starts[below] for _, below, terms in parts])
        cols = np.concatenate([terms.cols + self._state_starts[above] for above, _, terms in parts])
        own_entry = np.concatenate([terms.left + self._entry_starts[below] for _, below, terms in parts])
        through_entry = np.concatenate([terms.right for *_, terms in parts])

        entries = Pattern.merged(rows, cols, (int(group_starts[-1]), int(self._state_starts[-1])))
        of_param = [layer.groups.of_param + start for layer, start in zip(self.layers, group_starts, strict=False)]
        self.groups = Groups(entries, np.concatenate(of_param).astype(np.int32))

        # The credit that a layer's own entry gets: its own, and through Q that of the entries above.
        place = entries.find(rows, cols)
        sizes = entries.nnz, self._one + 1
        self._credit_sums = Sums.of(sizes, int(self._entry_starts[-1]), own_entry, place, through_entry)

        # Every entry of I is one of a layer's own, times one or times an entry of Q.
        self._immediate_starts = _starts(layer.groups.nnz for layer in self.layers)
        first_of_own = np.concatenate(
            [
                start + np.searchsorted(layer.groups.entry_credit, np.arange(layer.groups.entries.nnz))
                for layer, start in zip(self.layers, self._immediate_starts, strict=False)
            ]
        )
        term_of = np.argsort(place)  # there is one term an entry
        credit = self.groups.entry_credit
        nth = np.arange(self.groups.nnz) - np.searchsorted(credit, np.arange(entries.nnz))[credit]
        self._immediate_sums = Sums.of(
            (self._one + 1, int(self._immediate_starts[-1])),
            self.groups.nnz,
            np.arange(self.groups.nnz),
            through_entry[term_of][credit],
            first_of_own[own_entry[term_of]][credit] + nth,
        )

    @lru_cache(maxsize=32)  # noqa: B019  # as many as networks, which are few and shared
    def _dynamics_sums(self, wanted: Pattern, by_column: bool) -> Sums:
        which, left_of, right_of = self._dynamics_terms
        order = np.arange(wanted.nnz + 1)
        if by_column:  # both the result and the layers' own
            order[wanted.column_order] = np.arange(wanted.nnz)
            own = [np.argsort(layer.dynamics.column_order) for layer in self.layers]
            starts = zip(own, self._dynamics_starts, strict=False)
            right_of = np.concatenate([start + places for places, start in starts])[right_of]
        place = order[wanted.find(self.dynamics.rows, self.dynamics.cols)][which]
        kept = place < wanted.nnz
        sizes = self._one + 1, int(self._dynamics_starts[-1])
        return Sums.of(sizes, wanted.nnz, place[kept], left_of[kept], right_of[kept])

    def forward_at(
        self, kernel: Kernel, params: StackParams
    ) -> Callable[[StackState, jax.Array], tuple[StackState, StackLocal]]:
        steps = [layer.forward_at(kernel, own) for layer, own in zip(self.layers, params, strict=True)]

        def forward(s_tm1: StackState, x_t: jax.Array) -> tuple[StackState, StackLocal]:
            after, locals = [], []
            for step, own in zip(steps, s_tm1, strict=True):
                s_t, local = step(own, x_t)
                after.append(s_t)
                locals.append(local)
                x_t = s_t[0]
            return tuple(after), tuple(locals)

        return forward

    def _through_at(self, kernel: Kernel, params: StackParams) -> Callable[[StackLocal], jax.Array]:
        """The function to the values of all Q, and a one."""
        by_input_at = [layer.by_input_at(kernel, own) for layer, own in zip(self.layers, params, strict=True)]

        def values(local: StackLocal) -> jax.Array:
            found: dict[tuple[int, int], jax.Array] = {}
            for above, below in self._through:
                if below == above - 1:
                    found[above, below] = by_input_at[above](local[above])
                else:
                    by_input, onwards = found[above, above - 1], found[above - 1, below]
                    found[above, below] = kernel.sums(self._through_sums[above, below], by_input, onwards)
            h = local[0].h
            return jnp.concatenate([*found.values(), jnp.ones((1, h.shape[1]), h.dtype)])

        return values

    def dynamics_at(
        self, kernel: Kernel, params: StackParams, wanted: Pattern, *, by_column: bool = False
    ) -> Callable[[StackLocal], jax.Array]:
        through_at, sums = self._through_at(kernel, params), self._dynamics_sums(wanted, by_column)
        own_at = [
            layer.dynamics_at(kernel, own, layer.dynamics, by_column=by_column)
            for layer, own in zip(self.layers, params, strict=True)
        ]

        def values(local: StackLocal) -> jax.Array:
            own = [at(part) for at, part in zip(own_at, local, strict=True)]
            return kernel.sums(sums, through_at(local), jnp.concatenate(own))

        return values

    def immediate_at(self, kernel: Kernel, params: StackParams) -> Callable[[StackLocal], Products]:
        through_at = self._through_at(kernel, params)
        own_at = [layer.immediate_at(kernel, own) for layer, own in zip(self.layers, params, strict=True)]

        def products(local: StackLocal) -> Products:
            own = [at(part) for at, part in zip(own_at, local, strict=True)]
            values = jnp.concatenate([kernel.sums(factors.at, factors.left, factors.right) for factors in own])
            return Products(through_at(local), values, self._immediate_sums)

        return products

    def pull_at(self, kernel: Kernel, params: StackParams) -> Callable[[StackLocal, jax.Array], Any]:
        through_at = self._through_at(kernel, params)
        pulls = [layer.pull_at(kernel, own) for layer, own in zip(self.layers, params, strict=True)]

        def pull(local: StackLocal, credit: jax.Array) -> Any:
            seen = jnp.split(kernel.sums(self._credit_sums, credit, through_at(local)), self._entry_starts[1:-1])
            return tuple(of_layer(own, part) for of_layer, own, part in zip(pulls, local, seen, strict=True))

        return pull

    def collect(self, kernel: Kernel, params: StackParams, local: StackLocal, pulled: Any) -> Any:
        each = zip(self.layers, params, local, pulled, strict=True)
        return tuple(layer.collect(kernel, own, part, credit) for layer, own, part, credit in each)


def _starts(sizes: Any) -> Any:
    """Where parts of these sizes begin when they stand behind each other, and where the last ends."""
    return np.concatenate([[0], np.cumsum(list(sizes))])
