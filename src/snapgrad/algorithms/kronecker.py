"""What KF-RTRL and OK share: the influence of a unit-wise cell as a short sum of Kronecker products.

    J_t ~ sum_n u_n (x) A_n            u_n: one number for each presynaptic value,  A_n [states, pre-activations]

In a unit-wise cell a weight is multiplied by one presynaptic value and enters one pre-activation, so the immediate
Jacobian is itself a Kronecker product, I_t = z_t (x) M_t (Mujika et al. 2018), of the presynaptic values z_t and the
derivatives M_t = ds_t/d(pre-activations), with all gates side by side. One step is

    sum_n u_n (x) D_t A_n  +  z_t (x) M_t

which has one term more than before; the algorithm's `compress` makes as many as before of them.

Where u and v enter the rule only as their sum (vanilla, LSTM), z_t = [h_tm1, x_t, 1] as in the papers. Where they do
not (the cuDNN variant of the GRU), the derivatives by u and by v differ, and J has two parts, each with a sum of its
own: the columns of the recurrent parameters, with z_t = [h_tm1] or [h_tm1, 1], and those of the others, with
z_t = [x_t, 1].

The sum lives on the grid of all pre-activations and all presynaptic values. With sparse weights the gradient is read
at the entries that exist; an estimate that is unbiased on the whole grid is unbiased there.

So when patterns change, the factors stay as they are. An entry that stays keeps its estimate. A product of factors
cannot be set to zero at single entries, so an entry that is new does not start at zero but at what the grid has for it:
the estimate of the influence that it has had as a weight of zero, which D has never depended on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.algorithms import checks
from snapgrad.algorithms.base import Outcome, Rule, param_dtype, propagation, select_lanes, state_deltas, unroll
from snapgrad.algorithms.placement import EVERYWHERE, LANES
from snapgrad.cells.base import Cell, PyTree, as_vector
from snapgrad.cells.rule import RuleDerivatives, rule_derivatives, rule_table
from snapgrad.cells.unit import UnitCell, UnitParams
from snapgrad.kernels.base import Kernel
from snapgrad.kernels.share import varying
from snapgrad.sparsity.matrix import multiply


class Terms(NamedTuple):
    """The terms u_n (x) A_n of a sum, for one example or with a batch in front."""

    sources: jax.Array  # u [terms, presynaptic values]
    states: jax.Array  # A [terms, pre-activations, states], transposed: a row is a direction in state space


class Memory(NamedTuple):
    """A sum of Kronecker products for each part of J, and the randomness still to come."""

    parts: tuple[Terms, ...]
    key: jax.Array


Compress = Callable[[Terms, jax.Array], Terms]  # (rank + 1 terms, signs [rank]) -> rank terms


def kronecker_sum(name: str, cell: Cell, rank: int, compress: Compress) -> Rule:
    """The rule that carries `rank` terms a part and lets `compress` make as many of one more, with random signs."""
    if not isinstance(cell, UnitCell):
        raise TypeError(
            f"`cell` must be unit-wise (sg.UnitCell) for {name}, which needs the immediate Jacobian to be a Kronecker "
            f"product, got {cell if isinstance(cell, Cell) else type(cell).__name__}"
        )
    gates, n_states = cell.gates * cell.units, cell.states * cell.units

    def start(kernel: Kernel, params: PyTree, batch_size: int, key: Any) -> Memory:
        checks.key(name, key)
        dtype = param_dtype(params)
        parts = tuple(
            Terms(jnp.zeros((batch_size, rank, width), dtype), jnp.zeros((batch_size, rank, gates, n_states), dtype))
            for width in part_widths(cell)
        )
        return Memory(parts, key)

    def window(kernel: Kernel, params: UnitParams, s_0: PyTree, memory: Memory, xs: Any) -> tuple[jax.Array, Any]:
        trajectory = unroll(kernel, cell, params, s_0, xs)

        def backward(deltas: jax.Array) -> Outcome:
            key, sign_key = jax.random.split(memory.key)
            steps, lanes = xs.shape[:2]

            def draw(lanes: int) -> jax.Array:
                return jax.random.rademacher(sign_key, (steps, lanes, len(memory.parts), rank), param_dtype(params))

            signs = kernel.share.of_lanes(draw, lanes, axis=1)
            ready = kernel.ready(params)

            def one(
                parts: tuple[Terms, ...], s_tm1: jax.Array, x_t: Any, delta_t: jax.Array, signs_t: jax.Array
            ) -> Any:
                """One step of one example: the sums, and for each of them what the gradient is made of."""
                derivatives = rule_derivatives(cell, s_tm1, *cell.preactivations(ready, s_tm1, x_t))
                propagate = _propagation(cell, ready, derivatives, s_tm1, x_t)
                grown = tuple(
                    Terms(
                        jnp.concatenate([old.sources, new.sources]),
                        jnp.concatenate([propagate(old.states), new.states]),
                    )
                    for old, new in zip(parts, _immediate(cell, derivatives, s_tm1, x_t), strict=True)
                )
                parts = tuple(compress(terms, signs_t[n]) for n, terms in enumerate(grown))
                return parts, [(part.sources, part.states @ delta_t) for part in parts]

            def step(parts: tuple[Terms, ...], at_t: Any) -> tuple[tuple[Terms, ...], Any]:
                return jax.vmap(one)(parts, *at_t)

            at = trajectory.before, xs, state_deltas(cell, trajectory, deltas), signs
            parts, factors = jax.lax.scan(step, varying(memory.parts, at), at)
            return Outcome(_gradient(kernel, cell, params, factors), trajectory.last, Memory(parts, key))

        return trajectory.outputs, backward

    def restart(kernel: Kernel, memory: Memory, where: jax.Array) -> Memory:
        return memory._replace(
            parts=jax.tree.map(lambda leaf: select_lanes(where, jnp.zeros((), leaf.dtype), leaf), memory.parts)
        )

    def transfer(kernel: Kernel, memory: Memory, old: PyTree, new: PyTree) -> Memory:
        return memory  # which is that of the whole grid

    axes = Memory(LANES, EVERYWHERE)
    return Rule(start, window, restart, transfer, structures=lambda params: (), axes=lambda kernel: axes)


def part_widths(cell: UnitCell) -> tuple[int, ...]:
    """The number of presynaptic values of every part of J: one part, or the recurrent one and the other."""
    if reads_sums(cell):
        return (cell.units + cell.inputs + 1,)
    return cell.units + cell.recurrent_bias, cell.inputs + 1


def reads_sums(cell: UnitCell) -> bool:
    """Whether the derivatives by u and by v are the same, as where they enter the rule only as u + v.

    A rule that hides the sum, inside a `jit` of its own for example, may not be seen through: it gets two parts, which
    is as unbiased.
    """
    table = rule_table(cell)
    return np.array_equal(table.by_input, table.by_recurrent)


def _propagation(
    cell: UnitCell, ready: UnitParams, derivatives: RuleDerivatives, s_tm1: jax.Array, x_t: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    """The product with D_t of one example, for any number of directions [..., states]."""
    if not ready.recurrent.pattern.is_full:
        by_D = propagation(cell, ready, s_tm1, x_t)
        return lambda directions: jax.vmap(jax.vmap(by_D))(directions)
    # There are as many directions as pre-activations: with D itself a direction costs one product, not one a gate.
    weights = ready.recurrent.to_dense().reshape(cell.gates, cell.units, cell.units)
    through = jnp.einsum("agi,gij->aij", derivatives.by_recurrent, weights)

    def product(directions: jax.Array) -> jax.Array:
        by_state = directions.reshape(*directions.shape[:-1], cell.states, cell.units)
        own = jnp.einsum("abi,...bi->...ai", derivatives.by_state, by_state)
        others = jnp.einsum("aij,...j->...ai", through, by_state[..., 0, :])
        return (own + others).reshape(directions.shape)

    return product


def _immediate(cell: UnitCell, derivatives: RuleDerivatives, s_tm1: jax.Array, x_t: jax.Array) -> list[Terms]:
    """I_t as one Kronecker product a part."""
    _, by_input, by_recurrent = derivatives
    h, x, one = s_tm1[0], as_vector(x_t, cell.inputs, s_tm1.dtype), jnp.ones(1, s_tm1.dtype)
    if reads_sums(cell):
        factors = [([h, x, one], by_input)]
    else:
        factors = [([h, one] if cell.recurrent_bias else [h], by_recurrent), ([x, one], by_input)]
    units = jnp.eye(cell.units, dtype=h.dtype)

    def on_the_grid(derivative: jax.Array) -> jax.Array:  # [S, G, k]: a pre-activation touches its own unit only
        by_gate = jnp.einsum("agi,ij->giaj", derivative, units)
        return by_gate.reshape(1, cell.gates * cell.units, cell.states * cell.units)

    return [Terms(jnp.concatenate(values)[None], on_the_grid(derivative)) for values, derivative in factors]


def _gradient(kernel: Kernel, cell: UnitCell, params: UnitParams, factors: Any) -> UnitParams:
    """The sum over a window of u (delta . A), at the parameters that exist.

    `factors` has for every part u and delta . A, both [T, B, terms, ...].
    """
    units = cell.units
    recurrent, input = (factors[0], factors[-1])

    def read(factor: tuple[jax.Array, jax.Array], places: slice) -> jax.Array:
        u = factor[0][..., places]
        return u.reshape(-1, u.shape[-1])

    weights = read(recurrent, slice(0, units)), read(input, slice(-1 - cell.inputs, -1))
    ones = read(recurrent, slice(-1, None)), read(input, slice(-1, None))

    def preactivations(params: UnitParams) -> tuple[jax.Array, jax.Array]:
        """Linear in the parameters, with u in place of the presynaptic values: its transpose is the gradient."""
        ready = kernel.ready(params)
        v = jax.vmap(lambda h: multiply(ready.recurrent, h))(weights[0])
        u = jax.vmap(lambda x: multiply(ready.input, x))(weights[1]) + ones[1] * ready.bias[None]
        return v if ready.recurrent_bias is None else v + ones[0] * ready.recurrent_bias[None], u

    rows = tuple(credit.reshape(-1, credit.shape[-1]) for _, credit in (recurrent, input))
    return jax.vjp(preactivations, params)[1](rows)[0]
