"""Random types and shapes thrown at the public functions: a sentence that names an argument, or a right answer."""

from __future__ import annotations

import re
import tempfile
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, integer_dtypes
from variants import case

import snapgrad as sg

KEY = jax.random.key(0)
CELL, READOUT = sg.Vanilla(4, 3), sg.Readout(2)
WEIGHTS = CELL.init(KEY, 0.5)
PARAMS = sg.Params(WEIGHTS, READOUT.init(KEY, 3))
LOSS = READOUT.loss

integers = st.integers(-3, 6) | st.sampled_from([2**31, 2**32, 2**63, 2**70, 10**30])
floats = st.floats(width=32) | st.sampled_from([0.5, -0.0, 1.0])
numbers = integers | floats | st.booleans() | st.none() | st.complex_numbers(max_magnitude=3)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
of_numpy = st.one_of(
    arrays(integer_dtypes(endianness="="), shapes),
    arrays(np.float64, shapes, elements=st.floats(-2, 2)),
    arrays(bool, shapes),
    arrays(np.complex128, shapes, elements=st.just(1j)),
    arrays("U1", shapes),
)
lists = st.recursive(numbers, lambda inner: st.lists(inner, max_size=4), max_leaves=6)
words = st.sampled_from(
    ["", "abc", "auto", "bfloat16", "copy", b"abc", object(), jnp, {}, {"a": 1}, (1, 2), np.float32]
)
anything = numbers | lists | of_numpy | words


def algorithm():
    return sg.bptt(CELL, LOSS)


@cache
def state():
    return algorithm().init(PARAMS, 3)


def grad(params=PARAMS, given=None, xs=None, targets=None):
    xs, targets = np.zeros((1, 3), int) if xs is None else xs, np.zeros((1, 3), int) if targets is None else targets
    return algorithm_of_one().grad(params, state() if given is None else given, xs, targets)


@cache
def algorithm_of_one():
    return algorithm()


def is_finite_gradient(result, *given):
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result[0]))


def one_hot(x):
    x = np.asarray(x)
    return (float(x) == np.arange(4.0)).astype(float) if x.dtype.kind in "iu" else x.astype(float)


def is_product(result, x):
    np.testing.assert_allclose(result, np.asarray(WEIGHTS.input.to_dense()) @ one_hot(x), atol=1e-12)


def is_step(result, x):
    dense = np.asarray(WEIGHTS.input.to_dense())
    np.testing.assert_allclose(result[0], np.tanh(dense @ one_hot(x)), atol=1e-12)


def is_mask(pattern, mask):
    np.testing.assert_array_equal(pattern.mask(), mask)


def has_entries(pattern, rows, cols):
    assert sorted(zip(pattern.rows.tolist(), pattern.cols.tolist(), strict=True)) == sorted(
        zip(np.asarray(rows).tolist(), np.asarray(cols).tolist(), strict=True)
    )


def is_dense(matrix, dense):
    np.testing.assert_array_equal(matrix.to_dense(), np.asarray(dense))


def has_values(matrix, rows, cols, values):
    for row, col, value in zip(np.asarray(rows), np.asarray(cols), np.asarray(values), strict=True):
        np.testing.assert_array_equal(matrix.to_dense()[row, col], value)


def is_cross_entropy(nats, target):
    logits = np.asarray(READOUT.logits(PARAMS.readout, jnp.ones(3)))
    expected = 0 if int(target) == -1 else np.log(np.exp(logits).sum()) - logits[int(target)]
    np.testing.assert_allclose(nats, expected, rtol=1e-10)


STACK = sg.stack(sg.Vanilla(4, 3), sg.GRU(3, 2))
BITS = sg.Vanilla(2, 3)  # reads what its readout says
BIT_PARAMS = sg.Params(BITS.init(KEY), READOUT.init(KEY, 3))


def saved_and_loaded(tree):
    with tempfile.TemporaryDirectory() as folder:
        sg.save(f"{folder}/tree.safetensors", tree)
        return sg.load(f"{folder}/tree.safetensors")


