"""The gated recurrent unit, in both of its variants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp

from snapgrad import arguments, memory
from snapgrad.cells.general import GeneralCell
from snapgrad.cells.rule import known_structure
from snapgrad.cells.unit import UnitCell
from snapgrad.sparsity.masks import random_matrix, random_pattern
from snapgrad.sparsity.matrix import multiply


@known_structure(by_state=[[1]], by_input=[[1, 1, 1]], by_recurrent=[[1, 1, 1]])
def _rule(s: Any, u: Any, v: Any) -> Any:
    (h_tm1,) = s
    r = jax.nn.sigmoid(u[0] + v[0])
    z = jax.nn.sigmoid(u[1] + v[1])
    n = jnp.tanh(u[2] + r * v[2])
    return ((1 - z) * n + z * h_tm1,)


@overload
def GRU(inputs: int, units: int, *, recurrent_bias: bool = ...) -> UnitCell: ...
@overload
def GRU(inputs: int, units: int, *, variant: Literal["cudnn"], recurrent_bias: bool = ...) -> UnitCell: ...
@overload
def GRU(inputs: int, units: int, *, variant: Literal["original"]) -> OriginalGRU: ...
def GRU(inputs: int, units: int, *, variant: str = "cudnn", recurrent_bias: bool = False) -> UnitCell | OriginalGRU:
    """The GRU. `variant="cudnn"` resets after the matrix product, as `torch.nn.GRU` and the paper do:

    r, z = sigmoid(W_x x_t + b + W_h h_tm1 [+ b_h])      gates in PyTorch's order r, z, n
    n    = tanh(W_x x_t + b + r (W_h h_tm1 [+ b_h]))
    h_t  = (1 - z) n + z h_tm1

    `variant="original"` (Cho et al. 2014) resets before it, n = tanh(W_x x_t + b + W_h (r h_tm1)): see `OriginalGRU`.
    With `recurrent_bias=True` the weights of `torch.nn.GRU` fit exactly.
    """
    arguments.boolean("recurrent_bias", recurrent_bias)
    if not isinstance(variant, str) or variant not in ("cudnn", "original"):
        raise ValueError(f'`variant` must be "cudnn" or "original", got {arguments.shown(variant)}')
    if variant == "cudnn":
        return UnitCell(_rule, inputs, units, gates=3, states=1, recurrent_bias=recurrent_bias, name="GRU")
    if recurrent_bias:
        raise ValueError('`recurrent_bias` must be False for variant="original", got True')
    return OriginalGRU(inputs, units)


class OriginalGRUParams(NamedTuple):
    """Parameters of the original GRU; rows are stacked as r, z, n."""

    gates: Any  # SparseMatrix [2 * units, units]: r and z from h_tm1
    candidate: Any  # SparseMatrix [units, units]: n from r h_tm1
    input: Any  # SparseMatrix [3 * units, inputs]
    bias: Any  # [3 * units]


@dataclass(frozen=True)
class OriginalGRU(GeneralCell):
    """The GRU whose reset gate sits inside the matrix product (Cho et al. 2014).

    r, z = sigmoid(W_x x_t + b + W_h h_tm1)
    n    = tanh(W_x x_t + b + W_h (r h_tm1))
    h_t  = (1 - z) n + z h_tm1

    Two linear maps follow each other in one step, so it is not a unit-wise cell: a parameter of r touches every unit
    that the candidate's weights lead to. It takes the general path, and its influence is much denser.
    """

    inputs: int
    units: int

    def __post_init__(self) -> None:
        arguments.positive_integer("inputs", self.inputs)
        arguments.positive_integer("units", self.units)

    def init(self, key: jax.Array, sparsity: float = 0.0, *, dtype: Any = None) -> OriginalGRUParams:
        """Fresh parameters: every weight matrix sparse with an exact count a gate, biases dense."""
        arguments.key("key", key)
        arguments.sparsity(sparsity)
        dtype = arguments.floating(dtype)
        shapes = [(self.units, self.units, sparsity), (self.units, self.inputs, sparsity)]
        memory.check_weights(self, shapes, 3, dtype)
        keys = iter(jax.random.split(key, 6))

        def matrix(gates: int, cols: int) -> Any:
            pattern = random_pattern(next(keys), (self.units, cols), sparsity, gates=gates)
            return random_matrix(next(keys), pattern, dtype)

        return OriginalGRUParams(
            gates=matrix(2, self.units),
            candidate=matrix(1, self.units),
            input=matrix(3, self.inputs),
            bias=jnp.zeros(3 * self.units, dtype),
        )

    def initial_state(self) -> jax.Array:
        return jnp.zeros(self.units)

    def step(self, params: OriginalGRUParams, s: jax.Array, x: jax.Array) -> jax.Array:
        u_r, u_z, u_n = jnp.split(multiply(params.input, x) + params.bias, 3)
        v_r, v_z = jnp.split(multiply(params.gates, s), 2)
        r, z = jax.nn.sigmoid(u_r + v_r), jax.nn.sigmoid(u_z + v_z)
        n = jnp.tanh(u_n + multiply(params.candidate, r * s))
        return (1 - z) * n + z * s

    def output(self, s: jax.Array) -> jax.Array:
        return s
