"""River's estimators: River's own checks, and what is promised beyond them."""

from __future__ import annotations

import builtins
import copy
import importlib
import math
import pickle
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from programs import as_in_a_program
from river import checks, compose, drift, evaluate, metrics, preprocessing

import snapgrad as sg
from snapgrad.river import SnapClassifier, SnapForecaster, SnapRegressor
from snapgrad.streams.models import FEWEST_CLASSES

SMALL = {"units": 4, "features": 24}  # ImageSegments, one of River's data sets, has 18 features


@pytest.fixture(autouse=True)
def program():
    with as_in_a_program():  # River knows no float64 mode of JAX, and Optax no strict promotion
        yield


def regression(count=60, seed=0):
    """Samples whose target is a number of the sample before."""
    rng, before = np.random.default_rng(seed), 0.0
    for _ in range(count):
        x = {"a": float(rng.normal(5, 2)), "b": bool(rng.integers(2)), "c": "xyz"[rng.integers(3)]}
        yield x, 3 * before
        before = x["a"]


def labelled(count=60, labels="uvw"):
    for number in range(count):
        yield {"a": float(number % len(labels))}, labels[number % len(labels)]


@pytest.mark.parametrize("kind", [SnapRegressor, SnapClassifier, SnapForecaster])
def test_river_s_own_checks_pass(kind):
    checks.check_estimator(kind(**SMALL))


def bits(model):
    """Everything in a model that could change."""
    model = model._model
    leaves = [np.asarray(leaf).tobytes() for leaf in model.learner._arrays]
    return leaves, model.learner.counts, pickle.dumps(model.features.state())


def test_predicting_changes_nothing_and_learning_predicts_the_same():
    model = SnapRegressor(**SMALL)
    for x, y in regression(20):
        model.predict_one(x)
        model.learn_one(x, y)
    x, y = next(regression(1, seed=1))
    before = bits(model)
    said = model.predict_one(x), model.predict_one({**x, "new": 3.0, "late": "word"})
    assert said[0] == said[1] == model.predict_one(x)
    assert bits(model) == before
    assert model._model.learn(x, y) == pytest.approx(said[0], rel=1e-5)
    assert bits(model) != before


def test_a_copy_and_a_pickled_model_go_on_to_the_same_bits_and_a_clone_starts_afresh():
    model = SnapClassifier(**SMALL, seed=3)
    for x, y in labelled(20):
        model.learn_one(x, y)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.clone(include_attributes=True)]
    fresh = model.clone()
    assert fresh.seed == 3
    assert fresh.predict_proba_one({"a": 1.0}) == {}
    for x, y in labelled(10):
        for each in (model, *others):
            each.learn_one(x, y)
    assert all(bits(each) == bits(model) for each in others)
    assert bits(model.clone({"seed": 4})) != bits(model.clone())


def test_what_is_compiled_is_shared_by_clones():
    model = SnapRegressor(**SMALL)
    for x, y in regression(2):
        model.learn_one(x, y)
    assert model.clone()._model.learner._programs is model._model.learner._programs
    assert SnapRegressor(**SMALL, seed=1)._model.learner._programs is not model._model.learner._programs


def test_labels_appear_over_time_and_what_was_learnt_stays():
    model = SnapClassifier(**SMALL, learning_rate=0.03)
    for x, y in labelled(200, "abcd"):
        model.learn_one(x, y)
    assert model._model.room == FEWEST_CLASSES == 4
    samples = list(labelled(4, "abcd"))
    before = [model.predict_proba_one(x) for x, _ in samples]
    state = model._model.learner._carry().state
    model._model._widen(5)
    assert model._model.room == 8
    for (x, _), shares in zip(samples, before, strict=True):
        assert model.predict_proba_one(x) == pytest.approx(shares, rel=1e-4)
    jax.tree.map(np.testing.assert_array_equal, model._model.learner._carry().state, state)  # with the influence
    model.learn_one({"a": 9.0}, "e")
    assert set(model.predict_proba_one({"a": 9.0})) == set("abcde")
    for x, y in labelled(300, "abcde"):
        model.learn_one(x, y)
    assert [model.predict_one(x) for x, _ in labelled(1, "abcde")] == ["a"]


def test_bad_and_missing_values_are_counted_or_ignored_and_never_reach_the_weights():
    model = SnapRegressor(**SMALL)
    samples = list(regression(30))
    for x, y in samples:
        model.learn_one(x, y)
    model.learn_one({"a": math.inf}, 1.0)
    model.learn_one({"a": 1.0}, None)
    model.learn_one({"a": 1.0}, math.nan)
    model.learn_one({"a": 1.0}, math.inf)
    assert model.counts["skipped"] == 4
    model.learn_one({"a": None, "b": math.nan}, 1.0)
    model.learn_one({"a": 1e12}, 1e12)  # a feature and a target that jump
    model.learn_one({}, 1.0)
    assert model.counts == {**model.counts, "samples": 37, "skipped": 4, "rejected": 0}
    assert math.isfinite(model.predict_one(samples[0][0]))
    assert abs(model.predict_one(samples[0][0])) < 1e3  # the jump has not become the scale of everything
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model._model.learner.params))


def test_standardisation_can_be_switched_off():
    model = SnapRegressor(**SMALL, standardise=False)
    model.learn_one({"a": 0.5}, 100.0)
    model.learn_one({"a": 0.5}, 100.0)
    assert model._model.features.encode({"a": 0.5})[0] == 0.5
    assert abs(model.predict_one({"a": 0.5})) < 10  # two steps of learning do not lead from 0 to 100
    scaled = SnapRegressor(**SMALL)
    scaled.learn_one({"a": 0.5}, 100.0)
    assert scaled.predict_one({"a": 0.5}) == 100


