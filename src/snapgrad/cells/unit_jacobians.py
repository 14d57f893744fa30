"""Derivatives of unit-wise cells, from autodiff of the scalar rule alone.

With A = dF/ds [S, S], U = dF/du and V = dF/dv [S, G] of every unit:

    D[(i,a), (j,b)]       = A_i[a,b] (i = j)  +  (b = 0) sum_g V_i[a,g] W_h[g,i,j]
    I[(i,a), W_h[g,i,j]]  = V_i[a,g] h_j            I[(i,a), b_h[g,i]] = V_i[a,g]
    I[(i,a), W_x[g,i,l]]  = U_i[a,g] x_l            I[(i,a), b[g,i]]   = U_i[a,g]

That is O(units) differentiation; no units x units Jacobian is ever differentiated. State entry (i,a) is number a*k + i.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.cells.base import AtBatch, Jacobians, Pull, as_vector
from snapgrad.cells.detection import jacobian_patterns
from snapgrad.kernels.base import Kernel, Sums, to_tiles
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Groups

if TYPE_CHECKING:
    from snapgrad.cells.unit import UnitCell, UnitParams


def one_unit(cell: UnitCell, s: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
    """F on one unit: s [S], u and v [G] to the next s [S]."""
    return jnp.stack(cell.rule(tuple(s), tuple(u), tuple(v)))


def apply_rule(cell: UnitCell, s: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
    """F on every unit: s [S, k], u and v [G, k] to the next s [S, k]."""
    return jax.vmap(partial(one_unit, cell), in_axes=1, out_axes=1)(s, u, v)


class RuleDerivatives(NamedTuple):
    """A, U and V of every unit (values), or of the rule (which of them exist)."""

    by_state: Any  # A [S, S, k]
    by_input: Any  # U [S, G, k]
    by_recurrent: Any  # V [S, G, k]


def rule_derivatives(cell: UnitCell, s: jax.Array, u: jax.Array, v: jax.Array) -> RuleDerivatives:
    """A, U, V of every unit by reverse-mode autodiff of the rule: S pull-backs, each of all units at once."""
    _, pull_back = jax.vjp(partial(apply_rule, cell), s, u, v)
    # What the rule computes on its way is stored: XLA would compute it again for every derivative.
    pull_back = jax.lax.optimization_barrier(pull_back)
    component = jnp.eye(cell.states, dtype=s.dtype)
    rows = [pull_back(jnp.broadcast_to(component[a][:, None], s.shape)) for a in range(cell.states)]
    return RuleDerivatives(*(jnp.stack(row) for row in zip(*rows, strict=True)))


# What `rule_structure` would find for the rules of the library's own cells; the suite compares. A process that needs no
# others does not import asdex for them, which takes as long as importing JAX.
KNOWN: dict[Any, RuleDerivatives] = {}


def known_structure(by_state: Any, by_input: Any, by_recurrent: Any) -> Callable[[Any], Any]:
    """Says of a rule which of A [S, S], U and V [S, G] exist."""

    def remember(rule: Any) -> Any:
        KNOWN[rule] = RuleDerivatives(*(np.array(part, bool) for part in (by_state, by_input, by_recurrent)))
        return rule

    return remember


@lru_cache(maxsize=32)
def rule_structure(cell: UnitCell) -> RuleDerivatives:
    """Which of A [S, S], U and V [S, G] exist: read from the program of the rule's derivative, not from values."""
    return KNOWN[cell.rule] if cell.rule in KNOWN else detected_structure(cell)


