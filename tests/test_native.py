"""The native kernels: equal to the reference, the same bits on any number of threads, and safe to call wrongly."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from networks import loss, network
from oracles import flat
from variants import VARIANTS, case, relative_error

import snapgrad as sg
from snapgrad.kernels import binding, products, rounding
from snapgrad.kernels.base import Products, Sums
from snapgrad.kernels.native import NativeKernel
from snapgrad.kernels.products import NativeMatrix
from snapgrad.kernels.select import NATIVE, REFERENCE
from snapgrad.kernels.slots import Slots
from snapgrad.sparsity.masks import random_pattern
from snapgrad.sparsity.reach import influence_blocks

TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}
INFLUENCE = ["snap_2", "snap_3_episodic", "rtrl", "rflo", "rflo_episodic"]  # one of each kind of use of the kernels


def both_backends(variant, net, batch_size):
    """The gradient after two windows with a reset between them, from each backend."""
    rng = np.random.default_rng(batch_size)
    dtype = net.xs.dtype
    xs = jnp.asarray(rng.normal(size=(4, batch_size, net.xs.shape[2])), dtype)
    targets = jnp.asarray(rng.normal(size=(4, batch_size, net.targets.shape[2])), dtype)
    where = jnp.asarray(rng.random(batch_size) < 0.4)

    def gradient(backend):
        algorithm = VARIANTS[variant].make(net.cell, backend)
        grad = jax.jit(algorithm.grad)
        first, state = grad(net.params, algorithm.init(net.params, batch_size), xs, targets)
        second, _ = grad(net.params, algorithm.reset(state, where), xs, targets)
        return np.concatenate([flat(first.grads), flat(second.grads)])

    return gradient("native"), gradient("reference")


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        case(name, variant, quick=name == "gru" or variant == "snap_2")
        for name in ("gru", "odd", "two_layers")
        for variant in INFLUENCE
    ],
)
def test_native_equals_reference(name, variant):
    native, reference = both_backends(variant, network(name), batch_size=9)  # a whole tile of lanes and a rest
    assert relative_error(native, reference) < TOLERANCE[np.float64]


@pytest.mark.parametrize(
    ("variant", "batch_size"),
    [
        case(variant, size, quick=n == 0 or (n, size) == (1, 16))
        for n, variant in enumerate(INFLUENCE)
        for size in (1, 16, 40)
    ],
)
def test_native_equals_reference_in_float32_for_batches_of_any_size(variant, batch_size):
    native, reference = both_backends(variant, network("lstm", dtype=np.float32), batch_size)
    assert native.dtype == np.float32
    assert relative_error(native, reference) < TOLERANCE[np.float32]


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize("batch_size", [9, 17, 32])  # tiles of eight and of sixteen lanes, several of each
def test_blocks_of_one_and_two_rows_over_several_tiles(name, batch_size):
    native, reference = both_backends("snap_1", network(name), batch_size)
    assert relative_error(native, reference) < TOLERANCE[np.float64]


@pytest.mark.parametrize("sparsity", [0.0, 0.6])
@pytest.mark.parametrize("make", [sg.Vanilla, sg.GRU, sg.LSTM])
def test_one_sample_with_blocks_of_one_and_two_rows(make, sparsity):
    """SnAp-1 at batch 1: stretches longer than a vector, shorter ones, and single columns; a reset on the way."""
    cell, rng = make(5, 21, recurrent_bias=True), np.random.default_rng(0)
    params = sg.Params(cell.init(jax.random.key(1), sparsity), jnp.asarray(rng.normal(size=21)))
    xs = jnp.asarray(rng.normal(size=(3, 2, 1, 5)))

    def gradients(backend):
        algorithm = sg.snap(cell, lambda readout, h, y: (readout @ h - y) ** 2, order=1, backend=backend)
        grad, state, found = jax.jit(algorithm.grad), algorithm.init(params, 1), []
        for window in xs:
            gradient, state = grad(params, state, window, window[..., 0])
            found.append(flat(gradient.grads))
        gradient, _ = grad(params, algorithm.reset(state, jnp.array([True])), xs[0], xs[0][..., 0])
        return np.concatenate([*found, flat(gradient.grads)])

    assert relative_error(gradients("native"), gradients("reference")) < TOLERANCE[np.float64]


def values_for(blocks, batch_size, dtype, seed=0):
    """D, I and delta: any numbers."""
    rng = np.random.default_rng(seed)
    sizes = blocks.dynamics.nnz, blocks.groups.nnz, blocks.states
    return [jnp.asarray(rng.normal(size=(n, batch_size)), dtype) for n in sizes]


@cache
def factors_of(entries):
    """Where a value of I is the product of two: its own, from behind, and one of three."""
    return Sums.of((entries, 3), entries, np.arange(entries), np.arange(entries)[::-1], np.arange(entries) % 3)


def factors(I):
    """Two factors of every value of I, without rounding."""
    at = factors_of(len(I))
    right = jnp.asarray([[1.0], [2.0], [-4.0]], I.dtype) * jnp.ones((1, I.shape[1]), I.dtype)
    return (I / right[at.right_of])[::-1], right


def step(blocks, J, D, I, delta, *noise, kernel=NATIVE):
    left, right = factors(I) if isinstance(I, jax.Array) else I
    at = factors_of(blocks.groups.nnz)

    @jax.jit
    def run(J, D, left, right, delta, *noise):
        return kernel.influence_step(blocks, J, D, Products(left, right, at), delta, *noise)

    return run(J, D, left, right, delta, *noise)


def large_network(units=96, sparsity=0.9, order=2):
    cell = sg.LSTM(7, units)
    params = cell.init(jax.random.key(0), sparsity=sparsity, dtype=np.float32)
    jacobians = cell.jacobians(params)
    return influence_blocks(jacobians.groups, jacobians.dynamics, order)


@pytest.mark.parametrize(  # about a tile of lanes, of eight and of sixteen
    "batch_size", [case(size, quick=size in (1, 8, 30)) for size in (1, 7, 8, 16, 17, 30)]
)
def test_blocks_wide_and_tall_enough_for_several_strips(batch_size):
    """Against J = D J + I written out densely, one lane at a time."""
    blocks = large_network(units=60, sparsity=0.2, order=None)
    D, I, delta = values_for(blocks, batch_size, np.float64)
    J, g = step(blocks, NATIVE.zeros(blocks, batch_size, np.float64), D, I, delta)
    _, g_2 = step(blocks, J, D, I, delta)
    expected, expected_2 = np.zeros(blocks.n_params), np.zeros(blocks.n_params)
    groups = blocks.groups
    kept = blocks.reach.mask()[groups.of_param].T
    for lane in range(batch_size):
        dense_D, dense_I = np.zeros((blocks.states,) * 2), np.zeros((blocks.states, blocks.n_params))
        dense_D[blocks.dynamics.rows, blocks.dynamics.cols] = D[:, lane]
        dense_I[groups.entries.cols[groups.entry_credit], groups.entry_param] = I[:, lane]
        expected += np.asarray(delta[:, lane]) @ dense_I
        expected_2 += np.asarray(delta[:, lane]) @ (kept * (dense_D @ dense_I) + dense_I)
    assert relative_error(g, expected) < TOLERANCE[np.float64]
    assert relative_error(g_2, expected_2) < TOLERANCE[np.float64]


BITS = """
import hashlib, jax, numpy as np, sys
sys.path.insert(0, "tests")
from test_native import large_network, step, values_for
from snapgrad.kernels import rounding
from snapgrad.kernels.select import NATIVE
import snapgrad as sg
from snapgrad.kernels.products import NativeMatrix
digest, sizes = hashlib.sha256(), []
def note(*arrays):
    for array in map(np.asarray, arrays):
        digest.update(array.tobytes())
        sizes.append(float(np.linalg.norm(array)))
