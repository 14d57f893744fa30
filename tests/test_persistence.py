"""Trees to and from disk: the same bits back, and a sentence for every file that is not what it should be."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import BATCH, CELLS, SPARSITIES, loss, network
from safetensors import safe_open

import snapgrad as sg
from snapgrad import files

LIBRARY = [name for name in CELLS if name != "two_layers"]  # its parameters are a type of the tests


class Own(NamedTuple):
    weight: object


def raw(leaf):
    """A leaf as something to compare bit by bit."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), np.asarray(jax.random.key_data(leaf)).tobytes()
    if isinstance(leaf, jax.Array | np.ndarray):
        return type(leaf) is np.ndarray, str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()
    return type(leaf), repr(leaf)


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)  # patterns and origins are part of it
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert raw(left) == raw(right)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tree.safetensors"


@pytest.fixture
def params():
    return network("gru").params._replace(readout=[(jnp.ones((4, 5)), jnp.zeros(4))])


# ---- round trips


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("name", LIBRARY)
def test_parameters_come_back_with_their_patterns_and_need_no_template(name, sparsity, path):
    saved = network(name, SPARSITIES[sparsity]).params._replace(readout={"weight": jnp.eye(2), "names": ("a", None)})
    sg.save(path, saved)
    assert_same(sg.load(path), saved)


def test_leaves_have_their_paths_as_names_and_patterns_are_kept_once(path, params):
    sg.save(path, {"params": params, "gradient": params})
    with safe_open(path, "np") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    own = {
        "cell.recurrent.values",
        "cell.input.values",
        "cell.bias",
        "cell.recurrent_bias",
        "readout.0.0",
        "readout.0.1",
    }
    patterns = {"gradient.cell.recurrent.pattern", "gradient.cell.input.pattern"}  # keys of dicts are sorted
    assert found.keys() == {f"{name}.{leaf}" for name in ("params", "gradient") for leaf in own} | patterns
    np.testing.assert_array_equal(found["gradient.cell.recurrent.pattern"], params.cell.recurrent.pattern.flat)
    assert found["gradient.cell.recurrent.pattern"].dtype == np.uint8  # 15 x 5 entries


def test_every_dtype_and_kind_of_leaf_comes_back(path):
    dtypes = sorted(files.DTYPES)
    tree = {
        "jax": [jnp.asarray([0, 1, 3], jnp.dtype(dtype)) for dtype in dtypes],
        "numpy": [np.asarray([[0, 1, 3]] * 2, jnp.dtype(dtype)).T for dtype in dtypes],  # not in C order
        "keys": [jax.random.key(1, impl=impl) for impl in ("threefry2x32", "rbg", "unsafe_rbg")],
        "many keys": jax.random.split(jax.random.key(2), 3),
        "values": (1, 2**80, 0.1, -float("inf"), True, None, "text", "\ud800"),
        "special": jnp.asarray([np.nan, -0.0, 5e-324]),
        "empty": ((), [], {}, jnp.zeros((0, 3))),
    }
    sg.save(path, tree)
    assert_same(sg.load(path), tree)


def test_an_array_alone_is_a_tree(path):
    sg.save(path, jnp.arange(3))
    assert_same(sg.load(path), jnp.arange(3))


def test_names_that_look_like_paths_do_not_collide(path):
    tree = {"a.b": jnp.zeros(1), "a": {"b": jnp.ones(1)}, '"a.b"': jnp.full(1, 2.0), "__metadata__": jnp.full(1, 3.0)}
    tree |= {"": {"": jnp.full(1, 4.0)}, ".": jnp.full(1, 5.0)}
    sg.save(path, tree)
    assert_same(sg.load(path), tree)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.builds(
        lambda dtype, shape: np.arange(np.prod(shape)).reshape(shape).astype(dtype),
        st.sampled_from(["float32", "int16", "bool", "uint64", "float16"]),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
    )
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.builds(sg.Params, inner, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees)
def test_any_tree_comes_back_with_and_without_a_template(path, tree):
    sg.save(path, tree)
    first = path.read_bytes()
    assert_same(sg.load(path), tree)
    assert_same(sg.load(path, like=tree), tree)
    sg.save(path, sg.load(path))
    assert path.read_bytes() == first  # equal content, equal bytes


# ---- states: what goes on from disk goes on to the same bits

STATES = {
    "snap": lambda cell: sg.snap(cell, loss, order=2),
    "reference": lambda cell: sg.snap(cell, loss, order=2, backend="reference"),
    "bfloat16": lambda cell: sg.snap(cell, loss, order=1, influence_dtype="bfloat16"),
    "uoro": lambda cell: sg.uoro(cell, loss, rank=2),
}


