"""What a kernel provides: the operations that cost time, on a batch, at the patterns of one network.

An algorithm asks for a kernel and never knows which one it has. All indices are static; only values are traced. Values
of a batch are [n, B], its lanes innermost: that is how vectors take them.
"""

from __future__ import annotations

import abc
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from snapgrad.kernels.elementwise import Elementwise
from snapgrad.kernels.share import ALL, Share
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks

Influence = Any  # the kept part of J of a batch, laid out as the kernel likes
Credit = Any  # the kept part of Lambda


@dataclass(frozen=True, eq=False)
class Sums:
    """sum_n left[left_of[n]] * right[right_of[n]] over the terms n of every sum, which stand together from `starts`.

    A term whose right_of is one past the end has one in place of that factor.
    """

    left: int  # length of the vectors that are gathered from
    right: int
    starts: NDArray[np.int64]  # [sums + 1]
    left_of: NDArray[np.int64]  # [terms]
    right_of: NDArray[np.int64]  # [terms]

    @classmethod
    def of(cls, sizes: tuple[int, int], sums: int, which: Any, left_of: Any, right_of: Any) -> Sums:
        """From terms in any order; `which` says to which sum each belongs."""
        order = np.argsort(which, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=sums))])
        as_index = np.int64
        return cls(*sizes, starts.astype(as_index), left_of[order].astype(as_index), right_of[order].astype(as_index))

    @cached_property
    def digest(self) -> str:
        content = hashlib.blake2b(repr((self.left, self.right)).encode(), digest_size=16)
        for array in (self.starts, self.left_of, self.right_of):
            content.update(array.tobytes())
        return content.hexdigest()


class Products(NamedTuple):
    """Values of I that are not written out: each is left[i] * right[j], in the order of the groups."""

    left: jax.Array  # [n, B]
    right: jax.Array  # [m, B]
    at: Sums  # of one term each


Structure = Pattern | Sums | Blocks  # index structures that a kernel works by


class Affine(NamedTuple):
    """W x + b of a batch."""

    matrix: Any  # [rows, cols], as `Kernel.ready` made it
    x: jax.Array  # [cols, B], or integers [B] that name columns
    bias: jax.Array | None  # [rows]; a cell may do without one of the recurrent map


class Kernel(abc.ABC):
    """How fast: one way to carry out what every algorithm needs.

    Kernels of one class and one share of the work are the same, also after pickling, unless a subclass has something to
    tell them apart by. Blocks are those of the whole network everywhere: a kernel picks its own.
    """

    name: str
    dense_from_density: float  # from this share of entries on, a matrix multiplies faster as a dense one

    def __init__(self, share: Share = ALL):
        self.share = share

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and type(self) is type(other) and self.share == other.share

    def __hash__(self) -> int:
        return hash((type(self), self.share))

    @abc.abstractmethod
    def sharing(self, share: Share) -> Kernel:
        """The same kernel for a device that has only such a share of the work."""

    @abc.abstractmethod
    def ready(self, params: Any) -> Any:
        """`params` with every sparse matrix in the form that multiplies fastest; differentiable.

        Done once a window, outside the loop over time.
        """

    @abc.abstractmethod
    def sums(self, sums: Sums, left: jax.Array, right: jax.Array) -> jax.Array:
        """`sums` of `left` [n, B] with `right` [m, B], or [m, 1] for all lanes."""

    def unit_step(
        self, rule: Elementwise, s: jax.Array, input: Affine, recurrent: Affine
    ) -> tuple[jax.Array, jax.Array] | None:
        """`rule` on every unit: the next state and the derivatives [n * units, B]; or None, to leave it to XLA.

        s [S, units, B] is the state, whose first component `recurrent` multiplies.
        """
        return None

    @abc.abstractmethod
    def zeros(self, blocks: Blocks, batch_size: int, dtype: Any) -> Influence:
        """J = 0: nothing has influenced anything yet. `dtype` is what J is stored in."""

    @abc.abstractmethod
    def influence_step(
        self,
        blocks: Blocks,
        J: Influence,
        D: jax.Array,
        I: Products,
        delta: jax.Array,
        noise: jax.Array | None = None,
    ) -> tuple[Influence, jax.Array]:
        """J <- D J + I on the kept entries, and the gradient delta . J [params], summed over the batch.

        D [nnz(blocks.dynamics), B], delta = dL/ds [states, B]; and the noise of this step (`rounding.noise`) where J is
        stored in bfloat16 and D is not, else None.
        """

    @abc.abstractmethod
    def forget(self, J: Influence, where: jax.Array) -> Influence:
        """J = 0 in the lanes where `where` [B] is True."""

    @abc.abstractmethod
    def carry_over(self, old: Blocks, new: Blocks, sources: NDArray[np.int64], J: Influence) -> Influence:
        """J of the `old` blocks at the `new` ones, zero where there was none; outside of jit.

        `sources` gives the old number of every new parameter, or one past the end (`moves.parameter_sources`).
        """

    @abc.abstractmethod
    def influence_axes(self) -> Any:
        """The axes of J that go with the batch and with the blocks: a `PartitionSpec` for each of its arrays."""

    @abc.abstractmethod
    def influence_resharding(self, blocks: Blocks, batch_size: int) -> Any:
        """A `Resharding` for each array of J: from one device to this kernel's share, and back."""

    @abc.abstractmethod
    def zero_credit(self, blocks: Blocks, batch_size: int, dtype: Any) -> Credit:
        """Lambda = 0: nothing lies behind the end of the window."""

    @abc.abstractmethod
    def credit_step(self, blocks: Blocks, Lambda: Credit, D: jax.Array, delta: jax.Array) -> tuple[Credit, jax.Array]:
        """One step back: D^T (Lambda + delta), and Lambda + delta at the groups' entries, [nnz(groups.entries), B].

        D [nnz(blocks.dynamics), B] stands column by column; delta is [states, B].
        """


def place_sources(
    old: tuple[NDArray[Any], NDArray[Any]],
    new: tuple[NDArray[Any], NDArray[Any]],
    sources: NDArray[np.int64],
    states: int,
    nowhere: int,
) -> NDArray[np.int64]:
    """For every new place of J the old one of the same state entry and parameter, or `nowhere`.

    Places are (state entry, parameter) in the order in which J is stored; `sources` as for `Kernel.carry_over`.
    """
    had = old[1].astype(np.int64) * states + old[0]
    wants = sources[new[1]] * states + new[0]
    order = np.argsort(had, kind="stable")
    had = had[order]
    at = np.minimum(np.searchsorted(had, wants), max(len(had) - 1, 0))
    found = had[at] == wants if len(had) else np.zeros(len(wants), bool)
    return np.where(found, order[at] if len(had) else 0, nowhere)