blocks = large_network(units=192)
for batch_size in (1, 16):
    D, I, delta = values_for(blocks, batch_size, np.float32)
    J = NATIVE.zeros(blocks, batch_size, np.float32)
    for _ in range(3):
        J, g = step(blocks, J, D, I, delta)
    note(J.J, g)
    J = NATIVE.zeros(blocks, batch_size, jax.numpy.bfloat16)
    for words in rounding.noise(rounding.start(None), 3, batch_size):
        J, g = step(blocks, J, D, I, delta, words)
    note(J.J.astype(np.float32), g)
note(*NATIVE.credit_step(blocks, NATIVE.zero_credit(blocks, 16, np.float32) + 1, D, delta))
weights = sg.GRU(4, 500).init(jax.random.key(0), sparsity=0.9, dtype=np.float32).recurrent
def objective(values, x):
    return jax.numpy.sin(jax.vmap(lambda x: NativeMatrix(values, weights.pattern) @ x)(x)).sum()
note(*jax.grad(objective, argnums=(0, 1))(weights.values, jax.random.normal(jax.random.key(1), (200, 500), np.float32)))
for cell in ("gru", "lstm"):  # blocks of one and of two rows, and weights that are updated
    learner = sg.OnlineLearner(inputs=3, cell=cell, units=256)
    for x in np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32):
        note(*learner.learn(x, 1.0))
    note(*jax.tree.leaves(learner.params))
