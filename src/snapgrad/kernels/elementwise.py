"""Element-wise functions as programs that the native kernel runs in one pass (native/unit_step.h).

XLA's CPU compiler makes several passes of one thread of a cell's rule and its derivatives, and computes some values in
each of them again. A program is read from the function's jaxpr; functions that need operations that the kernel does not
know have none, and are left to XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal
from numpy.typing import NDArray

# In the order of `Operation` in native/kernels.h.
OPERATIONS = ("copy", "neg", "add", "sub", "mul", "div", "exp", "logistic", "tanh")
SAME = {"add_any": "add"}
INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


class Elementwise(NamedTuple):
    """A function of so many scalars to a tuple of scalars. One object is made for a function, and kept."""

    function: Callable[..., Any]
    inputs: int


class Program(NamedTuple):
    """Instructions on places: inputs, outputs, constants and registers, in that order."""

    outputs: int
    code: NDArray[np.int32]  # [4 * instructions]: operation, where to, from where, and from where
    constants: NDArray[np.float64]
    registers: int


@lru_cache(maxsize=64)
def program(elementwise: Elementwise, dtype: Any) -> Program | None:
    """The program of a function in a dtype, or None if there is none."""
    scalars = (jax.ShapeDtypeStruct((), dtype),) * elementwise.inputs
    closed = jax.make_jaxpr(elementwise.function)(*scalars)
    values = Values(dtype)
    inputs = [values.number("input", n) for n in range(elementwise.inputs)]
    return _assembled(values, inputs, values.evaluate(closed, inputs))


class Values:
    """Numbered values, each once: an input (which), a constant (its value), or an operation (on other values).

    What the kernel cannot compute is "unknown": that matters only if something needs it.
    """

    def __init__(self, dtype: Any):
        self.dtype = dtype
        self.all: list[tuple[str, tuple[Any, ...]]] = []
        self._numbers: dict[tuple[str, tuple[Any, ...]], int] = {}
        self.zero, self._one, self._unknown = self._number(0.0), self._number(1.0), self.number("unknown")

    def number(self, operation: str, *of: Any) -> int:
        """The number of a value, which may be known already."""
        if (operation, of) not in self._numbers:
            self._numbers[operation, of] = len(self.all)
            self.all.append((operation, of))
        return self._numbers[operation, of]

    def evaluate(self, closed: Any, inputs: Sequence[int]) -> list[int]:
        """The values that a jaxpr returns."""
        jaxpr, constants = closed.jaxpr, [self._constant(value) for value in closed.consts]
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True))
        read = lambda atom: self._constant(atom.val) if isinstance(atom, Literal) else known[atom]  # noqa: E731
        for equation in jaxpr.eqns:
            found = self._apply(equation, [read(atom) for atom in equation.invars])
            known |= zip(equation.outvars, found, strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def _apply(self, equation: Any, operands: list[int]) -> list[int]:
        name = SAME.get(equation.primitive.name, equation.primitive.name)
        if name in INLINED:
            return self.evaluate(equation.params[INLINED[name]], operands)
        is_scalar = all(out.aval.shape == () and out.aval.dtype == self.dtype for out in equation.outvars)
        if not is_scalar or self._unknown in operands:
            return [self._unknown] * len(equation.outvars)
        if name in ("integer_pow", "square"):
            return [self._power(operands[0], equation.params.get("y", 2))]
        return [self._simplified(name, *operands) if name in OPERATIONS else self._unknown]

    def _power(self, of: int, exponent: int) -> int:
        """By repeated squares, as XLA does."""
        if exponent < 0:
            return self._simplified("div", self._one, self._power(of, -exponent))
        if exponent == 0:
            return self._one
        half = self._power(of, exponent // 2)
        square = self._simplified("mul", half, half)
        return self._simplified("mul", square, of) if exponent % 2 else square

    def _constant(self, value: Any) -> int:
        if isinstance(value, jax.core.Tracer) or np.shape(value) != () or np.result_type(value) != self.dtype:
            return self._unknown
        return self._number(float(value))

    def _number(self, value: float) -> int:
        return self.number("constant", value, math.copysign(1, value))  # -0.0 is not 0.0

    def _simplified(self, operation: str, *of: int) -> int:
        # Derivatives in directions that are zero bring whole products of nothing. A zero that the function itself
        # multiplies with is zero then too, also where the other factor is not finite.
        if operation == "mul" and self.zero in of:
            return self.zero
        neutral = {"mul": self._one, "add": self.zero}.get(operation)
        if neutral in of:
            return of[1] if of[0] == neutral else of[0]
        if operation == "add" and self.all[of[1]][0] == "neg":
            return self.number("sub", of[0], *self.all[of[1]][1])
        return self.number(operation, *of)


def _assembled(values: Values, inputs: list[int], outputs: list[int]) -> Program | None:
    """Instructions for what is needed, in the order of the numbers; a register is free after the last use."""
    needed = set(outputs)
    for number in reversed(range(len(values.all))):
        operation, of = values.all[number]
        if number in needed and operation in OPERATIONS:
            needed.update(of)
    if any(values.all[number][0] == "unknown" for number in needed):
        return None
    steps = [number for number in sorted(needed) if values.all[number][0] in OPERATIONS]
    constants = [number for number in sorted(needed) if values.all[number][0] == "constant"]
    constants = constants or [values.zero]  # XLA takes no empty attribute
    first_constant = len(inputs) + len(outputs)
    first_register = first_constant + len(constants)
    place = {number: at for at, number in enumerate(inputs)}
    place |= {number: first_constant + n for n, number in enumerate(constants)}
    for n, number in enumerate(outputs):
        place.setdefault(number, len(inputs) + n)
    last_use = {operand: step for step in steps for operand in values.all[step][1]}
    code: list[tuple[int, int, int, int]] = []
    free: list[int] = []
    registers = 0
    for step in steps:
        operation, of = values.all[step]
        if step not in place:
            if not free:
                free.append(first_register + registers)
                registers += 1
            place[step] = free.pop()
        code.append((OPERATIONS.index(operation), place[step], place[of[0]], place[of[-1]]))
        free += {place[o] for o in of if last_use[o] == step and place[o] >= first_register}
    for n, number in enumerate(outputs):
        if place[number] != len(inputs) + n:  # an input, a constant, or an output before
            code.append((OPERATIONS.index("copy"), len(inputs) + n, place[number], place[number]))
    numbers = [values.all[number][1][0] for number in constants]
    return Program(len(outputs), np.asarray(code, np.int32).ravel(), np.asarray(numbers, np.float64), registers)
