"""Which state entries a parameter influences within n steps, and the blocks of J that follow from it.

The graph is on *state entries*, not units: an LSTM's h and c are separate nodes. Parameters with the same immediate
entries (those a parameter touches in the very step it is used) have the same reach, so they form a group. The kept part
of J is one dense block a group: its reach R (rows) by its parameters P (columns).

    R^(1) = E                      the immediate entries: the pattern of I
    R^(n) = R^(n-1) u D(R^(n-1))   one more application of the pattern of D
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snapgrad.sparsity.pattern import Pattern

if TYPE_CHECKING:  # importing it takes a third as long as JAX, and SnAp-1 does without it
    import scipy.sparse as sp

FEW = 8  # state entries that a parameter touches at once, up to which their pairs are looked at one by one


@dataclass(frozen=True, eq=False)
class Groups:
    """Parameters sorted by their immediate entries: the pattern of I, written compactly.

    `of_param[p]` is the group of flat parameter p and row g of `entries` holds the state entries that the parameters of
    group g touch at once. The values of I are stored group by group, each a dense [entries, parameters].
    """

    entries: Pattern  # [groups, states]
    of_param: NDArray[np.int32]  # [params]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where the values of each group begin."""
        sizes = np.diff(self.entries.row_starts) * self.widths
        return np.concatenate([[0], np.cumsum(sizes)])

    @property
    def nnz(self) -> int:
        """Entries of the immediate Jacobian I."""
        return int(self.starts[-1])

    @cached_property
    def entry_param(self) -> NDArray[np.int32]:
        """The parameter of every entry of I."""
        group = self.entries.rows[self.entry_credit]
        nth = (np.arange(self.nnz) - self.starts[group]) % self.widths[group]
        return self.params.cols[self.params.row_starts[group] + nth]

    @cached_property
    def entry_credit(self) -> NDArray[np.int64]:
        """The entry of `entries` (a group and a state entry) that every entry of I belongs to."""
        return np.repeat(np.arange(self.entries.nnz), self.widths[self.entries.rows])

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """The number of parameters of each group."""
        return np.bincount(self.of_param, minlength=self.entries.shape[0])

    @cached_property
    def params(self) -> Pattern:
        """[groups, params]: the columns of each block."""
        return Pattern(self.of_param, np.arange(len(self.of_param)), (self.entries.shape[0], len(self.of_param)))


def group_columns(immediate: Pattern) -> Groups:
    """Groups the columns of a [states, params] pattern by equality, without a loop over columns."""
    states, params = immediate.shape
    table = immediate.by_column
    unique, of_param = np.unique(table.other, axis=0, return_inverse=True)
    kept = unique < states
    entries = Pattern(np.nonzero(kept)[0], unique[kept], (len(unique), states))
    return Groups(entries, of_param.reshape(params).astype(np.int32))


@dataclass(frozen=True, eq=False)
class Blocks:
    """The kept part of J: for each group, `reach` (rows) by `groups.params` (columns)."""

    groups: Groups
    all_dynamics: Pattern  # [states, states]: D
    dynamics: Pattern  # those of its entries that some block uses
    reach: Pattern  # [groups, states]

    @cached_property
    def digest(self) -> str:
        """A name for the content, as that of a pattern."""
        content = hashlib.blake2b(self.groups.of_param.tobytes(), digest_size=16)
        for pattern in (self.groups.entries, self.dynamics, self.reach):
            content.update(pattern.digest.encode())
        return content.hexdigest()

    @property
    def states(self) -> int:
        return self.dynamics.shape[0]

    @property
    def n_params(self) -> int:
        return len(self.groups.of_param)

    @cached_property
    def heights(self) -> NDArray[np.int64]:
        return np.diff(self.reach.row_starts)

    @property
    def widths(self) -> NDArray[np.int64]:
        return self.groups.widths

    @property
    def kept(self) -> int:
        """Entries of J that are kept."""
        return int(self.heights @ self.widths)

    @property
    def credits(self) -> int:
        """Entries of Lambda, the credit of whole sequences: the rows of all blocks that have columns."""
        return int(self.heights[self.widths > 0].sum())

    def closed(self) -> NDArray[np.bool_]:
        """Which blocks no influence leaves: whatever their rows lead to is among their rows."""
        reach = _csr(self.reach)
        leads_to = _dot(reach, _csr(self.all_dynamics).T.tocsr())
        outside = leads_to.astype(bool).sum(axis=1) - leads_to.multiply(reach).astype(bool).sum(axis=1)
        return np.asarray(outside).ravel() == 0

    def product_sizes(self) -> NDArray[np.int64]:
        """nnz(D[R, R]) of every block: the multiply-adds that one column of it costs a step."""
        if self.reach.is_full:
            return np.full(self.reach.shape[0], self.dynamics.nnz)
        reach, dynamics = _csr(self.reach), _csr(self.dynamics)
        return np.asarray(_dot(reach, dynamics.T.tocsr()).multiply(reach).sum(axis=1)).ravel().astype(np.int64)


