"""The learner for streams: a loop written by hand, the same bits in every form, and whatever the stream brings."""

from __future__ import annotations

import copy
import pickle
import warnings
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.flatten_util import ravel_pytree

import snapgrad as sg
from snapgrad.kernels.native import settled
from snapgrad.learner import cache, dispatch, packing
from snapgrad.learner.settings import MOST_CLIP
from snapgrad.learner.widening import widen
from snapgrad.optimisers import BOUNDED, ELEMENTWISE, make, parse

INPUTS, UNITS, STEPS = 3, 5, 24
RNG = np.random.default_rng(0)
XS = RNG.normal(size=(STEPS, INPUTS))
YS = np.roll(XS[:, 0], 2)
SETTINGS = {"units": UNITS, "sparsity": 0.4, "order": 2, "learning_rate": 0.05, "seed": 3}


@pytest.fixture(scope="module")
def fresh():
    """A learner before its first sample; tests take copies, which share what is compiled."""
    return sg.OnlineLearner(INPUTS, 1, **SETTINGS)


@pytest.fixture(scope="module")
def pair():
    """The same for two lanes."""
    return sg.OnlineLearner(INPUTS, 1, lanes=2, **SETTINGS)


def leaves(learner):
    """What a learner, or a part of its carry, consists of."""
    carry = learner.__getstate__()["carry"] if isinstance(learner, sg.OnlineLearner) else learner
    return [np.asarray(leaf) for leaf in jax.tree.leaves(carry)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def learn_all(learner, xs=XS, ys=YS):
    return [learner.learn(x, y) for x, y in zip(xs, ys, strict=True)]


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


# ---- to and from disk, copies


@pytest.mark.parametrize("way", ["save", "pickle", "deepcopy", "copy"])
def test_a_copy_goes_on_to_the_same_bits(way, fresh, tmp_path):
    learner = copy.deepcopy(fresh)
    learn_all(learner)
    learner.learn(XS[0], np.nan)
    if way == "save":
        learner.save(tmp_path / "learner.safetensors")
        other = sg.OnlineLearner.load(tmp_path / "learner.safetensors")
    else:
        other = pickle.loads(pickle.dumps(learner)) if way == "pickle" else getattr(copy, way)(learner)
    assert same(learner, other)
    assert learn_all(learner) == learn_all(other)
    assert same(learner, other)
    assert (
        learner.counts == other.counts == {**dict.fromkeys(learner.counts, 0), "samples": 2 * STEPS + 1, "skipped": 1}
    )
    learner.learn(XS[0], YS[0])
    assert not same(learner, other)


def test_what_a_file_cannot_hold_is_asked_for(tmp_path):
    path = tmp_path / "own.safetensors"
    made = {
        "cell": sg.stack(sg.GRU(INPUTS, 2), sg.LSTM(2, 3)),
        "loss": lambda p, y: jnp.abs(p - y),
        "optimiser": optax.sgd(0.1),
    }
    learner = sg.OnlineLearner(INPUTS, 1, backend="reference", **made)
    learner.save(path)
    with pytest.raises(ValueError, match="`loss` must be given to load a learner that was made with an object"):
        sg.OnlineLearner.load(path)
    with pytest.raises(ValueError, match="`cell` must not be given to load a learner whose file has it"):
        sg.OnlineLearner.load(path, **made)
    del made["cell"]
    other = sg.OnlineLearner.load(path, **made)
    assert other.cell == learner.cell
    assert same(learner, other)


def test_files_that_are_no_learner_are_refused(fresh, tmp_path):
    path = tmp_path / "learner.safetensors"
    fresh.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="`path` must be a whole safetensors file"):
        sg.OnlineLearner.load(path)
    path.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(ValueError, match="whose content does not fit its digest"):
        sg.OnlineLearner.load(path)
    sg.save(path, fresh.params)
    with pytest.raises(ValueError, match=r"`path` must be a file that OnlineLearner\.save wrote"):
        sg.OnlineLearner.load(path)
    with pytest.raises(FileNotFoundError, match="`path` must be a file"):
        sg.OnlineLearner.load(tmp_path / "nothing")


# ---- whatever the stream brings


def all_finite(learner):
    return all(np.isfinite(leaf).all() for leaf in leaves(learner) if leaf.dtype.kind == "f")


BAD = [np.nan, np.inf, -np.inf, 1e12, 1e300]


def test_bad_values_are_skipped(fresh):
    learner = copy.deepcopy(fresh)
    learn_all(learner)
    weights = learner.params
    for bad in BAD:
        prediction, loss = learner.learn([bad, 0.5, 0.5], 1.0)
        assert np.isfinite(prediction)
        assert np.isnan(loss)
        assert np.isfinite(learner.predict([bad, 0.5, 0.5]))
        learner.learn(XS[0], bad)
    assert all(map(np.array_equal, jax.tree.leaves(weights), jax.tree.leaves(learner.params)))
    assert learner.counts["skipped"] == 2 * len(BAD)
    assert all_finite(learner)
    before = learner.counts["samples"]
    learn_all(learner)  # and it goes on
    assert learner.counts["samples"] == before + STEPS
    assert learner.counts["skipped"] == 2 * len(BAD)


