"""A table of wrong arguments for the whole Python interface: each gets a sentence of its own."""

from __future__ import annotations

import itertools
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from networks import loss, network

import snapgrad as sg
from snapgrad import machine
from snapgrad.tasks.characters import MOST_BYTES

KEY = jax.random.key(0)
CELL = sg.GRU(4, 5)
READOUT = sg.Readout(2)
SHAPE = sg.Pattern.from_mask(np.eye(3, 4, dtype=bool))
TEXT = np.zeros(50, np.uint8)
HUGE = 10**9


@cache
def params():
    return sg.Params(CELL.init(KEY), READOUT.init(KEY, 5))


def trainer(algorithm=None, task=None, optimiser=None, batch=3, update_every=1):
    algorithm = algorithm or sg.snap(CELL, READOUT.loss, order=1)
    return sg.Trainer(algorithm, task or sg.tasks.Copy(), optimiser or optax.sgd(0.1), batch, update_every)


@cache
def carry():
    return trainer().start(params(), KEY)


def grad(make=None, **changes):
    """One bare call of `grad`, right but for the changes."""
    algorithm = (make or sg.bptt)(CELL, READOUT.loss)
    arguments = {
        "params": params(),
        "state": algorithm.init(params(), 3, key=KEY) if "state" not in changes else None,
        "xs": np.zeros((2, 3), int),
        "targets": np.zeros((2, 3), int),
    } | changes
    return algorithm.grad(**arguments)


def with_cell(**fields):
    return params()._replace(cell=params().cell._replace(**fields))


def with_values(values):
    return with_cell(recurrent=sg.SparseMatrix(values, params().cell.recurrent.pattern))


def another_rule(s, u, v):
    return (jnp.tanh(u[0] + v[0]).astype(jnp.float32),)


def weights():
    return params().cell


def matrix(values):
    return sg.SparseMatrix(values, SHAPE)


# Every integer >= 1 of the interface: what takes it, and whether None has a meaning of its own.
INTEGERS = {
    "inputs": (lambda n: sg.GRU(n, 5), False),
    "units": (lambda n: sg.LSTM(3, n), False),
    "inputs ": (lambda n: sg.GRU(n, 5, variant="original"), False),
    "gates": (lambda n: sg.UnitCell(another_rule, 3, 5, gates=n), False),
    "states": (lambda n: sg.UnitCell(another_rule, 3, 5, states=n), False),
    "rank": (lambda n: sg.uoro(CELL, loss, rank=n), False),
    "rematerialise": (lambda n: sg.bptt(CELL, loss, rematerialise=n), True),
    "order": (lambda n: sg.snap(CELL, loss, order=n), True),
    "order ": (lambda n: sg.costs(CELL, weights(), order=n), True),
    "batch": (lambda n: sg.costs(CELL, weights(), batch=n), False),
    "window": (lambda n: sg.costs(CELL, weights(), window=n), False),
    "batch_size": (lambda n: sg.bptt(CELL, loss).init(params(), n), False),
    "classes": (lambda n: sg.Readout(n), False),
    "hidden": (lambda n: sg.Readout(2, (n,)), False),
    "units ": (lambda n: READOUT.init(KEY, n), False),
    "batch ": (lambda n: trainer(batch=n), False),
    "update_every": (lambda n: trainer(update_every=n), True),
    "tokens": (lambda n: trainer().run(carry(), n), False),
    "length": (lambda n: sg.tasks.Copy(n), True),
    "length ": (lambda n: sg.tasks.Crops(TEXT, n), False),
    "size": (lambda n: sg.Pattern.diagonal(n), False),
}
BOOLEANS = {
    "recurrent_bias": lambda b: sg.GRU(3, 5, recurrent_bias=b),
    "recurrent_bias ": lambda b: sg.LSTM(3, 5, recurrent_bias=b),
    "recurrent_bias  ": lambda b: sg.GRU(3, 5, variant="original", recurrent_bias=b),
    "sparse_inputs": lambda b: CELL.init(KEY, 0.5, sparse_inputs=b),
    "episodic": lambda b: sg.snap(CELL, loss, order=1, episodic=b),
    "episodic ": lambda b: sg.rflo(CELL, loss, episodic=b),
}
KEYS = {
    "a cell": lambda key: CELL.init(key),
    "an original GRU": lambda key: sg.GRU(3, 5, variant="original").init(key),
    "a readout": lambda key: READOUT.init(key, 5),
    "a trainer": lambda key: trainer().start(params(), key),
    "an algorithm": lambda key: sg.snap(CELL, READOUT.loss, order=1).init(params(), 3, key=key),
}
ARRAYS = {
    "xs": lambda a: grad(xs=a),
    "targets": lambda a: grad(targets=a),
    "where": lambda a: sg.bptt(CELL, loss).reset(sg.bptt(CELL, loss).init(params(), 3), a),
    "x": lambda a: sg.multiply(weights().input, a),
    "matrix": lambda a: sg.multiply(a, 0),
    "dense": lambda a: sg.SparseMatrix.from_dense(a),
    "values": lambda a: sg.SparseMatrix.from_coordinates([0], [0], a, (2, 2)),
    "bias": lambda a: CELL.from_dense(np.ones((15, 5)), np.ones((15, 4)), a),
    "target": lambda a: READOUT.loss(params().readout, jnp.zeros(5), a),
}


