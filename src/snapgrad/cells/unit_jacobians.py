"""Derivatives of unit-wise cells, from autodiff of the scalar rule alone.

With A = dF/ds [S, S], U = dF/du and V = dF/dv [S, G] of every unit:

    D[(i,a), (j,b)]       = A_i[a,b] (i = j)  +  (b = 0) sum_g V_i[a,g] W_h[g,i,j]
    I[(i,a), W_h[g,i,j]]  = V_i[a,g] h_j            I[(i,a), b_h[g,i]] = V_i[a,g]
    I[(i,a), W_x[g,i,l]]  = U_i[a,g] x_l            I[(i,a), b[g,i]]   = U_i[a,g]

That is O(units) differentiation; no units x units Jacobian is ever differentiated. State entry (i,a) is number a*k + i.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import asdex
import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.cells.base import Jacobians, Linearisation, as_vector
from snapgrad.sparsity.matrix import append_zero, ready_to_multiply
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

    by_state: Any  # A [k, S, S]
    by_input: Any  # U [k, S, G]
    by_recurrent: Any  # V [k, S, G]


def rule_derivatives(cell: UnitCell, s: jax.Array, u: jax.Array, v: jax.Array) -> RuleDerivatives:
    """A, U, V of every unit by reverse-mode autodiff of the rule: S small pull-backs."""
    derivatives = jax.jacrev(partial(one_unit, cell), argnums=(0, 1, 2))
    return RuleDerivatives(*jax.vmap(derivatives, in_axes=1)(s, u, v))


@lru_cache(maxsize=32)
def rule_structure(cell: UnitCell) -> RuleDerivatives:
    """Which of A [S, S], U and V [S, G] exist: read from the rule's program, not from values."""
    one = (jnp.zeros((cell.states,)), jnp.zeros((cell.gates,)), jnp.zeros((cell.gates,)))
    found = asdex.jacobian_sparsity(partial(one_unit, cell), *one, argnums=(0, 1, 2))
    exists = np.zeros(found.shape, bool)
    exists[found.rows, found.cols] = True
    return RuleDerivatives(*np.split(exists, [cell.states, cell.states + cell.gates], axis=1))


