"""What every algorithm costs on a given network, counted from its patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from snapgrad import arguments
from snapgrad.algorithms import checks
from snapgrad.algorithms.interface import Params
from snapgrad.algorithms.kronecker import part_widths
from snapgrad.cells.base import Cell
from snapgrad.cells.stack import Stack
from snapgrad.cells.unit import UnitCell
from snapgrad.memory import readable
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.reach import Blocks, influence_blocks


@dataclass(frozen=True)
class Cost:
    """What one algorithm needs for a batch."""

    memory: int  # bytes: parameters, states and what the algorithm carries or stores
    flops: int  # a step


@dataclass(frozen=True)
class Costs:
    """Counts for one network; `print` it for a table."""

    cell: Cell
    order: int | None
    batch: int
    window: int
    states: int  # state entries of one example
    params: int  # existing parameters of the cell
    kept: int  # entries of J that SnAp-`order` keeps, for one example
    unseen: int  # entries of D and I that detection keeps although they were zero at random points
    methods: dict[str, Cost]  # by the name of the algorithm
    paper_vs_bptt: float  # flops of SnAp-`order` as multiples of BPTT's, by the paper's formula
    paper_vs_rtrl: float  # the same of sparse RTRL's: the share of J that is kept

    @property
    def sparsity(self) -> float:
        """Share of J (states x existing parameters) that SnAp-`order` leaves out."""
        return 1 - self.kept / (self.states * self.params)

    @property
    def vs_bptt(self) -> dict[str, float]:
        """Flops of every algorithm as multiples of BPTT's, as counted."""
        return {name: cost.flops / self.methods["bptt"].flops for name, cost in self.methods.items()}

    @property
    def vs_rtrl(self) -> dict[str, float]:
        """Flops of every algorithm as multiples of sparse RTRL's, as counted."""
        return {name: cost.flops / self.methods["rtrl"].flops for name, cost in self.methods.items()}

    def __str__(self) -> str:
        lines = [
            f"{self.cell}: {self.states} state entries, {self.params} parameters, batch {self.batch}, "
            f"window {self.window}",
            f"J of SnAp-{_name(self.order)}: {self.kept} of {self.states * self.params} entries kept, "
            f"{self.sparsity:.1%} sparse",
            f"by the paper's formula: {self.paper_vs_bptt:.4g}x BPTT, {self.paper_vs_rtrl:.3g}x sparse RTRL",
            f"{'':16}{'memory':>12}{'flops/step':>14}{'vs BPTT':>10}{'vs RTRL':>10}",
        ]
        if self.unseen:
            lines.insert(
                2, f"detection may be conservative: {self.unseen} entries of D and I were zero at random points"
            )
        for name, cost in self.methods.items():
            ratios = f"{self.vs_bptt[name]:>10.3g}{self.vs_rtrl[name]:>10.3g}"
            lines.append(f"{name:16}{readable(cost.memory):>12}{cost.flops:>14.3g}{ratios}")
        return "\n".join(lines)