def by_kind():
    for (name, (call, none)), value in itertools.product(
        INTEGERS.items(), (0, -1, 1.5, "2", None, True, [1], float("nan"), 1j)
    ):
        if value is not None or not none:
            wanted = f"`{name.strip()}` must be an integer >= 1"
            yield f"{name}={value!r}", lambda call=call, value=value: call(value), wanted
    for (name, call), value in itertools.product(BOOLEANS.items(), ("no", 1, None, 0.0)):
        wanted = f"`{name.strip()}` must be True or False, got {value!r}"
        yield f"{name}={value!r}", lambda call=call, value=value: call(value), wanted
    for (name, call), value in itertools.product(KEYS.items(), (0, "key", 1.5, np.zeros(2), jax.random.split(KEY))):
        wanted = "`key` must be one PRNG key, such as jax.random.key(0), got "
        yield f"key of {name}: {value!r}", lambda call=call, value=value: call(value), wanted
    for (name, call), value in itertools.product(ARRAYS.items(), ("abc", None, [[1], [1, 2]], ...)):
        if (name, value) != ("targets", None):  # which is a pytree without leaves
            wanted = f"`{name}` must be an array of numbers, got {type(value).__name__} "
            yield f"{name}: {value!r}", lambda call=call, value=value: call(value), wanted
    for name, call in ARRAYS.items():
        if name in ("xs", "targets", "x", "target"):
            wanted = f"`{name}` must hold integers that JAX can represent, got "
            yield f"{name}: 2^70", lambda call=call: call(np.array([[2**70]], object).tolist()), wanted


def outside(target):
    return f"`targets` must be classes in [0, 2) or -1 (none), got {target}"