def test_a_lane_without_a_target_does_not_hold_up_the_others():
    """Also where the loss has no finite derivative at what stands for the missing one."""
    learner = sg.OnlineLearner(2, 1, units=4, lanes=2, loss=lambda prediction, y: jnp.abs(prediction - y) / y)
    before = learner.params
    learner.learn(np.ones((2, 2)), np.array([1.0, np.nan]))
    assert learner.counts["rejected"] == 0
    assert not all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(learner.params)))


def test_numbers_of_numpy_are_settings_like_others(tmp_path):
    settings = {
        "units": np.int64(2),
        "learning_rate": np.float32(1e-3),
        "limit": np.float32(1e3),
        "hidden": (np.int64(3),),
    }
    learner = sg.OnlineLearner(np.int64(2), np.int64(1), **settings)
    learner.save(tmp_path / "learner.safetensors")
    assert same(learner, sg.OnlineLearner.load(tmp_path / "learner.safetensors"))


def test_a_limit_of_the_influence_may_be_as_large_as_one_likes():
    learner = sg.OnlineLearner(2, 1, units=2, influence_limit=1e200)
    learner.learn_many(np.ones((32, 2)), np.ones(32))
    assert learner.counts["grown"] == 0


def test_bad_values_are_clipped():
    settings = {"units": 2, "bad_values": "clip", "limit": 10.0, "lanes": 2}
    learner = sg.OnlineLearner(INPUTS, 1, **settings)
    clipped = copy.deepcopy(learner)
    for bad, instead in zip(BAD, [0, 10, -10, 10, 10], strict=True):
        told = learner.learn([[bad, 0.5, 0.5], XS[0]], [1.0, 2e10])
        np.testing.assert_array_equal(told, clipped.learn([[instead, 0.5, 0.5], XS[0]], [1.0, 10.0]))
    assert same(learner, clipped)
    assert learner.counts["clipped"] == 2 * len(BAD)
    assert learner.counts["skipped"] == clipped.counts["clipped"] == 0
    _, losses = learner.learn([XS[0], XS[1]], [np.nan, 1.0])
    np.testing.assert_array_equal(np.isnan(losses), [True, False])
    assert learner.counts["skipped"] == 1


@pytest.mark.parametrize("clip", [None, 1.0])  # everything is checked, and the gradient alone
def test_updates_that_would_break_weights_are_not_made(clip):
    """A gradient that is not finite, and one whose square is not: the moments of Adam would be broken for good."""
    learner = sg.OnlineLearner(INPUTS, 1, units=2, clip=clip, limit=None, loss=lambda p, y: p * y * 1e200)
    learner.learn(XS[0], -1e-200)
    weights, counts = leaves(learner)[:5], learner.counts
    for y in (1e150, 1e-30):
        learner.learn(XS[1], y)
        assert all(map(np.array_equal, weights, leaves(learner)[:5]))
    assert learner.counts["rejected"] == counts["rejected"] + 2
    assert all_finite(learner)
    learner.learn(XS[2], -1e-200)
    assert not all(map(np.array_equal, weights, leaves(learner)[:5]))


