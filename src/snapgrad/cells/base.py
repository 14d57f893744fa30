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

from snapgrad.kernels.base import Kernel, Products, Sums
from snapgrad.sparsity.matrix import as_index
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Groups

PyTree = Any
Local = PyTree  # what D_t and I_t of a batch are made of: the derivatives of a step, or what they follow from


class Jacobians(abc.ABC):
    """A cell's derivatives for parameters of one sparsity pattern.

    State entries and parameters are numbered as `ravel_pytree` of the cell's state and parameters numbers them.

    Patterns follow from the rule and from which weights exist, and may hold more than the derivatives ever show: in a
    GRU unit whose candidate has neither a recurrent weight nor a recurrent bias, v_n is always zero and the reset gate
    influences nothing, yet its entries are kept. They are zeros that cost memory and change no gradient.
    """

    dynamics: Pattern  # [states, states], the pattern of D
    groups: Groups  # the pattern of I

    @property
    def unseen(self) -> int:
        """Entries of D and I that detection may have kept for nothing; none where patterns follow from a rule."""
        return 0

    # The functions below are made once for a window: what depends on `params` alone is done then. They take and give a
    # batch with its lanes innermost: states [..., B], inputs [..., B], values [n, B].

    @abc.abstractmethod
    def forward_at(self, kernel: Kernel, params: PyTree) -> Callable[[PyTree, jax.Array], tuple[PyTree, Local]]:
        """The function (s_tm1, x_t) -> s_t and what D_t and I_t are made of, in one pass."""

    @abc.abstractmethod
    def dynamics_at(
        self, kernel: Kernel, params: PyTree, wanted: Pattern, *, by_column: bool = False
    ) -> Callable[[Local], jax.Array]:
        """The function to the values of D_t at the `wanted` part of its pattern, row by row or column by column."""

    @abc.abstractmethod
    def immediate_at(self, kernel: Kernel, params: PyTree) -> Callable[[Local], Products]:
        """The function to the values of I_t in the order of `groups`."""

    @abc.abstractmethod
    def pull_at(self, kernel: Kernel, params: PyTree) -> Callable[[Local, jax.Array], PyTree]:
        """The function from credit [nnz(groups.entries), B] to what `collect` needs of it.

        Credit is how much the loss changes with each state entry, as each group of parameters is allowed to see it.
        """

    def sums(self, wanted: Pattern, *, by_column: bool) -> tuple[Sums, ...] | None:
        """The sums that `dynamics_at` and `immediate_at` ask a kernel for; with `by_column`, of whole sequences.

        None if the values come in any other way: their program then depends on the patterns.
        """
        return None

    @abc.abstractmethod
    def collect(self, kernel: Kernel, params: PyTree, local: Local, pulled: PyTree) -> PyTree:
        """The sum over a whole window of credit times I: a gradient shaped like `params`.

        `local` and `pulled`, what the steps' functions returned, are [T, ...].
        """


class Cell(abc.ABC):
    """A recurrent cell. Immutable and hashable: its equality decides whether compiled code can be reused."""

    inputs: int  # width of an input vector, or of the one-hot that an integer input stands for
    gates: int = 1  # matrices of one size that its weight matrices stack by rows; rewiring keeps the count in each

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

    def multiplied(self, params: PyTree) -> tuple[Pattern, ...] | None:
        """The patterns on which `step` depends by products with the matrices alone; None if that is not known."""
        return None

    @abc.abstractmethod
    def jacobians(self, params: PyTree) -> Jacobians:
        """The derivatives of `step`; depends on the patterns in `params` only, never on their values."""


def as_vector(x: jax.Array, width: int, dtype: Any) -> jax.Array:
    """An input as a float vector: an integer index becomes the one-hot it stands for, one outside [0, width) zeros."""
    return jax.nn.one_hot(as_index(x), width, dtype=dtype) if jnp.issubdtype(x.dtype, jnp.integer) else x
