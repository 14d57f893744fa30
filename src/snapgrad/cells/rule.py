"""The scalar rule of a unit-wise cell on all units, and its derivatives by autodiff.

    s' = F(s, u, v)        A = dF/ds [S, S]        U = dF/du [S, G]        V = dF/dv [S, G]        for every unit

Which of them exist is read from the program of the rule's derivative, never from values. So is which are one and the
same: where a pre-activation enters only as u + v, its derivatives by both are computed, and stored, once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from numpy.typing import NDArray

from snapgrad.cells.detection import jacobian_patterns
from snapgrad.kernels.elementwise import Elementwise

if TYPE_CHECKING:
    from snapgrad.cells.unit import UnitCell


class RuleDerivatives(NamedTuple):
    """A, U and V of every unit (values), or of the rule (which of them exist)."""

    by_state: Any  # A [S, S, k]
    by_input: Any  # U [S, G, k]
    by_recurrent: Any  # V [S, G, k]


class RuleTable(NamedTuple):
    """The number of every derivative among those that exist and differ; -1 where it does not exist."""

    by_state: NDArray[np.int64]  # [S, S]
    by_input: NDArray[np.int64]  # [S, G]
    by_recurrent: NDArray[np.int64]  # [S, G]
    first: tuple[int, ...]  # where each number comes first in A, U, V of component 0, of component 1, ...


def one_unit(cell: UnitCell, s: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
    """F on one unit: s [S], u and v [G] to the next s [S]."""
    return jnp.stack(cell.rule(tuple(s), tuple(u), tuple(v)))


def apply_rule(cell: UnitCell, s: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
    """F on every unit: s [S, k], u and v [G, k] to the next s [S, k]."""
    return jax.vmap(partial(one_unit, cell), in_axes=1, out_axes=1)(s, u, v)


def rule_derivatives(cell: UnitCell, s: jax.Array, u: jax.Array, v: jax.Array) -> RuleDerivatives:
    """A, U, V of every unit, as `apply_rule` takes them; zero where there is none."""
    _, flat = apply_with_derivatives(cell, *(part[..., None] for part in (s, u, v)))
    table = rule_table(cell)
    padded = jnp.concatenate([flat.reshape(len(table.first), -1), jnp.zeros((1, cell.units), flat.dtype)])
    return RuleDerivatives(*(padded[numbers] for numbers in table[:3]))


def apply_with_derivatives(cell: UnitCell, s: jax.Array, u: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """F on every unit of a batch, s [S, k, B], u and v [G, k, B] to the next s, and the derivatives of `rule_table`.

    These are [derivatives * k, B], in the order of their numbers.
    """
    on_all = jax.vmap(jax.vmap(cell.rule))  # of components apart: nothing is stacked, to be cut up again
    s_t, derivatives = _with_derivatives(on_all, tuple(s), tuple(u), tuple(v))
    nothing = jnp.zeros((0, s.shape[2]), s.dtype)
    return jnp.stack(s_t), jnp.concatenate([nothing, *(derivatives[n] for n in rule_table(cell).first)])


@lru_cache(maxsize=32)
def step_with_derivatives(cell: UnitCell) -> Elementwise:
    """F of one unit: S, G and G scalars s, u and v to the next s and the derivatives of `rule_table`, for a kernel."""
    S, G, first = cell.states, cell.gates, rule_table(cell).first

    def step(*scalars: jax.Array) -> tuple[jax.Array, ...]:
        s_t, derivatives = _with_derivatives(cell.rule, scalars[:S], scalars[S : S + G], scalars[S + G :])
        return *s_t, *(derivatives[n] for n in first)

    return Elementwise(step, S + 2 * G)


def _with_derivatives(rule: Any, s: Any, u: Any, v: Any) -> tuple[Any, list[Any]]:
    """The next state, and all of A, U, V of component 0, then of component 1, ...: reverse-mode, one pull-back each."""
    s_t, pull_back = jax.vjp(rule, s, u, v)
    found: list[Any] = []
    for row in range(len(s)):
        direction = tuple((jnp.ones_like if n == row else jnp.zeros_like)(part) for n, part in enumerate(s_t))
        found += jax.tree.leaves(pull_back(direction))
    return s_t, found


# What `rule_structure` would find for the rules of the library's own cells; the suite compares. A process that needs no
# others does not import asdex for them, which takes about half a second.
KNOWN: dict[Any, RuleDerivatives] = {}


def known_structure(by_state: Any, by_input: Any, by_recurrent: Any) -> Callable[[Any], Any]:
    """Says of a rule which of A [S, S], U and V [S, G] exist."""

    def remember(rule: Any) -> Any:
        KNOWN[rule] = RuleDerivatives(*(np.array(part, bool) for part in (by_state, by_input, by_recurrent)))
        return rule

    return remember


@lru_cache(maxsize=32)
def rule_structure(cell: UnitCell) -> RuleDerivatives:
    """Which of A [S, S], U and V [S, G] exist."""
    return KNOWN[cell.rule] if cell.rule in KNOWN else detected_structure(cell)


def detected_structure(cell: UnitCell) -> RuleDerivatives:
    """What `rule_structure` reads from the program."""
    one = jnp.zeros(cell.states), jnp.zeros(cell.gates), jnp.zeros(cell.gates)
    found = jacobian_patterns(partial(one_unit, cell), one)
    return RuleDerivatives(*(pattern.mask() for pattern in found.patterns))


@lru_cache(maxsize=32)
def rule_table(cell: UnitCell) -> RuleTable:
    """Numbers those of A, U and V that exist; two that the program of the derivative returns as one have one number."""
    S, G = cell.states, cell.gates
    scalars = [(jax.ShapeDtypeStruct((), jnp.result_type(float)),) * n for n in (S, G, G)]
    program = jax.make_jaxpr(lambda *at: _with_derivatives(cell.rule, *at)[1])(*scalars).jaxpr
    exists = np.concatenate(rule_structure(cell), axis=1).ravel()  # [S, S + 2G]
    numbers = np.full(S * (S + 2 * G), -1)
    first: list[int] = []
    known: dict[Any, int] = {}
    for place in np.flatnonzero(exists):
        variable = program.outvars[place]
        key = place if isinstance(variable, Literal) else variable
        if key not in known:
            known[key] = len(first)
            first.append(int(place))
        numbers[place] = known[key]
    by_state, by_input, by_recurrent = np.split(numbers.reshape(S, S + 2 * G), [S, S + G], axis=1)
    return RuleTable(by_state, by_input, by_recurrent, tuple(first))
