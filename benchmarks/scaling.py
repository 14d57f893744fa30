"""How SnAp-2 scales over devices: in time on two cores, and for more devices in bytes held, bytes sent and balance.

    python benchmarks/scaling.py time     # one and two devices of a thread each, in one process and in two; 7 minutes
    python benchmarks/scaling.py count    # 2 to 64 devices, from the compiled program; nothing is run

A step is a window of T = 1 and an update by Adam, as in online training. In `count`, J is what the state holds on a
device, and "sent" what a device sends in a step if messages go around a ring, which is the least; balance is the cost
of the most loaded device over the mean.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Any

INPUTS, OUTPUTS, ROUNDS, STEPS, MOST_DEVICES = 32, 8, 7, 30, 64
NETWORKS = {"GRU 128, 75 %": (128, 0.75), "GRU 512, 98.4 %": (512, 1 - 0.25 / 16)}
# XLA computes in a pool of one thread. Binding a process to one core would do that too, but Gloo's thread could not
# answer then while that one spins.
SINGLE_THREADED = os.environ | {"PJRT_NPROC": "1", "NPROC": "1"}
ALONE, SERIES = "batch=1", 4
# Name, processes, mesh, batch.
TIMED = [
    ("one device", 1, ALONE, 16),
    ("two of one process, params=2", 1, "params=2", 16),
    ("two of one process, batch=2", 1, "batch=2", 16),
    ("two of one process, batch=2, batch of 32", 1, "batch=2", 32),
    ("two processes, params=2", 2, "params=2", 16),
    ("two processes, batch=2", 2, "batch=2", 16),
    ("two processes, each for itself", 2, ALONE, 16),  # what these cores could do at best
]


def main() -> None:
    match sys.argv[1:]:
        case ["time"]:
            compare_times()
        case ["count"]:
            count_bytes()
        case ["child", mesh, batch, coordinator, number, processes]:
            print(seconds_a_step(mesh, int(batch), coordinator, int(number), int(processes)))
        case _:
            sys.exit(__doc__)


def compare_times() -> None:
    found: dict[str, list[float]] = {name: [] for name, *_ in TIMED}
    for _ in range(SERIES):  # in turn, because machines are noisy
        for name, processes, mesh, batch in TIMED:
            with socket.socket() as free:
                free.bind(("localhost", 0))
                place = f"localhost:{free.getsockname()[1]}"
            given = [sys.executable, __file__, "child", mesh, str(batch), place]
            together = str(1 if mesh == ALONE else processes)
            children = [
                subprocess.Popen([*given, str(n), together], stdout=subprocess.PIPE, env=SINGLE_THREADED)
                for n in range(processes)
            ]
            said = [child.communicate()[0].decode().split()[-1] for child in children]
            found[name].append(max(map(float, said)))
            print(f"{name:40} {1e3 * found[name][-1]:6.2f} ms", flush=True)
    one = found["one device"]
    for name, processes, mesh, batch in TIMED:
        done = batch // 16 * (processes if mesh == ALONE else 1)  # in a step, of what one device does
        speeds = [done * alone / seconds for alone, seconds in zip(one, found[name], strict=True)]
        each = ", ".join(f"{1e3 * s:.1f} ({speed:.2f})" for s, speed in zip(found[name], speeds, strict=True))
        best = done * min(one) / min(found[name])
        print(f"{name:40} {statistics.median(speeds):.2f} times the speed of one, best by best {best:.2f}: {each}")


def seconds_a_step(mesh: str, batch: int, coordinator: str, number: int, processes: int) -> float:
    import jax
    import jax.numpy as jnp
    import optax

    import snapgrad as sg
    from snapgrad.algorithms.placement import EVERYWHERE, wait_for_all
    from snapgrad.runs.processes import Devices

    where = Devices(mesh=mesh)
    if processes > 1:
        where = Devices(mesh=mesh, coordinator=coordinator, process_id=number, processes=processes)
    devices = where.connect()
    make, make_params = network(*NETWORKS["GRU 128, 75 %"])
    params, algorithm = make_params(), make()
    if devices is not None and devices.size > 1:
        algorithm = sg.shard(algorithm, devices)
    adam = optax.adam(1e-3)
    put = algorithm.placement.put
    given = put((params, adam.init(params), jnp.ones((1, batch, INPUTS)), jnp.ones((1, batch, OUTPUTS))), EVERYWHERE)
    params, opt_state, xs, targets = given

    def update(_: Any, carry: Any) -> Any:
        params, opt_state, state = carry
        gradient, state = algorithm.grad(params, state, xs, targets)
        updates, opt_state = adam.update(gradient.grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, state

    run = jax.jit(lambda carry: jax.lax.fori_loop(0, STEPS, update, carry), donate_argnums=0)
    carry = params, opt_state, algorithm.init(params, batch)
    program = run.lower(carry).compile()
    wait_for_all()
    carry = jax.block_until_ready(program(carry))
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        carry = jax.block_until_ready(program(carry))
        seconds.append((time.perf_counter() - begun) / STEPS)
    return min(seconds)  # whatever disturbs a step makes it longer


def network(units: int, sparsity: float) -> tuple[Any, Any]:
    """Functions that make the algorithm and the parameters, once JAX knows its devices."""
    import jax
    import jax.numpy as jnp

    import snapgrad as sg

    cell = sg.GRU(INPUTS, units)

    def loss(readout: Any, h: jax.Array, target: jax.Array) -> jax.Array:
        return jnp.sum((readout @ h - target) ** 2)

    def params() -> Any:
        return sg.Params(cell.init(jax.random.key(0), sparsity=sparsity), jnp.zeros((OUTPUTS, units)))

    return lambda: sg.snap(cell, loss, order=2), params


def count_bytes() -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={MOST_DEVICES}"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh

    import snapgrad as sg
    from snapgrad.bench.traffic import collectives
    from snapgrad.sparsity.partition import assignment, block_costs
    from snapgrad.sparsity.reach import influence_blocks

    batch = 16
    for name, (units, sparsity) in NETWORKS.items():
        print(f"\n{name}, SnAp-2, batch {batch}\n\n| devices | mesh | J, MB | sent a step, kB | messages | balance |")
        print("| ---: | --- | ---: | ---: | ---: | ---: |")
        make, make_params = network(units, sparsity)
        params = make_params()
        jacobians = make().cell.jacobians(params.cell)
        blocks = influence_blocks(jacobians.groups, jacobians.dynamics, 2)
        shapes = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 8), (2, 4), (1, 16), (2, 8), (1, 32), (2, 16), (1, 64), (2, 32)]
        for lanes, parts in shapes:
            devices = np.array(jax.devices()[: lanes * parts]).reshape(lanes, parts)
            algorithm = sg.shard(make(), Mesh(devices, ("batch", "params")))
            state = jax.eval_shape(partial(algorithm.init, batch_size=batch), params)
            window = jnp.ones((1, batch, INPUTS)), jnp.ones((1, batch, OUTPUTS))
            sent = collectives(jax.jit(algorithm.grad).lower(params, state, *window).compile())
            held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.memory)) / devices.size
            of_parts = np.bincount(assignment(blocks, parts), block_costs(blocks), minlength=parts)
            balance = of_parts.max() / of_parts.mean()
            print(
                f"| {devices.size} | batch={lanes}, params={parts} | {held / 1e6:.2f} | "
                f"{sum(one.sent for one in sent) / 1e3:.1f} | {len(sent)} | {balance:.3f} |"
            )


if __name__ == "__main__":
    main()
