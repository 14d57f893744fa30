"""Recall of a cue from beyond any window, on a stream whose meaning drifts.

A cue, one of two, is followed by 20 to 40 distractors, then by a question: which cue was it? What the right answer to a
cue is changes now and then. Three ways to train the same LSTM, with an answer before every lesson:

    SnAp-1            reads every sample once and learns at every question; its influence reaches back to the cue
    truncated BPTT    windows of 10 samples, the state carried from one to the next
    windowed BPTT     the last 10 samples, read anew from a state of zero, as in deep-river's rolling models

In the windowed one's input the cue is not there, so it can only guess. The state of truncated BPTT has seen the cue,
but no gradient ever tells it that the cue was worth keeping.

    python examples/recall.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from showing import arguments, write_figure, write_table

import snapgrad as sg
from snapgrad.report.style import COLOURS

UNITS, WINDOW, GAPS, DISTRACTORS, RATE = 16, 10, (20, 40), 4, 5e-3
INPUTS = 3 + DISTRACTORS  # two cues, the question
NOTHING = -1  # as an answer: none is asked for
SEEDS = range(3, 8)  # units, rate and bias were chosen by looking at SnAp-1 on the seeds 0 to 2, which are not shown
COLUMNS = ("right answers at the end of", "phase 1", "phase 2", "phase 3", "ms a sample", "memory")


def make_stream(seed: int, questions: int, drift_every: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples [T, INPUTS], one-hot, and answers [T]: 0 or 1 at a question, else NOTHING."""
    rng = np.random.default_rng(seed)
    xs, ys = [], []
    for number in range(questions):
        cue, gap = rng.integers(2), rng.integers(GAPS[0], GAPS[1] + 1)
        symbols = np.concatenate([[cue], 3 + rng.integers(DISTRACTORS, size=gap), [2]])
        xs.append(np.eye(INPUTS, dtype=np.float32)[symbols])
        ys.append(np.full(len(symbols), NOTHING, np.int32))
        ys[-1][-1] = cue ^ (number // drift_every % 2)
    return np.concatenate(xs), np.concatenate(ys)


def make_learner(seed: int) -> sg.OnlineLearner:
    """The network. Its forget gates begin at sigmoid(3) = 0.95: what is kept decays to a third in 20 steps."""
    learner = sg.OnlineLearner(INPUTS, 2, cell="lstm", units=UNITS, loss="cross_entropy", learning_rate=RATE, seed=seed)
    params = learner.params
    bias = params.cell.bias.at[UNITS : 2 * UNITS].set(3.0)
    learner.params = params._replace(cell=params.cell._replace(bias=bias))
    return learner


def by_snap(seed: int, xs: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, int]:
    """Answers to the questions, each given before it is learnt from, and the bytes that are kept."""
    learner = make_learner(seed)
    predictions, _ = learner.learn_many(xs, ys)
    state = jax.eval_shape(lambda: learner.algorithm.init(learner.params, 1))
    return predictions[ys != NOTHING].argmax(axis=1), size((*[learner.params] * 3, state))


def by_truncated_bptt(seed: int, xs: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, int]:
    """The same from windows that follow one another, with the state carried on."""
    length = len(xs) // WINDOW * WINDOW
    windows = (xs[:length].reshape(-1, WINDOW, 1, INPUTS), ys[:length].reshape(-1, WINDOW, 1))
    params, algorithm, update = bptt(seed)
    carry = (params, ADAM.init(params)), algorithm.init(params, 1)
    _, answers = jax.jit(lambda carry, windows: jax.lax.scan(update, carry, windows))(carry, windows)
    asked = ys[:length] != NOTHING
    return np.asarray(answers).reshape(-1)[asked], size([params] * 3) + 4 * WINDOW * (INPUTS + 2 * UNITS)


def by_windowed_bptt(seed: int, xs: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, int]:
    """The same from the last samples before each question, from a state of zero."""
    places = np.flatnonzero(ys != NOTHING)
    steps = places[:, None] + np.arange(1 - WINDOW, 1)  # [questions, WINDOW]
    windows = (xs[steps][:, :, None], np.where(np.arange(WINDOW) == WINDOW - 1, ys[steps], NOTHING)[:, :, None])
    params, algorithm, update = bptt(seed)
    fresh = algorithm.init(params, 1)

    def from_zero(trained: Any, window: Any) -> Any:
        (trained, _), answers = update((trained, fresh), window)
        return trained, answers[-1]

    trained = params, ADAM.init(params)
    _, answers = jax.jit(lambda trained, windows: jax.lax.scan(from_zero, trained, windows))(trained, windows)
    return np.asarray(answers).reshape(-1), size([params] * 3) + 4 * WINDOW * (INPUTS + 2 * UNITS)


ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE))  # as the learner's


