"""Weights in PyTorch's names and layout: what `torch.nn.RNN`, `GRU` and `LSTM` of one layer call them.

    weight_ih_l0 [G * units, inputs]    weight_hh_l0 [G * units, units]    bias_ih_l0, bias_hh_l0 [G * units]
    readout.0.weight, readout.0.bias, readout.2.weight, ...    as a torch.nn.Sequential of Linear and ReLU in turns

So `load_state_dict` of a `torch.nn.GRU(inputs, units)` takes them, when its attribute `readout` is such a Sequential.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.algorithms import checks
from snapgrad.algorithms.interface import Params
from snapgrad.cells.base import Cell
from snapgrad.cells.gru import GRU
from snapgrad.cells.lstm import LSTM
from snapgrad.cells.unit import UnitCell
from snapgrad.cells.vanilla import Vanilla

RULES = {make(1, 1).rule for make in (Vanilla, GRU, LSTM)}
NAMES = {"recurrent": "weight_hh_l0", "input": "weight_ih_l0", "bias": "bias_ih_l0", "recurrent_bias": "bias_hh_l0"}


def to_torch(cell: Cell, params: Params) -> dict[str, np.ndarray]:
    """The weights as dense arrays in PyTorch's names.

    Args:
        cell: `sg.Vanilla`, `sg.GRU` (not its original variant) or `sg.LSTM`. One without a recurrent bias gets zeros.
        params: its parameters; the readout is one of `sg.Readout`, or () for none.
    """
    _check(cell)
    assert isinstance(cell, UnitCell)
    checks.params(cell, params)
    dense = cell.to_dense(params.cell)._asdict()
    if dense["recurrent_bias"] is None:
        dense["recurrent_bias"] = jnp.zeros_like(params.cell.bias)
    weights = {name: dense[field] for field, name in NAMES.items()}
    if not isinstance(params.readout, list | tuple) or not all(
        isinstance(layer, tuple) and [jnp.ndim(part) for part in layer] == [2, 1] for layer in params.readout
    ):
        raise TypeError("`params.readout` must be what sg.Readout.init returns, or (), got another tree")
    for number, (weight, bias) in enumerate(params.readout):
        weights |= {f"readout.{2 * number}.weight": weight, f"readout.{2 * number}.bias": bias}
    return {name: np.asarray(array) for name, array in weights.items()}


def from_torch(cell: UnitCell, weights: Mapping[str, Any]) -> Params:
    """Parameters from weights in PyTorch's names, such as `module.state_dict()`; `to_torch` the other way round.

    All weights exist; `cell.from_dense` takes masks for sparse ones.

    Args:
        cell: `sg.Vanilla`, `sg.GRU` (not its original variant) or `sg.LSTM`. One without a recurrent bias takes weights
            whose `bias_hh_l0` is zero.
        weights: a mapping from names to arrays or tensors.
    """
    _check(cell)
    if not isinstance(weights, Mapping):
        got = type(weights).__name__
        raise TypeError(f"`weights` must map names to arrays, as module.state_dict() does, got {got}")
    arrays = {name: np.asarray(array) for name, array in weights.items()}
    layers = sum(name.startswith("readout.") for name in arrays) // 2
    readout_names = [(f"readout.{2 * n}.weight", f"readout.{2 * n}.bias") for n in range(layers)]
    wanted = {*NAMES.values(), *(name for pair in readout_names for name in pair)}
    if wanted != arrays.keys():
        missing, unknown = sorted(wanted - arrays.keys()), sorted(arrays.keys() - wanted)
        raise ValueError(
            f"`weights` must have the names {', '.join(NAMES.values())}, and those of a readout if there is one, "
            f"got {f'none of {missing[0]}' if missing else f'also {unknown[0]}'}"
        )
    given = {field: arrays[name] for field, name in NAMES.items()}
    if not cell.recurrent_bias and given.pop("recurrent_bias").any():
        raise ValueError(f"`cell` must have recurrent_bias=True where bias_hh_l0 is not zero, got {cell}")
    readout = [tuple(jnp.array(arrays[name]) for name in pair) for pair in readout_names]
    return Params(cell.from_dense(**given), readout or ())


def _check(cell: Cell) -> None:
    if not isinstance(cell, UnitCell) or cell.rule not in RULES:
        got = arguments.shown(cell)
        raise TypeError(f"`cell` must be a sg.Vanilla, sg.GRU or sg.LSTM, which PyTorch has too, got {got}")
