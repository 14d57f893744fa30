"""Unit-wise cells equal PyTorch's on the same weights: outputs, and gradients by backpropagation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import snapgrad as sg

INPUTS, UNITS, BATCH, STEPS = 3, 5, 2, 6
PAIRS = {"Vanilla": torch.nn.RNN, "GRU": torch.nn.GRU, "LSTM": torch.nn.LSTM}


@pytest.mark.parametrize("name", PAIRS)
def test_outputs_states_and_gradients_equal_torch(name):
    torch.manual_seed(0)
    module = PAIRS[name](INPUTS, UNITS).double()
    xs = torch.randn(STEPS, BATCH, INPUTS, dtype=torch.float64)
    targets = torch.randn(STEPS, BATCH, UNITS, dtype=torch.float64)
    outputs, last = module(xs)
    ((outputs - targets) ** 2).sum(-1).mean(1).sum().backward()

    cell = getattr(sg, name)(INPUTS, UNITS, recurrent_bias=True)
    weights = {key: jnp.asarray(value.detach().numpy()) for key, value in module.named_parameters()}
    layout = ("weight_hh_l0", "weight_ih_l0", "bias_ih_l0", "bias_hh_l0")
    params = sg.Params(cell.from_dense(*(weights[key] for key in layout)), ())

    algorithm = sg.bptt(cell, lambda readout, h, target: jnp.sum((h - target) ** 2))
    state = algorithm.init(params, batch_size=BATCH)
    gradient, state = jax.jit(algorithm.grad)(params, state, jnp.asarray(xs.numpy()), jnp.asarray(targets.numpy()))
    expected_last = np.stack([part.detach().numpy()[0] for part in (last if name == "LSTM" else (last,))], axis=1)
    np.testing.assert_allclose(state.cell, expected_last, rtol=1e-12, atol=1e-12)
    for key, grad in zip(layout, cell.to_dense(gradient.grads.cell), strict=True):
        expected = dict(module.named_parameters())[key].grad.numpy()
        np.testing.assert_allclose(grad, expected, rtol=1e-10, atol=1e-10)


def test_the_original_gru_resets_before_the_product():
    cell = sg.GRU(INPUTS, UNITS, variant="original")
    params = cell.init(jax.random.key(0), sparsity=0.5)
    s, x = np.linspace(-1, 1, UNITS), np.linspace(-1, 1, INPUTS)
    gates, candidate, input = (np.asarray(m.to_dense()) for m in (params.gates, params.candidate, params.input))
    u, v = (input @ x).reshape(3, UNITS), (gates @ s).reshape(2, UNITS)
    r, z = 1 / (1 + np.exp(-(u[:2] + v)))
    expected = (1 - z) * np.tanh(u[2] + candidate @ (r * s)) + z * s
    np.testing.assert_allclose(cell.step(params, jnp.asarray(s), jnp.asarray(x)), expected, rtol=1e-12)
