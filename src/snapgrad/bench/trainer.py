"""The trainer measured: against loops written by hand, and its memory over a long online run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import snapgrad as sg
from snapgrad.bench.timing import Repeated, medians
from snapgrad.readouts import Readout
from snapgrad.runs.build import build
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.options import CharsOptions, CopyOptions
from snapgrad.runs.training import run_training
from snapgrad.tasks.characters import Crops
from snapgrad.train import Trainer

TEXT = np.random.default_rng(0).integers(0, 256, 1_000_000, np.uint8)
WINDOW, BATCH, UNITS = 128, 32, 128
SLICE = 12  # updates of one call, as in a run: about 50,000 tokens
DEMO_SLICE = 625  # the same for the demo: 10,000 tokens
STEPS = 1_000_000  # of the online run whose memory is watched

Program = Callable[[int], None]


def throughput(rounds: int) -> list[dict[str, Any]]:
    """BPTT on the paper's dense language model: the trainer against a hand-written `lax.scan` + `jax.grad`."""
    slices = {"trainer": _slices(_trainer(), SLICE), "by hand": _slices(_by_hand(), SLICE)}
    seconds = {name: value / SLICE for name, value in medians(slices, rounds).items()}
    return [
        {
            "kind": "trainer",
            "trainer_ms": 1e3 * seconds["trainer"],
            "by_hand_ms": 1e3 * seconds["by hand"],
            "over_by_hand": seconds["trainer"] / seconds["by hand"],
            "tokens_per_second": WINDOW * BATCH / seconds["trainer"],
        }
    ]


def demo(rounds: int) -> list[dict[str, Any]]:
    """SnAp-2 online on the demo's network: the trainer, with its task, resets and counts, against a bare loop."""
    programs = {"trainer": _slices(_demo_trainer(), DEMO_SLICE), "bare": _slices(_demo_loop(), DEMO_SLICE)}
    seconds = {name: value / DEMO_SLICE for name, value in medians(programs, rounds).items()}
    return [
        {
            "kind": "demo",
            "trainer_ms": 1e3 * seconds["trainer"],
            "bare_ms": 1e3 * seconds["bare"],
            "over_bare": seconds["trainer"] / seconds["bare"],
        }
    ]


def memory(steps: int = STEPS) -> list[dict[str, Any]]:
    """What the process occupies early in a long online run, with its records and checkpoints, and at its end."""
    resident: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        text.write_bytes(TEXT[:100_000].tobytes())
        options = CharsOptions(
            units=16,
            sparsity=0.9,
            readout="linear",
            order=2,
            update_every=1,
            batch=1,
            tokens=steps,
            corpus=str(text),
            continuous=True,
            log_every=steps // 100,
        )
        experiment = build(options)
        run = RunDirectory.create(Path(folder) / "run", options, experiment.data)
        run_training(run, lambda record: resident.append(resident_bytes()), experiment)
    resident.pop()  # the last record comes after a validation, which had to be compiled
    return [
        {
            "kind": "memory",
            "steps": steps,
            "begin_megabytes": resident[0] / 1e6,
            "end_megabytes": resident[-1] / 1e6,
            "most_megabytes": max(resident) / 1e6,
        }
    ]


def resident_bytes() -> int:
    """What the process occupies now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as numbers:
            return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _slices(program: Program, updates: int) -> Program:
    return lambda times: program(times * updates)


def _trainer() -> Program:
    """Updates of the trainer, as `snapgrad train chars --algorithm bptt` makes them."""
    cell, readout = sg.GRU(256, UNITS), Readout(256, (1024,))
    trainer = Trainer(sg.bptt(cell, readout.loss), Crops(TEXT, WINDOW), optax.adam(1e-3), BATCH, None)
    params = sg.Params(cell.init(jax.random.key(0)), readout.init(jax.random.key(1), UNITS))
    box = [trainer.start(params, jax.random.key(2))]

    def run(updates: int) -> None:
        box[0], _ = trainer.run(box[0], updates * WINDOW * BATCH)

    return run


def _demo_trainer() -> Program:
    """Updates as `snapgrad demo` makes them."""
    experiment = build(CopyOptions(algorithm="snap", order=2))
    box = [experiment.start()]

    def run(updates: int) -> None:
        box[0], _ = experiment.trainer.run(box[0], updates * experiment.trainer.batch)

    return run


def _demo_loop() -> Program:
    """The same gradients and updates on one step of data, again and again."""
    experiment = build(CopyOptions(algorithm="snap", order=2))
    algorithm, optimiser, batch = (getattr(experiment.trainer, name) for name in ("algorithm", "optimiser", "batch"))
    xs = targets = jax.random.randint(jax.random.key(0), (1, batch), 0, 2)

    def update(carry: Any) -> Any:
        params, opt_state, state = carry
        gradient, state = algorithm.grad(params, state, xs, targets)
        updates, opt_state = optimiser.update(gradient.grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, state

    params = experiment.params
    return Repeated(update, jax.tree.map(jnp.copy, (params, optimiser.init(params), algorithm.init(params, batch))))


def _by_hand() -> Program:
    """The same without this library: dense weights, one scan over the steps, `jax.grad`, random crops, Adam."""
    shapes = {
        "x": (256, 3 * UNITS),
        "h": (UNITS, 3 * UNITS),
        "b": (3 * UNITS,),
        "w": (UNITS, 1024),
        "w_bias": (1024,),
        "v": (1024, 256),
        "v_bias": (256,),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    params = {name: 0.05 * jax.random.normal(key, shapes[name]) for name, key in zip(shapes, keys, strict=True)}
    adam, text = optax.adam(1e-3), jnp.asarray(TEXT)

    def loss(params: Any, crop: jax.Array) -> jax.Array:  # crop [T + 1, B]
        # Products with the input and the readout for all steps at once: they do not wait for each other.
        inputs = params["x"][crop[:-1]] + params["b"]

        def step(h: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
            v = h @ params["h"]
            r, z = (
                jax.nn.sigmoid(u[:, i * UNITS : (i + 1) * UNITS] + v[:, i * UNITS : (i + 1) * UNITS]) for i in (0, 1)
            )
            n = jnp.tanh(u[:, 2 * UNITS :] + r * v[:, 2 * UNITS :])
            h = (1 - z) * n + z * h
            return h, h

        _, hs = jax.lax.scan(step, jnp.zeros((BATCH, UNITS)), inputs)
        logits = jax.nn.relu(hs @ params["w"] + params["w_bias"]) @ params["v"] + params["v_bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, crop[1:]).mean(axis=1).sum()

    def update(carry: Any) -> Any:
        params, opt_state, key = carry
        key, own = jax.random.split(key)
        starts = jax.random.randint(own, (BATCH,), 0, len(text) - WINDOW)
        crop = text[starts + jnp.arange(WINDOW + 1)[:, None]].astype(jnp.int32)
        updates, opt_state = adam.update(jax.grad(loss)(params, crop), opt_state)
        return optax.apply_updates(params, updates), opt_state, key

    return Repeated(update, (params, adam.init(params), jax.random.key(3)))
