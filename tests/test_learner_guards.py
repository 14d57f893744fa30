"""Whatever a stream brings to a learner, and what a learner refuses."""

from __future__ import annotations

import copy
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from learners import INPUTS, RNG, STEPS, XS, YS, learn_all, leaves, same

import snapgrad as sg
from snapgrad.learner.settings import MOST_CLIP
from snapgrad.learner.widening import widen
from snapgrad.optimisers import BOUNDED, make


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