@pytest.mark.parametrize("name", STATES)
def test_a_loaded_state_goes_on_to_the_same_bits(name, path):
    net = network("lstm", dtype=np.float32) if name == "bfloat16" else network("lstm")
    algorithm = STATES[name](net.cell)
    start = lambda: algorithm.init(net.params, BATCH, key=jax.random.key(3))  # noqa: E731
    grad = jax.jit(algorithm.grad)
    _, state = grad(net.params, start(), net.xs[:4], net.targets[:4])
    sg.save(path, {"params": net.params, "state": state})
    like = {"params": net.params, "state": start()}
    loaded = sg.load(path, like=like)
    assert_same(loaded["state"], state)
    assert_same(sg.load(path, like=jax.eval_shape(lambda: like)), loaded)  # a template needs no memory
    expected = grad(net.params, state, net.xs[4:], net.targets[4:])
    assert_same(grad(loaded["params"], loaded["state"], net.xs[4:], net.targets[4:]), expected)
    with pytest.raises(ValueError, match="`like` must be a template"):
        sg.load(path)


def test_types_of_ones_own_and_optimisers_need_a_template(path, params):
    cell_params = network("two_layers").params
    tree = Own(cell_params), optax.adam(1e-3).init(params)
    sg.save(path, tree)
    assert_same(sg.load(path, like=jax.tree.map(jnp.zeros_like, tree)), tree)
    with pytest.raises(ValueError, match="`like` must be a template for a tree with a Own in it, got None"):
        sg.load(path)


# ---- templates that do not fit


def wrong_templates():
    net = network("gru")
    right = {"params": net.params, "state": sg.snap(net.cell, loss, order=1).init(net.params, BATCH), "step": 3}

    def init(algorithm, params=net.params, batch=BATCH):
        return right | {"state": algorithm.init(params, batch)}

    matrix = net.params.cell.recurrent
    moved = sg.Pattern.from_mask(np.roll(matrix.pattern.mask(), 1, axis=1))  # as many entries, elsewhere
    elsewhere = net.params._replace(cell=net.params.cell._replace(recurrent=sg.SparseMatrix(matrix.values, moved)))
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), net.params)
    snap = sg.snap(net.cell, loss, order=1)
    return right, {
        r"of snap\(order=1\) on GRU.* got State of snap\(order=2\)": init(sg.snap(net.cell, loss, order=2)),
        "got State of .* reference backend": init(sg.snap(net.cell, loss, order=1, backend="reference")),
        "the same sparsity pattern in `tree`.state, got another": init(snap, elsewhere),
        "the same sparsity pattern in `tree`.params.cell.recurrent": right | {"params": elsewhere},
        r"float64 \(3, 1, 5\) in `tree`.state.cell, got float64 \(2, 1, 5\)": init(snap, batch=2),
        "float64 .* in `tree`.params.cell.recurrent.values, got float32": right | {"params": narrow},
        "a Python int in `tree`.step, got a Python float": right | {"step": 3.0},
        "Params in `tree`.params, got tuple": right | {"params": tuple(net.params)},
        "params, state, step in `tree`, got more, params": right | {"more": 1},
    }


def test_a_wrong_template_is_refused_with_the_place_where_it_differs(path):
    right, wrong = wrong_templates()
    sg.save(path, right)
    assert_same(sg.load(path, like=right), right)
    for message, like in wrong.items():
        with pytest.raises(ValueError, match=f"`like` must be a tree like the one in .*{message}"):
            sg.load(path, like=like)


# ---- what cannot be saved


def test_what_cannot_be_saved_is_refused_before_anything_is_written(path):
    donated = jnp.zeros(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    refused = {
        "`tree`.a must be an array, a string, a boolean or a number, got function": {"a": loss},
        "`tree`.a.0 must be an array, .* got object": {"a": [object()]},
        "`tree` must have strings as keys, got 1": {1: jnp.zeros(1)},
        "`tree`.a must hold numbers that safetensors knows or PRNG keys, got object": {"a": np.array([None])},
        "`tree`.a must hold numbers .* got <U1": {"a": np.array(["b"])},
        "`tree`.a must have values, got a ShapeDtypeStruct": {"a": jax.ShapeDtypeStruct((2,), jnp.float32)},
        "`tree`.a must have values, got an array whose memory was donated": {"a": donated},
    }
    for message, tree in refused.items():
        with pytest.raises((TypeError, ValueError), match=message):
            sg.save(path, tree)
    with pytest.raises(TypeError, match=r"`tree` must have values, got a .*Tracer: save outside jit"):
        jax.jit(lambda x: sg.save(path, x))(jnp.zeros(2))
    assert not os.listdir(path.parent)


def test_places_that_cannot_hold_a_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`path` must be in a folder that exists, got .*none"):
        sg.save(tmp_path / "none" / "x", 1)
    with pytest.raises(ValueError, match="`path` must be a file, got"):
        sg.save(tmp_path, 1)
    os.mkfifo(tmp_path / "pipe")  # stands for every special file: replacing one would break what it is for
    with pytest.raises(ValueError, match=r"`path` must be a file, got .*pipe"):
        sg.save(tmp_path / "pipe", 1)
    assert os.listdir(tmp_path) == ["pipe"]


def test_float64_is_not_rounded_where_jax_has_none(path):
    sg.save(path, {"a": jnp.arange(3.0), "b": np.arange(3.0)})
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"`jax_enable_x64` must be on to load float64.*'a'"):
        sg.load(path)


