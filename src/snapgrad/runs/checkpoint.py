"""One checkpoint: a safetensors file with named leaves, which is used whole or not at all.

    arrays       every leaf of the carry by its name, such as params.cell.recurrent.values; of a key its data;
                 where patterns change, pattern.DIGEST: the row-major positions of the entries
    metadata     totals, options, and the layout: dtype and shape of every leaf, the digest of every pattern

Whatever is read is covered by the file's digest (`files.py`): one that was damaged anywhere gives itself away.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.algorithms.pieces import Pieces
from snapgrad.algorithms.placement import is_key
from snapgrad.files import map_arrays, write_arrays
from snapgrad.persistence import KEYS
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.moves import matrices
from snapgrad.sparsity.pattern import Pattern
from snapgrad.train import Carry


class Totals(NamedTuple):
    """What a run has seen so far."""

    tokens: int
    updates: int
    seconds: float  # of training: without compilation, validation and checkpoints


class NotWhole(Exception):
    """Why a file is not a checkpoint that can be gone on from."""


class Checkpoint(NamedTuple):
    """What a file holds."""

    totals: Totals
    options: dict[str, Any]  # of the run, as in config.toml
    layout: dict[str, str]
    leaves: dict[str, np.ndarray]  # in the file, which is mapped

    def carry(self, like: Carry) -> Carry:
        """The whole carry, in the structure of `like`; its arrays are read from the file where they are used."""
        params = self._mapped("params", like.params)
        origin = dataclasses.replace(like.state.origin, structure=jax.tree.structure(params.cell))
        like = like._replace(state=dataclasses.replace(like.state, origin=origin))
        return Carry(params, *(self._mapped(name, getattr(like, name)) for name in Carry._fields[1:]))

    def part(self, name: str, like: Any) -> Any:
        """One part of the carry, such as `params`, in the structure of `like`."""
        return jax.tree.map(jnp.array, self._mapped(name, like))

    def _mapped(self, name: str, like: Any) -> Any:
        changes = any(_is_in("wiring", leaf) for leaf in self.layout)
        if changes:
            like = self._with_patterns(name, like)
        saved = {leaf: described for leaf, described in self.layout.items() if _is_in(name, leaf)}
        wanted = layout(name, like)
        for leaf in saved | wanted:
            was, now = saved.get(leaf, "nothing"), wanted.get(leaf, "nothing")
            # Where patterns change, sizes go with them.
            if was.partition("[")[0] != now.partition("[")[0] if changes else was != now:
                raise ValueError(
                    f"`{leaf}` must be as in the checkpoint, {was}, got {now}: other versions or settings of "
                    "snapgrad, JAX or Optax wrote it"
                )

        def found(path: Any, leaf: Any) -> Any:
            array = self.leaves[_name(name, path)]
            if is_key(leaf):
                return jax.random.wrap_key_data(jnp.array(array), impl=KEYS[str(leaf.dtype)])
            return array

        return jax.tree_util.tree_map_with_path(found, like)

    def _with_patterns(self, name: str, like: Any) -> Any:
        """`like` with the patterns that the run had come to."""

        def change(path: Any, node: Any) -> Any:
            if not isinstance(node, SparseMatrix):
                return node
            positions = self.leaves.get(f"pattern.{self.layout.get(f'{_name(name, path)}.pattern')}")
            if positions is None:
                return node
            pattern = Pattern(*np.divmod(positions.astype(np.int64), node.shape[1]), node.shape)
            return SparseMatrix(node.values, pattern)

        return jax.tree_util.tree_map_with_path(change, like, is_leaf=lambda node: isinstance(node, SparseMatrix))


def write(path: Path, carry: Carry, totals: Totals, options: dict[str, Any]) -> None:
    """Writes a checkpoint; it appears whole or not at all. What comes in `Pieces` is written piece by piece."""
    parts, leaves = carry._asdict(), _leaves(carry)
    if carry.wiring is not None:
        for pattern in {matrix.pattern for matrix in matrices(carry).values()}:
            if not pattern.is_full:
                kind = np.min_scalar_type(pattern.shape[0] * pattern.shape[1])
                leaves[f"pattern.{pattern.digest}"] = pattern.flat.astype(kind)
    described = {leaf: text for name, part in parts.items() for leaf, text in layout(name, part).items()}
    write_arrays(path, leaves, {"totals": totals._asdict(), "options": options, "layout": described})


def send(carry: Carry) -> None:
    """In a process that does not write the run: gives its part of all pieces to the one that calls `write`."""
    for _, leaf in sorted(_leaves(carry).items()):  # in the order in which they are written
        if isinstance(leaf, Pieces):
            for _ in leaf:
                pass


def _leaves(carry: Carry) -> dict[str, np.ndarray | Pieces]:
    return {
        _name(name, where): _saved(leaf)
        for name, part in carry._asdict().items()
        for where, leaf in jax.tree_util.tree_leaves_with_path(part)
    }


def _saved(leaf: Any) -> np.ndarray | Pieces:
    if isinstance(leaf, Pieces):
        return leaf
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def read(path: Path) -> Checkpoint:
    """Reads a checkpoint; raises `NotWhole` for anything that `write` has not written."""
    try:
        leaves, metadata = map_arrays(path)
        totals = Totals(**metadata["totals"])
        found = Checkpoint(totals, metadata["options"], metadata["layout"], leaves)
    except MemoryError:
        raise
    except Exception as error:  # a damaged header may fail in any way
        raise NotWhole(str(error)) from None
    if path.stem != str(totals.tokens):
        raise NotWhole(f"it was saved at {totals.tokens} tokens, under another name")
    return found


def layout(name: str, part: Any) -> dict[str, str]:
    """What every leaf and every sparsity pattern of a part must be for its values to mean the same."""
    leaves, nodes = (
        jax.tree_util.tree_leaves_with_path(part, is_leaf=is_leaf)
        for is_leaf in (None, lambda node: isinstance(node, SparseMatrix))
    )
    return {_name(name, path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves} | {
        f"{_name(name, path)}.pattern": node.pattern.digest for path, node in nodes if isinstance(node, SparseMatrix)
    }


def _name(part: str, path: Any) -> str:
    return jax.tree_util.keystr((jax.tree_util.GetAttrKey(part), *path), simple=True, separator=".")


def _is_in(part: str, leaf: str) -> bool:
    return leaf == part or leaf.startswith(f"{part}.")