def bptt(seed: int) -> tuple[sg.Params, sg.Algorithm, Callable[..., Any]]:
    """The learner's own network, BPTT over a window, and an update with it, where something is asked."""
    learner, readout = make_learner(seed), sg.Readout(2)
    algorithm = sg.bptt(learner.cell, readout.loss)

    def update(carry: Any, window: Any) -> tuple[Any, jax.Array]:
        (params, opt_state), state = carry
        xs, ys = window
        gradient, state = algorithm.grad(params, state, xs, ys)
        logits = jax.vmap(lambda h: readout.logits(params.readout, h))(gradient.info.outputs[:, 0])
        updates, new_state = ADAM.update(gradient.grads, opt_state, params)
        new, old = (optax.apply_updates(params, updates), new_state), (params, opt_state)
        asked = (ys != NOTHING).any()
        return (jax.tree.map(lambda *both: jnp.where(asked, *both), new, old), state), jnp.argmax(logits, axis=1)

    return learner.params, algorithm, update


def size(tree: Any) -> int:
    """Bytes of all arrays of a tree."""
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


METHODS = {
    "SnAp-1": (by_snap, COLOURS["SnAp-1"]),
    f"truncated BPTT, T = {WINDOW}": (by_truncated_bptt, COLOURS["Truncated BPTT"]),
    f"windowed BPTT, the last {WINDOW}": (by_windowed_bptt, COLOURS["RTRL"]),
}


def main() -> None:
    given = arguments("Recall of a cue from beyond any window, on a stream whose meaning drifts.")
    drift_every, seeds = (20, SEEDS[:1]) if given.small else (2500, SEEDS)
    questions = 3 * drift_every
    right: dict[str, list[np.ndarray]] = {name: [] for name in METHODS}
    rows, starts = [], range(0, questions, drift_every)
    for name, (method, _) in METHODS.items():
        seconds, samples, memory = 0.0, 0, 0
        for seed in seeds:
            xs, ys = make_stream(seed, questions, drift_every)
            begun = time.perf_counter()
            answers, memory = method(seed, xs, ys)
            seconds, samples = seconds + time.perf_counter() - begun, samples + len(xs)
            wanted = ys[ys != NOTHING][: len(answers)]
            right[name].append(answers == wanted)
            parts = " ".join(f"{part.mean():.2f}" for part in np.array_split(right[name][-1], 15))
            print(f"{name}, seed {seed}: {parts}", flush=True)
        phases = [at_the_end([one[start : start + drift_every] for one in right[name]]) for start in starts]
        rows.append((name, *phases, f"{1e3 * seconds / samples:.3f}", f"{memory / 1000:.1f} kB"))
    write_table(given.out / "recall.md", COLUMNS, rows)
    write_figure(given.out / "recall.svg", lambda figure: draw(figure, right, drift_every))


def at_the_end(found: list[np.ndarray]) -> str:
    """The share of right answers in the last fifth of a phase: the mean, and that of each seed."""
    ends = [one[-len(one) // 5 :].mean() for one in found]
    return f"{np.mean(ends):.0%} ({', '.join(f'{end:.0%}' for end in ends)})"


def draw(figure: Any, right: dict[str, list[np.ndarray]], drift_every: int) -> None:
    """The share of right answers over time, a line a seed."""
    axes = figure.subplots()
    for name, (_, colour) in METHODS.items():
        for number, found in enumerate(right[name]):
            width = max(1, len(found) // 60)
            shares = np.convolve(found, np.ones(width) / width, mode="valid")
            sparse = slice(None, None, max(1, width // 4))  # more points would only make the file larger
            axes.plot(
                np.arange(width, len(found) + 1)[sparse],
                shares[sparse],
                color=colour,
                linewidth=1.4,
                label=name if not number else None,
            )
    for place in range(drift_every, max(map(len, right["SnAp-1"])), drift_every):
        axes.axvline(place, color="#666666", linestyle=":", linewidth=1)
        axes.annotate("the meaning turns round", (place, 0.02), xytext=(4, 0), textcoords="offset points", fontsize=9)
    axes.axhline(0.5, color="#bbbbbb", linewidth=0.8)
    axes.set(xlabel="questions", ylabel="share of right answers", ylim=(0, 1.05))
    axes.set_title(f"Recall after {GAPS[0]} to {GAPS[1]} distractors; one line a seed")
    axes.grid(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")


if __name__ == "__main__":
    main()