def same_tree(loaded, tree):
    assert jax.tree.structure(loaded) == jax.tree.structure(tree)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(one, other)


# What is called, and what must hold of an answer.
CALLS = {
    "GRU": (lambda a, b: sg.GRU(a, b), None),
    "GRU variant": (lambda a: sg.GRU(2, 3, variant=a), None),
    "LSTM bias": (lambda a: sg.LSTM(2, 3, recurrent_bias=a), None),
    "UnitCell": (lambda a, b: sg.UnitCell(a, 2, 3, gates=b), None),
    "UnitCell bias": (lambda a: sg.UnitCell(lambda s, u, v: s, 2, 3, initial_bias=a), None),
    "init key": (lambda a: CELL.init(a), None),
    "init sparsity": (lambda a: CELL.init(KEY, a), None),
    "init masks": (lambda a: CELL.init(KEY, recurrent_mask=a, sparse_inputs=True), None),
    "init dtype": (lambda a: CELL.init(KEY, dtype=a), None),
    "from_dense": (lambda a: CELL.from_dense(a, np.zeros((3, 4)), np.zeros(3)), None),
    "to_dense": (lambda a: CELL.to_dense(a), None),
    "step": (lambda a: CELL.step(WEIGHTS, jnp.zeros((1, 3)), a), is_step),
    "step state": (lambda a: CELL.step(WEIGHTS, a, 0), None),
    "multiply": (lambda a: sg.multiply(WEIGHTS.input, a), is_product),
    "multiply matrix": (lambda a: sg.multiply(a, 0), None),
    "Pattern": (lambda a, b: sg.Pattern(a, b, (4, 4)), has_entries),
    "Pattern shape": (lambda a: sg.Pattern([0], [0], a), None),
    "Pattern mask": (lambda a: sg.Pattern.from_mask(a), is_mask),
    "SparseMatrix": (lambda a, b: sg.SparseMatrix(a, b) @ jnp.ones(3), None),
    "SparseMatrix values": (lambda a: sg.SparseMatrix(a, WEIGHTS.input.pattern) @ jnp.ones(4), None),
    "from_coordinates": (lambda a, b, c: sg.SparseMatrix.from_coordinates(a, b, c, (4, 4)), has_values),
    "matrix from_dense": (lambda a: sg.SparseMatrix.from_dense(a), is_dense),
    "Readout": (lambda a, b: sg.Readout(a, b), None),
    "loss": (lambda a: LOSS(PARAMS.readout, jnp.ones(3), a), is_cross_entropy),
    "logits": (lambda a: READOUT.logits(a, jnp.ones(3)), None),
    "algorithm": (lambda a, b: sg.bptt(a, b), None),
    "snap": (lambda a, b, c: sg.snap(CELL, LOSS, order=a, episodic=b, influence_dtype=c), None),
    "backend": (lambda a: sg.frozen(CELL, LOSS, backend=a), None),
    "rflo": (lambda a, b, c: sg.rflo(CELL, LOSS, decay=a, episodic=b, influence_dtype=c), None),
    "uoro": (lambda a: sg.uoro(CELL, LOSS, rank=a), None),
    "init": (lambda a: algorithm().init(a, 3), None),
    "init batch": (lambda a, b: algorithm().init(PARAMS, a, b), None),
    "grad params": (lambda a: grad(params=a), None),
    "grad readout": (lambda a: grad(params=PARAMS._replace(readout=a)), None),
    "grad state": (lambda a: grad(given=a), is_finite_gradient),
    "grad xs": (lambda a: grad(xs=a), is_finite_gradient),
    "grad targets": (lambda a: grad(targets=a), is_finite_gradient),
    "reset": (lambda a: algorithm().reset(a, np.ones(3, bool)), None),
    "reset where": (lambda a: algorithm().reset(state(), a), None),
    "costs": (lambda a, b: sg.costs(CELL, WEIGHTS, order=a, batch=b), None),
    "costs params": (lambda a: sg.costs(CELL, a), None),
    "Copy": (lambda a: sg.tasks.Copy(a), None),
    "Crops": (lambda a, b: sg.tasks.Crops(a, b), None),
    "Streams": (lambda a: sg.tasks.Streams(a), None),
    "Trainer": (lambda a, b: sg.Trainer(sg.bptt(CELL, LOSS), sg.tasks.Copy(), optax.sgd(0.1), a, b), None),
    "Trainer parts": (lambda a, b, c: sg.Trainer(a, b, c), None),
    "Trainer run": (lambda a, b: trainer().run(a, b), None),
    "Trainer start": (lambda a, b: trainer().start(a, b), None),
    "Trainer rewire": (lambda a: sg.Trainer(sg.bptt(CELL, LOSS), sg.tasks.Copy(), optax.sgd(0.1), rewire=a), None),
    "kf_rtrl": (lambda a, b: sg.kf_rtrl(a, b), None),
    "ok": (lambda a: sg.ok(CELL, LOSS, rank=a), None),
    "snap_topk": (lambda a: sg.snap_topk(CELL, LOSS, k=a), None),
    "stack": (lambda a, b: sg.stack(a, b), None),
    "stack init": (lambda a, b: STACK.init(a, b), None),
    "cell": (lambda a, b, c: sg.cell(a, b, c, inputs=2), None),
    "cell inputs": (lambda a: sg.cell(lambda p, s, x: s, {"w": jnp.ones(1)}, jnp.ones(2), inputs=a), None),
    "SET": (lambda a, b, c: sg.rewiring.SET(every=a, share=b, end=c), None),
    "Probe": (lambda a, b: sg.rewiring.Probe(pool=a, order=b), None),
    "Magnitude": (lambda a, b, c: sg.pruning.Magnitude(a, end=b, every=c), None),
    "from_torch": (lambda a: sg.from_torch(CELL, a), None),
    "to_torch": (lambda a, b: sg.to_torch(a, b), None),
    "to_torch params": (lambda a: sg.to_torch(CELL, a), None),
    "save": (lambda a: saved_and_loaded(a), same_tree),
    "load": (lambda a: sg.load(a), None),
    "load_run": (lambda a: sg.load_run(a), None),
    "evaluate": (lambda a, b: sg.evaluate(CELL, READOUT, PARAMS, a, length=b), None),
    "generate": (lambda a, b: sg.generate(BITS, READOUT, BIT_PARAMS, a, 2, b), None),
    "generate length": (lambda a, b: sg.generate(BITS, READOUT, BIT_PARAMS, np.ones(1, int), a, KEY, b), None),
    "true_influence": (lambda a: sg.analysis.true_influence(CELL, a, np.zeros(2, int)), None),
    "true_influence xs": (lambda a: sg.analysis.true_influence(CELL, WEIGHTS, a), None),
    "analyse": (lambda a, b: sg.analysis.analyse(CELL, LOSS, PARAMS, a, b), None),
    "analyse orders": (
        lambda a: sg.analysis.analyse(CELL, LOSS, PARAMS, np.zeros((1, 1), int), np.zeros((1, 1), int), orders=a),
        None,
    ),
}


@cache
def trainer():
    return sg.Trainer(algorithm(), sg.tasks.Copy(), optax.sgd(0.1))


@pytest.mark.parametrize("examples", [case(8), case(40, quick=False)])
@pytest.mark.parametrize("name", CALLS)
def test_an_answer_is_right_and_a_refusal_names_an_argument(name, examples):
    health = list(HealthCheck)
    settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=health, database=None)(
        given(data=st.data())(lambda data: answered(name, data))
    )()


def answered(name, data):
    call, is_right = CALLS[name]
    arguments = [data.draw(anything) for _ in range(call.__code__.co_argcount)]
    try:
        answer = call(*arguments)
    except (ValueError, TypeError, FileNotFoundError) as error:
        message = str(error)
        assert re.search(r"`[\w.]+`", message), message
        assert "\n" not in message, message
    else:
        if is_right is not None:
            is_right(answer, *arguments)
