"""What every cell provides: a step, and the derivatives of that step at their sparsity patterns.

    s_t = step(params, s_tm1, x_t)        D_t = ds_t/ds_tm1        I_t = ds_t/dparams

A cell works on one example; algorithms vmap it over the batch.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from snapgrad.kernels.base import Kernel
from snapgrad.sparsity.matrix import as_index
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Groups

PyTree = Any
Pull = Callable[[jax.Array], PyTree]
AtBatch = Callable[[PyTree, jax.Array], jax.Array]  # (s_tm1 [B, ...], x_t [B, ...]) -> values


class Jacobians(abc.ABC):
    """A cell's derivatives for parameters of one sparsity pattern.

    State entries and parameters are numbered as `ravel_pytree` of the cell's state and parameters numbers them.

    Patterns follow from the rule and from which weights exist, and may hold more than the derivatives ever show: in a
    GRU unit whose candidate has neither a recurrent weight nor a recurrent bias, v_n is always zero and the reset gate
    influences nothing, yet its entries are kept. They are zeros that cost memory and change no gradient.
    """

    dynamics: Pattern  # [states, states], the pattern of D
    groups: Groups  # the pattern of I

    @abc.abstractmethod
    def dynamics_at(self, kernel: Kernel, params: PyTree, wanted: Pattern, tile: int) -> AtBatch:
        """The function (s_tm1, x_t) -> values of D_t at the `wanted` part of its pattern.

        It takes a batch [B, ...] and gives [tiles, nnz, tile] (`kernels.base.to_tiles`); what depends on `params` alone
        is done once, here.
        """

    @abc.abstractmethod
    def immediate_at(self, kernel: Kernel, params: PyTree, tile: int) -> AtBatch:
        """The function (s_tm1, x_t) -> values of I_t in the order of `groups`, for a batch, in tiles."""

    @abc.abstractmethod
    def backward_at(
        self, kernel: Kernel, params: PyTree, wanted: Pattern, tile: int
    ) -> Callable[[PyTree, jax.Array], tuple[jax.Array, Pull]]:
        """The function (s_tm1, x_t) -> D_t as from `dynamics_at` but column by column, and a function of its credit.

        Credit, [B, nnz(groups.entries)], is how much the loss changes with each state entry, as each group of
        parameters is allowed to see it. The function turns it into what `collect` needs of it.
        """

    @abc.abstractmethod
    def collect(self, kernel: Kernel, params: PyTree, s_tm1: PyTree, x_t: jax.Array, pulled: PyTree) -> PyTree:
        """The sum over a whole window of credit times I: a gradient shaped like `params`.

        `s_tm1`, `x_t` and `pulled`, what the steps' functions returned, are [T, B, ...].
        """


class Cell(abc.ABC):
    """A recurrent cell. Immutable and hashable: its equality decides whether compiled code can be reused."""

    inputs: int  # width of an input vector, or of the one-hot that an integer input stands for

    @abc.abstractmethod
    def init(self, key: jax.Array, sparsity: float = 0.0) -> PyTree:
        """Fresh parameters with uniformly random sparse weight matrices."""

    @abc.abstractmethod
    def initial_state(self) -> PyTree:
        """The state at the start of a sequence, for one example."""

    @abc.abstractmethod
    def step(self, params: PyTree, s: PyTree, x: jax.Array) -> PyTree:
        """The next state of one example.

        `x` is a float vector [inputs] or an integer index (a one-hot; zeros where it lies outside [0, inputs)).
        """

    @abc.abstractmethod
    def output(self, s: PyTree) -> jax.Array:
        """What the readout sees of a state: one array."""

    @abc.abstractmethod
    def check(self, params: PyTree) -> None:
        """Raises an error of one sentence if `params` are not this cell's."""

    @abc.abstractmethod
    def jacobians(self, params: PyTree) -> Jacobians:
        """The derivatives of `step`; depends on the patterns in `params` only, never on their values."""


def as_vector(x: jax.Array, width: int, dtype: Any) -> jax.Array:
    """An input as a float vector: an integer index becomes the one-hot it stands for, one outside [0, width) zeros."""
    return jax.nn.one_hot(as_index(x), width, dtype=dtype) if jnp.issubdtype(x.dtype, jnp.integer) else x