def detected_structure(cell: UnitCell) -> RuleDerivatives:
    """What `rule_structure` reads from the program."""
    one = jnp.zeros(cell.states), jnp.zeros(cell.gates), jnp.zeros(cell.gates)
    found = jacobian_patterns(partial(one_unit, cell), one)
    return RuleDerivatives(*(pattern.mask() for pattern in found.patterns))


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
        self._recurrent, self._input, self._absent = recurrent, input, absent
        rows, cols = self._dynamics_entries
        self.dynamics = Pattern.merged(rows, cols, (cell.states * cell.units,) * 2)
        self._build_groups()

    @staticmethod
    @lru_cache(maxsize=32)
    def of(
        cell: UnitCell, recurrent: Pattern, input: Pattern, absent: tuple[Pattern, Pattern] | None = None
    ) -> UnitJacobians:
        return UnitJacobians(cell, recurrent, input, absent)

    # Patterns are made at once; where values come from, which takes more memory, when it is first asked for.

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
        """Every entry of D is a sum of derivatives of the rule times weights, and of an element of A times one."""
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

    # All derivatives of a batch stand in one array, in tiles: U, V, A of every unit. Where each is found:

    def _by_input(self, unit: Any, component: Any, gate: Any) -> Any:
        return (component * self.cell.gates + gate) * self.cell.units + unit

    def _by_recurrent(self, unit: Any, component: Any, gate: Any) -> Any:
        return self._by_input(unit, component + self.cell.states, gate)

    def _by_state(self, unit: Any, component: Any, frm: Any) -> Any:
        before = 2 * self.cell.units * self.cell.states * self.cell.gates
        return before + (component * self.cell.states + frm) * self.cell.units + unit

    @property
    def _derivatives(self) -> int:
        return self.cell.units * self.cell.states * (2 * self.cell.gates + self.cell.states)

    @lru_cache(maxsize=32)  # noqa: B019  # as many as networks, which are few and shared
    def _dynamics_sums(self, wanted: Pattern, by_column: bool) -> Sums:
        which, left_of, right_of = self._dynamics_terms
        order = np.arange(wanted.nnz + 1)
        if by_column:
            order[wanted.column_order] = np.arange(wanted.nnz)
        place = order[wanted.find(self.dynamics.rows, self.dynamics.cols)][which]
        kept = place < wanted.nnz
        return Sums.of(
            (self._derivatives, self._recurrent.nnz + 1), wanted.nnz, place[kept], left_of[kept], right_of[kept]
        )

    def sums(self, wanted: Pattern, *, by_column: bool) -> tuple[Sums, ...]:
        dynamics = self._dynamics_sums(wanted, by_column)
        return (dynamics,) if by_column else (dynamics, self._immediate_sums)

    def _derivatives_at(self, kernel: Kernel, params: UnitParams) -> Callable[[jax.Array, jax.Array], RuleDerivatives]:
        cell, ready = self.cell, kernel.ready(params)
        return jax.vmap(lambda s_tm1, x_t: rule_derivatives(cell, s_tm1, *cell.preactivations(ready, s_tm1, x_t)))

    def _in_one(self, derivatives: RuleDerivatives, tile: int) -> jax.Array:
        A, U, V = (part.reshape(part.shape[0], -1) for part in derivatives)
        return to_tiles(jnp.concatenate([U, V, A], axis=1), tile)

    def backward_at(
        self, kernel: Kernel, params: UnitParams, wanted: Pattern, tile: int
    ) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, Pull]]:
        derivatives_at, sums = self._derivatives_at(kernel, params), self._dynamics_sums(wanted, by_column=True)

        def backward(s_tm1: jax.Array, x_t: jax.Array) -> tuple[jax.Array, Pull]:
            derivatives = derivatives_at(s_tm1, x_t)
            dynamics = kernel.sums(sums, self._in_one(derivatives, tile), _weights(params))
            return dynamics, lambda credit: jax.vmap(self._to_preactivations)(derivatives, credit)

        return backward

    def dynamics_at(self, kernel: Kernel, params: UnitParams, wanted: Pattern, tile: int) -> AtBatch:
        derivatives_at, sums = self._derivatives_at(kernel, params), self._dynamics_sums(wanted, by_column=False)
        return lambda s_tm1, x_t: kernel.sums(sums, self._in_one(derivatives_at(s_tm1, x_t), tile), _weights(params))

    def by_input_at(self, kernel: Kernel, params: UnitParams, tile: int) -> AtBatch:
        """The function (s_tm1, x_t) -> values of ds_t/dx_t = U W_x, for a batch, in tiles."""
        derivatives_at, weights = self._derivatives_at(kernel, params), params.input.values[None, :, None]
        return lambda s_tm1, x_t: kernel.sums(self._input_sums, self._in_one(derivatives_at(s_tm1, x_t), tile), weights)

    def immediate_at(self, kernel: Kernel, params: UnitParams, tile: int) -> AtBatch:
        cell, derivatives_at = self.cell, self._derivatives_at(kernel, params)

        def presynaptic(s_tm1: jax.Array, x_t: jax.Array) -> jax.Array:
            return jnp.concatenate([s_tm1[0], as_vector(x_t, cell.inputs, s_tm1.dtype), jnp.ones(1, s_tm1.dtype)])

        def values(s_tm1: jax.Array, x_t: jax.Array) -> jax.Array:
            sources = to_tiles(jax.vmap(presynaptic)(s_tm1, x_t), tile)
            return kernel.sums(self._immediate_sums, self._in_one(derivatives_at(s_tm1, x_t), tile), sources)

        return values

    def _to_preactivations(self, derivatives: RuleDerivatives, credit: jax.Array) -> tuple[jax.Array, jax.Array]:
        """dL/du and dL/dv [G, k] of one example."""
        units = self.cell.units
        borders = np.cumsum([units * len(components) for components in self._components])[:-1]
        parts = [part.reshape(units, -1) for part in jnp.split(credit, borders)]

        def by_gate(derivative: jax.Array, kinds: list[int]) -> jax.Array:
            rows = []
            for gate, kind in enumerate(kinds):
                touched = enumerate(self._components[kind])
                seen = [parts[kind][:, e] * derivative[component, gate] for e, component in touched]
                rows.append(sum(seen, jnp.zeros(units, credit.dtype)))
            return jnp.stack(rows)

        _, U, V = derivatives
        return by_gate(U, self._kind_of[0]), by_gate(V, self._kind_of[1])

    def collect(self, kernel: Kernel, params: UnitParams, s_tm1: jax.Array, x_t: jax.Array, pulled: Any) -> UnitParams:
        def preactivations(params: UnitParams) -> tuple[jax.Array, jax.Array]:
            ready = kernel.ready(params)
            return jax.vmap(jax.vmap(lambda s, x: self.cell.preactivations(ready, s, x)))(s_tm1, x_t)

        return jax.vjp(preactivations, params)[1](pulled)[0]


def _weights(params: UnitParams) -> jax.Array:
    """The recurrent weights, and a one for what is multiplied by none; for all lanes."""
    return jnp.append(params.recurrent.values, jnp.ones(1, params.recurrent.dtype))[None, :, None]