@pytest.mark.parametrize("call", BOUNDED, ids=str)
def test_a_bounded_optimiser_makes_nothing_infinite_of_bounded_gradients(call):
    """Of the largest, the smallest and none, in turns and for long: only the gradient is checked for these."""
    optimiser = make(call, 1.0)
    update = jax.jit(optimiser.update)
    params = jnp.array([1.0, -1e3, 0.0, 1e30], jnp.float32)
    state = optimiser.init(params)
    sizes = [MOST_CLIP, 1e-38, 0.0, -MOST_CLIP, 1e-19, 1e-45]
    for step in range(300):
        gradient = jnp.array([sizes[step % 6], sizes[step // 50], 0.0, 1e-45], jnp.float32)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        assert all(np.isfinite(leaf).all() for leaf in map(np.asarray, jax.tree.leaves((params, state))))


def test_a_state_that_is_not_finite_starts_anew():
    explosive = sg.UnitCell(exploding, inputs=INPUTS, units=2)
    learner = sg.OnlineLearner(INPUTS, 1, cell=explosive, learning_rate=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        learner.learn_many(np.tile(XS, (3, 1)), np.tile(YS, 3))
    assert learner.counts["restarted"] > 0
    assert all_finite(learner)


def exploding(s, u, v):
    return (1e9 * s[0] + u[0] + v[0],)


@pytest.mark.parametrize("growth", ["warn", "decay", "reset"])
def test_an_influence_that_grows_is_told_and_bounded(growth):
    """A vanilla cell beyond the edge of chaos: recurrent weights of five times the size."""
    learner = sg.OnlineLearner(
        INPUTS, 1, cell="vanilla", units=8, order=None, influence_growth=growth, optimiser="sgd", learning_rate=1e-9
    )
    params = learner.params
    recurrent = params.cell.recurrent
    params = params._replace(
        cell=params.cell._replace(recurrent=sg.SparseMatrix(5 * recurrent.values, recurrent.pattern))
    )
    learner.params = params
    xs, ys = RNG.normal(size=(1000, INPUTS)) * 0.1, RNG.normal(size=1000)
    with pytest.warns(RuntimeWarning, match="the influence has grown beyond 1e"):
        learner.learn_many(xs, ys)
    learner.learn_many(xs, ys)  # it is said once: a second warning would be an error
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(learner.__getstate__()["carry"].state.memory))
    assert learner.counts["grown"] > 1
    assert all_finite(learner)
    if growth == "warn":
        assert largest > 1e12
    else:
        # It is looked at every 16 steps, and grows in between.
        assert largest < 1e6 * 5.0**16


def test_a_wider_learner_goes_on_with_weights_and_moments_in_their_places():
    narrow, wide = (sg.OnlineLearner(INPUTS, n, units=2, backend="reference") for n in (2, 3))
    learn_all(narrow, XS[:4], np.stack([YS, -YS], axis=1)[:4])
    before = narrow.__getstate__()["carry"]
    widen(narrow, wide)
    after = wide.__getstate__()["carry"]

    def trees(carry):
        """The parameters, and Adam's two moments in their shapes."""
        flat, shaped = ravel_pytree(carry.params)
        moments = [leaf for leaf in jax.tree.leaves(carry.opt_state) if leaf.shape == flat.shape]
        assert len(moments) == 2
        return [carry.params, *map(shaped, moments)]

    for old, new in zip(trees(before), trees(after), strict=True):
        for leaf, wider in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
            np.testing.assert_array_equal(leaf, wider[tuple(slice(size) for size in leaf.shape)])
    assert not np.any(trees(after)[1].readout[0][0][2])  # of the new output
    assert same(after.state, before.state)


# ---- what is refused

REFUSED = {
    "inputs": ({"inputs": 0}, "`inputs` must be an integer >= 1, got 0"),
    "cell": ({"cell": "lstmm"}, '`cell` must be one of "vanilla", "gru", "lstm" or a cell'),
    "cell inputs": ({"cell": sg.GRU(4, 2)}, "`cell` must have inputs=3"),
    "units": ({"cell": sg.GRU(3, 2), "units": 2}, "`units` must not be given with a cell that has its own"),
    "algorithm": ({"algorithm": "snapp"}, '`algorithm` must be one of "bptt"'),
    "episodic": (
        {"algorithm": lambda cell, loss: sg.snap(cell, loss, order=1, episodic=True)},
        "`algorithm` must go on from sample to sample",
    ),
    "order": ({"order": 0}, "`order` must be an integer >= 1 or None"),
    "loss": ({"loss": "mse"}, '`loss` must be "squared", "cross_entropy" or a function'),
    "classes": ({"loss": "cross_entropy"}, "`outputs` must be an integer >= 2"),
    "optimiser": ({"optimiser": "adamm"}, "`optimiser` must name an optimiser of Optax"),
    "two rates": ({"optimiser": optax.sgd(1.0), "learning_rate": 0.1}, "`learning_rate` must not be given with"),
    "rate": ({"learning_rate": -1}, "`learning_rate` must be a number > 0, got -1"),
    "clip": ({"clip": 0}, "`clip` must be a number > 0, got 0"),
    "lanes": ({"lanes": 0}, "`lanes` must be an integer >= 1, got 0"),
    "limit": ({"limit": -1}, "`limit` must be a number > 0, got -1"),
    "bad values": ({"bad_values": "drop"}, '`bad_values` must be one of "skip", "clip", got'),
    "growth": ({"influence_growth": "no"}, '`influence_growth` must be one of "warn", "decay", "reset", got'),
    "seed": ({"seed": -1}, "`seed` must be an integer in"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_settings_get_one_sentence(name):
    given, sentence = REFUSED[name]
    with pytest.raises((ValueError, TypeError)) as error:
        sg.OnlineLearner(**{"inputs": INPUTS, "units": None if "cell" in given else 2} | given)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_wrong_samples_get_one_sentence(fresh, pair):
    learner = copy.deepcopy(fresh)
    symbols = sg.OnlineLearner(4, 4, units=2, symbols=True, loss="cross_entropy")
    x = XS[0]
    refused = [
        (lambda: learner.learn(XS, 1.0), "`x` must have shape (3), got (24, 3)"),
        (lambda: learner.learn("abc", 1.0), "`x` must be numbers, got 'abc'"),
        (lambda: learner.learn(x, "abc"), "`y` must be numbers, got 'abc'"),
        (lambda: learner.learn(x, [1.0, 2.0]), "`y` must have shape"),
        (lambda: learner.learn_many(XS, YS[1:]), "`ys` must have as many samples as `xs`, 24, got 23"),
        (lambda: learner.learn_many(XS[:0], YS[:0]), "`xs` must have at least one sample"),
        (lambda: learner.reset([True]), "`lanes` must be None for a learner without lanes"),
        (lambda: pair.reset([True]), "`lanes` must be booleans of shape (2,)"),
        (lambda: pair.learn(x, 1.0), "`x` must have shape (2, 3), got (3,)"),
        (lambda: symbols.learn(4, 0), "`x` must be symbols in [0, 4), or -1 for none, got 4"),
        (lambda: symbols.learn(0, -2), "`y` must be classes in [0, 4), or -1 for none, got -2"),
        (lambda: symbols.learn(0.5, 0), "`x` must be integers of shape ()"),
        (lambda: symbols.learn(np.eye(4)[0], 0), "`x` must be integers of shape ()"),
        (lambda: learner.learn(["1", "2", "3"], 1.0), "`x` must be numbers, got ['1', '2', '3']"),
        (lambda: learner.learn(x + 1j, 1.0), "`x` must be numbers, got "),
        (lambda: symbols.generate(0, 0), "`length` must be an integer >= 1"),
        (lambda: symbols.generate(0, 3, temperature=-1), "`temperature` must be a finite number >= 0"),
        (lambda: learner.generate(x, 3, features=XS), "`features` must have shape (2, 2), got (24, 3)"),
        (lambda: setattr(learner, "params", symbols.params), "`params"),
    ]
    for call, sentence in refused:
        with pytest.raises((ValueError, TypeError)) as error:
            call()
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)
    assert learner.counts["samples"] == 0


# ---- around it


@pytest.fixture
def no_cache_of_its_own():
    """A process whose user has not set up JAX's cache, as that of these tests has."""
    place = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", place)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("no_cache_of_its_own")
def test_programs_are_kept_on_disk_and_the_process_is_left_as_it_was(tmp_path, monkeypatch):
    names = ["jax_compilation_cache_dir", *cache.WHILE_ON]
    before = [getattr(jax.config, name) for name in names]
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "own"))
    sg.OnlineLearner(2, 1, units=2, backend="reference").predict([1, 2])
    assert any((tmp_path / "own").iterdir())
    assert [getattr(jax.config, name) for name in names] == before
    monkeypatch.setenv(cache.FOLDER, "off")
    assert cache.folder() is None
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cache.Path, "home", homeless)
    assert cache.folder() is None
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "other"))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "users"))
    with cache.on_disk():
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "users")
    assert not (tmp_path / "other").exists()