@lru_cache(maxsize=32)
def influence_blocks(groups: Groups, dynamics: Pattern, order: int | None) -> Blocks:
    """The blocks of SnAp-`order`; `order=None` follows the graph to its end, which is exact RTRL."""
    if order == 1 and groups.entries.by_row.other.shape[1] <= FEW:
        return Blocks(groups, dynamics, _within(groups.entries, dynamics), groups.entries)
    reach = _spread(_csr(groups.entries), dynamics, order)
    if reach.nnz == reach.shape[0] * reach.shape[1]:  # as on a dense network: nothing is left to find out
        return Blocks(groups, dynamics, dynamics, Pattern.full(groups.entries.shape))
    if order is None:  # where a block holds one end of an entry of D, it holds what that leads to
        reached = np.zeros(dynamics.shape[1], bool)
        reached[reach.indices] = True
        used = reached[dynamics.cols]
        within = Pattern(dynamics.rows[used], dynamics.cols[used], dynamics.shape)
    else:
        both = _dot(reach.T.tocsr(), reach).multiply(_csr(dynamics)).tocoo()  # some block holds both ends
        within = Pattern(both.row, both.col, dynamics.shape)
    reach = reach.tocoo()
    return Blocks(groups, dynamics, within, Pattern(reach.row, reach.col, groups.entries.shape))


def estimated_reach(groups: Groups, dynamics: Pattern, order: int | None, sample: int = 8) -> tuple[float, float]:
    """About how many entries the reach of all groups has, and how many of J SnAp-`order` keeps, from a few groups."""
    widths = groups.widths
    used = np.flatnonzero(widths)
    chosen = used[np.linspace(0, len(used) - 1, min(sample, len(used)), dtype=int)]
    heights = np.diff(_spread(_csr(groups.entries)[chosen], dynamics, order).indptr)
    kept = heights @ widths[chosen] * (widths.sum() / max(1, widths[chosen].sum()))
    return float(heights.sum() * (len(used) / max(1, len(chosen)))), float(kept)


def _within(reach: Pattern, dynamics: Pattern) -> Pattern:
    """The entries of D that have both ends in one row of `reach`."""
    states = reach.by_row.other
    found = np.unique(dynamics.find(states[:, :, None], states[:, None, :]))
    found = found[found < dynamics.nnz]
    return Pattern(dynamics.rows[found], dynamics.cols[found], dynamics.shape)


def _spread(reach: sp.csr_array[Any], dynamics: Pattern, order: int | None) -> sp.csr_array[Any]:
    """What the rows of `reach` lead to within `order - 1` more steps; within any number of them if it is None."""
    spread = _csr(dynamics).T.tocsr()
    return _closure(reach, spread) if order is None else _steps(reach, spread, order - 1)


def _steps(reach: sp.csr_array[Any], spread: sp.csr_array[Any], steps: int) -> sp.csr_array[Any]:
    """Row after row of `spread` added to what is reached, until nothing is new."""
    for _ in range(steps):
        if reach.nnz == reach.shape[0] * reach.shape[1]:
            break
        wider = reach + _dot(reach, spread)
        wider.data[:] = 1
        if wider.nnz == reach.nnz:
            break
        reach = wider
    return reach


def _closure(reach: sp.csr_array[Any], spread: sp.csr_array[Any]) -> sp.csr_array[Any]:
    """Among strongly connected components, which are few beside the states, since within one all reach all."""
    import scipy.sparse as sp
    from scipy.sparse.csgraph import connected_components

    count, component = connected_components(spread, directed=True, connection="strong")
    states = np.arange(len(component))
    members = sp.csr_array((np.ones(len(states)), (component, states)), shape=(count, len(states)))
    between = members @ spread @ members.T
    reached = _steps((reach @ members.T).tocsr(), between.tocsr(), count)
    return (reached @ members).tocsr()


def _csr(pattern: Pattern) -> sp.csr_array[Any]:
    import scipy.sparse as sp

    return sp.csr_array((np.ones(pattern.nnz), (pattern.rows, pattern.cols)), shape=pattern.shape)


def _dot(left: sp.csr_array[Any], right: sp.csr_array[Any]) -> sp.csr_array[Any]:
    # A nearly full product is far faster as a dense one.
    multiply_adds = left.nnz * right.nnz / max(1, right.shape[0])
    if multiply_adds > 0.02 * left.shape[0] * right.shape[0] * right.shape[1]:
        return type(left)(left.toarray() @ right.toarray())
    return (left @ right).tocsr()