SINGLE = {
    # Cells
    "rule of two": (
        lambda: sg.UnitCell(lambda s, u: s, 3, 5),
        "`rule` must take s, u and v, tuples of 1, 1 and 1 float64 scalars, got: ",
    ),
    "rule of more gates": (
        lambda: sg.UnitCell(lambda s, u, v: (u[1],), 3, 5),
        "`rule` must take s, u and v, tuples of 1, 1 and 1 float64 scalars, got: tuple index out of range",
    ),
    "rule dtype": (
        lambda: sg.UnitCell(another_rule, 3, 5),
        "`rule` must return scalars of the dtype that it is given, float64, got float32",
    ),
    "initial bias": (
        lambda: sg.UnitCell(lambda s, u, v: s, 3, 5, initial_bias=("a",)),
        "`initial_bias` must be numbers, one a gate, got ('a',)",
    ),
    "no initial bias": (
        lambda: sg.UnitCell(lambda s, u, v: s, 3, 5, initial_bias=None),
        "`initial_bias` must be numbers, one a gate, got None",
    ),
    "dtype": (lambda: CELL.init(KEY, dtype="foo"), "`dtype` must be a floating-point dtype, got 'foo'"),
    "dtype of 8 bits": (
        lambda: CELL.init(KEY, dtype=jnp.float8_e4m3fn),
        "`dtype` must be a floating-point dtype, got float8_e4m3fn",
    ),
    "sparsity": (lambda: CELL.init(KEY, "0.5"), "`sparsity` must be a number in [0, 1), got '0.5'"),
    "sparsity nan": (lambda: CELL.init(KEY, float("nan")), "`sparsity` must be a number in [0, 1), got nan"),
    "mask": (
        lambda: CELL.init(KEY, recurrent_mask=[[True], [True, False]]),
        "`recurrent_mask` must be a boolean matrix, got list [[True], [True, False]]",
    ),
    "integer weights": (
        lambda: CELL.from_dense(np.ones((15, 5), int), np.ones((15, 4)), np.ones(15)),
        "`recurrent` must hold floating-point numbers, got int64",
    ),
    "weights of two dtypes": (
        lambda: CELL.from_dense(np.ones((15, 5)), np.ones((15, 4), np.float32), np.ones(15)),
        "`input` must have the dtype of `recurrent`, float64, got float32",
    ),
    "to_dense of an LSTM": (
        lambda: CELL.to_dense(sg.LSTM(4, 5).init(KEY)),
        "`params.cell.recurrent` must be a SparseMatrix of shape (15, 5) for GRU(inputs=4, units=5), got ",
    ),
    "to_dense of nothing": (lambda: CELL.to_dense(None), "`params.cell` must be what GRU(inputs=4, units=5).init ret"),
    "costs of an LSTM": (
        lambda: sg.costs(sg.LSTM(4, 5), weights()),
        "`params.cell.recurrent` must be a SparseMatrix of shape (20, 5) for LSTM(inputs=4, units=5), got ",
    ),
    "costs of nothing": (
        lambda: sg.costs(CELL, None),
        "`params.cell` must be what GRU(inputs=4, units=5).init returns, got NoneType",
    ),
    "step without params": (
        lambda: CELL.step(None, CELL.initial_state(), 0),
        "`params` must be what GRU(inputs=4, units=5).init returns, got NoneType",
    ),
    "step from another state": (
        lambda: CELL.step(weights(), jnp.zeros((2, 5)), 0),
        "`s` must be a state of GRU(inputs=4, units=5), of shape (1, 5), got float64 of shape (2, 5)",
    ),
    "step from no state": (
        lambda: CELL.step(weights(), None, 0),
        "`s` must be a state of GRU(inputs=4, units=5), of shape (1, 5), got NoneType",
    ),
    "step with symbols": (
        lambda: CELL.step(CELL.init(KEY, 0.5), CELL.initial_state(), jnp.array([0, 1])),
        "`x` must be a float vector [4] or one integer, got int64 of shape (2,)",
    ),
    "step with booleans": (
        lambda: CELL.step(weights(), CELL.initial_state(), jnp.zeros(4, bool)),
        "`x` must be a float vector [4] or one integer, got bool of shape (4,)",
    ),
    "step with a short vector": (
        lambda: CELL.step(weights(), CELL.initial_state(), jnp.zeros(3)),
        "`x` must have shape (4,) to be multiplied by SparseMatrix(",
    ),
    # Patterns and matrices
    "half a row": (lambda: sg.Pattern([0.5], [0], (3, 4)), "`rows` must be a vector of integers, got float64"),
    "boolean columns": (lambda: sg.Pattern([0], [True], (3, 4)), "`cols` must be a vector of integers, got bool"),
    "ragged rows": (lambda: sg.Pattern([[0], [1, 2]], [0], (3, 4)), "`rows` must be a vector of integers, got a list"),
    "repeated": (
        lambda: sg.Pattern([0, 1, 0], [1, 1, 1], (3, 4)),
        "`rows` and `cols` must name every entry once, got 1 repeated",
    ),
    "shape": (lambda: sg.Pattern([0], [0], 3), "`shape` must be two integers (rows, cols), got 3"),
    "shape of floats": (lambda: sg.Pattern.full((3.0, 4)), "`shape` must be two integers (rows, cols), got (3.0, 4)"),
    "negative shape": (lambda: sg.Pattern.full((3, -4)), "`shape` must be two integers >= 0 with a product below 2^63"),
    "ragged mask": (
        lambda: sg.Pattern.from_mask([[True], [True, False]]),
        "`mask` must be a boolean matrix, got a ragged list",
    ),
    "no pattern": (lambda: sg.SparseMatrix(np.ones(3), None), "`pattern` must be a sg.Pattern, got NoneType"),
    "values of coordinates": (
        lambda: sg.SparseMatrix.from_coordinates([0, 1], [1, 0], [1.0], (2, 2)),
        "`values` must have one value an entry, shape (2,), got (1,)",
    ),
    "coordinates twice": (
        lambda: sg.SparseMatrix.from_coordinates([0, 0], [1, 1], [1.0, 2.0], (2, 2)),
        "`rows` and `cols` must name every entry once, got 1 repeated",
    ),
    "matrix of a vector": (
        lambda: sg.multiply(jnp.ones(3), jnp.ones(3)),
        "`matrix` must be a SparseMatrix or a 2-D array, got float64 of shape (3,)",
    ),
    "product with a matrix": (
        lambda: sg.multiply(jnp.ones((3, 4)), jnp.ones(3)),
        "`x` must have shape (4,) to be multiplied by a matrix of shape (3, 4), got (3,)",
    ),
    # Parameters
    "values of 8 bits": (
        lambda: grad(params=jax.tree.map(lambda leaf: leaf.astype(jnp.float8_e4m3fn), params())),
        "`params` must hold floating-point arrays only, got float8_e4m3fn in params.cell.recurrent.values",
    ),
    "params of two dtypes": (
        lambda: grad(params=with_cell(bias=jnp.zeros(15, jnp.float32))),
        "`params.cell` must be of one dtype, got float32 and float64",
    ),
    "a word in params": (
        lambda: grad(params=params()._replace(readout="weights")),
        "`params` must hold floating-point arrays only, got str in params.readout",
    ),
    "complex params": (
        lambda: grad(params=params()._replace(readout=jnp.zeros(2, complex))),
        "`params` must hold floating-point arrays only, got complex128 in params.readout",
    ),
    "readout of other units": (
        lambda: grad(params=params()._replace(readout=READOUT.init(KEY, 6))),
        "`params.readout` must be what Readout(classes=2, hidden=()).init returns for these units, shapes ",
    ),
    "readout of other classes": (
        lambda: grad(params=params()._replace(readout=sg.Readout(3).init(KEY, 5))),
        "`params.readout` must be what Readout(classes=2, hidden=()).init returns for these units, shapes ",
    ),
    "no readout": (
        lambda: grad(params=params()._replace(readout=None)),
        "`params.readout` must be what Readout(classes=2, hidden=()).init returns for these units, shapes ",
    ),
    # Windows
    "complex xs": (
        lambda: grad(xs=np.zeros((2, 3, 4), complex)),
        "`xs` must hold floats (vectors) or integers (indices), got complex128",
    ),
    "keys for xs": (
        lambda: grad(xs=jax.random.split(KEY, (2, 3))),
        "`xs` must hold floats (vectors) or integers (indices), got key<fry>",
    ),
    "targets of another length": (
        lambda: grad(targets=[[0, 0, 0]]),
        "`targets` must begin with the shape (2, 3) of `xs`, got (1, 3)",
    ),
    "target -2": (lambda: grad(targets=np.full((2, 3), -2)), outside(-2)),
    "target 2": (lambda: grad(targets=np.array([[0, 1, 2], [0, 1, -1]])), outside(2)),
    "target -2 of a loss": (lambda: READOUT.loss(params().readout, jnp.zeros(5), -2), outside(-2)),
    "target 2 of a loss": (lambda: READOUT.loss(params().readout, jnp.zeros(5), jnp.int32(2)), outside(2)),
    "target of a loss": (
        lambda: READOUT.loss(params().readout, jnp.zeros(5), 1.0),
        "`target` must be one integer an example and step, got float64 of shape ()",
    ),
    "targets of a loss": (
        lambda: READOUT.loss(params().readout, jnp.zeros(5), [1, 0]),
        "`target` must be one integer an example and step, got int64 of shape (2,)",
    ),
    "hidden": (lambda: sg.Readout(2, 5), "`hidden` must be a tuple of widths, such as (1024,) or (), got 5"),
    # Tasks
    "corpus": (lambda: sg.tasks.corpus(""), '`corpus` must be "stdlib", "wikitext2", "wikitext103" or the path'),
    "blank corpus": (lambda: sg.tasks.corpus("  "), '`corpus` must be "stdlib", "wikitext2", "wikitext103" or the pa'),
    "no corpus": (lambda: sg.tasks.corpus(None), '`corpus` must be "stdlib", "wikitext2", "wikitext103" or the path'),
    "text": (lambda: sg.tasks.Streams("abc"), "`text` must be a 1-D array of uint8, got str"),
    "text of integers": (
        lambda: sg.tasks.Crops(np.zeros(50, int), 4),
        "`text` must be a 1-D array of uint8, got int64 of shape (50,)",
    ),
    "short text": (lambda: sg.tasks.Crops(TEXT, 50), "`text` must have at least 51 bytes, got 50"),
    "long text": (
        lambda: sg.tasks.Streams(np.broadcast_to(np.uint8(0), MOST_BYTES + 1)),
        f"`text` must have at most {MOST_BYTES} bytes, got {MOST_BYTES + 1}",
    ),
    "long copies": (lambda: sg.tasks.Copy(2 * HUGE), "`length` must be an integer <= 268435456, got 2000000000"),
    # Trainers
    "no algorithm": (
        lambda: sg.Trainer(None, sg.tasks.Copy(), optax.sgd(0.1)),
        "`algorithm` must be one such as sg.snap returns, got NoneType",
    ),
    "no task": (
        lambda: sg.Trainer(sg.bptt(CELL, loss), "copy", optax.sgd(0.1)),
        "`task` must be a sg.tasks.Task, got str",
    ),
    "no optimiser": (
        lambda: sg.Trainer(sg.bptt(CELL, loss), sg.tasks.Copy(), None),
        "`optimiser` must be an optimiser of Optax, got NoneType",
    ),
    "episodic online": (
        lambda: trainer(sg.snap(CELL, READOUT.loss, order=1, episodic=True)),
        "`update_every` must be None for snap(order=1, episodic), whose windows are whole sequences, got 1",
    ),
    "narrow cell": (
        lambda: trainer(sg.bptt(sg.GRU(3, 5), READOUT.loss)),
        "`algorithm` must have a cell with the task's 4 inputs, got GRU(inputs=3, units=5)",
    ),
    "wide cell": (
        lambda: trainer(sg.bptt(sg.GRU(256, 5), READOUT.loss)),
        "`algorithm` must have a cell with the task's 4 inputs, got GRU(inputs=256, units=5)",
    ),
    "other classes": (
        lambda: trainer(sg.bptt(CELL, sg.Readout(3).loss)),
        "`algorithm` must have a loss on the task's 2 classes, got that of Readout(classes=3, hidden=())",
    ),
    "no carry": (
        lambda: trainer().run(params(), 10),
        "`carry` must come from this trainer's start or run, got Params",
    ),
    "carry of another optimiser": (
        lambda: trainer(optimiser=optax.sgd(0.1, momentum=0.9)).run(carry(), 10),
        "`carry.opt_state` must come from this trainer's optimiser, got that of another",
    ),
    "carry of another batch size": (
        lambda: trainer(batch=2).run(carry(), 10),
        "`carry.state` must come from this trainer's algorithm with a batch of 2, got float64 of shape (3, 1, 5) in "
        "place of float64 of shape (2, 1, 5)",
    ),
    "carry of another algorithm": (
        lambda: trainer(sg.snap(CELL, READOUT.loss, order=2)).run(carry(), 10),
        "`carry.state` must come from this trainer's algorithm, got that of another",
    ),
    "carry of another task": (
        lambda: trainer(sg.snap(sg.GRU(256, 5), sg.Readout(256).loss, order=1), sg.tasks.Crops(TEXT, 4)).run(
            carry(), 10
        ),
        "`params.cell.input` must be a SparseMatrix of shape (15, 256) for GRU(inputs=256, units=5), got ",
    ),
    # Memory: nothing of this is allocated
    "units": (lambda: sg.GRU(4, 10**6).init(KEY), "`units` must leave the weights of GRU(inputs=4, units=1000000) wi"),
    "sparse units": (
        lambda: sg.GRU(4, 10**6).init(KEY, 0.75),
        "`units` must leave the weights of GRU(inputs=4, units=1000000) within the memory of this machine",
    ),
    "original units": (
        lambda: sg.GRU(4, 10**30, variant="original").init(KEY),
        "`units` must leave the weights of OriginalGRU(",
    ),
    "readout units": (lambda: sg.Readout(2, (10**6, 10**6)).init(KEY, 5), "`units` must leave the weights of Readout"),
    "batch of snap": (
        lambda: sg.snap(CELL, loss, order=1).init(params(), 10 * HUGE),
        "`batch_size` must leave the influence of order 1 of 10000000000 sequences on GRU(inputs=4, units=5) within",
    ),
    "batch of bptt": (
        lambda: sg.bptt(CELL, loss).init(params(), 10**13),
        "`batch_size` must leave bptt on GRU(inputs=4, units=5) with 10000000000000 sequences within the memory of",
    ),
    "batch of uoro": (
        lambda: sg.uoro(CELL, loss).init(params(), 10**13, key=KEY),
        "`batch_size` must leave uoro(rank=1) on GRU(inputs=4, units=5) with 10000000000000 sequences within the mem",
    ),
    "batch of a trainer": (
        lambda: trainer(batch=10**13).start(params(), KEY),
        "`batch` must leave the task's state within the memory of this machine, ",
    ),
    "window of a trainer": (
        lambda: trainer(update_every=HUGE),
        "`update_every` must be an integer <= 536870912, got 1000000000",
    ),
    "tokens of a window": (
        lambda: trainer(batch=4, update_every=1 << 29).start(params(), KEY),
        "`update_every` must leave a window fewer than 2^31 tokens, got 536870912 steps of 4 sequences",
    ),
    "steps of whole sequences": (
        lambda: trainer(task=sg.tasks.Copy(1 << 28), batch=4, update_every=None).start(params(), KEY),
        "`batch` must leave a window fewer than 2^31 tokens, got 536870920 steps of 4 sequences",
    ),
}
for values in (np.ones(74), np.ones(76), np.ones((75, 1)), 1.0):
    SINGLE[f"{np.shape(values)} values in params"] = (
        lambda values=values: grad(params=with_values(values)),
        "`params.cell.recurrent` must have 75 values, one an entry of its pattern, got shape ",
    )
