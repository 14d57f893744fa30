"""The long short-term memory cell."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from snapgrad.cells.rule import known_structure
from snapgrad.cells.unit import UnitCell


@known_structure(
    by_state=[[0, 1], [0, 1]], by_input=[[1, 1, 1, 1], [1, 1, 1, 0]], by_recurrent=[[1, 1, 1, 1], [1, 1, 1, 0]]
)
def _rule(s: Any, u: Any, v: Any) -> Any:
    _, c_tm1 = s
    i, f, g, o = (u_n + v_n for u_n, v_n in zip(u, v, strict=True))
    c_t = jax.nn.sigmoid(f) * c_tm1 + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c_t), c_t


def LSTM(inputs: int, units: int, *, recurrent_bias: bool = False) -> UnitCell:
    """The LSTM without peepholes, as `torch.nn.LSTM` (with `recurrent_bias=True` its weights fit exactly).

    i, f, o = sigmoid(W_x x_t + b + W_h h_tm1 [+ b_h])      gates in PyTorch's order i, f, g, o
    g       = tanh(W_x x_t + b + W_h h_tm1 [+ b_h])
    c_t     = f c_tm1 + i g
    h_t     = o tanh(c_t)

    The state is [2, units]: h and c. The forget gate's bias starts at 1 (Jozefowicz et al. 2015), the others at 0.
    """
    bias = (0.0, 1.0, 0.0, 0.0)
    return UnitCell(
        _rule, inputs, units, gates=4, states=2, recurrent_bias=recurrent_bias, initial_bias=bias, name="LSTM"
    )
