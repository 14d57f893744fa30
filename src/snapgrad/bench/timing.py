"""Times of things that run one after the other, compared within one run: machines are noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

ROUNDS = 7  # of which medians are taken
SECONDS = 0.08  # that one thing should run in a round


class Repeated:
    """A program that takes its own result again, as a training loop does, so that buffers are used in place.

    `step` is a function carry -> carry; it is compiled as one loop of as many steps as are asked for.
    """

    def __init__(self, step: Callable[[Any], Any], carry: Any):
        self._carry = carry
        self._run = jax.jit(
            lambda carry, times: jax.lax.fori_loop(0, times, lambda _, c: step(c), carry), donate_argnums=0
        )

    def __call__(self, times: int) -> None:
        self._carry = jax.block_until_ready(self._run(self._carry, times))


def medians(programs: Mapping[str, Callable[[int], None]], rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds of one repetition of each program: the median over rounds in which all of them take turns."""
    times = {}
    for name, program in programs.items():
        program(1)  # compiles
        once = _seconds(program, 1)
        times[name] = max(1, round(SECONDS / max(once, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            found[name].append(_seconds(program, times[name]) / times[name])
    return {name: statistics.median(values) for name, values in found.items()}


def _seconds(program: Callable[[int], None], times: int) -> float:
    start = time.perf_counter()
    program(times)
    return time.perf_counter() - start
