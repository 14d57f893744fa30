"""Derivatives of unit-wise cells, from autodiff of the scalar rule alone.

With A = dF/ds [S, S], U = dF/du and V = dF/dv [S, G] of every unit:

    D[(i,a), (j,b)]       = A_i[a,b] (i = j)  +  (b = 0) sum_g V_i[a,g] W_h[g,i,j]
    I[(i,a), W_h[g,i,j]]  = V_i[a,g] h_j            I[(i,a), b_h[g,i]] = V_i[a,g]
    I[(i,a), W_x[g,i,l]]  = U_i[a,g] x_l            I[(i,a), b[g,i]]   = U_i[a,g]

That is O(units) differentiation; no units x units Jacobian is ever differentiated. State entry (i,a) is number a*k + i.
The forward pass computes them beside the new state; those that exist, each once, stand in one array (cells/rule.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.cells.base import Jacobians, as_vector
from snapgrad.cells.rule import apply_with_derivatives, rule_structure, rule_table, step_with_derivatives
from snapgrad.kernels.base import Affine, Kernel, Products, Sums
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Groups

if TYPE_CHECKING:
    from snapgrad.cells.unit import UnitCell, UnitParams


class UnitLocal(NamedTuple):
    """What D and I of one step of a batch are made of."""

    derivatives: jax.Array  # [derivatives * units, B]: those of `RuleTable`, unit by unit
    h: jax.Array  # [units, B] before the step
    x: jax.Array  # [inputs, B], or indices [B]


class UnitJacobians(Jacobians):
    """D and I of a unit-wise cell whose weights have the given patterns.

    With `absent`, I is that of weights which do not exist, in place of the parameters: recurrent and input ones at
    these patterns. They are zero, so D is the same.
    """

    def __init__(
        self, cell: UnitCell, recurrent: Pattern, input: Pattern, absent: tuple[Pattern, Pattern] | None = None
    ):
        self.cell = cell
        self._structure = rule_structure(cell)
        self._table = rule_table(cell)
        self._recurrent, self._input, self._absent = recurrent, input, absent
        self.dynamics = self._dynamics()
        self._build_groups()

    @staticmethod
    @lru_cache(maxsize=32)
    def of(
        cell: UnitCell, recurrent: Pattern, input: Pattern, absent: tuple[Pattern, Pattern] | None = None
    ) -> UnitJacobians:
        return UnitJacobians(cell, recurrent, input, absent)

    # Patterns are made at once; where values come from, which takes more memory, when it is first asked for.

    def _dynamics(self) -> Pattern:
        """Where D may be other than zero."""
        k, states = self.cell.units, self.cell.states
        if not self._recurrent.is_full:
            return Pattern.merged(*self._dynamics_entries, (states * k,) * 2)
        # Every unit acts on every other: no need to go through millions of weights.
        exists, units = np.zeros((states, k, states, k), bool), np.arange(k)
        exists[self._structure.by_recurrent.any(axis=1), :, 0] = True
        for to, of in np.argwhere(self._structure.by_state):
            exists[to, units, of, units] = True
        return Pattern.from_mask(exists.reshape(states * k, states * k))

    @property
    def _dynamics_entries(self) -> tuple[Any, Any]:
        """The coordinates in D of V's part, weight by weight, and then of A's."""
        k, units = self.cell.units, np.arange(self.cell.units)
        weight, entry = self._through(self._recurrent, self._structure.by_recurrent)
        own_to, own_from = np.nonzero(self._structure.by_state)  # A[a, b]
        rows = np.concatenate([entry, (own_to[:, None] * k + units).ravel()])
        return rows, np.concatenate([self._recurrent.cols[weight], (own_from[:, None] * k + units).ravel()])

    @cached_property
    def _dynamics_terms(self) -> tuple[Any, Any, Any]:
        """Every entry of D is a sum of derivatives of the rule times weights, and of an element of A alone."""
        k, nnz = self.cell.units, self._recurrent.nnz
        weight, entry = self._through(self._recurrent, self._structure.by_recurrent)
        derivative = self._by_recurrent(entry % k, entry // k, self._recurrent.rows[weight] // k)
        own_to, own_from = np.nonzero(self._structure.by_state)
        own = self._by_state(np.tile(np.arange(k), len(own_to)), np.repeat(own_to, k), np.repeat(own_from, k))
        left, right = np.concatenate([derivative, own]), np.concatenate([weight, np.full(own.shape, nnz)])
        return self.dynamics.find(*self._dynamics_entries), left, right

    def _through(self, weights: Pattern, exists: Any) -> tuple[Any, Any]:
        """All pairs of a weight and a state entry that U or V lets it act on."""
        gate, unit = np.divmod(weights.rows, self.cell.units)
        component, weight = np.nonzero(exists[:, gate])
        return weight, component * self.cell.units + unit[weight]

    @cached_property
    def by_input(self) -> Pattern:
        """[states, inputs]: the pattern of ds_t/dx_t."""
        weight, rows = self._through(self._input, self._structure.by_input)
        return Pattern.merged(rows, self._input.cols[weight], (self.dynamics.shape[0], self.cell.inputs))

    @cached_property
    def _input_sums(self) -> Sums:
        k = self.cell.units
        weight, rows = self._through(self._input, self._structure.by_input)
        derivative = self._by_input(rows % k, rows // k, self._input.rows[weight] // k)
        which = self.by_input.find(rows, self._input.cols[weight])
        return Sums.of((self._derivatives, self._input.nnz), self.by_input.nnz, which, derivative, weight)

    @property
    def _parameters(self) -> tuple[Any, Any, Any, Any]:
        """Of every parameter, in ravel_pytree order: gate, unit, through u (0) or v (1), and source in [h, x, 1]."""
        k, biases = self.cell.units, np.arange(self.cell.gates * self.cell.units)
        recurrent, input = self._absent or (self._recurrent, self._input)
        rows: list[Any] = [recurrent.rows, input.rows]
        source: list[Any] = [recurrent.cols, k + input.cols]
        via = [1, 0]
        for through_v in range(0 if self._absent else 1 + self.cell.recurrent_bias):
            rows, source = [*rows, biases], [*source, np.full(biases.shape, k + self.cell.inputs)]
            via = [*via, through_v]
        through = np.repeat(via, [len(part) for part in rows])
        return *np.divmod(np.concatenate(rows), k), through, np.concatenate(source)

    def _build_groups(self) -> None:
        k, states, gates = self.cell.units, self.cell.states, self.cell.gates
        # Pre-activations that touch the same components are of one kind; a group is a kind and a unit.
        touched = np.stack([self._structure.by_input.T, self._structure.by_recurrent.T])  # [2, G, S]
        kinds, kind_of = np.unique(touched.reshape(2 * gates, states), axis=0, return_inverse=True)
        kind_of = kind_of.reshape(2, gates)
        kind, component = np.nonzero(kinds)
        entry_rows = (kind[:, None] * k + np.arange(k)).ravel()
        entry_cols = (component[:, None] * k + np.arange(k)).ravel()
        entries = Pattern(entry_rows, entry_cols, (len(kinds) * k, states * k))
        gate, unit, through, _ = self._parameters
        self.groups = Groups(entries, (kind_of[through, gate] * k + unit).astype(np.int32))

        # Credit stands kind by kind, each [units, components of the kind].
        self._components = [np.flatnonzero(touches) for touches in kinds]
        self._kind_of = kind_of.tolist()

    @cached_property
    def _immediate_sums(self) -> Sums:
        """Every entry of I is one derivative of the rule times one presynaptic value."""
        gate, unit, through, presynaptic = self._parameters
        param, credit = self.groups.entry_param, self.groups.entry_credit
        at = unit[param], self.groups.entries.cols[credit] // self.cell.units, gate[param]
        derivative = np.where(through[param] == 1, self._by_recurrent(*at), self._by_input(*at))
        sizes = self._derivatives, self.cell.units + self.cell.inputs + 1
        return Sums.of(sizes, self.groups.nnz, np.arange(self.groups.nnz), derivative, presynaptic[param])

    # Where each derivative is found in `UnitLocal.derivatives`:

    def _by_input(self, unit: Any, component: Any, gate: Any) -> Any:
        return self._table.by_input[component, gate] * self.cell.units + unit

    def _by_recurrent(self, unit: Any, component: Any, gate: Any) -> Any:
        return self._table.by_recurrent[component, gate] * self.cell.units + unit

    def _by_state(self, unit: Any, component: Any, frm: Any) -> Any:
        return self._table.by_state[component, frm] * self.cell.units + unit

    @property
    def _derivatives(self) -> int:
        return self.cell.units * len(self._table.first)

    @lru_cache(maxsize=32)  # noqa: B019  # as many as networks, which are few and shared
    def _dynamics_sums(self, wanted: Pattern, by_column: bool) -> Sums:
        which, left_of, right_of = self._dynamics_terms
        order = np.arange(wanted.nnz + 1)
        if by_column:
            order[wanted.column_order] = np.arange(wanted.nnz)
        place = order[wanted.find(self.dynamics.rows, self.dynamics.cols)][which]
        kept = place < wanted.nnz
        return Sums.of((self._derivatives, self._recurrent.nnz), wanted.nnz, place[kept], left_of[kept], right_of[kept])

    def sums(self, wanted: Pattern, *, by_column: bool) -> tuple[Sums, ...]:
        dynamics = self._dynamics_sums(wanted, by_column)
        return (dynamics,) if by_column else (dynamics, self._immediate_sums)

    def forward_at(
        self, kernel: Kernel, params: UnitParams
    ) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, UnitLocal]]:
        cell, ready = self.cell, kernel.ready(params)
        preactivations = jax.vmap(lambda s, x: cell.preactivations(ready, s, x), in_axes=-1, out_axes=-1)

        def forward(s_tm1: jax.Array, x_t: jax.Array) -> tuple[jax.Array, UnitLocal]:
            input = Affine(ready.input, x_t, ready.bias)
            recurrent = Affine(ready.recurrent, s_tm1[0], ready.recurrent_bias)
            found = kernel.unit_step(step_with_derivatives(cell), s_tm1, input, recurrent)
            s_t, derivatives = found or apply_with_derivatives(cell, s_tm1, *preactivations(s_tm1, x_t))
            return s_t, UnitLocal(derivatives, s_tm1[0], x_t)

        return forward

    def dynamics_at(
        self, kernel: Kernel, params: UnitParams, wanted: Pattern, *, by_column: bool = False
    ) -> Callable[[UnitLocal], jax.Array]:
        sums, weights = self._dynamics_sums(wanted, by_column), params.recurrent.values[:, None]  # for all lanes
        return lambda local: kernel.sums(sums, local.derivatives, weights)

    def by_input_at(self, kernel: Kernel, params: UnitParams) -> Callable[[UnitLocal], jax.Array]:
        """The function to the values of ds_t/dx_t = U W_x."""
        weights = params.input.values[:, None]
        return lambda local: kernel.sums(self._input_sums, local.derivatives, weights)

    def immediate_at(self, kernel: Kernel, params: UnitParams) -> Callable[[UnitLocal], Products]:
        def products(local: UnitLocal) -> Products:
            h, inputs = local.h, self.cell.inputs
            x = jax.vmap(lambda x: as_vector(x, inputs, h.dtype), in_axes=-1, out_axes=-1)(local.x)
            sources = jnp.concatenate([h, x, jnp.ones((1, h.shape[1]), h.dtype)])
            return Products(local.derivatives, sources, self._immediate_sums)

        return products

    def pull_at(self, kernel: Kernel, params: UnitParams) -> Callable[[UnitLocal, jax.Array], Any]:
        return self._to_preactivations

    def _to_preactivations(self, local: UnitLocal, credit: jax.Array) -> tuple[jax.Array, jax.Array]:
        """dL/du and dL/dv [G, k, B]."""
        units, lanes = local.h.shape
        borders = np.cumsum([units * len(components) for components in self._components])[:-1]
        parts = [part.reshape(units, -1, lanes) for part in jnp.split(credit, borders)]
        derivatives = local.derivatives.reshape(-1, units, lanes)

        def by_gate(number_of: Any, kinds: list[int]) -> jax.Array:
            rows = []
            for gate, kind in enumerate(kinds):
                touched = enumerate(self._components[kind])
                seen = [parts[kind][:, e] * derivatives[number_of[component, gate]] for e, component in touched]
                rows.append(sum(seen, jnp.zeros((units, lanes), credit.dtype)))
            return jnp.stack(rows)

        return by_gate(self._table.by_input, self._kind_of[0]), by_gate(self._table.by_recurrent, self._kind_of[1])

    def collect(self, kernel: Kernel, params: UnitParams, local: UnitLocal, pulled: Any) -> UnitParams:
        def preactivations(params: UnitParams) -> tuple[jax.Array, jax.Array]:
            ready = kernel.ready(params)
            of_one = jax.vmap(lambda h, x: self.cell.preactivations(ready, h[None], x), in_axes=-1, out_axes=-1)
            return jax.vmap(of_one)(local.h, local.x)

        return jax.vjp(preactivations, params)[1](pulled)[0]