# ---- crashes


@pytest.mark.parametrize("fails", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_crash_while_saving_leaves_the_file_as_it_was(fails, error, path, monkeypatch):
    sg.save(path, {"a": jnp.zeros(3)})
    before = path.read_bytes()

    def fail(*args):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(os, fails, fail)
        with pytest.raises(type(error)) as caught:
            sg.save(path, {"a": jnp.ones(3)})
    if isinstance(error, OSError):
        assert str(caught.value).startswith("`path` must be a file that can be written, got ")
        assert str(caught.value).endswith("(No space left on device)")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_write_that_stops_half_way_leaves_the_file_as_it_was(path):
    resource = pytest.importorskip("resource")
    sg.save(path, {"a": jnp.zeros(3)})
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # as a full disk: the first bytes go through
    try:
        with pytest.raises(OSError, match="`path` must be a file that can be written, got") as caught:
            sg.save(path, {"a": np.ones(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(caught.value).endswith("(File too large)")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_link_stays_a_link_and_a_file_has_the_usual_rights(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    sg.save(tmp_path / "link", jnp.ones(2))
    assert (tmp_path / "link").is_symlink()
    assert_same(sg.load(tmp_path / "file"), jnp.ones(2))
    (tmp_path / "plain").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


# ---- damage


def test_every_flipped_bit_and_every_cut_is_noticed(path):
    """Length, header, metadata, padding, data: every byte of the file, one bit each, and every length."""
    sg.save(path, {"a": jnp.arange(3.0), "m": sg.SparseMatrix(jnp.ones(2), sg.Pattern([0, 1], [1, 0], (2, 2)))})
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="`path` must be "):
            sg.load(path)
        path.write_bytes(whole[:place])
        with pytest.raises(ValueError, match=r"`path` must be a whole safetensors file, got .*damaged or none"):
            sg.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="`path` must be a whole safetensors file"):
        sg.load(path)


def test_foreign_files_are_refused(path, tmp_path):
    safetensors.torch.save_file(torch.nn.GRU(2, 3).state_dict(), path)
    with pytest.raises(ValueError, match=r"that snapgrad wrote, got .*, a safetensors file of another program"):
        sg.load(path)
    for content in (b"", b"Once upon a time there was a text.\n" * 20, bytes(100), b"\x80\x05pickled"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="`path` must be a whole safetensors file"):
            sg.load(path)
    files.write_arrays(path, {"a": np.zeros(2)}, {})
    with pytest.raises(ValueError, match=r"`path` must be a file that sg.save wrote, got .* arrays but no tree"):
        sg.load(path)
    with pytest.raises(FileNotFoundError, match=r"`path` must be a file, got .* \(it is a folder or a device\)"):
        sg.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"`path` must be a file, got .* \(there is none\)"):
        sg.load(tmp_path / "none")


def test_a_later_format_is_refused_as_such(path, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(files, "VERSION", 2)
        sg.save(path, jnp.zeros(2))
    with pytest.raises(ValueError, match=r"must be a file of format 1 or older, got .* of format 2: a later version"):
        sg.load(path)


def test_equal_content_gives_equal_bytes_in_any_order(path):
    arrays = {name: np.arange(n, dtype=dtype) for n, (name, dtype) in enumerate(zip("abcd", "fdfi", strict=True))}
    files.write_arrays(path, arrays, {"x": 1, "y": [2]})
    first = path.read_bytes()
    files.write_arrays(path, dict(reversed(arrays.items())), {"y": [2], "x": 1})
    assert path.read_bytes() == first
    found, metadata = files.read_arrays(path)
    assert json.dumps(metadata, sort_keys=True) == '{"x": 1, "y": [2]}'
    assert found.keys() == arrays.keys()
