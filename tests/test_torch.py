"""Unit-wise cells equal PyTorch's on the same weights: outputs, and gradients by backpropagation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
from variants import case

import snapgrad as sg
from snapgrad import files

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


@pytest.mark.parametrize(
    ("name", "dtype"),
    [case(name, dtype, quick=dtype is np.float32) for name in PAIRS for dtype in (np.float64, np.float32)],
)
def test_exported_weights_give_the_same_logits_in_torch_and_come_back(name, dtype, tmp_path):
    cell, readout = getattr(sg, name)(INPUTS, UNITS), sg.Readout(4, hidden=(6,))  # without a recurrent bias
    params = sg.Params(cell.init(jax.random.key(0), sparsity=0.5), readout.init(jax.random.key(1), UNITS))
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf) + 0.1, dtype), params)  # no bias is zero
    files.write_arrays(tmp_path / "torch.safetensors", sg.to_torch(cell, params), {})

    weights = safetensors.torch.load_file(tmp_path / "torch.safetensors")
    module = PAIRS[name](INPUTS, UNITS)
    module.readout = torch.nn.Sequential(torch.nn.Linear(UNITS, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    module = module.to(weights["weight_hh_l0"].dtype)
    module.load_state_dict(weights)  # strict: all names, no other
    xs = np.random.default_rng(0).normal(size=(STEPS, INPUTS)).astype(dtype)
    expected = module.readout(module(torch.from_numpy(xs))[0]).detach().numpy()

    def step(s, x):
        s = cell.step(params.cell, s, x)
        return s, readout.logits(params.readout, cell.output(s))

    start = cell.initial_state().astype(dtype)
    found = jax.lax.scan(step, start, jnp.asarray(xs))[1]
    assert found.dtype == expected.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=200 * np.finfo(dtype).eps)

    back = sg.from_torch(cell, module.state_dict())
    jax.tree.map(np.testing.assert_array_equal, sg.to_torch(cell, back), sg.to_torch(cell, params))
    readout_names = [key for key in weights if key.startswith("readout")]
    alone = sg.from_torch(cell, {key: weights[key] for key in weights.keys() - readout_names})
    assert alone.readout == ()


def test_weights_that_do_not_fit_torch_or_the_cell_are_refused():
    cell = sg.GRU(INPUTS, UNITS)
    params = sg.Params(cell.init(jax.random.key(0)), ())
    original = sg.GRU(INPUTS, UNITS, variant="original")
    with pytest.raises(
        TypeError, match=r"`cell` must be a sg.Vanilla, sg.GRU or sg.LSTM, which PyTorch has too, got Orig"
    ):
        sg.to_torch(original, params)
    with pytest.raises(TypeError, match=r"`params.readout` must be what sg.Readout.init returns"):
        sg.to_torch(cell, params._replace(readout=jnp.zeros((2, 5))))
    with pytest.raises(ValueError, match="`cell` must have recurrent_bias=True where bias_hh_l0 is not zero, got GRU"):
        sg.from_torch(cell, torch.nn.GRU(INPUTS, UNITS).state_dict())
    with pytest.raises(ValueError, match=r"`weights` must have the names .*, got also bias_hh_l1"):
        sg.from_torch(cell, torch.nn.GRU(INPUTS, UNITS, num_layers=2).state_dict())
    with pytest.raises(ValueError, match=r"`weights` must have the names .*, got none of bias_hh_l0"):
        sg.from_torch(cell, torch.nn.GRU(INPUTS, UNITS, bias=False).state_dict())
    with pytest.raises(ValueError, match=r"`recurrent` must have shape \(15, 5\), got \(20, 5\)"):
        sg.from_torch(cell, sg.to_torch(lstm := sg.LSTM(INPUTS, UNITS), sg.Params(lstm.init(jax.random.key(0)), ())))