def homeless():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_an_elementwise_optimiser_does_not_see_how_parameters_are_cut(name):
    params = {"a": jnp.array([0.3, -0.2]), "b": jnp.array([[0.5], [0.1]])}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = make(parse(name), 0.1)
        ends = []
        for optimiser in (made, optax.flatten(made)):
            own, state = params, optimiser.init(params)
            for scale in (1.0, -0.5, 2.0):
                updates, state = optimiser.update(jax.tree.map(partial(jnp.multiply, scale), own), state, own)
                own = optax.apply_updates(own, updates)
            ends.append(own)
    for one, other in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_a_compiler_option_that_xla_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(dispatch, "IN_PLACE", "xla_no_such_option")
    assert dispatch.compiled(jax.jit(lambda x: x + 1).lower(1.0))(1.0) == 2


def test_arrays_that_were_given_or_taken_stay_one_s_own():
    """Large ones too, which go into and out of a learner's own arrays as they are: a sample overwrites these."""
    one, other = (sg.OnlineLearner(inputs=3, units=64, seed=seed) for seed in (0, 1))
    taken = one.params
    assert max(leaf.size for leaf in jax.tree.leaves(taken)) > packing.LARGE
    before = [np.array(leaf) for leaf in jax.tree.leaves(taken)]
    other.params = taken
    pickled, copied = pickle.dumps(one), copy.copy(one)
    for learner in (one, other, one, other):
        learner.learn(np.ones(3, np.float32), 1.0)
    for leaf, wanted in zip(jax.tree.leaves(taken), before, strict=True):
        np.testing.assert_array_equal(leaf, wanted)
    for learner in (pickle.loads(pickled), copied):
        for leaf, wanted in zip(jax.tree.leaves(learner.params), before, strict=True):
            np.testing.assert_array_equal(leaf, wanted)
