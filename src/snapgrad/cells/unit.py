"""Unit-wise cells: one scalar rule between two (sparse) linear maps.

    u = W_x x + b        v = W_h h (+ b_h)        s'_i = F(s_i, u_i, v_i)   for every unit i, independently

With S state components and G gates a unit, F takes S + 2G scalars to S. Component 0 is h: what the recurrent weights
and the readout see. Matrices have PyTorch's layout: gates stacked by rows, [G * units, units] and [G * units, inputs].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments, memory
from snapgrad.cells.base import Cell, Jacobians
from snapgrad.cells.rule import apply_rule
from snapgrad.cells.unit_jacobians import UnitJacobians
from snapgrad.sparsity.masks import random_matrix, random_pattern
from snapgrad.sparsity.matrix import SparseMatrix, describe, multiply
from snapgrad.sparsity.pattern import Pattern

# (s: S scalars, u: G scalars, v: G scalars) -> S scalars, for one unit
Rule = Callable[[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


class UnitParams(NamedTuple):
    """Parameters of a unit-wise cell. `step` takes dense arrays in the two matrices' places as well."""

    recurrent: Any  # SparseMatrix [G * units, units]
    input: Any  # SparseMatrix [G * units, inputs]
    bias: Any  # [G * units]
    recurrent_bias: Any = None  # [G * units], or None where the cell has none


