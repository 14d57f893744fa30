"""What runs put around an optimiser of Optax: clipping, weight decay, schedules, arguments."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from programs import as_in_a_program
from variants import case

import snapgrad as sg
from snapgrad.optimisers import parse
from snapgrad.runs.build import build
from snapgrad.runs.optimiser import optimiser
from snapgrad.runs.options import CharsOptions, CopyOptions
from snapgrad.runs.schedule import count_updates, learning_rate

COPY = CopyOptions(units=3, batch=2, algorithm="frozen", backend="reference", tokens=200)


@pytest.fixture(scope="module")
def params():
    cell, readout = sg.GRU(4, 3), sg.Readout(2, (5,))
    return sg.Params(cell.init(jax.random.key(0), sparsity=0.5), readout.init(jax.random.key(1), 3))


def step(transformation, params, steps=3):
    """The parameters after some updates with gradients that are all ones."""
    state = transformation.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(steps):
            updates, state = transformation.update(jax.tree.map(jnp.ones_like, params), state, params)
            params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_weight_decay_is_that_of_adamw_on_matrices_only(schedule, params):
    given = replace(COPY, weight_decay=0.3, learning_rate=0.1, schedule=schedule)
    rate = 0.1 if schedule == "constant" else optax.linear_schedule(0.1, 0.0, 100)
    decayed, plain = (step(optax.adamw(rate, weight_decay=decay), params) for decay in (0.3, 0.0))
    found = step(optimiser(given, sg.tasks.Copy()), params)
    rtol = 1e-12 if schedule == "constant" else 1e-6  # schedules count in float32
    for name, wanted in (("recurrent", decayed), ("input", decayed), ("bias", plain)):
        one, other = (jax.tree.leaves(getattr(tree.cell, name))[0] for tree in (found, wanted))
        np.testing.assert_allclose(one, other, rtol=rtol)
        assert one.ndim == 1  # rank tells them not apart
    for number in (0, 1):
        np.testing.assert_allclose(found.readout[number][0], decayed.readout[number][0], rtol=rtol)
        np.testing.assert_allclose(found.readout[number][1], plain.readout[number][1], rtol=rtol)
    assert not np.allclose(decayed.readout[0][0], plain.readout[0][0])


def test_gradients_are_clipped_by_their_global_norm(params):
    clipped = replace(COPY, optimiser="sgd", learning_rate=1.0, clip=0.5)
    change = jax.tree.map(lambda a, b: a - b, step(optimiser(clipped, sg.tasks.Copy()), params, 1), params)
    np.testing.assert_allclose(optax.tree.norm(change), 0.5, rtol=1e-12)
    free = replace(clipped, clip=1e6)
    change = jax.tree.map(lambda a, b: a - b, step(optimiser(free, sg.tasks.Copy()), params, 1), params)
    np.testing.assert_allclose(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(change)]), -1, rtol=1e-12)


def test_a_call_is_spelled_in_one_way_and_its_arguments_reach_optax(params):
    assert str(parse("adam")) == "adam"
    assert str(parse(" adam( b1 = .5,eps=1e-4 )")) == "adam(b1=0.5, eps=0.0001)"
    assert str(parse("sgd()")) == "sgd"
    given = replace(COPY, optimiser="adam(b1=0.5, eps=1e-2)", learning_rate=0.1)
    wanted = step(optax.adam(0.1, b1=0.5, eps=1e-2), params)
    for one, other in zip(
        jax.tree.leaves(step(optimiser(given, sg.tasks.Copy()), params)), jax.tree.leaves(wanted), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_schedules_warm_up_and_end_at_zero_with_the_run():
    task, given = sg.tasks.Copy(), replace(COPY, learning_rate=0.5)
    assert learning_rate(given, task) == 0.5
    with jax.numpy_dtype_promotion("standard"):
        warm = learning_rate(replace(given, warmup=10), task)
        assert [float(warm(count)) for count in (0, 5, 10, 1000)] == [0.0, 0.25, 0.5, 0.5]
        for schedule, halfway in (("linear", 0.25), ("cosine", 0.25)):  # 100 updates, of them 20 to warm up
            falling = learning_rate(replace(given, schedule=schedule, warmup=20), task)
            found = [float(falling(count)) for count in (0, 10, 20, 60, 99, 100)]
            np.testing.assert_allclose(found[:4], [0.0, 0.25, 0.5, halfway], atol=1e-7)
            assert 0 < found[4] < 0.01
            assert found[5] == 0
        given = replace(given, schedule="linear", schedule_updates=400)
        assert float(learning_rate(given, task)(200)) == 0.25


@pytest.mark.parametrize(
    "given",
    [
        COPY,
        case(replace(COPY, length=3, update_every=4), quick=False),
        case(replace(COPY, length=3, update_every=50), quick=False),
        replace(COPY, length=3, update_every="sequence"),
        CharsOptions(length=10, update_every=4),
        case(CharsOptions(length=10), quick=False),
        CharsOptions(continuous=True, update_every=3),
    ],
    ids=lambda given: f"{given.task} {given.length} {given.update_every}",
)
def test_updates_are_counted_before_as_they_are_made(given, tmp_path):
    if given.task == "chars":
        (tmp_path / "text").write_text("some text " * 100)
        more = {"corpus": str(tmp_path / "text"), "readout": "linear", "units": 3, "algorithm": "frozen", "batch": 2}
        given = replace(given, **more, backend="reference", tokens=205)
    with as_in_a_program():
        experiment = build(given)
        _, progress = experiment.trainer.run(experiment.start(), given.tokens)
        assert progress.updates == count_updates(given, experiment.trainer.task)


def test_updates_of_a_curriculum_in_windows_cannot_be_counted():
    for update_every in (2, "sequence"):
        assert count_updates(replace(COPY, update_every=update_every), sg.tasks.Copy()) is None


def test_an_update_without_anything_to_learn_from_can_be_left_out(params):
    skipping, plain = (optimiser(replace(COPY, skip_idle=skip), sg.tasks.Copy()) for skip in (True, False))
    ones, zeros = (jax.tree.map(fill, params) for fill in (jnp.ones_like, jnp.zeros_like))

    def after(transformation, *gradients):
        state, total = transformation.init(params), params
        with jax.numpy_dtype_promotion("standard"):
            for gradient in gradients:
                updates, state = transformation.update(gradient, state, total)
                total = optax.apply_updates(total, updates)
        return jax.tree.leaves((total, state))

    for one, other in zip(after(skipping, ones, zeros, ones), after(plain, ones, ones), strict=True):
        np.testing.assert_array_equal(one, other)  # as if the idle update had not been: weights and moments
    moved = zip(after(plain, ones, zeros), after(plain, ones), strict=True)
    assert any(np.any(np.asarray(one) != np.asarray(other)) for one, other in moved)  # Adam's momentum goes on


def test_the_initial_scale_is_of_recurrent_weights_alone():
    plain, scaled = (build(replace(COPY, initial_scale=scale, layers=2)).params for scale in (1.0, 0.25))
    for layer, other in zip(plain.cell, scaled.cell, strict=True):
        np.testing.assert_array_equal(other.recurrent.values, 0.25 * layer.recurrent.values)
        np.testing.assert_array_equal(other.input.values, layer.input.values)
    with pytest.raises(ValueError, match=r"`initial_scale` must be a number > 0, got 0\.0"):
        build(replace(COPY, initial_scale=0.0))
