"""The compiled module `_native`: registered with XLA, if it was built, and the plans that its kernels work by.

A plan is a network's index structures, made and checked once. Compiled programs name it by a digest of its content and
keep it alive; so does the name itself (`PlanName`), which stands in the traced program. A program may also name a slot,
whose plan is exchanged between two calls (kernels/slots.py).
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.kernels.base import Structure, Sums
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks

TILE, WIDE_TILE = 8, 16  # lanes that stand together in J, kTile and kWideTile in native/plans.h

try:
    from snapgrad.kernels import _native  # type: ignore[attr-defined]  # compiled
except ImportError as error:
    if "SNAPGRAD_INSTRUCTIONS" in os.environ:
        raise  # it was built, and asked for instructions that are not here
    available, instructions = False, ""
    reason = "it was not built; install a C++ compiler (GCC or Clang) and reinstall snapgrad from source"
    if find_spec("snapgrad.kernels._native") is not None:
        reason = f"it was built but cannot be loaded: {error}"
else:
    available, reason, instructions = True, "", str(_native.instructions)
    assert _native.tiles == (TILE, WIDE_TILE)

DTYPES = (jnp.dtype("float32"), jnp.dtype("float64"))  # what the kernels compute in


@lru_cache(maxsize=1)
def register() -> None:
    """Makes the compiled handlers known to XLA; called before the first of them is used."""
    jax.devices("cpu")  # XLA wants types before handlers, and keeps that order only once it has started
    jax.ffi.register_ffi_type("snapgrad_plan", _native.state_type(), platform="cpu")
    for name, stages in _native.targets().items():
        jax.ffi.register_ffi_target(name, stages, platform="cpu")


class PlanName(str):
    """A name that holds what it names: the place of a plan, or of those of several parts, one name a line."""

    plan: Any


def slot(name: str) -> PlanName:
    """A place for plans, empty."""
    register()
    made = PlanName(name)
    made.plan = _native.slot(name)
    return made


def plan(structure: Structure) -> PlanName:
    """The plan of index structures of any kind."""
    match structure:
        case Sums():
            return sums_plan(structure)
        case Blocks():
            return blocks_plan(structure)
        case _:
            return matrix_plan(structure)


def influence_places(blocks: Blocks, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """The state entry and the parameter of every kept entry, in the order in which J is stored."""
    states, params = (np.empty(blocks.kept, np.int32) for _ in range(2))
    _native.influence_places(blocks_plan(blocks).plan, tile=tile, states=states, params=params)
    return states, params


@lru_cache(maxsize=1024)
def most_strip_columns(rows: int) -> int:
    """In tiles of several lanes a block of J is stored in strips of like width, of so many columns at most."""
    return int(_native.most_strip_columns(rows))


def _named(digest: str, make: Any, **arrays: Any) -> PlanName:
    as_given = {
        name: np.ascontiguousarray(a, np.int64) if isinstance(a, np.ndarray) else a for name, a in arrays.items()
    }
    register()
    name = PlanName(digest)
    name.plan = make(digest, **as_given)
    return name


@lru_cache(maxsize=256)
def blocks_plan(blocks: Blocks) -> PlanName:
    """The plan of the influence step and the credit recursion."""
    groups = blocks.groups
    return _named(
        f"blocks {blocks.digest}",
        _native.blocks_plan,
        states=blocks.states,
        params=blocks.n_params,
        dynamics_starts=blocks.dynamics.row_starts,
        dynamics=blocks.dynamics.cols,
        reach_starts=blocks.reach.row_starts,
        reach=blocks.reach.cols,
        params_starts=groups.params.row_starts,
        group_params=groups.params.cols,
        entries_starts=groups.entries.row_starts,
        group_entries=groups.entries.cols,
    )


def parts_plan(parts: tuple[Blocks, ...]) -> PlanName:
    """The plans of all parts of J, of which a program takes that of its device."""
    plans = [blocks_plan(part) for part in parts]
    if len(plans) == 1:
        return plans[0]
    name = PlanName("\n".join(plans))
    name.plan = plans
    return name


@lru_cache(maxsize=256)
def matrix_plan(pattern: Pattern) -> PlanName:
    """The plan of products with a sparse matrix."""
    return _named(
        f"matrix {pattern.digest}",
        _native.matrix_plan,
        cols=pattern.shape[1],
        starts=pattern.row_starts,
        columns=pattern.cols,
    )


@lru_cache(maxsize=256)
def sums_plan(sums: Sums) -> PlanName:
    """The plan of sums of products."""
    return _named(
        f"sums {sums.digest}",
        _native.sums_plan,
        left=sums.left,
        right=sums.right,
        starts=sums.starts,
        left_of=sums.left_of,
        right_of=sums.right_of,
    )
