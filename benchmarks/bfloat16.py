"""What storing J in bfloat16 does to the gradient where influence fades slowly or never.

Three networks run for 500 steps, with an input that stays and with one that is drawn anew at every step; the gradient
of the last step is compared with float64. Printed are the relative error of the gradient and that of its worst entry
(of those at least a tenth as large as the largest), each the median over ten seeds of the rounding, with the range of
the latter, for a batch of 1 and of 16.

    python benchmarks/bfloat16.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import snapgrad as sg

STEPS, SEEDS, INPUTS, UNITS = 500, 10, 4, 32


def leaky(s: Any, u: Any, v: Any) -> Any:
    (h,) = s
    return (0.99 * h + 0.01 * jnp.tanh(u[0] + v[0]),)


def summed(s: Any, u: Any, v: Any) -> Any:
    return (u[0] + 0 * v[0],)


def loss(readout: Any, h: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.vdot(readout, h)


def networks() -> dict[str, tuple[Any, Any]]:
    """By name: parameters in float64, and a function from `influence_dtype` to the algorithm."""
    leak, accumulator = (sg.UnitCell(rule, INPUTS, UNITS) for rule in (leaky, summed))
    lstm = sg.LSTM(INPUTS, UNITS)
    of_leak, of_lstm, of_accumulator = (
        cell.init(jax.random.key(0), sparsity=0.75, dtype=np.float64) for cell in (leak, lstm, accumulator)
    )
    # c adds up all the time: with little feedback, and on small inputs, tanh(c) does not saturate.
    little = jax.tree.map(lambda leaf: 0.1 * leaf, of_lstm.recurrent)
    of_lstm = of_lstm._replace(bias=of_lstm.bias.at[UNITS : 2 * UNITS].set(7.0), recurrent=little)
    return {
        "SnAp-1, leak of 0.99": (of_leak, lambda dtype: sg.snap(leak, loss, order=1, influence_dtype=dtype)),
        "SnAp-1, LSTM, forget bias 7": (of_lstm, lambda dtype: sg.snap(lstm, loss, order=1, influence_dtype=dtype)),
        "RFLO, decay 1": (of_accumulator, lambda dtype: sg.rflo(accumulator, loss, decay=1, influence_dtype=dtype)),
    }


def inputs(name: str, kind: str, batch: int) -> np.ndarray:
    steps = 1 if kind == "constant" else STEPS
    xs = np.random.default_rng(0).normal(size=(steps, batch, INPUTS)) * (0.01 if "LSTM" in name else 1)
    return np.broadcast_to(xs, (STEPS, batch, INPUTS))


def gradients(algorithm: Any, params: Any, xs: np.ndarray, keys: Any) -> np.ndarray:
    """dL_T/dtheta of the cell for each key, [keys, params]."""
    params = sg.Params(params, jnp.ones(UNITS, jax.tree.leaves(params)[0].dtype))
    batch = xs.shape[1]
    grad, nothing = jax.jit(algorithm.grad), jnp.zeros((STEPS, batch))
    found = []
    for key in keys:
        _, state = grad(params, algorithm.init(params, batch, key=key), xs[:-1], nothing[:-1])
        last, _ = grad(params, state, xs[-1:], nothing[-1:])
        found.append(np.asarray(jax.flatten_util.ravel_pytree(last.grads.cell)[0], np.float64))
    return np.stack(found)


def errors(found: np.ndarray, exact: np.ndarray) -> tuple[float, np.ndarray]:
    """The relative error, the median over the seeds, and the worst entry's for each."""
    whole = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact)
    large = np.abs(exact) >= 0.1 * np.abs(exact).max()
    return float(np.median(whole)), np.max(np.abs(found / np.where(large, exact, 1) - 1)[:, large], axis=1)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for name, (params, algorithm) in networks().items():
        narrow = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
        for kind in ("constant", "random"):
            for batch in (1, 16):
                xs = inputs(name, kind, batch)
                exact = gradients(algorithm(None), params, xs, [None])[0]
                keys = jax.random.split(jax.random.key(1), SEEDS)
                found = gradients(algorithm("bfloat16"), narrow, xs.astype(np.float32), keys)
                whole, worst = errors(found, exact)
                print(
                    f"{name:28} {kind:9} input, batch {batch:2}: {whole:7.2%}   worst entry {np.median(worst):7.2%} "
                    f"({worst.min():.2%} to {worst.max():.2%})"
                )


if __name__ == "__main__":
    main()