@dataclass(frozen=True, repr=False)
class UnitCell(Cell):
    """A cell made of a scalar rule.

    Args:
        rule: F(s, u, v) for one unit: tuples of `states`, `gates` and `gates` scalars to a tuple of `states` scalars.
            Define it at module level: cells are equal, and share compiled code, if their rule is the same function.
        inputs: width of the input.
        units: number of units k.
        gates: G, pre-activations a unit.
        states: S, state components a unit; component 0 is the output h.
        recurrent_bias: whether v has a bias of its own, as in PyTorch.
        initial_bias: one initial value of `bias` a gate; zeros when empty.
        name: how the cell calls itself in messages.
    """

    rule: Rule
    inputs: int
    units: int
    gates: int = 1
    states: int = 1
    recurrent_bias: bool = False
    initial_bias: tuple[float, ...] = ()
    name: str = "UnitCell"

    def __post_init__(self) -> None:
        for name in ("inputs", "units", "gates", "states"):
            arguments.positive_integer(name, getattr(self, name))
        arguments.boolean("recurrent_bias", self.recurrent_bias)
        try:
            if np.iscomplexobj(self.initial_bias):
                raise TypeError
            object.__setattr__(self, "initial_bias", tuple(float(value) for value in self.initial_bias))
        except (TypeError, ValueError):
            raise TypeError(
                f"`initial_bias` must be numbers, one a gate, got {arguments.shown(self.initial_bias)}"
            ) from None
        if len(self.initial_bias) not in (0, self.gates):
            raise ValueError(f"`initial_bias` must have one value a gate ({self.gates}), got {len(self.initial_bias)}")
        if not callable(self.rule):
            raise TypeError(f"`rule` must be a function of (s, u, v), got {type(self.rule).__name__}")
        _check_rule(self.rule, self.states, self.gates, jnp.result_type(float))

    def init(
        self,
        key: jax.Array,
        sparsity: float = 0.0,
        *,
        sparse_inputs: bool = True,
        recurrent_mask: Any = None,
        input_mask: Any = None,
        dtype: Any = None,
    ) -> UnitParams:
        """Fresh parameters: uniformly random patterns with an exact count a gate, dense biases.

        Args:
            key: a PRNG key; patterns and values are drawn from it.
            sparsity: share of entries left out of every weight matrix, in [0, 1).
            sparse_inputs: whether the input weights are made sparse like the recurrent ones.
            recurrent_mask: a boolean [G * units, units] to use in place of a random pattern.
            input_mask: a boolean [G * units, inputs] to use in place of a random pattern.
            dtype: floating dtype of the values; JAX's default when None.
        """
        arguments.key("key", key)
        arguments.sparsity(sparsity)
        arguments.boolean("sparse_inputs", sparse_inputs)
        dtype = arguments.floating(dtype)
        input_sparsity = sparsity if sparse_inputs else 0.0
        memory.check_weights(
            self,
            [
                (self.units, self.units, sparsity if recurrent_mask is None else 0.0),
                (self.units, self.inputs, input_sparsity if input_mask is None else 0.0),
            ],
            self.gates,
            dtype,
        )
        keys = jax.random.split(key, 4)

        def matrix(pattern_key: Any, value_key: Any, cols: int, share: float, mask: Any, name: str) -> SparseMatrix:
            if mask is None:
                pattern = random_pattern(pattern_key, (self.units, cols), share, gates=self.gates)
            else:
                arguments.mask(name, mask, (self.gates * self.units, cols))
                pattern = Pattern.from_mask(mask)
            return random_matrix(value_key, pattern, dtype)

        bias = jnp.asarray(self.initial_bias or (0.0,) * self.gates, dtype)
        return UnitParams(
            recurrent=matrix(keys[0], keys[1], self.units, sparsity, recurrent_mask, "recurrent_mask"),
            input=matrix(keys[2], keys[3], self.inputs, input_sparsity, input_mask, "input_mask"),
            bias=jnp.repeat(bias, self.units),
            recurrent_bias=jnp.zeros(self.gates * self.units, dtype) if self.recurrent_bias else None,
        )

    def from_dense(
        self,
        recurrent: Any,
        input: Any,
        bias: Any,
        recurrent_bias: Any = None,
        *,
        recurrent_mask: Any = None,
        input_mask: Any = None,
    ) -> UnitParams:
        """Parameters from dense arrays in PyTorch's layout (weight_hh, weight_ih, bias_ih, bias_hh).

        Without a mask every entry becomes a parameter, also where its value is zero.
        """
        rows = self.gates * self.units
        wanted: dict[str, tuple[int, ...]] = {
            "recurrent": (rows, self.units),
            "input": (rows, self.inputs),
            "bias": (rows,),
        }
        given = {"recurrent": recurrent, "input": input, "bias": bias}
        if (recurrent_bias is not None) != self.recurrent_bias:
            raise ValueError(
                f"`recurrent_bias` must be given exactly when the cell has one ({self.recurrent_bias}), "
                f"got {'none' if recurrent_bias is None else 'one'}"
            )
        if self.recurrent_bias:
            wanted["recurrent_bias"], given["recurrent_bias"] = (rows,), recurrent_bias
        arrays = {name: arguments.array(name, array) for name, array in given.items()}
        for name, array in arrays.items():
            if array.shape != wanted[name]:
                raise ValueError(f"`{name}` must have shape {wanted[name]}, got {array.shape}")
            if not arguments.is_float(array.dtype):
                raise TypeError(f"`{name}` must hold floating-point numbers, got {array.dtype}")
            if array.dtype != arrays["recurrent"].dtype:
                raise TypeError(
                    f"`{name}` must have the dtype of `recurrent`, {arrays['recurrent'].dtype}, got {array.dtype}"
                )
        for name, mask in (("recurrent", recurrent_mask), ("input", input_mask)):
            if mask is not None:
                arguments.mask(f"{name}_mask", mask, wanted[name])
        return UnitParams(
            SparseMatrix.from_dense(arrays["recurrent"], recurrent_mask),
            SparseMatrix.from_dense(arrays["input"], input_mask),
            arrays["bias"],
            arrays.get("recurrent_bias"),
        )

    def to_dense(self, params: UnitParams) -> UnitParams:
        """The same parameters with dense weight arrays, in PyTorch's layout."""
        self.check(params)
        return params._replace(recurrent=params.recurrent.to_dense(), input=params.input.to_dense())

    def check(self, params: Any) -> None:
        if not isinstance(params, UnitParams):
            raise TypeError(f"`params.cell` must be what {self}.init returns, got {type(params).__name__}")
        rows = self.gates * self.units
        for name, shape in {"recurrent": (rows, self.units), "input": (rows, self.inputs)}.items():
            matrix = getattr(params, name)
            if not isinstance(matrix, SparseMatrix) or matrix.shape != shape:
                got = matrix if isinstance(matrix, SparseMatrix) else type(matrix).__name__
                raise ValueError(f"`params.cell.{name}` must be a SparseMatrix of shape {shape} for {self}, got {got}")
            if np.shape(matrix.values) != (matrix.pattern.nnz,):
                raise ValueError(
                    f"`params.cell.{name}` must have {matrix.pattern.nnz} values, one an entry of its pattern, "
                    f"got shape {np.shape(matrix.values)}"
                )
        for name, wanted in {"bias": (rows,), "recurrent_bias": (rows,) if self.recurrent_bias else None}.items():
            array = getattr(params, name)
            given = None if array is None else np.shape(array)
            if given != wanted:
                raise ValueError(f"`params.cell.{name}` must have shape {wanted} for {self}, got {given}")
        _check_rule(self.rule, self.states, self.gates, jnp.result_type(*jax.tree.leaves(params)))

    def __repr__(self) -> str:
        bias = ", recurrent_bias=True" if self.recurrent_bias else ""
        return f"{self.name}(inputs={self.inputs}, units={self.units}{bias})"

    def initial_state(self) -> jax.Array:
        return jnp.zeros((self.states, self.units))

    def step(self, params: UnitParams, s: jax.Array, x: jax.Array) -> jax.Array:
        if not isinstance(params, UnitParams):
            raise TypeError(f"`params` must be what {self}.init returns, got {type(params).__name__}")
        if not isinstance(s, jax.Array | np.ndarray) or s.shape != (self.states, self.units):
            raise ValueError(f"`s` must be a state of {self}, of shape {(self.states, self.units)}, got {describe(s)}")
        return apply_rule(self, s, *self.preactivations(params, s, x))

    def output(self, s: jax.Array) -> jax.Array:
        return s[0]

    def preactivations(self, params: UnitParams, s: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The pre-activations u and v, [G, units] each: the only place where parameters enter."""
        u = multiply(params.input, x) + params.bias
        v = multiply(params.recurrent, s[0])
        if params.recurrent_bias is not None:
            v = v + params.recurrent_bias
        return u.reshape(self.gates, self.units), v.reshape(self.gates, self.units)

    def multiplied(self, params: UnitParams) -> tuple[Pattern, ...]:
        return tuple(m.pattern for m in (params.recurrent, params.input) if not m.pattern.is_full)

    def jacobians(self, params: UnitParams, absent: tuple[Pattern, Pattern] | None = None) -> Jacobians:
        """The derivatives of `step`; with `absent`, I is that of recurrent and input weights which do not exist."""
        return UnitJacobians.of(self, params.recurrent.pattern, params.input.pattern, absent)


@lru_cache(maxsize=64)
def _check_rule(rule: Rule, states: int, gates: int, dtype: Any) -> None:
    """Refuses a rule that does not take scalars of a dtype to as many as there are states, of the same dtype."""
    scalar = jax.ShapeDtypeStruct((), dtype)
    try:
        out = jax.eval_shape(rule, (scalar,) * states, (scalar,) * gates, (scalar,) * gates)
    except (TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        needed = f"`rule` must take s, u and v, tuples of {states}, {gates} and {gates} {dtype} scalars"
        raise TypeError(f"{needed}, got: {str(error).splitlines()[0]}") from None
    shapes = [jnp.shape(component) for component in out] if isinstance(out, tuple) else type(out).__name__
    if shapes != [()] * states:
        raise TypeError(f"`rule` must return a tuple of {states} scalar(s) (`states`), got {shapes}")
    dtypes = [str(component.dtype) for component in out]
    if any(component.dtype != dtype for component in out):
        raise TypeError(f"`rule` must return scalars of the dtype that it is given, {dtype}, got {', '.join(dtypes)}")
