"""The learner for streams: a loop written by hand, the same bits in every form, and what it predicts."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import INPUTS, STEPS, UNITS, XS, YS, learn_all, leaves, same

import snapgrad as sg
from snapgrad.kernels.native import settled

# ---- the same bits


def test_learner_is_a_loop_of_snap_and_optax(fresh):
    learner = copy.deepcopy(fresh)
    cell, readout, params = learner.cell, sg.Readout(1), learner.params
    algo = sg.snap(cell, lambda weights, h, y: (readout.logits(weights, h)[0] - y) ** 2, order=2)
    optimiser = optax.flatten(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.05)))

    @jax.jit
    def step(params, opt_state, state, x, y):
        grad, state = algo.grad(params, state, x[None, None], y[None, None])
        prediction = readout.logits(params.readout, grad.info.outputs[0, 0])[0]
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimiser.update(grad.grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, state, prediction, grad.loss

    opt_state, state = optimiser.init(params), algo.init(params, 1)
    for x, y in zip(XS, YS, strict=True):
        params, opt_state, state, prediction, loss = step(params, opt_state, state, jnp.array(x), jnp.array(y))
        assert learner.learn(x, y) == pytest.approx((float(prediction), float(loss)), rel=1e-10)
    found = learner.__getstate__()["carry"]
    for own, other in ((found.params, params), (found.opt_state, opt_state), (found.state, state)):
        for leaf, wanted in zip(jax.tree.leaves(own), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=1e-10, atol=1e-14)
    assert learner.counts["samples"] == STEPS


def test_learn_many_is_learn_in_one_call(fresh):
    one, many = copy.deepcopy(fresh), copy.deepcopy(fresh)
    told = learn_all(one)
    parts = [many.learn_many(XS[at], YS[at]) for at in (slice(7), slice(7, STEPS))]
    predictions, losses = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert list(zip(predictions, losses, strict=True)) == told
    assert same(one, many)
    assert one.counts == many.counts


def test_predict_says_what_learn_will_say_and_changes_nothing(fresh):
    learner = copy.deepcopy(fresh)
    for x, y in zip(XS[:5], YS, strict=False):
        before = leaves(learner)
        predicted = learner.predict(x)
        assert isinstance(predicted, float)
        assert all(np.array_equal(a, b) for a, b in zip(before, leaves(learner), strict=True))
        prediction, _ = learner.learn(x, y)
        np.testing.assert_allclose(predicted, prediction, rtol=1e-12)


def test_lanes_share_weights_and_nothing_else(fresh, pair):
    one, two = copy.deepcopy(fresh), copy.deepcopy(pair)
    for x, y in zip(XS, YS, strict=True):
        prediction, loss = one.learn(x, y)
        predictions, losses = two.learn(np.stack([x, x]), np.array([y, y]))
        np.testing.assert_allclose(predictions, prediction, rtol=1e-10)
        np.testing.assert_allclose(losses, loss, rtol=1e-8)
    two.learn(np.stack([XS[0], XS[1]]), YS[:2])
    after = two.predict(np.stack([XS[2], XS[2]]))
    assert after[0] != after[1]


def test_reset_begins_a_sequence_in_its_lanes(pair):
    learner = copy.deepcopy(pair)
    learn_all(learner, np.stack([XS, XS], axis=1), np.stack([YS, YS], axis=1))
    kept, x = learner.predict(np.stack([XS[0]] * 2)), np.stack([XS[0]] * 2)
    begun = copy.deepcopy(pair)
    begun.params = learner.params
    learner.reset(np.array([True, False]))
    np.testing.assert_array_equal(learner.predict(x), [begun.predict(x)[0], kept[1]])
    learner.reset()
    np.testing.assert_array_equal(learner.predict(x), begun.predict(x))
    state = learner.__getstate__()["carry"].state
    assert not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(settled(state.memory)))


def test_nothing_is_traced_after_the_first_sample():
    traced = []

    def loss(prediction, y):
        traced.append(None)
        return jnp.abs(prediction - y["target"])

    learner = sg.OnlineLearner(INPUTS, 1, units=2, loss=loss, optimiser="sgd")
    learner.learn(XS[0], {"target": YS[0]})
    once = len(traced)
    assert once
    learner.learn([1, 2, 3], {"target": np.float32(2)})
    learner.learn(np.full(INPUTS, np.nan), {"target": 1e30})
    copy.deepcopy(learner).learn(XS[1], {"target": 0.5})
    assert len(traced) == once
    with pytest.raises(ValueError, match="`y` must have the structure, shapes and dtypes of the first one"):
        learner.learn(XS[0], {"target": 1})


# ---- what it predicts


def test_a_sample_is_learnt_from_in_one_thread(fresh):
    # XLA runs the body of a loop in the thread that is there, if it has not seen through the loop and removed it.
    learner = copy.deepcopy(fresh)
    learner.learn(XS[0], YS[0])
    program = learner._programs["learn"].as_text()
    entry = program[program.index("ENTRY") :]
    assert "while(" in entry
    assert "custom-call(" not in entry  # the native kernels are in the loop


@contextmanager
def compilations():
    """Seconds of each program that XLA compiles inside."""
    seen = []

    def listen(event, duration_secs, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_learn_many_compiles_once_for_all_lengths_up_to_the_next_power_of_two(fresh):
    learner = copy.deepcopy(fresh)
    learner.learn_many(XS[:16], YS[:16])
    with compilations() as compiled:
        for steps in (3, 9, 13):
            learner.learn_many(XS[:steps], YS[:steps])
    assert not compiled


def test_a_learner_is_saved_again_without_compiling(fresh, tmp_path):
    learner = copy.deepcopy(fresh)
    for _ in range(2):
        with compilations() as compiled:
            learner.learn(XS[0], YS[0])
            learner.predict(XS[1])
            learner.save(tmp_path / "learner")
            assert learner.params
    assert not compiled  # the second time


def test_classes_are_told_apart():
    learner = sg.OnlineLearner(4, 4, cell="vanilla", units=8, symbols=True, loss="cross_entropy", learning_rate=0.05)
    symbols = np.arange(400) % 4
    probabilities, losses = learner.learn_many(symbols[:-1], symbols[1:])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(losses, -np.log(probabilities[np.arange(399), symbols[1:]]), rtol=1e-9)
    assert losses[:4].mean() > 1 > 0.1 > losses[-4:].mean()
    np.testing.assert_array_equal(learner.generate(3, 6, temperature=0), [0, 1, 2, 3, 0, 1])
    drawn = [learner.generate(3, 6, temperature=50, seed=seed).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    before = learner.params
    _, loss = learner.learn(-1, -1)  # no input, nothing asked
    assert np.isnan(loss)
    assert all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(learner.params)))


def test_what_is_generated_is_read_as_the_next_input(fresh):
    learner = copy.deepcopy(fresh)
    learn_all(learner)
    features = XS[:3, 1:]
    generated = learner.generate(XS[0], 4, features=features)
    by_hand, x = copy.deepcopy(learner), XS[0]
    for t in range(4):
        prediction, _ = by_hand.learn(x, np.nan)  # reads, and does not learn
        np.testing.assert_allclose(generated[t], prediction, rtol=1e-12)
        x = np.concatenate([[prediction], features[t]]) if t < 3 else None
    np.testing.assert_array_equal(learner.generate(XS[0], 4, features=features), generated)


def test_weights_go_to_pytorch_and_back():
    torch = pytest.importorskip("torch")
    module = torch.nn.LSTM(INPUTS, UNITS).double()
    learner = sg.OnlineLearner(INPUTS, 2, cell=sg.LSTM(INPUTS, UNITS, recurrent_bias=True))
    learner.from_torch(module.state_dict())
    weights = learner.to_torch()
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(weights[name], tensor.numpy())
    hs = module(torch.from_numpy(XS[:, None]))[0].detach().numpy()[:, 0]
    learner = sg.OnlineLearner(INPUTS, 2, cell=learner.cell, optimiser="sgd", learning_rate=1e-30)
    learner.from_torch(weights)
    predictions, _ = learner.learn_many(XS, np.zeros((STEPS, 2)))
    wanted = hs @ weights["readout.0.weight"].T + weights["readout.0.bias"]
    np.testing.assert_allclose(predictions, wanted, rtol=1e-10)
