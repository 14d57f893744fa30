"""Where programs run: in the thread that asks for them.

On CPU, JAX hands a program to another thread and returns. With one sample at a time the answer is waited for anyway:
waking a thread and being woken costs as much as the step itself. JAX reads the setting when it first uses the CPU: a
process that has used it before its first learner keeps what it has, and so does one that sets
JAX_CPU_ENABLE_ASYNC_DISPATCH.
"""

from __future__ import annotations

import os

import jax

SETTING = "jax_cpu_enable_async_dispatch"


def in_this_thread() -> None:
    """Asks JAX to run programs on CPU in the thread that calls them, if it is not too late for that."""
    if SETTING.upper() not in os.environ:
        jax.config.update(SETTING, False)
