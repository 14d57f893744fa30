"""Where programs run: in the thread that asks for them, all of them in that one.

On CPU, JAX hands a program to another thread and returns. With one sample at a time the answer is waited for anyway:
waking a thread and being woken costs as much as the step itself. JAX reads the setting when it first uses the CPU: a
process that has used it before its first learner keeps what it has, and so does one that sets
JAX_CPU_ENABLE_ASYNC_DISPATCH.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

SETTING = "jax_cpu_enable_async_dispatch"

# Weights and moments are overwritten where they stand; without this XLA copies them first, in every round of a loop.
IN_PLACE = "xla_cpu_copy_insertion_use_region_analysis"

# A function that is called, not merged into its caller, and compiled into one kernel.
AS_ONE_KERNEL = {"inlineable": "false", "xla_cpu_small_call": "true"}


def in_this_thread() -> None:
    """Asks JAX to run programs on CPU in the thread that calls them, if it is not too late for that."""
    if SETTING.upper() not in os.environ:
        jax.config.update(SETTING, False)


def compiled(lowered: Any) -> Any:
    """The program, which overwrites in place if this XLA knows how; later ones may have another name for it."""
    try:
        return lowered.compile({IN_PLACE: True})
    except jax.errors.JaxRuntimeError as error:
        if IN_PLACE not in str(error):
            raise
        return lowered.compile()


def in_one_thread(function: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """A function (state, *arguments) -> (state, told) as a loop of one round.

    XLA spreads the operations of a program over threads, and waking one costs more than any operation on one sample;
    the body of a loop runs in the thread that is there. XLA must not see that there is only one round, or it removes
    the loop.
    """
    function = jax.jit(function, inline=True)  # traced once for its result's shape and for the loop

    def one_round(state: Any, *arguments: Any) -> tuple[Any, Any]:
        told = jax.tree.map(lambda out: jnp.zeros(out.shape, out.dtype), jax.eval_shape(function, state, *arguments)[1])
        rounds = jax.lax.optimization_barrier(jnp.int32(1))
        return jax.lax.fori_loop(0, rounds, lambda _, so_far: function(so_far[0], *arguments), (state, told))

    return one_round


def as_one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of small arrays, compiled into one operation of the program around it.

    XLA wakes threads where more than a handful of operations could begin at once, be they as small as can be.
    """
    function = jax.jit(function)

    def call(*arguments: Any) -> Any:
        with set_xla_metadata(**AS_ONE_KERNEL):
            return function(*arguments)

    return call