def test_they_work_in_pipelines_with_progressive_validation_and_drift_detectors():
    numbers = compose.Select("a") | preprocessing.StandardScaler()
    model = numbers | SnapRegressor(**SMALL)
    score = evaluate.progressive_val_score(regression(), model, metrics.MAE())
    assert 0 < score.get() < 30
    assert model["SnapRegressor"].counts["samples"] == 60
    assert model.clone()["SnapRegressor"].counts["samples"] == 0
    assert list(model["SnapRegressor"]._model.features.places) == ["a"]
    union = compose.Select("a") + compose.Select("c") | SnapClassifier(**SMALL)
    data = ((x, x["c"]) for x, _ in regression())
    assert evaluate.progressive_val_score(data, union, metrics.Accuracy()).get() > 0.3
    guarded = drift.DriftRetrainingClassifier(SnapClassifier(**SMALL), drift.binary.DDM(warm_start=10))
    for number, (x, y) in enumerate([*labelled(60), *labelled(60, "wvu")]):
        assert number == 0 or guarded.predict_one(x) in set("uvw")
        guarded.learn_one(x, y)


def test_a_forecast_is_what_its_own_one_step_predictions_give_and_changes_nothing():
    model = SnapForecaster(**SMALL, learning_rate=0.01)
    for number in range(40):
        model.learn_one(10 + number % 4, {"time": number % 2})
    before, xs = bits(model), [{"time": number % 2} for number in range(40, 45)]
    said = model.forecast(5, xs)
    assert bits(model) == before
    assert said[:2] == model.forecast(2, xs[:2])
    assert said != model.forecast(5)
    target, follower = model._model.target, copy.deepcopy(model)
    for number, (x, value) in enumerate(zip(xs, said, strict=True)):
        assert follower.forecast(1, [x])[0] == pytest.approx(value, rel=1e-4), number
        inner = follower._model
        # Moves on as if the prediction had come, without learning from it.
        vector = np.append(inner.before, inner.features.encode(x))
        inner.before = inner.learner.learn(vector, math.nan)[0]
    assert target.moments.mean == pytest.approx(11.5)


def test_a_missing_value_of_a_series_is_filled_in_by_the_prediction():
    model = SnapForecaster(**SMALL)
    for number in range(12):
        model.learn_one(float(number % 3))
    expected, moments = model.forecast(2), model._model.target.moments.state
    model.learn_one(None)
    assert model.forecast(1)[0] == pytest.approx(expected[1], rel=1e-4)
    assert model._model.target.moments.state == moments


def test_a_forecaster_learns_a_season_and_is_evaluated_by_river():
    series = [({}, 10.0 + 3 * math.sin(math.tau * number / 6)) for number in range(310)]
    model = SnapForecaster(features=1, units=8, learning_rate=0.01)
    for _, y in series[:300]:
        model.learn_one(y)
    np.testing.assert_allclose(model.forecast(6), [y for _, y in series[300:306]], atol=0.3)
    found = evaluate.evaluate(series[300:], model, metrics.MAE(), horizon=3)
    assert all(math.isfinite(metric.get()) for metric in found.metrics)


def test_any_cell_order_sparsity_and_optimiser_may_be_given():
    import optax

    given = {"cell": sg.stack(sg.GRU(6, 5), sg.LSTM(5, 4)), "sparsity": 0.5, "order": 2, "optimiser": optax.sgd(0.1)}
    model = SnapRegressor(features=6, **given)
    again = model.clone()
    for x, y in regression(3):
        model.learn_one(x, y)
        again.learn_one(x, y)
    assert bits(model) == bits(again)
    assert "cell=" in repr(model)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SnapRegressor(features=0), "`features` must be an integer >= 1, got 0"),
        (lambda: SnapRegressor(order=0), "`order` must be an integer >= 1"),
        (lambda: SnapRegressor(order=True), "`order` must be an integer >= 1"),
        (lambda: SnapClassifier(standardise="no"), "`standardise` must be True or False, got 'no'"),
        (lambda: SnapClassifier(cell="gnu"), '`cell` must be one of "vanilla", "gru", "lstm"'),
        (lambda: SnapRegressor(cell=sg.GRU(3, 4)), "`cell` must have inputs=32"),
        (
            lambda: SnapRegressor(**SMALL).learn_one({}, "x"),
            "`y` must be a number, or None where there is none, got 'x'",
        ),
        (lambda: SnapClassifier(**SMALL).learn_one({}, [1]), r"`y` must be a label, .* got \[1\]"),
        (lambda: SnapForecaster(**SMALL).forecast(0), "`horizon` must be an integer >= 1, got 0"),
        (lambda: SnapForecaster(**SMALL).forecast(2, [{}]), "`xs` must have as many samples as `horizon`, 2, got 1"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_the_example_in_the_docs_runs(capsys):
    text = (Path(__file__).parent.parent / "docs" / "streams.md").read_text(encoding="utf-8")
    (block,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "snapgrad.river" in code)
    exec(block.replace("units=32", "units=4"), {})
    assert capsys.readouterr().out.startswith("MAE: ")


def test_without_river_there_is_one_sentence(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "river":
            raise ModuleNotFoundError("No module named 'river'")
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("snapgrad.river")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"`snapgrad.river` must have River installed, .*snapgrad\[river\]"):
        importlib.import_module("snapgrad.river")
