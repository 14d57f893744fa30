"""Patterns, sparse matrices, random masks and reach, on whatever shapes Hypothesis comes up with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import snapgrad as sg
from snapgrad.kernels.select import NATIVE, REFERENCE
from snapgrad.sparsity.masks import random_pattern
from snapgrad.sparsity.reach import group_columns, influence_blocks

shapes = st.tuples(st.integers(1, 7), st.integers(1, 9))
masks = shapes.flatmap(lambda shape: arrays(bool, shape))
settings.register_profile("snapgrad", deadline=None, max_examples=40)
settings.load_profile("snapgrad")


@given(masks)
def test_a_pattern_is_its_mask(mask):
    pattern = sg.Pattern.from_mask(mask)
    rows, cols = np.nonzero(mask)
    np.testing.assert_array_equal(pattern.mask(), mask)
    np.testing.assert_array_equal((pattern.rows, pattern.cols), (rows, cols))
    shuffled = np.random.default_rng(0).permutation(len(rows))
    same = sg.Pattern(rows[shuffled], cols[shuffled], mask.shape)
    assert same == pattern
    assert hash(same) == hash(pattern)
    assert pattern.is_full == mask.all()
    assert (sg.Pattern.from_mask(~mask) == pattern) == (mask.size == 0)


@pytest.mark.parametrize("limit", [0, 1 << 22], ids=["by search", "by table"])
@given(mask=masks)
def test_entries_are_found(mask, limit):
    pattern = sg.Pattern.from_mask(mask)
    i, j = np.indices((mask.shape[0] + 1, mask.shape[1] + 1))  # one past the end in both: padding
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("snapgrad.sparsity.pattern.TABLE_LIMIT", limit)
        found = pattern.find(i, j)
    np.testing.assert_array_equal(found < pattern.nnz, np.pad(mask, ((0, 1), (0, 1))))
    np.testing.assert_array_equal(found[:-1, :-1][mask], np.arange(pattern.nnz))


@given(masks)
@settings(max_examples=8)  # every new shape compiles anew
def test_products_and_conversions_equal_dense_ones(mask):
    draw = np.random.default_rng(1)
    dense = draw.normal(size=mask.shape)
    matrix = sg.SparseMatrix.from_dense(dense, mask)
    kept, x = np.where(mask, dense, 0), draw.normal(size=mask.shape[1])
    assert matrix.values.shape == (mask.sum(),)
    np.testing.assert_array_equal(matrix.to_dense(), kept)
    np.testing.assert_allclose(matrix @ jnp.asarray(x), kept @ x, rtol=1e-12, atol=1e-12)
    for index in range(mask.shape[1]):
        np.testing.assert_array_equal(sg.multiply(matrix, jnp.asarray(index)), kept[:, index])
    for outside in (-1, mask.shape[1]):
        assert not np.any(sg.multiply(matrix, outside))
        assert not np.any(sg.multiply(matrix.to_dense(), outside))


def test_a_dense_matrix_keeps_its_numerical_zeros_as_parameters():
    matrix = sg.SparseMatrix.from_dense(np.zeros((3, 4)))
    assert matrix.pattern.is_full
    assert matrix.values.shape == (12,)


def test_sparse_matrices_multiply_dense_where_that_is_faster():
    key = jax.random.key(0)
    cell = sg.GRU(40, 400)
    for kernel, dense, sparse in ((REFERENCE, 0.98, 0.999), (NATIVE, 0.6, 0.75)):
        assert kernel.ready(cell.init(key, sparsity=dense)).recurrent.pattern.is_full
        assert not kernel.ready(cell.init(key, sparsity=sparse)).recurrent.pattern.is_full


@given(st.integers(1, 12), st.integers(1, 9), st.floats(0, 0.99), st.integers(1, 4))
def test_random_patterns_have_an_exact_count_in_every_gate(rows, cols, sparsity, gates):
    pattern = random_pattern(jax.random.key(rows), (rows, cols), sparsity, gates=gates)
    per_gate = pattern.mask().reshape(gates, rows * cols).sum(axis=1)
    assert set(per_gate) == {max(1, round((1 - sparsity) * rows * cols))}


def test_random_patterns_are_uniform_and_differ_between_gates_and_keys():
    counts = np.zeros((2, 4, 5))
    for seed in range(300):
        counts += random_pattern(jax.random.key(seed), (4, 5), 0.7, gates=2).mask().reshape(2, 4, 5)
    # Each of the 20 places is kept with probability 0.3: 90 of 300, standard deviation 8.
    assert np.abs(counts - 90).max() < 40
    mask = random_pattern(jax.random.key(0), (20, 20), 0.7, gates=2).mask()
    assert not np.array_equal(mask[:20], mask[20:])
    assert random_pattern(jax.random.key(0), (20, 20), 0.7) != random_pattern(jax.random.key(1), (20, 20), 0.7)


@pytest.mark.parametrize("sparsity", [0.0, 0.75, 0.98])
def test_initial_preactivations_have_unit_variance_at_every_sparsity(sparsity):
    cell = sg.GRU(100, 400)
    params = cell.init(jax.random.key(0), sparsity=sparsity)
    h = jax.random.normal(jax.random.key(1), (400, 64))
    rows = np.diff(params.recurrent.pattern.row_starts) > 0
    v = (params.recurrent.to_dense() @ h)[rows]
    assert 0.9 < float(jnp.std(v)) < 1.1


def test_optimiser_state_has_the_size_of_the_existing_weights():
    params = sg.GRU(10, 50).init(jax.random.key(0), sparsity=0.9)
    adam = optax.adam(1e-3).init(params)
    existing = 3 * (250 + 50) + 150
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == existing
    assert sum(leaf.size for leaf in jax.tree.leaves(adam)) == 2 * existing + 1


def test_input_weights_can_stay_dense():
    params = sg.GRU(10, 50).init(jax.random.key(0), sparsity=0.9, sparse_inputs=False)
    assert params.input.pattern.is_full
    assert params.recurrent.pattern.nnz == 3 * 250


def test_masks_can_be_given():
    draw = np.random.default_rng(0)
    recurrent, input = draw.random((15, 5)) < 0.4, draw.random((15, 3)) < 0.4
    params = sg.GRU(3, 5).init(jax.random.key(0), recurrent_mask=recurrent, input_mask=input)
    np.testing.assert_array_equal(params.recurrent.pattern.mask(), recurrent)
    np.testing.assert_array_equal(params.input.pattern.mask(), input)


@given(st.integers(1, 7).flatmap(lambda n: arrays(bool, (n, n))), st.integers(1, 5), st.data())
def test_reach_equals_a_walk_along_the_graph(graph, order, data):
    states = len(graph)
    immediate = data.draw(arrays(bool, (states, data.draw(st.integers(1, 6)))))
    groups = group_columns(sg.Pattern.from_mask(immediate))
    np.testing.assert_array_equal(groups.entries.mask()[groups.of_param].T, immediate)
    assert len(set(map(bytes, groups.entries.mask()))) == groups.entries.shape[0]

    def walk(start, steps):
        seen = set(start)
        for _ in range(steps):
            seen |= {i for i in range(states) for j in seen if graph[i, j]}
        return seen

    for n in (order, None):
        blocks = influence_blocks(groups, sg.Pattern.from_mask(graph), n)
        reach, total = blocks.reach.mask(), 0
        for param in range(immediate.shape[1]):
            expected = walk(np.flatnonzero(immediate[:, param]), states if n is None else n - 1)
            assert set(np.flatnonzero(reach[groups.of_param[param]])) == expected
            total += len(expected)
        assert blocks.kept == total
        sizes = [graph[np.ix_(row, row)].sum() for row in reach]
        np.testing.assert_array_equal(blocks.product_sizes(), sizes)


def test_a_large_sparse_network_builds():
    cell = sg.GRU(32, 4096)
    params = cell.init(jax.random.key(0), sparsity=0.999)
    jacobians = cell.jacobians(params)
    blocks = influence_blocks(jacobians.groups, jacobians.dynamics, 2)
    out_degree = np.bincount(jacobians.dynamics.cols, minlength=4096)
    np.testing.assert_array_equal(blocks.heights, out_degree)  # D has every self-loop of a GRU


def test_weight_decay_goes_by_field():
    cell = sg.Vanilla(3, 4)
    params = sg.Params(cell.init(jax.random.key(0), 0.5)._replace(bias=jnp.ones(4)), jnp.ones(2))
    mask = sg.Params(cell=sg.UnitParams(recurrent=True, input=True, bias=False), readout=False)
    decay = optax.add_decayed_weights(0.1, mask=mask)
    updates, _ = decay.update(jax.tree.map(jnp.zeros_like, params), decay.init(params), params)
    np.testing.assert_allclose(updates.cell.recurrent.values, 0.1 * params.cell.recurrent.values)
    assert not updates.cell.bias.any()
    assert not updates.readout.any()