class UnitJacobians(Jacobians):
    """D and I of a unit-wise cell whose weights have the given patterns."""

    def __init__(self, cell: UnitCell, recurrent: Pattern, input: Pattern):
        self.cell = cell
        self._structure = rule_structure(cell)
        self._build_dynamics(recurrent)
        self._build_immediate(recurrent, input)

    @staticmethod
    @lru_cache(maxsize=32)
    def of(cell: UnitCell, recurrent: Pattern, input: Pattern) -> UnitJacobians:
        return UnitJacobians(cell, recurrent, input)

    def _build_dynamics(self, recurrent: Pattern) -> None:
        k, states, gates = self.cell.units, self.cell.states, self.cell.gates
        weight_gate, weight_unit, source = recurrent.rows // k, recurrent.rows % k, recurrent.cols
        component, weight = np.nonzero(self._structure.by_recurrent[:, weight_gate])  # V[a, g] of every weight
        own_to, own_from = np.nonzero(self._structure.by_state)  # A[a, b]
        units = np.arange(k)
        rows = [component * k + weight_unit[weight], (own_to[:, None] * k + units).ravel()]
        cols = [source[weight], (own_from[:, None] * k + units).ravel()]
        self.dynamics = Pattern(np.concatenate(rows), np.concatenate(cols), (states * k, states * k))

        # For every entry of D: its unit and component, the weight of each gate, and the element of A.
        to, frm = self.dynamics.rows, self.dynamics.cols
        self._d_component, self._d_unit = to // k, to % k
        gate_rows = np.arange(gates) * k + self._d_unit[:, None]
        from_h = np.where(frm < k, frm, k)  # only component 0 is seen by the recurrent weights
        self._d_weight = recurrent.find(gate_rows, np.broadcast_to(from_h[:, None], gate_rows.shape))  # [nnz(D), G]
        own = (self._d_unit * states + self._d_component) * states + frm // k
        self._d_own = np.where(frm % k == self._d_unit, own, k * states * states)  # into A, flat; one past: none

    def _build_immediate(self, recurrent: Pattern, input: Pattern) -> None:
        k, states, gates = self.cell.units, self.cell.states, self.cell.gates
        # Parameters in ravel_pytree order. `via`: through u (0) or v (1); `source`: into [h, x, 1].
        rows: list[Any] = [recurrent.rows, input.rows, np.arange(gates * k)]
        source: list[Any] = [recurrent.cols, k + input.cols, np.full(gates * k, k + self.cell.inputs)]
        via: list[Any] = [np.ones(recurrent.nnz, int), np.zeros(input.nnz, int), np.zeros(gates * k, int)]
        if self.cell.recurrent_bias:
            rows, source, via = rows + rows[-1:], source + source[-1:], [*via, np.ones(gates * k, int)]
        row, presynaptic, through = np.concatenate(rows), np.concatenate(source), np.concatenate(via)
        gate, unit = row // k, row % k

        # Pre-activations that touch the same components are of one kind; a group is a kind and a unit.
        touched = np.stack([self._structure.by_input.T, self._structure.by_recurrent.T])  # [2, G, S]
        kinds, kind_of = np.unique(touched.reshape(2 * gates, states), axis=0, return_inverse=True)
        kind_of = kind_of.reshape(2, gates)
        kind, component = np.nonzero(kinds)
        entry_rows = (kind[:, None] * k + np.arange(k)).ravel()
        entry_cols = (component[:, None] * k + np.arange(k)).ravel()
        entries = Pattern(entry_rows, entry_cols, (len(kinds) * k, states * k))
        self.groups = Groups(entries, (kind_of[through, gate] * k + unit).astype(np.int32))

        # Every entry of I is one derivative of the rule times one presynaptic value.
        param, credit = self.groups.entry_param, self.groups.entry_credit
        to = entries.cols[credit] // k
        self._i_derivative = ((through[param] * k + unit[param]) * states + to) * gates + gate[param]
        self._i_source = presynaptic[param]

        # Where the credit of pre-activation (u or v, gate, unit) for component a stands; one past the end: none.
        group = kind_of[:, :, None] * k + np.arange(k)  # [2, G, k]
        targets = np.arange(states) * k + np.arange(k)[:, None]  # [k, S]
        shape = (2, gates, k, states)
        self._credit_at = entries.find(np.broadcast_to(group[..., None], shape), np.broadcast_to(targets, shape))

    def at(self, params: UnitParams, dynamics: Pattern) -> Callable[[jax.Array, jax.Array], Linearisation]:
        cell, ready = self.cell, ready_to_multiply(params)
        wanted = self.dynamics.find(dynamics.rows, dynamics.cols)
        unit, component, own = self._d_unit[wanted], self._d_component[wanted], self._d_own[wanted]
        weights = append_zero(params.recurrent.values)[self._d_weight[wanted]]  # [nnz, G]

        def linearise(s_tm1: jax.Array, x_t: jax.Array) -> Linearisation:
            A, U, V = rule_derivatives(cell, s_tm1, *cell.preactivations(ready, s_tm1, x_t))
            through_weights = jnp.sum(V[unit, component] * weights, axis=-1)
            dynamics = through_weights + append_zero(A.ravel())[own]
            x_t = as_vector(x_t, cell.inputs, s_tm1.dtype)
            presynaptic = jnp.concatenate([s_tm1[0], x_t, jnp.ones(1, s_tm1.dtype)])
            derivatives = jnp.concatenate([U.ravel(), V.ravel()])
            return Linearisation(dynamics, derivatives[self._i_derivative] * presynaptic[self._i_source])

        return linearise

    def pull(self, params: UnitParams, s_tm1: jax.Array, x_t: jax.Array, credit: jax.Array) -> UnitParams:
        cell = self.cell

        def preactivations(params: UnitParams) -> tuple[jax.Array, jax.Array]:
            ready = ready_to_multiply(params)
            return jax.vmap(jax.vmap(lambda s, x: cell.preactivations(ready, s, x)))(s_tm1, x_t)

        def to_preactivations(s: jax.Array, u: jax.Array, v: jax.Array, credit: jax.Array) -> Any:
            _, U, V = rule_derivatives(cell, s, u, v)
            seen = append_zero(credit)[self._credit_at]  # [2, G, k, S]
            return jnp.einsum("gia,iag->gi", seen[0], U), jnp.einsum("gia,iag->gi", seen[1], V)

        (u, v), transpose = jax.vjp(preactivations, params)
        return transpose(jax.vmap(jax.vmap(to_preactivations))(s_tm1, u, v, credit))[0]
