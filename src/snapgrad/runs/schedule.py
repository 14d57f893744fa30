"""The learning rate of a run: a number, or a schedule over its updates.

A schedule counts updates, a run ends by tokens. Where sequences have one length, or windows one step, the updates of a
run follow from its tokens and are the schedule's; where lengths depend on what is learnt they must be given.
"""

from __future__ import annotations

from typing import Any

import jax
import optax

from snapgrad import arguments
from snapgrad.runs.options import Options
from snapgrad.tasks.base import Task


def learning_rate(options: Options, task: Task) -> Any:
    """A number, or a function of the number of updates before this one."""
    rate, warmup = options.learning_rate, options.warmup
    if warmup < 0:
        raise ValueError(f"`warmup` must be an integer >= 0, got {warmup}")
    if options.schedule == "constant":
        if options.schedule_updates is not None:
            raise ValueError(
                f"`schedule_updates` must not be given with schedule 'constant', got {options.schedule_updates}"
            )
        if not warmup:
            return rate
        after = optax.constant_schedule(rate)
    else:
        updates = _schedule_updates(options, task)
        if warmup >= updates:
            raise ValueError(f"`warmup` must be less than the {updates} updates of the schedule, got {warmup}")
        if options.schedule == "cosine":
            after = optax.cosine_decay_schedule(rate, updates - warmup)
        else:
            after = optax.linear_schedule(rate, 0.0, updates - warmup)
    return optax.join_schedules([optax.linear_schedule(0.0, rate, warmup), after], [warmup]) if warmup else after


def count_updates(options: Options, task: Task) -> int | None:
    """The updates of a whole run; None where they depend on what is learnt."""
    start = task.start(jax.random.key(0), options.batch)
    steps, window, batch = task.sequence_steps(start), options.update_steps, options.batch
    if window == 1 or (window is not None and steps is None):  # nothing is filled up
        return -(-options.tokens // (window * batch))
    if steps is None or task.level(start) is not None:
        return None
    steps = int(steps)
    window = steps if window is None else min(window, steps)
    sequences, rest = divmod(options.tokens, steps * batch)
    return sequences * -(-steps // window) + -(-rest // (window * batch))


def _schedule_updates(options: Options, task: Task) -> int:
    counted, given = count_updates(options, task), options.schedule_updates
    if given is None and counted is None:
        raise ValueError(
            "`schedule_updates` must be given where the updates of a run cannot be counted before (a curriculum in "
            f"windows of more than a step), got none with schedule {options.schedule!r}"
        )
    if given is None:
        assert counted is not None
        return counted
    arguments.positive_integer("schedule_updates", given)
    if counted is not None and given < counted:
        raise ValueError(
            f"`schedule_updates` must be at least the {counted} updates of the run, got {given}: the learning rate "
            "would be zero from there on"
        )
    return given
