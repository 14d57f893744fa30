"""Bad input gets one sentence: the argument, what is required and what was given, before anything compiles."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import loss, network

import snapgrad as sg

CELL = sg.GRU(3, 5)
KEY = jax.random.key(0)


def call(**changes):
    """`algorithm.grad` on a good window, but for the changes."""
    net = network("gru")
    algorithm = changes.pop("algorithm", sg.snap(net.cell, changes.pop("loss", loss), order=2))
    params = changes.pop("params", net.params)
    state = changes.pop("state", None)
    if state is None:
        state = algorithm.init(net.params, batch_size=3, key=KEY)
    return algorithm.grad(params, state, changes.pop("xs", net.xs), changes.pop("targets", net.targets))


def state_of(algorithm, params=None):
    return algorithm.init(params or network("gru").params, batch_size=3, key=KEY)


def other_pattern():
    net = network("gru")
    return net.params._replace(cell=net.cell.init(jax.random.key(9), sparsity=0.5))


def changed(**fields):
    params = network("gru").params
    return params._replace(cell=params.cell._replace(**fields))


def gru():
    return network("gru").cell


def lambda_cell():
    return sg.UnitCell(lambda s, u, v: (jnp.tanh(u[0] + v[0]),), 3, 5)


LAMBDA_CELL = lambda_cell()


CASES = {
    "order zero": (
        lambda: sg.snap(CELL, loss, order=0),
        "`order` must be an integer >= 1 or None (exact), got 0",
    ),
    "order float": (
        lambda: sg.snap(CELL, loss, order=1.5),
        "`order` must be an integer >= 1 or None (exact), got 1.5",
    ),
    "order of costs": (
        lambda: sg.costs(CELL, CELL.init(KEY), order=-1),
        "`order` must be an integer >= 1 or None (exact), got -1",
    ),
    "params of costs": (
        lambda: sg.costs(CELL, network("gru").params),
        "`params` must be the parameters of the cell alone (`params.cell`), got sg.Params",
    ),
    "sparsity one": (lambda: CELL.init(KEY, sparsity=1.0), "`sparsity` must be a number in [0, 1), got 1.0"),
    "sparsity negative": (lambda: CELL.init(KEY, sparsity=-0.1), "`sparsity` must be a number in [0, 1), got -0.1"),
    "sparsity percent": (
        lambda: sg.GRU(3, 5, variant="original").init(KEY, sparsity=75),
        "`sparsity` must be a number in [0, 1), got 75",
    ),
    "mask shape": (
        lambda: CELL.init(KEY, recurrent_mask=np.ones((5, 5), bool)),
        "`recurrent_mask` must have shape (15, 5), got (5, 5)",
    ),
    "mask dtype": (
        lambda: CELL.init(KEY, input_mask=np.ones((15, 3))),
        "`input_mask` must be boolean, got float64",
    ),
    "mask empty": (
        lambda: CELL.init(KEY, input_mask=np.zeros((15, 3), bool)),
        "`input_mask` must keep at least one entry, got none",
    ),
    "mask of a matrix": (
        lambda: sg.SparseMatrix.from_dense(np.ones((3, 4)), np.ones((4, 3), bool)),
        "`mask` must have the matrix's shape (3, 4), got (4, 3)",
    ),
    "mask from weights": (
        lambda: sg.SparseMatrix.from_dense(np.ones((3, 4)), np.ones((3, 4))),
        "`mask` must be a boolean matrix, got float64 of shape (3, 4)",
    ),
    "init in jit": (
        lambda: jax.jit(lambda key: CELL.init(key, sparsity=0.5))(KEY),
        "a sparse `init` must be called outside jit and vmap, or be given masks: a pattern is structure, not data",
    ),
    "dense shape": (
        lambda: CELL.from_dense(np.ones((5, 15)), np.ones((15, 3)), np.ones(15)),
        "`recurrent` must have shape (15, 5), got (5, 15)",
    ),
    "dense bias": (
        lambda: CELL.from_dense(np.ones((15, 5)), np.ones((15, 3)), np.ones(15), np.ones(15)),
        "`recurrent_bias` must be given exactly when the cell has one (False), got one",
    ),
    "units": (lambda: sg.LSTM(3, 0), "`units` must be an integer >= 1, got 0"),
    "variant": (lambda: sg.GRU(3, 5, variant="v3"), '`variant` must be "cudnn" or "original", got \'v3\''),
    "variant with bias": (
        lambda: sg.GRU(3, 5, variant="original", recurrent_bias=True),
        '`recurrent_bias` must be False for variant="original", got True',
    ),
    "rule": (lambda: sg.UnitCell("tanh", 3, 5), "`rule` must be a function of (s, u, v), got str"),
    "rule result": (
        lambda: sg.UnitCell(lambda s, u, v: jnp.tanh(u[0] + v[0]), 3, 5),
        "`rule` must return a tuple of 1 scalar(s) (`states`), got ShapeDtypeStruct",
    ),
    "initial bias": (
        lambda: sg.UnitCell(lambda s, u, v: s, 3, 5, initial_bias=(1.0, 2.0)),
        "`initial_bias` must have one value a gate (1), got 2",
    ),
    "cell": (
        lambda: sg.bptt("gru", loss),
        "`cell` must be a snapgrad cell such as sg.GRU(inputs, units), got str",
    ),
    "loss": (lambda: sg.bptt(CELL, None), "`loss` must be a function (readout, h, target) -> scalar, got NoneType"),
    "decay": (lambda: sg.rflo(CELL, loss, decay=1.1), "`decay` must be a number in [0, 1], got 1.1"),
    "rank": (lambda: sg.uoro(CELL, loss, rank=0), "`rank` must be an integer >= 1, got 0"),
    "rank of ok": (lambda: sg.ok(CELL, loss, rank=True), "`rank` must be an integer >= 1, got True"),
    "k": (lambda: sg.snap_topk(CELL, loss, k=0), "`k` must be an integer >= 1, got 0"),
    "k beyond the states": (
        lambda: sg.snap_topk(sg.LSTM(3, 5), loss, k=11),
        "`k` must be at most the 10 state entries of LSTM(inputs=3, units=5), got 11",
    ),
    "a cell without the Kronecker form": (
        lambda: sg.kf_rtrl(sg.GRU(3, 5, variant="original"), loss),
        "`cell` must be unit-wise (sg.UnitCell) for kf_rtrl, which needs the immediate Jacobian to be a Kronecker "
        "product, got OriginalGRU(inputs=3, units=5)",
    ),
    "rematerialise": (
        lambda: sg.bptt(CELL, loss, rematerialise=0),
        "`rematerialise` must be an integer >= 1, got 0",
    ),
    "batch size": (
        lambda: sg.bptt(gru(), loss).init(network("gru").params, batch_size=0),
        "`batch_size` must be an integer >= 1, got 0",
    ),
    "key": (
        lambda: sg.uoro(gru(), loss).init(network("gru").params, batch_size=3),
        "`key` must be a PRNG key for uoro, which draws random signs, got None",
    ),
    "key of ok": (
        lambda: sg.ok(gru(), loss).init(network("gru").params, batch_size=3),
        "`key` must be a PRNG key for ok, which draws random signs, got None",
    ),
    "params": (lambda: call(params=network("gru").params.cell), "`params` must be sg.Params(cell=..., readout=...)"),
    "integer params": (
        lambda: call(params=changed(bias=jnp.zeros(15, jnp.int32))),
        "`params` must hold floating-point arrays only, got int32 in params.cell.bias",
    ),
    "params of another cell": (
        lambda: sg.bptt(sg.LSTM(3, 5), loss).init(network("gru").params, batch_size=3),
        "`params.cell.recurrent` must be a SparseMatrix of shape (20, 5) for LSTM(inputs=3, units=5), got Spars",
    ),
    "bias shape": (
        lambda: sg.bptt(gru(), loss).init(changed(bias=jnp.zeros(14)), batch_size=3),
        "`params.cell.bias` must have shape (15,) for GRU(inputs=3, units=5, recurrent_bias=True), got (14,)",
    ),
    "bias missing": (
        lambda: call(params=changed(recurrent_bias=None)),
        "`params.cell.recurrent_bias` must have shape (15,) for GRU(inputs=3, units=5, recurrent_bias=True), got None",
    ),
    "dense params": (
        lambda: call(params=network("gru").params._replace(cell=gru().to_dense(network("gru").params.cell))),
        "`params.cell.recurrent` must be a SparseMatrix of shape (15, 5) for GRU(inputs=3, units=5, "
        "recurrent_bias=True), got ArrayImpl",
    ),
    "params of a general cell": (
        lambda: sg.bptt(sg.GRU(4, 5, variant="original"), loss).init(network("gru_original").params, batch_size=3),
        "`params.cell` must let OriginalGRU(inputs=4, units=5) step from a float vector [4], got: `x` must have shape",
    ),
    "length of a vector": (
        lambda: network("gru").params.cell.recurrent @ jnp.ones(4),
        "`x` must have shape (5,) to be multiplied by SparseMatrix(float64, Pattern(15x5",
    ),
    "dtype": (lambda: CELL.init(KEY, dtype=int), "`dtype` must be a floating-point dtype, got int64"),
    "cell of costs": (
        lambda: sg.costs("gru", None),
        "`cell` must be a snapgrad cell such as sg.GRU(inputs, units), got str",
    ),
    "state of another rule": (
        lambda: sg.frozen(lambda_cell(), loss).reset(
            state_of(sg.frozen(LAMBDA_CELL, loss), sg.Params(LAMBDA_CELL.init(KEY), ())), np.ones(3, bool)
        ),
        "(frozen on UnitCell(inputs=3, units=5) with the same rule function)",
    ),
    "loss shape": (
        lambda: call(loss=lambda readout, h, target: h),
        "`loss` must return a floating-point scalar for one example at one step, got float64 of shape (5,)",
    ),
    "loss dtype": (
        lambda: call(loss=lambda readout, h, target: 1),
        "`loss` must return a floating-point scalar for one example at one step, got int",
    ),
    "xs width": (lambda: call(xs=jnp.zeros((8, 3, 4))), "`xs` must have shape [T, B, 3], got (8, 3, 4)"),
    "xs rank": (lambda: call(xs=jnp.zeros((8, 3))), "`xs` must have shape [T, B, 3], got (8, 3)"),
    "xs integers": (
        lambda: call(xs=jnp.zeros((8, 3, 3), int)),
        "`xs` must have shape [T, B] of integers, got (8, 3, 3)",
    ),
    "xs booleans": (
        lambda: call(xs=jnp.zeros((8, 3, 3), bool)),
        "`xs` must hold floats (vectors) or integers (indices), got bool",
    ),
    "xs dtype": (
        lambda: call(xs=jnp.zeros((8, 3, 3), jnp.float32)),
        "`xs` must have the dtype of `params`, float64, got float32",
    ),
    "batch": (
        lambda: call(xs=jnp.zeros((8, 2, 3)), targets=jnp.zeros((8, 2, 4))),
        "`xs` must have the state's batch size 3 as its second axis, got shape (8, 2, 3)",
    ),
    "window": (
        lambda: call(targets=jnp.zeros((7, 3, 4))),
        "`targets` must begin with the shape (8, 3) of `xs`, got (7, 3, 4)",
    ),
    "empty window": (
        lambda: call(xs=jnp.zeros((0, 3, 3)), targets=jnp.zeros((0, 3, 4))),
        "`xs` must have at least one step, got shape (0, 3, 3)",
    ),
    "state of another order": (
        lambda: call(state=state_of(sg.snap(gru(), loss, order=1))),
        "`state` must come from this algorithm's init (snap(order=2) on GRU(inputs=3, units=5, recurrent_bias=True)), "
        "got one from snap(order=1) on GRU(inputs=3, units=5, recurrent_bias=True)",
    ),
    "state of another algorithm": (
        lambda: call(state=state_of(sg.bptt(gru(), loss))),
        "got one from bptt on GRU(inputs=3, units=5, recurrent_bias=True)",
    ),
    "state of another cell": (
        lambda: call(state=state_of(sg.snap(sg.LSTM(3, 5), loss, order=2), network("lstm").params)),
        "got one from snap(order=2) on LSTM(inputs=3, units=5)",
    ),
    "state of another pattern": (
        lambda: call(state=state_of(sg.snap(gru(), loss, order=2), other_pattern())),
        "`state` must come from init with parameters of the same sparsity pattern, got one made for another pattern",
    ),
    "state of another dtype": (
        lambda: call(state=state_of(sg.snap(gru(), loss, order=2), network("gru", dtype=np.float32).params)),
        "`state` must have the dtype of `params`, float64, got float32",
    ),
    "no state": (lambda: call(state=jnp.zeros(3)), "`state` must come from this algorithm's init, got ArrayImpl"),
    "reset": (
        lambda: sg.bptt(gru(), loss).reset(state_of(sg.bptt(gru(), loss)), np.ones(2, bool)),
        "`where` must be booleans of shape (3,), got bool of shape (2,)",
    ),
    "reset of another state": (
        lambda: sg.bptt(gru(), loss).reset(state_of(sg.frozen(gru(), loss)), np.ones(3, bool)),
        "got one from frozen on GRU(inputs=3, units=5, recurrent_bias=True)",
    ),
    "pattern outside": (
        lambda: sg.Pattern([0, 3], [0, 0], (3, 4)),
        "`rows` and `cols` must lie inside `shape` (3, 4), got an index outside it",
    ),
    "pattern lengths": (
        lambda: sg.Pattern([0, 1], [0], (3, 4)),
        "`rows` and `cols` must be vectors of one length, got shapes (2,) and (1,)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_message_says_what_is_wrong(case):
    attempt, message = CASES[case]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)) as error:
        attempt()
    assert "\n" not in str(error.value)


def test_the_same_checks_work_under_jit():
    net = network("gru")
    algorithm = sg.snap(net.cell, loss, order=2)
    with pytest.raises(ValueError, match=re.escape("`xs` must have shape [T, B, 3], got (8, 3, 4)")):
        jax.jit(algorithm.grad)(net.params, state_of(algorithm), jnp.zeros((8, 3, 4)), net.targets)


def test_cells_and_patterns_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CELL.units = 7
    with pytest.raises(ValueError, match="read-only"):
        CELL.init(KEY, sparsity=0.5).recurrent.pattern.rows[0] = 1
