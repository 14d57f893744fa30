"""Learners to and from disk, their copies, and what they leave as it was around them."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from learners import INPUTS, STEPS, XS, YS, learn_all, same

import snapgrad as sg
from snapgrad.learner import cache, dispatch, packing
from snapgrad.optimisers import ELEMENTWISE, make, parse


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