for cell in (sg.GRU(4, 512), sg.LSTM(4, 256)):  # the same in a batch, with the cell's own step
    params = sg.Params(cell.init(jax.random.key(0), sparsity=0.9, dtype=np.float32), ())
    algorithm = sg.snap(cell, lambda _, h, y: (h * y).sum(), order=1)
    xs, ys = (jax.random.normal(jax.random.key(n), (3, 16, n), np.float32) for n in (4, cell.units))
    gradient, state = algorithm.grad(params, algorithm.init(params, 16), xs, ys)
    note(*jax.tree.leaves((gradient.grads, state)))
print(sg.backend_info()["instructions"], digest.hexdigest(), *sizes)
"""


@cache
def run_elsewhere(program=None, **environment):
    done = subprocess.run(
        # -S where this process has it: under the sanitizers another build is imported.
        [sys.executable, *(["-S"] if sys.flags.no_site else []), "-c", program or BITS],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_results_are_the_same_bits_on_any_number_of_threads():
    assert run_elsewhere(NPROC="1") == run_elsewhere(NPROC="4")


def test_portable_code_runs_everywhere():
    instructions, _, *portable = run_elsewhere(SNAPGRAD_INSTRUCTIONS="portable")
    assert instructions == "portable"
    np.testing.assert_allclose(np.float64(portable), np.float64(run_elsewhere(NPROC="4")[2:]), rtol=1e-5)


@pytest.mark.parametrize("wide", [1, products.WIDE])  # transposed natively, or by XLA
@pytest.mark.parametrize(("rows", "cols", "batch_size"), [(1, 1, 1), (7, 12, 3), (12, 5, 8), (9, 8, 71)])
def test_products_and_their_derivatives(rows, cols, batch_size, wide, monkeypatch):
    monkeypatch.setattr(products, "WIDE", wide)
    pattern = random_pattern(jax.random.key(rows), (rows, cols), 0.6)
    rng = np.random.default_rng(rows)
    values, x = jnp.asarray(rng.normal(size=pattern.nnz)), jnp.asarray(rng.normal(size=(batch_size, cols)))

    def product(matrix, values, x):
        return jax.vmap(lambda x: matrix(values, pattern) @ x)(x)

    def objective(matrix):
        return lambda values, x: jnp.sum(jnp.sin(product(matrix, values, x)))

    for transform in (
        lambda f: f,
        lambda f: jax.grad(f, argnums=(0, 1)),
        lambda f: lambda values, x: jax.jvp(f, (values, x), (values[::-1], x[::-1])),
        lambda f: lambda values, x: jax.grad(lambda x: jnp.sum(jax.grad(f)(values, x) ** 2))(x),  # backwards twice
        lambda f: lambda values, x: jax.vmap(f, in_axes=(0, None))(jnp.stack([values, -values]), x),  # own weights
        lambda f: lambda values, x: jax.vmap(jax.grad(f), in_axes=(None, 0))(values, x[:, None]),  # every example's
    ):
        native, reference = (
            jax.jit(transform(objective(matrix)))(values, x) for matrix in (NativeMatrix, sg.SparseMatrix)
        )
        np.testing.assert_allclose(ravel_pytree(native)[0], ravel_pytree(reference)[0], rtol=1e-12, atol=1e-12)


def test_a_transpose_may_be_the_first_that_a_process_computes():
    program = """
