"""Refuses what would not fit into memory before any of it is made. Sizes are lower bounds: what fits is not refused.

    parameters          values, and the indices of a sparse pattern
    index structures    by which an influence is updated
    influence           the kept part of J, for every lane of the batch
    history             outputs, their gradients and logits of all steps of a window

An influence is first estimated from a few groups of parameters, because counting it could itself take too long.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from snapgrad import machine
from snapgrad.sparsity.reach import estimated_reach, influence_blocks

if TYPE_CHECKING:
    from snapgrad.cells.base import Cell

# Bytes a parameter while the index structures of an influence are built, at least: a dense GRU of 1000 units took 227.
INDEX_BYTES = 128
REACH_BYTES = 12  # an entry of the reach of a group, in SciPy's sparse matrices

# Above this share of all places NumPy draws without replacement by shuffling an array of all of them.
SHUFFLED_FROM = 1 / 50


def available() -> float:
    """Bytes that arrays may take where JAX puts them."""
    if jax.default_backend() == "cpu":
        return machine.memory_bytes()
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", math.inf)


def check(argument: str, what: str, parts: dict[str, float], remedy: str) -> None:
    """Refuses what needs more memory than there is; `parts` are bytes by what they are for."""
    needed, have = sum(parts.values()), available()
    if needed > have:
        listed = ", ".join(f"{readable(size)} of {part}" for part, size in parts.items() if size > 0)
        raise ValueError(
            f"`{argument}` must leave {what} within the memory of this machine, {readable(have)}, got one that needs "
            f"{readable(needed)} at least ({listed}): {remedy} would help"
        )


def check_weights(cell: Cell, matrices: list[tuple[int, int, float]], gates: int, dtype: Any) -> None:
    """Refuses weights that do not fit: every matrix is (rows a gate, columns, sparsity)."""
    values = indices = 0.0
    for rows, cols, sparsity in matrices:
        size = rows * cols
        kept = size * (1 - sparsity)
        values += gates * kept * jnp.dtype(dtype).itemsize
        if sparsity > 0:
            indices += gates * kept * 8 + (size * 8 if kept > SHUFFLED_FROM * size else 0)
    check("units", f"the weights of {cell}", {"parameters": values, "pattern": indices}, "fewer units or more sparsity")


def check_influence(
    cell: Cell,
    params: Any,
    order: int | None,
    batch_size: int,
    itemsize: int,
    *,
    part: float = 1.0,
    episodic: bool = False,
) -> None:
    """Refuses an influence that does not fit, before the structures are built that would count it exactly.

    The episodic form has one column a group of parameters in place of one a parameter. Of an influence that is spread
    over a mesh only a `part` lies in one memory; index structures of all of it do.
    """
    of_order = "without a limit of order" if order is None else f"of order {order}"
    what = f"the influence {of_order} of {batch_size} sequences on {cell}"
    remedy = "a smaller batch, fewer units, more sparsity"
    remedy += "" if order == 1 else ", a lower `order`"
    remedy += "" if episodic else ', influence_dtype="bfloat16"'
    n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    n_states = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(cell.initial_state)))
    parts = {"parameters": bytes_of(params), "index structures": float(INDEX_BYTES * n_params)}
    lane = batch_size * itemsize * part
    if sum(parts.values()) + (lane + REACH_BYTES) * n_params * n_states <= available():
        return  # all of J would fit
    least = {} if episodic else {f"influence, {1 / n_states:.2%} of J": float(lane * n_params)}
    check("batch_size", what, parts | least, remedy)
    jacobians = cell.jacobians(params)

    def needed(entries: float, kept: float) -> dict[str, float]:
        share = "" if episodic else f", {kept / (n_params * n_states):.1%} of J"
        structures = parts["index structures"] + REACH_BYTES * entries
        influence = lane * (entries if episodic else kept)
        return parts | {"index structures": structures, f"influence{share}": influence}

    estimate = needed(*estimated_reach(jacobians.groups, jacobians.dynamics, order))
    if sum(estimate.values()) <= 2 * available():  # near the limit a sample's word is not enough
        blocks = influence_blocks(jacobians.groups, jacobians.dynamics, order)
        estimate = needed(blocks.reach.nnz, blocks.kept)
    check("batch_size", what, estimate, remedy)


def check_state(what: str, params: Any, state: Any, batch_size: int, part: float = 1.0) -> None:
    """Refuses a state of which a `part` does not fit beside the parameters; its shapes are enough."""
    sizes = {"state": part * bytes_of(state.cell), "memory": part * bytes_of(state.memory)}
    parts = {"parameters": bytes_of(params), **sizes}
    remedy = "a smaller batch, fewer units, more sparsity or an algorithm that remembers less"
    check("batch_size", f"{what} with {batch_size} sequences", parts, remedy)


def check_window(
    argument: str, steps: int, batch: int, units: int, classes: int, itemsize: int, part: float = 1.0
) -> None:
    """Refuses a window whose history does not fit; `part` of its lanes are in one memory."""
    parts = {"history": part * steps * batch * (itemsize * (2 * units + classes) + 8)}
    check(argument, f"a window of {steps} steps of {batch} sequences", parts, "fewer steps or a smaller batch")


def bytes_of(tree: Any) -> float:
    """What the arrays of a pytree take."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.extended)]
    return float(sum(math.prod(jnp.shape(leaf)) * jnp.result_type(leaf).itemsize for leaf in leaves))


def readable(number: float) -> str:
    """A number of bytes for people."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(int(math.log2(max(number, 1))) // 10, 0), len(units) - 1)
    return f"{number / 1024**power:.4g} {units[power]}"