for values in (np.ones(2), np.ones(4), np.ones((3, 1)), [1.0, 2.0, 3.0], None):
    for what, use in {
        "product": lambda m: m @ jnp.ones(4),
        "column": lambda m: m.column(jnp.int32(0)),
        "dense": lambda m: m.to_dense(),
        "multiply": lambda m: sg.multiply(m, jnp.ones(4)),
    }.items():
        SINGLE[f"{what} with {values!r}"] = (
            lambda use=use, values=values: use(matrix(values)),
            "must be an array of shape (3,), got ",
        )
TABLE = {**SINGLE, **{name: (call, wanted) for name, call, wanted in by_kind()}}


@pytest.mark.parametrize("case", TABLE)
def test_the_message_says_what_is_wrong(case):
    call, wanted = TABLE[case]
    with (
        pytest.raises((ValueError, TypeError), match=re.escape(wanted)) as error,
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        call()
    assert "\n" not in str(error.value)


def test_memory_is_compared_with_what_the_machine_has(monkeypatch):
    """The same call, refused or not by the machine's memory alone."""
    net = network("gru")
    for make in (
        lambda: sg.snap(net.cell, loss, order=2).init(net.params, 1000),
        lambda: sg.rtrl(net.cell, loss).init(net.params, 1000),
        lambda: sg.snap(net.cell, loss, order=2, episodic=True).init(net.params, 1000),
        lambda: sg.rflo(net.cell, loss, episodic=True).init(net.params, 1000),
        lambda: sg.bptt(net.cell, loss).init(net.params, 1000),
        lambda: net.cell.init(KEY),
    ):
        make()
        with monkeypatch.context() as patch:
            patch.setattr(machine, "memory_bytes", lambda: 500)
            with pytest.raises(
                ValueError, match=r"within the memory of this machine, 500 B, got one that needs \S+ [KM]?i?B"
            ):
                make()


@pytest.mark.parametrize("share", [0.1, 0.45, 0.99])  # of what it takes: refused by a bound, a sample, the exact count
def test_an_influence_that_does_not_fit_is_refused_with_its_order_its_density_and_what_would_help(share, monkeypatch):
    net, lanes = network("gru"), 100_000
    algorithm, counted = sg.snap(net.cell, loss, order=2), sg.costs(net.cell, net.params.cell, order=2)
    monkeypatch.setattr(machine, "memory_bytes", lambda: share * 8 * lanes * counted.kept)
    with pytest.raises(ValueError, match="`batch_size` must leave the influence of order 2 of 100000 seq") as refused:
        algorithm.init(net.params, lanes)
    said = re.search(
        r"got one that needs \S+ [KMG]iB at least \(.* of influence, (\S+)% of J\): a smaller batch, fewer units, "
        r'more sparsity, a lower `order`, influence_dtype="bfloat16" would help$',
        str(refused.value),
    )
    density = {0.1: 1 / counted.states, 0.99: 1 - counted.sparsity}.get(share, float(said[1]) / 100)
    assert float(said[1]) == pytest.approx(100 * density, abs=0.06)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_an_index_means_the_same_in_every_integer_type(dtype):
    """-1, or the largest number, is no input; 300 inputs are more than 8 bits can count."""
    for cell in (sg.Vanilla(300, 2), sg.GRU(300, 2, variant="original")):
        symbols = np.array([0, 1, 44, 255, 299, 300, 65535, 2**32, 2**40, -1, -256])
        symbols = symbols[(symbols >= np.iinfo(dtype).min) & (symbols <= np.iinfo(dtype).max)].astype(dtype)
        one_hot = jnp.asarray(symbols.astype(float)[:, None] == np.arange(300.0)[None], float)
        sparse = cell.init(KEY, 0.5)
        for symbol, vector in zip(symbols, one_hot, strict=True):
            expected = cell.step(sparse, cell.initial_state(), vector)
            np.testing.assert_allclose(cell.step(sparse, cell.initial_state(), symbol), expected, atol=1e-12)


@pytest.mark.parametrize(
    "make", [sg.bptt, lambda *a: sg.snap(*a, order=1), lambda *a: sg.snap(*a, order=1, episodic=True)]
)
def test_gradients_are_those_of_the_one_hots_in_every_integer_type(make):
    cell = sg.Vanilla(300, 2)
    params = sg.Params(cell.init(KEY, 0.5), jnp.ones(2))
    algorithm = make(cell, lambda readout, h, target: (readout @ h - target) ** 2)
    state, targets = algorithm.init(params, 4), jnp.ones((1, 4))
    for dtype in (np.int8, np.uint8, np.uint32, np.int64, np.uint64):
        largest = np.iinfo(dtype).max
        symbols = np.array(
            [[0, 44, largest, np.iinfo(dtype).min]], dtype
        )  # all but the first are outside, in wide types
        vectors = jnp.asarray(symbols.astype(float)[..., None] == np.arange(300.0), float)
        found, _ = algorithm.grad(params, state, symbols, targets)
        expected, _ = algorithm.grad(params, state, vectors, targets)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_values_go_with_their_coordinates():
    rows, cols, values = [2, 0, 1, 0], [1, 3, 0, 0], [1.0, 2.0, 3.0, 4.0]
    matrix = sg.SparseMatrix.from_coordinates(rows, cols, values, (3, 4))
    dense = np.zeros((3, 4))
    dense[rows, cols] = values
    np.testing.assert_array_equal(matrix.to_dense(), dense)


def test_wide_integers_are_refused_where_jax_would_wrap_them_round():
    with jax.enable_x64(False):
        cell = sg.Vanilla(4, 2)
        weights = cell.init(KEY)
        for symbol in (2**32, np.int64(2**40), np.uint64(2**63)):
            with pytest.raises(ValueError, match=r"`x` must hold integers that JAX can represent, got .* u?int32"):
                cell.step(weights, cell.initial_state(), symbol)
        algorithm = sg.bptt(cell, lambda readout, h, target: h.sum())
        params = sg.Params(weights, ())
        with pytest.raises(ValueError, match="`xs` must hold integers that JAX can represent, got 1099511627776"):
            algorithm.grad(params, algorithm.init(params, 1), np.array([[2**40]]), jnp.zeros((1, 1)))