import jax.numpy as jnp
from snapgrad.kernels.products import transpose_p
print(len(transpose_p.bind(jnp.ones((2, 3)))))
"""
    assert run_elsewhere(program) == ["3"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (3, 40), (16, 16), (17, 33), (16, 4096), (40, 3)])
def test_transposes(rows, cols, dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, cols)), dtype)
    transpose = jax.jit(products.transpose_p.bind)
    assert np.array_equal(transpose(x), np.asarray(x).T)
    assert np.array_equal(jax.jit(jax.vmap(products.transpose_p.bind, in_axes=1))(x[:, None]), np.asarray(x).T[None])


@pytest.mark.parametrize("episodic", [False, True])
def test_networks_trained_side_by_side(episodic):
    """vmap over everything, as for many seeds: two windows, and a reset of other lanes in each network between them."""
    net = network("gru")
    algorithm = sg.snap(net.cell, loss, order=2, episodic=episodic, backend="native")
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), net.params)
    start = algorithm.init(net.params, batch_size=3)

    def train(params, where):
        _, state = algorithm.grad(params, start, net.xs, net.targets)
        return algorithm.grad(params, algorithm.reset(state, where), net.xs, net.targets)[0].grads

    where = jnp.asarray([[True, False, False], [False, True, True]])
    together = jax.vmap(train)(many, where)
    for i in range(2):
        alone = train(jax.tree.map(lambda leaf, i=i: leaf[i], many), where[i])
        nth = flat(jax.tree.map(lambda leaf, i=i: leaf[i], together))
        assert relative_error(nth, flat(alone)) < TOLERANCE[np.float64]


@pytest.mark.parametrize("batch_size", [2, 9])
def test_bfloat16_storage_loses_little_and_agrees_with_the_reference(batch_size):
    cell = sg.GRU(3, 24)
    params = sg.Params(cell.init(jax.random.key(0), sparsity=0.8, dtype=np.float32), jnp.ones((2, 24), np.float32))
    rng = np.random.default_rng(0)
    xs, targets = (jnp.asarray(rng.normal(size=(20, batch_size, n)), np.float32) for n in (3, 2))
    grads = {}
    for backend, dtype in (("native", None), ("native", "bfloat16"), ("reference", jnp.bfloat16)):
        algorithm = sg.snap(cell, readout_loss, order=2, influence_dtype=dtype, backend=backend)
        gradient, state = algorithm.grad(params, algorithm.init(params, batch_size), xs, targets)
        grads[backend, dtype is None] = flat(gradient.grads.cell)
    assert jax.tree.leaves(state.memory.J)[0].dtype == jnp.bfloat16
    error = relative_error(grads["native", False], grads["native", True])
    assert 1e-5 < error < 1e-2
    assert relative_error(grads["native", False], grads["reference", False]) < 2e-3


def readout_loss(readout, h, target):
    return jnp.sum((readout @ h - target) ** 2)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_bfloat16_keeps_what_needs_no_rounding_and_what_is_not_a_number(batch_size):
    blocks = large_network(units=8, sparsity=0.5, order=1)
    D, I, delta = values_for(blocks, batch_size, np.float32)
    largest = float(jnp.finfo(jnp.bfloat16).max)  # to which what lies above is cut
    special = np.array([np.nan, np.inf, -np.inf, largest, 3.4028e38, 1.5, -2.5, -0.0], np.float32)
    I = jnp.asarray(np.resize(special, I.shape))
    noise = rounding.noise(rounding.start(None), 1, batch_size)[0]
    J, _ = step(blocks, NATIVE.zeros(blocks, batch_size, jnp.bfloat16), 0 * D, I, delta, noise)
    values = np.asarray(J.J.astype(np.float32)).ravel()
    for name in ("isnan", "isposinf", "isneginf"):
        assert getattr(np, name)(values).sum() == getattr(np, name)(np.asarray(I)).sum() > 0
    assert set(values[np.isfinite(values)]) == {largest, 1.5, -2.5, 0.0}


@pytest.mark.parametrize("stored", [np.float32, np.float64, jnp.bfloat16])
@pytest.mark.parametrize("batch_size", [3, 16])  # columns as vectors, lanes as vectors
def test_a_lane_that_starts_anew_takes_nothing_from_its_past(batch_size, stored):
    """Not even NaN: with D = 0 it would."""
    blocks = large_network(units=8, sparsity=0.5)
    D, I, delta = values_for(blocks, batch_size, np.float64 if stored == np.float64 else np.float32)
    noise = ()
    if stored == jnp.bfloat16:
        noise = (rounding.noise(rounding.start(None), 1, batch_size)[0],)
    zeros = NATIVE.zeros(blocks, batch_size, stored)
    some = jnp.arange(batch_size) % 3 == 1
    past = zeros._replace(J=jnp.full_like(zeros.J, np.nan))
    J, g = step(blocks, NATIVE.forget(past, jnp.ones_like(some)), D, I, delta, *noise)
    expected, expected_g = step(blocks, zeros, D, I, delta, *noise)
    np.testing.assert_array_equal(J.J, expected.J)
    np.testing.assert_array_equal(g, expected_g)
    assert not J.fresh.any()
    mixed, _ = step(blocks, NATIVE.forget(past, some), D, I, delta, *noise)
    lanes, alone = (
        np.asarray(jnp.moveaxis(of.J.astype(np.float64), -1, 1)).reshape(batch_size, -1) for of in (mixed, expected)
    )
    np.testing.assert_array_equal(lanes[some], alone[some])
    assert np.isnan(lanes[~some]).any(axis=1).all()


def test_one_lane_of_a_dense_network():
    """Where a strip of I is one derivative times neighbouring inputs."""
    cell = sg.LSTM(200, 2)
    params = sg.Params(cell.init(jax.random.key(0)), jnp.ones(2))
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(4, 1, 200)))
    found = []
    for backend in ("native", "reference"):
        algorithm = sg.snap(cell, lambda readout, h, target: jnp.sum(readout * h**2), order=2, backend=backend)
        found.append(flat(algorithm.grad(params, algorithm.init(params, 1), xs, xs)[0].grads.cell))
    assert relative_error(*found) < TOLERANCE[np.float64]


def test_a_block_with_very_many_columns():
    """As a dense input layer of a large vocabulary has: more than 2^31 if its square were taken."""
    cell = sg.Vanilla(120_000, 1)
    params = cell.init(jax.random.key(0), dtype=np.float32)
    jacobians = cell.jacobians(params)
    blocks = influence_blocks(jacobians.groups, jacobians.dynamics, 1)
    D, I, delta = values_for(blocks, 8, np.float32)
    _, g = step(blocks, NATIVE.zeros(blocks, 8, np.float32), D, I, delta)
    np.testing.assert_allclose(g, np.einsum("l,pl->p", delta[0], I), rtol=1e-4, atol=1e-4)


def test_a_buffer_of_the_wrong_shape_or_type_is_an_error_and_not_a_crash():
    blocks = large_network(units=8, sparsity=0.5)
    D, I, delta = values_for(blocks, 16, np.float32)
    J = NATIVE.zeros(blocks, 16, np.float32)
    for wrong, message in (
        ((J, D[1:], I, delta), "`dynamics` must be"),
        ((J._replace(J=J.J[:, 1:]), D, I, delta), "`influence` must be"),
        ((J._replace(fresh=J.fresh.astype(np.int8)), D, I, delta), "`fresh` must be"),
        ((J, D, (factors(I)[0][1:], factors(I)[1]), delta), "`left` must be"),
        ((J, D, (factors(I)[0], factors(I)[1][:2]), delta), "`right` must be"),
        ((J, D, I, delta.astype(np.float64)), "`delta` must be"),
        ((J, D.astype(np.int32), I, delta), "must be float32 or float64"),
        ((J._replace(J=J.J[..., :3]), D, I, delta), "tiles of 1, 8 or 16 lanes"),
        ((J, D[0], I, delta), "must have more axes"),
        ((J._replace(J=J.J.astype(jnp.bfloat16)), D, I, delta), "`noise` must be"),
        ((J, D, I, delta, jnp.zeros((2, 16), np.uint32)), "`noise` must be"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            step(blocks, *wrong)
    Lambda = NATIVE.zero_credit(blocks, 16, np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="`delta` must be"):
        NATIVE.credit_step(blocks, Lambda, D, delta[1:])
    call = jax.ffi.ffi_call("snapgrad_sums", jax.ShapeDtypeStruct(D.shape, D.dtype))
    with pytest.raises(jax.errors.JaxRuntimeError, match="is not known in this process"):
        call(D, D, plan="blocks of a network never seen")
    matrix = random_pattern(jax.random.key(0), (4, 5), 0.5)
    for target, operands in {
        "product": ((10,), (4, 3)),
        "sampled_product": ((4, 3), (4, 3)),
    }.items():
        given = {"transposed": False} if target == "product" else {}
        call = jax.ffi.ffi_call(f"snapgrad_{target}", jax.ShapeDtypeStruct((4, 3), np.float32))
        with pytest.raises(jax.errors.JaxRuntimeError, match="`x` must be"):
            call(*(jnp.zeros(shape, np.float32) for shape in operands), plan=binding.matrix_plan(matrix), **given)


def test_every_index_is_checked_when_a_plan_is_made():
    good = {
        "states": 3,
        "params": 2,
        "dynamics_starts": [0, 1, 2, 3],
        "dynamics": [0, 1, 2],
        "reach_starts": [0, 2, 3],
        "reach": [0, 1, 2],
        "params_starts": [0, 1, 2],
        "group_params": [0, 1],
        "entries_starts": [0, 1, 2],
        "group_entries": [0, 2],
    }

    def make(**changed):
        given = good | changed
        arrays = {name: np.asarray(v, np.int64) if isinstance(v, list) else v for name, v in given.items()}
        return binding._native.blocks_plan("test", **arrays)

    assert make() is not None
    for changed, message in (
        ({"dynamics": [0, 1, 3]}, r"`dynamics` must be in \[0, 3\), got 3 at 2"),
        ({"reach": [0, -1, 2]}, "`reach` must be in"),
        ({"reach": [1, 0, 2]}, "`reach` must ascend in a row"),
        ({"reach_starts": [0, 2, 4]}, "`reach_starts` must ascend from 0 to 3"),
        ({"reach_starts": [0, 4, 3]}, "`reach_starts` must ascend from 0 to 3"),
        ({"dynamics_starts": [0, 3]}, "one row a state entry"),
        ({"params_starts": [0, 2]}, "one row a group each"),
        ({"group_params": [0, 0]}, "every parameter once"),
        ({"params": 3}, "every parameter once"),
        ({"group_entries": [2, 2]}, "`reach` must contain `group_entries`"),
        ({"states": -1}, r"`states` must be in \[0, 2\^31\)"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**changed)
    index = np.arange(3)
    with pytest.raises(ValueError, match="`right_of` must be in"):
        binding._native.sums_plan("test", left=3, right=1, starts=np.array([0, 3]), left_of=index, right_of=index)
    with pytest.raises(ValueError, match="`columns` must be in"):
        binding._native.matrix_plan("test", cols=2, starts=np.array([0, 3]), columns=index)


def test_sums_of_products():
    rng = np.random.default_rng(0)
    which, left_of, right_of = rng.integers(0, 6, 20), rng.integers(0, 4, 20), rng.integers(0, 6, 20)
    sums = Sums.of((4, 5), 7, which, left_of, right_of)  # the last sum has no term
    for lanes in (3, 29):  # a tile, two of them and single lanes
        left, right, shared = (jnp.asarray(rng.normal(size=shape)) for shape in ((4, lanes), (5, lanes), (5, 1)))
        for others in (right, shared):
            expected = np.zeros((7, lanes))
            with_one = np.append(np.asarray(others), np.ones((1, others.shape[1])), axis=0)
            np.add.at(expected, which, np.asarray(left)[left_of] * with_one[right_of])
            for kernel in (NATIVE, REFERENCE):
                np.testing.assert_allclose(kernel.sums(sums, left, others), expected, rtol=1e-12, atol=1e-12)


def test_a_compiled_program_keeps_its_plan_when_others_have_let_go():
    blocks = large_network(units=9, sparsity=0.5)
    D, I, delta = values_for(blocks, 8, np.float32)
    J = NATIVE.zeros(blocks, 8, np.float32)
    left, right = factors(I)

    def run(J, D, left, right, delta):
        return NATIVE.influence_step(blocks, J, D, Products(left, right, factors_of(blocks.groups.nnz)), delta)

    compiled = jax.jit(run).lower(J, D, left, right, delta).compile()
    before = compiled(J, D, left, right, delta)
    binding.blocks_plan.cache_clear()
    binding.sums_plan.cache_clear()
    factors_of.cache_clear()
    jax.clear_caches()
    gc.collect()
    after = compiled(J, D, left, right, delta)
    np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize("batch", [3, 16])
def test_buffers_with_room_for_another_plan_give_the_same(batch):
    blocks = large_network(units=16, sparsity=0.5)
    D, I, delta = values_for(blocks, batch, np.float32)
    rng = np.random.default_rng(0)
    zeros = NATIVE.zeros(blocks, batch, np.float32)
    J = jnp.asarray(rng.normal(size=zeros.J.shape), np.float32)
    longer_J = jnp.pad(J, ((0, 0), (0, 5), (0, 0)), constant_values=7)
    longer_D = jnp.pad(D, ((0, 3), (0, 0)), constant_values=7)
    after, g = step(blocks, zeros._replace(J=J), D, I, delta)
    padded, same = step(blocks, zeros._replace(J=longer_J), longer_D, I, delta)
    np.testing.assert_array_equal(g, same)
    np.testing.assert_array_equal(padded.J[:, : J.shape[1]], after.J)
    np.testing.assert_array_equal(padded.J[:, J.shape[1] :], 7)
    if batch == 16:
        Lambda = jnp.asarray(rng.normal(size=NATIVE.zero_credit(blocks, batch, np.float32).shape), np.float32)
        longer = jnp.pad(Lambda, ((0, 4), (0, 0)), constant_values=7)
        one, credit = NATIVE.credit_step(blocks, Lambda, D, delta)
        other, same = NATIVE.credit_step(blocks, longer, longer_D, delta)
        np.testing.assert_array_equal(one, other[: one.shape[0]])
        np.testing.assert_array_equal(credit, same)


def test_a_slot_takes_one_plan_after_the_other_and_none_is_an_error():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(4, 8)), rng.normal(size=(5, 8))
    first, second = (Sums.of((4, 5), n, np.arange(n), rng.integers(0, 4, n), rng.integers(0, 5, n)) for n in (6, 7))
    slots = Slots([first])
    kernel = NativeKernel(slots)
    compiled = jax.jit(lambda *args: kernel.sums(first, *args)).lower(left, right).compile()
    with pytest.raises(jax.errors.JaxRuntimeError, match="there is no plan of this kind in its place"):
        compiled(left, right)
    for sums in (first, second, first):
        assert slots.fit([sums])
        with slots.holding([sums]):
            out = compiled(left, right)
        expected = NATIVE.sums(sums, jnp.asarray(left), jnp.asarray(right))
        np.testing.assert_array_equal(out[: len(expected)], expected)
        np.testing.assert_array_equal(out[len(expected) :], 0)
    larger = Sums.of((4, 5), 20, np.arange(20), rng.integers(0, 4, 20), rng.integers(0, 5, 20))
    assert not slots.fit([larger])
    assert not slots.fit([Sums.of((5, 5), 6, np.arange(6), np.zeros(6, int), np.zeros(6, int))])
    alike = Slots([first, first])
    assert alike.fit([second, second])
    assert not alike.fit([first, second])  # they share a slot, and are not equal any more
