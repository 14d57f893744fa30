"""Which entries of a Jacobian exist, read by asdex from the program of the derivative.

The function's own program will not do: a step function has no derivative, but a spiking neuron that replaces it by a
smooth surrogate (`jax.custom_jvp`) has one. So detection goes through the linear map

    tangent -> J tangent           forward mode, or where the function has none (`jax.custom_vjp`)
    cotangent -> J^T cotangent     reverse mode

at an abstract point: no value is ever looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.sparsity.pattern import Pattern

if TYPE_CHECKING:
    import asdex  # half a second, which cells whose patterns are known do without

# What `jax.custom_vjp` leaves in a forward-mode program, where it cannot be evaluated.
REVERSE_ONLY = "custom_lin"


class Detected(NamedTuple):
    """The patterns of a function's Jacobians, and how their values can be had."""

    patterns: tuple[Pattern, ...]  # one an argument, [outputs, size of the argument]
    mode: Literal["rev"] | None  # None: in either mode of autodiff


def jacobian_patterns(
    function: Callable[..., jax.Array], arguments: tuple[jax.Array, ...], constants: tuple[jax.Array, ...] = ()
) -> Detected:
    """The patterns of d function(*arguments, *constants) / d arguments; all of them and the result are vectors."""
    mode: Literal["rev"] | None = None
    jax.eval_shape(function, *arguments, *constants)  # an error of the function itself is not one of detection
    try:
        try:
            found = _forward(function, arguments, constants)
        except NotImplementedError as error:
            if _primitive(error) != REVERSE_ONLY:
                raise
            found, mode = _reverse(function, arguments, constants), "rev"
    except (NotImplementedError, ValueError) as error:
        raise ValueError(
            f"the patterns of a cell must be given by hand (`patterns` of sg.GeneralCell) if its derivative has a "
            f"primitive that sparsity detection has no rule for, got {_primitive(error)!r}"
        ) from None
    borders = np.cumsum([0, *(argument.size for argument in arguments)])
    patterns = []
    for start, argument in zip(borders, arguments, strict=False):
        inside = (found.cols >= start) & (found.cols < start + argument.size)
        patterns.append(Pattern(found.rows[inside], found.cols[inside] - start, (found.shape[0], argument.size)))
    return Detected(tuple(patterns), mode)


def _forward(function: Any, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> asdex.SparsityPattern:
    import asdex

    point = (*arguments, *constants)

    def push(*values: Any) -> jax.Array:
        at, given, tangents = values[: len(arguments)], values[len(arguments) : len(point)], values[len(point) :]
        return jax.jvp(lambda *at: function(*at, *given), at, tangents)[1]

    by_tangents = tuple(range(len(point), len(point) + len(arguments)))
    return asdex.jacobian_sparsity(push, *point, *arguments, argnums=by_tangents)


def _reverse(function: Any, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> asdex.SparsityPattern:
    import asdex

    def pull(cotangent: Any, *values: Any) -> tuple[jax.Array, ...]:
        at, given = values[: len(arguments)], values[len(arguments) :]
        return jax.vjp(lambda *at: function(*at, *given), *at)[1](cotangent)

    result = jax.eval_shape(function, *arguments, *constants)
    found = asdex.jacobian_sparsity(pull, jnp.zeros(result.shape, result.dtype), *arguments, *constants)
    return asdex.SparsityPattern.from_coo(found.cols, found.rows, found.shape[::-1])


def _primitive(error: Exception) -> str:
    """The primitive that asdex's refusal names, in quotes; its whole first line if it should ever name none."""
    quoted = re.search(r"'([\w-]+)'", str(error))
    return quoted[1] if quoted else str(error).partition("\n")[0]