def costs(cell: Cell, params: Any, *, order: int | None = 2, rank: int = 1, batch: int = 1, window: int = 1) -> Costs:
    """Counts what every algorithm costs on this network.

    Args:
        cell: the recurrent cell.
        params: its parameters (`params.cell` of `sg.Params`); only their patterns and dtype matter.
        order: the order of SnAp, None for exact.
        rank: the rank of UORO and of OK.
        batch: number of sequences side by side.
        window: number of steps T that BPTT and the episodic forms keep a history of.

    The counts are exact and structural; nothing is sampled. A multiply-add is two flops. Counted are products with
    weights, the update of what an algorithm carries (D J + I, decay J + I, UORO's two factors) and its contraction
    with dL/ds. Not counted is the element-wise work that all have alike: activations, their derivatives, forming I
    and D, the readout, the optimiser. KF-RTRL and OK are counted for unit-wise cells only, OK without the SVD of its
    (rank + 1)^2 matrix; `snap_topk` costs the same whatever its k, without the comparisons. Memory is what the
    algorithm needs; kernels may pad it (the one in plain JAX to like-sized blocks).

    How this relates to the paper (Menick et al. 2020):

    Table 1 gives orders of growth in k, p and d; its memory column (history + parameters, influence + parameters) is
    what `memory` counts, here with exact entries and for a whole batch. BPTT is counted with a history of states
    only, as there; plain autodiff keeps the gates' activations as well.

    Table 3 gives flops as multiples of BPTT. Its rows for SnAp-2 and SnAp-3 follow from the printed J sparsities by
    one formula,

        X vs BPTT = (kept share of J) * S * d k^2 / 2            S = 2 for the LSTM, else 1
        X vs RTRL = (kept share of J)

    which counts the full product of D (taken as d k^2 entries for each state component) with every kept entry of J,
    and BPTT as two passes over the weights. `paper_vs_bptt` and `paper_vs_rtrl` evaluate it on the structural
    pattern. The counted ratios `vs_bptt` and `vs_rtrl` differ from it on purpose: the true nnz(D) of gated cells is
    larger (gates with different patterns fill D), the product on a block needs only D[R, R], and BPTT makes three
    passes over the recurrent weights.

    The printed J sparsities agree with the structural count for the LSTM at n = 2 (38.5, 79.9, 95.1 % printed; 36.5,
    79.5, 94.5 % counted, with 4 inputs), but not for the other two: every printed *density* is 2/3 of the counted one
    for vanilla and 1/2 for the GRU, at all three sizes and also where n = 3 has saturated, so that a full J is
    printed as 33.3 % and 50.0 % sparse. The printed figures seem to divide by columns that nothing ever reaches;
    which ones, the paper does not say. With the factor, n = 2 counts vanilla 82.9, 95.6, 98.8 % (printed 83.0, 95.6,
    98.9) and GRU 70.9, 91.0, 97.6 % (printed 70.9, 91.1, 97.8). Where n = 3 has not saturated, the printed figures
    are sparser still (GRU 512: 71.6 % printed, 32.5 % counted, 66.2 % with the factor). We report the structural
    count.
    """
    checks.cell(cell)
    arguments.order(order)
    arguments.positive_integer("rank", rank)
    arguments.positive_integer("batch", batch)
    arguments.positive_integer("window", window)
    if isinstance(params, Params):
        raise TypeError("`params` must be the parameters of the cell alone (`params.cell`), got sg.Params")
    cell.check(params)
    jacobians = cell.jacobians(params)
    blocks = influence_blocks(jacobians.groups, jacobians.dynamics, order)
    exact = influence_blocks(jacobians.groups, jacobians.dynamics, None)
    states, n_params, immediate = blocks.states, blocks.n_params, jacobians.groups.nnz
    touched = jacobians.groups.entries.nnz  # state entries, by each group of parameters: what a credit is kept of

    weights = _weights(params) or n_params  # a cell without a matrix uses every parameter once
    # The gradient with respect to the input is never needed; only unit-wise cells say which weights read it.
    first = params[0] if isinstance(cell, Stack) else params
    through_state = weights - (first.input.pattern.nnz if isinstance(cell, UnitCell | Stack) else 0)
    forward = 2 * weights
    per_example = {  # (entries held beside the parameters, flops a step)
        "bptt": (window * states, 2 * forward + 2 * through_state),
        "frozen": (states, forward),
        "rflo": (states + immediate, forward + 4 * immediate),
        "rflo episodic": (window * (states + touched) + touched, 2 * forward + 2 * touched),
        "uoro": (
            states + rank * (states + n_params),
            forward + rank * (forward + 2 * through_state + 4 * n_params),
        ),
        **(_kronecker(cell, params.recurrent, rank, states, n_params, forward) if isinstance(cell, UnitCell) else {}),
        f"snap-{_name(order)}": (states + blocks.kept, forward + _influence_flops(blocks)),
        f"snap-{_name(order)} episodic": (
            window * (states + touched) + int(blocks.heights.sum()),
            2 * forward + 2 * int(blocks.product_sizes().sum()),
        ),
        "snap_topk": (states * (1 + n_params), forward + 2 * (through_state + states) * n_params),
        "rtrl": (states + exact.kept, forward + _influence_flops(exact)),
    }
    itemsize = jnp.result_type(*jax.tree.leaves(params)).itemsize
    methods = {
        name: Cost(itemsize * (batch * held + n_params), batch * flops) for name, (held, flops) in per_example.items()
    }
    share = blocks.kept / (states * n_params)
    # The paper's S d k^2: every state component reads one gate's worth of weights. Other cells: D as it is.
    dynamics = cell.states * through_state / cell.gates if isinstance(cell, UnitCell) else jacobians.dynamics.nnz
    return Costs(
        cell=cell,
        order=order,
        batch=batch,
        window=window,
        states=states,
        params=n_params,
        kept=blocks.kept,
        unseen=jacobians.unseen,
        methods=methods,
        paper_vs_bptt=share * dynamics / 2,
        paper_vs_rtrl=share,
    )


def _kronecker(
    cell: UnitCell, recurrent: SparseMatrix, rank: int, states: int, n_params: int, forward: int
) -> dict[str, tuple[int, int]]:
    """KF-RTRL, and OK of that rank: entries held and flops a step."""
    preactivations, widths = cell.gates * cell.units, part_widths(cell)
    by_D = states * cell.units if recurrent.pattern.is_full else recurrent.pattern.nnz  # a full D is formed once
    grid = preactivations * states  # of one A
    held = sum(width + grid for width in widths)  # one term of every part
    # Of one term: D A and its product with dL/ds for every part, and the gradient at every parameter.
    term = len(widths) * 2 * (by_D * preactivations + grid) + 2 * n_params

    def compressed(rows: int) -> int:
        """One factor of OK's terms, [rows, rank + 1]: QR, forming Q, and its product with rank columns."""
        terms = rank + 1
        inner = min(rows, terms)
        return 2 * rows * inner * (terms + inner + rank)

    return {
        # It scales and adds two terms.
        "kf_rtrl": (states + held, forward + term + sum(2 * (grid + width) for width in widths)),
        "ok": (
            states + rank * held,
            forward + rank * term + sum(compressed(grid) + compressed(width) for width in widths),
        ),
    }


def _influence_flops(blocks: Blocks) -> int:
    """D J on the blocks, and dL/ds . J."""
    return 2 * int(blocks.product_sizes() @ blocks.widths) + 2 * blocks.kept


def _weights(params: Any) -> int:
    """Entries of all matrices, sparse or arrays."""
    nodes = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, SparseMatrix))
    sizes = (node.pattern.nnz if isinstance(node, SparseMatrix) else node.size * (node.ndim > 1) for node in nodes)
    return sum(sizes)


def _name(order: int | None) -> str:
    return "exact" if order is None else str(order)
