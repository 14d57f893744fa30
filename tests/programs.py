"""The command line in a process of its own or in this one, and what a run has come to."""

from __future__ import annotations

import io
import sys
import warnings
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np

from snapgrad import cli
from snapgrad.runs.directory import RunDirectory


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def answer(*args):
    """What the command answers, in this process: much cheaper, but for what it compiles."""
    out, err = io.StringIO(), io.StringIO()
    with as_in_a_program(), redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")
        with mock.patch.object(sys, "argv", ["snapgrad", *map(str, args)]):
            try:
                cli.main()
                code = 0
            except SystemExit as stop:
                code = stop.code
    return Answer(code, out.getvalue(), err.getvalue())


def as_in_a_program():
    stack = ExitStack()
    for context in (jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")):
        stack.enter_context(context)
    return stack


def command(*args):
    return [sys.executable, "-m", "snapgrad.cli", *map(str, args)]


def snapgrad(*args, code=0):
    """What the command answers, in this process; it must end with this code."""
    done = answer(*args)
    assert done.code == code, done.err + done.out
    return done


def arrays_of(tree):
    """The leaves of a tree as NumPy arrays; of keys their data."""
    return [
        np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in jax.tree.leaves(tree)
    ]


def without_times(records):
    return [{name: v for name, v in record.items() if "second" not in name} for record in records]


def assert_same_run(one, other):
    """The same last checkpoint, bit for bit, and the same records but for times."""
    left, right = (RunDirectory.open(path).checkpoint() for path in (one, other))
    assert left.totals[:2] == right.totals[:2]
    assert left.layout == right.layout
    assert left.leaves.keys() == right.leaves.keys()
    for name in left.leaves:
        np.testing.assert_array_equal(left.leaves[name], right.leaves[name])
    metrics = [without_times(RunDirectory.open(path).metrics()) for path in (one, other)]
    assert metrics[0] == metrics[1]
    assert len(metrics[0]) > 5
