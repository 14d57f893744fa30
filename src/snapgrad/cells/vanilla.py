"""The vanilla recurrent cell."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from snapgrad.cells.rule import known_structure
from snapgrad.cells.unit import UnitCell


@known_structure(by_state=[[0]], by_input=[[1]], by_recurrent=[[1]])
def _rule(s: Any, u: Any, v: Any) -> Any:
    return (jnp.tanh(u[0] + v[0]),)


def Vanilla(inputs: int, units: int, *, recurrent_bias: bool = False) -> UnitCell:
    """The tanh cell, as `torch.nn.RNN` (with `recurrent_bias=True` its weights fit exactly).

    h_t = tanh(W_x x_t + b + W_h h_tm1 [+ b_h])
    """
    return UnitCell(_rule, inputs, units, gates=1, states=1, recurrent_bias=recurrent_bias, name="Vanilla")
