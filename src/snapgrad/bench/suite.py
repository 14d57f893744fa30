"""The measurements of `snapgrad bench`, as plain records."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

import snapgrad as sg
from snapgrad.bench import rates, rewiring, trainer
from snapgrad.bench.programs import (
    INPUTS,
    Network,
    Program,
    dense_product,
    fused_step,
    loss,
    loss_without_readout,
    network,
    online,
    windows,
    work,
)
from snapgrad.bench.sample import sample
from snapgrad.bench.timing import ROUNDS, medians
from snapgrad.kernels.select import NATIVE
from snapgrad.machine import memory_bytes

CELLS = ("Vanilla", "GRU", "LSTM")
SIZES = ((128, 0.75), (256, 0.9375), (512, 0.984375))  # those of the paper's Table 3: as many weights in each
GROWTH = (128, 256, 512, 1024, 2048, 4096)
ORDERS, BATCHES = (1, 2, 3), (1, 16)
WINDOW = 128
MOST_OF_MEMORY = 1 / 8  # that J may take

Record = dict[str, Any]
Step = tuple[str, Callable[[], list[Record]]]  # what a person reads while it runs, and the measurement


def steps(quick: bool) -> Iterator[Step]:
    """All measurements, in order."""
    rounds = 3 if quick else ROUNDS
    if importlib.util.find_spec("tomli_w") is not None:  # the extra `train`. First, before others leave memory behind
        yield "trainer: memory of a long online run", lambda: trainer.memory(trainer.STEPS // (10 if quick else 1))
        yield "trainer: GRU 64, the demo's", lambda: trainer.demo(rounds)
    yield "a sample from Python: LSTM 64", lambda: sample(rounds)
    for name in ("GRU",) if quick else CELLS:
        for units, sparsity in SIZES:
            for batch in BATCHES:
                label = f"{name} {units}, {sparsity:.4g} sparse, batch {batch}"
                yield label, lambda n=name, u=units, s=sparsity, b=batch: cells(n, u, s, b, rounds)  # type: ignore[misc]
    for units in GROWTH[:4] if quick else GROWTH:
        yield f"growth: GRU {units}", lambda u=units: growth(u, rounds)  # type: ignore[misc]
    for units, sparsity in SIZES:
        yield f"episodic: GRU {units}", lambda u=units, s=sparsity: episodic(u, s, rounds)  # type: ignore[misc]
    yield "episodic SnAp-1: dense GRU 128, language model", lambda: language_model(rounds)
    yield "trainer: dense GRU 128, language model", lambda: trainer.throughput(rounds)
    yield "trainer: GRU 512 that rewires itself", lambda: rewiring.overhead(rounds)
    for units, sparsity in SIZES:
        yield f"bfloat16 storage: GRU {units}", lambda u=units, s=sparsity: bfloat16(u, s, rounds)  # type: ignore[misc]


def cells(name: str, units: int, sparsity: float, batch: int, rounds: int) -> list[Record]:
    """SnAp of every order on one cell: the fused step, the whole training step, and what they are compared with."""
    net = network(name, units, sparsity)
    fitting = [order for order in ORDERS if _fits(net, order, batch)]
    programs = rates.programs()
    for order in fitting:
        programs[f"fused {order}"] = fused_step(NATIVE, net, order, batch)
        programs[f"online {order}"] = online(net, sg.snap(net.cell, loss, order=order), batch)
    programs["bptt"] = _bptt(net, batch)
    seconds = medians(programs, rounds)
    del programs
    seconds |= medians({"dense": dense_product(net.blocks(2), batch)}, rounds=min(rounds, 3))
    limits, records = rates.rates(seconds), []
    for order in fitting:
        flops, bytes = work(net.blocks(order), batch)
        fused, whole = seconds[f"fused {order}"], seconds[f"online {order}"]
        records.append(
            {
                "kind": "cell",
                "cell": name,
                "units": units,
                "sparsity": sparsity,
                "order": order,
                "batch": batch,
                "fused_ms": 1e3 * fused,
                "whole_ms": 1e3 * whole,
                "gflops": flops / fused / 1e9,
                "gbytes": bytes / fused / 1e9,
                "intensity": flops / bytes,
                "gemm_gflops": limits.flops / 1e9,
                "stream_gbytes": limits.bytes / 1e9,
                "roofline": limits.seconds(flops, bytes) / fused,
                "dense_over_fused": seconds["dense"] / fused,
                "whole_over_fused": whole / fused,
                "whole_over_bptt": whole / (seconds["bptt"] / WINDOW),
                "megabytes": bytes / 2e6,
            }
        )
    return records


def growth(units: int, rounds: int) -> list[Record]:
    """The time of a step as a GRU grows while its number of weights stays that of 128 units at 75 %."""
    sparsity = 1 - 0.25 * (128 / units) ** 2
    net = network("GRU", units, sparsity)
    seconds = medians(
        {
            **{f"snap {order}": online(net, sg.snap(net.cell, loss, order=order), 16) for order in (1, 2)},
            "bptt": _bptt(net, 16),
        },
        rounds,
    )
    return [
        {
            "kind": "growth",
            "units": units,
            "sparsity": sparsity,
            "weights": net.params.cell.recurrent.pattern.nnz,
            "snap_1_ms": 1e3 * seconds["snap 1"],
            "snap_2_ms": 1e3 * seconds["snap 2"],
            "bptt_ms": 1e3 * seconds["bptt"] / WINDOW,
        }
    ]


def episodic(units: int, sparsity: float, rounds: int) -> list[Record]:
    """SnAp-2 over whole sequences against BPTT, without a readout."""
    net = network("GRU", units, sparsity)
    params = sg.Params(net.params.cell, ())
    xs, targets = (jax.random.normal(jax.random.key(n), (WINDOW, 32, size)) for n, size in ((1, INPUTS), (2, units)))
    algorithms = {
        "bptt": sg.bptt(net.cell, loss_without_readout),
        "snap": sg.snap(net.cell, loss_without_readout, order=2, episodic=True),
    }
    found = medians({name: windows(params, algorithm, xs, targets) for name, algorithm in algorithms.items()}, rounds)
    return [_window_record("episodic", units, found)]


def language_model(rounds: int) -> list[Record]:
    """Episodic SnAp-1 against BPTT on the paper's language model: dense GRU, 128 -> 1024 -> 256 readout, bytes in."""
    cell = sg.GRU(256, 128)
    keys = jax.random.split(jax.random.key(0), 3)
    readout = 0.05 * jax.random.normal(keys[1], (1024, 128)), 0.05 * jax.random.normal(keys[2], (256, 1024))

    def bits(readout: Any, h: jax.Array, target: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(readout[1] @ jax.nn.relu(readout[0] @ h), target)

    params = sg.Params(cell.init(keys[0]), readout)
    text = jax.random.randint(jax.random.key(1), (WINDOW, 32), 0, 256)
    algorithms = {"bptt": sg.bptt(cell, bits), "snap": sg.snap(cell, bits, order=1, episodic=True)}
    found = medians({name: windows(params, algorithm, text, text) for name, algorithm in algorithms.items()}, rounds)
    return [_window_record("language model", 128, found)]


def bfloat16(units: int, sparsity: float, rounds: int) -> list[Record]:
    """What storing J in bfloat16 saves, and what it does to the gradient of the hundredth step of a stream."""
    net = network("GRU", units, sparsity)
    programs = {name: fused_step(NATIVE, net, 2, 16, dtype) for name, dtype in _STORAGE.items()}
    seconds = medians(programs, rounds)
    errors = _gradient_error(net)
    ratio = seconds["bfloat16"] / seconds["float32"]
    return [{"kind": "bfloat16", "units": units, "time_over_float32": ratio, "gradient_error": errors}]


_STORAGE = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def _gradient_error(net: Network) -> float:
    xs, targets = (jax.random.normal(jax.random.key(n), (100, 16, INPUTS)) for n in (1, 2))
    params = sg.Params(net.params.cell, jax.random.normal(jax.random.key(3), net.params.readout.shape))
    last = []
    for dtype in (None, "bfloat16"):
        algorithm = sg.snap(net.cell, loss, order=2, influence_dtype=dtype)
        _, state = algorithm.grad(params, algorithm.init(params, 16), xs[:-1], targets[:-1])
        gradient, _ = algorithm.grad(params, state, xs[-1:], targets[-1:])
        last.append(jax.flatten_util.ravel_pytree(gradient.grads.cell)[0])
    return float(jnp.linalg.norm(last[1] - last[0]) / jnp.linalg.norm(last[0]))


def _window_record(kind: str, units: int, seconds: dict[str, float]) -> Record:
    per_step = {name: 1e3 * value / WINDOW for name, value in seconds.items()}
    ratio = seconds["snap"] / seconds["bptt"]
    return {"kind": kind, "units": units, "snap_ms": per_step["snap"], "bptt_ms": per_step["bptt"], "over_bptt": ratio}


def _bptt(net: Network, batch: int) -> Program:
    xs = jax.random.normal(jax.random.key(1), (WINDOW, batch, INPUTS))
    return windows(net.params, sg.bptt(net.cell, loss), xs, xs)


def _fits(net: Network, order: int, batch: int) -> bool:
    return 4 * batch * net.blocks(order).kept <= MOST_OF_MEMORY * memory_bytes()
