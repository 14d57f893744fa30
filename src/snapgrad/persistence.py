"""Parameters, states and other trees to and from one safetensors file.

    sg.save("gru.safetensors", params)
    params = sg.load("gru.safetensors")

    sg.save("state.safetensors", state)
    state = sg.load("state.safetensors", like=algo.init(params, batch_size, key))

Leaves are arrays named by their path, `cell.recurrent.values`. The pattern of a sparse matrix stands beside its values
as the row-major positions of its entries, once for all matrices that share it; a full pattern needs none. The structure
is a description in JSON, in the file's metadata. Nothing is executed or looked up by name on loading: a node of a type
that is not in `KNOWN` (a NamedTuple of one's own, Optax's states, a `State`, which belongs to an algorithm) is rebuilt
from the template `like`, which must have the same description.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.algorithms.interface import Params, State
from snapgrad.cells.base import PyTree
from snapgrad.cells.gru import OriginalGRUParams
from snapgrad.cells.unit import UnitParams
from snapgrad.files import DTYPES, read_arrays, write_arrays
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.pattern import Pattern

Node = dict[str, Any]  # the description of a tree, as JSON has it
Path = tuple[str, ...]

# The types that are rebuilt without a template. If their fields change, so does `files.VERSION`.
KNOWN: dict[str, Any] = {
    kind.__name__: kind for kind in (dict, list, tuple, Params, UnitParams, OriginalGRUParams, SparseMatrix)
}
KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}  # dtypes of typed PRNG keys


def save(path: str | os.PathLike[str], tree: PyTree) -> None:
    """Writes a tree to one safetensors file, in place of what was there; a crash on the way leaves that as it was.

    Args:
        path: the file, in a folder that exists.
        tree: any pytree, such as `sg.Params`, the state of an algorithm or of an optimiser. Leaves are arrays of JAX or
            NumPy, PRNG keys, strings, booleans and numbers; keys of dicts are strings.
    """
    arrays: dict[str, np.ndarray] = {}
    write_arrays(path, arrays, {"tree": _describe(tree, (), arrays, {})})


def load(path: str | os.PathLike[str], like: PyTree = None) -> PyTree:
    """Reads a tree that `save` wrote, to the same bits. NumPy's arrays come back as NumPy's, others as JAX's.

    Args:
        path: the file.
        like: a template: a tree with the same structure, shapes, dtypes and sparsity patterns, as from `algo.init` or
            `optimiser.init`, or `jax.eval_shape` of these. Its values are not used. Needed for anything but dicts,
            lists, tuples and the parameters of the library's cells.
    """
    return open_tree(path).tree(like)


@dataclass(frozen=True)
class Stored:
    """A tree in a file, or a part of it, that has been read but not built."""

    path: str  # of the file
    described: Node
    arrays: dict[str, np.ndarray]
    at: Path = ()

    def child(self, name: str) -> Stored | None:
        """The part of that name, if there is one."""
        found = dict(self.described.get("children", ())).get(name)
        return None if found is None else Stored(self.path, found, self.arrays, (*self.at, name))

    def tree(self, like: PyTree = None) -> PyTree:
        """The tree, as `load` gives it."""
        if like is None:
            return _build(self.described, self.at, self.arrays)
        wanted = json.loads(json.dumps(_describe(like, (), None, {})))
        if (difference := _difference(self.described, wanted, self.at)) is not None:
            raise ValueError(f"`like` must be a tree like the one in {self.path!r}, {difference}")
        return jax.tree.unflatten(jax.tree.structure(like), _leaves(self.described, self.at, self.arrays))


def open_tree(path: str | os.PathLike[str]) -> Stored:
    """A file that `save` wrote; refuses any other."""
    arrays, metadata = read_arrays(path)
    given = os.fspath(path)
    if "tree" not in metadata:
        raise ValueError(f"`path` must be a file that sg.save wrote, got {given!r}, which has arrays but no tree")
    return Stored(given, metadata["tree"], arrays)


# ---- from a tree to its description


def _describe(tree: PyTree, path: Path, arrays: dict[str, np.ndarray] | None, positions: dict[Pattern, str]) -> Node:
    """The description of a tree. Its arrays go to `arrays`; a template has none to give."""
    if tree is None:
        return {"none": True}
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda part: part is not tree)[0]
    if len(children) == 1 and children[0][0] == ():
        return _describe_leaf(tree, path, arrays)
    kind = type(tree)
    node: Node = {"type": kind.__name__, "known": KNOWN.get(kind.__name__) is kind}
    if isinstance(tree, SparseMatrix):
        pattern = tree.pattern
        node |= {"shape": list(pattern.shape), "pattern": pattern.digest, "positions": None}
        if not pattern.is_full and arrays is not None:
            node["positions"] = positions.setdefault(pattern, _name((*path, "pattern")))
            arrays[node["positions"]] = pattern.flat.astype(np.min_scalar_type(pattern.shape[0] * pattern.shape[1]))
    elif isinstance(tree, State):
        node |= {"origin": str(tree.origin), "pattern": _patterns_of(tree.origin.structure)}
    names = [_key(key, path) for (key,), _ in children]
    if len(set(names)) < len(names):
        raise ValueError(f"`tree`{_shown(path)} must have children of different names, got {', '.join(names)}")
    node["children"] = [
        [name, _describe(child, (*path, name), arrays, positions)]
        for name, (_, child) in zip(names, children, strict=True)
    ]
    return node


def _describe_leaf(leaf: Any, path: Path, arrays: dict[str, np.ndarray] | None) -> Node:
    where = f"`tree`{_shown(path)}"
    if type(leaf) in (str, bool, int, float):
        return {"value": leaf}
    is_numpy, is_template = isinstance(leaf, np.ndarray | np.generic), isinstance(leaf, jax.ShapeDtypeStruct)
    if not is_numpy and not is_template and not isinstance(leaf, jax.Array):
        raise TypeError(f"{where} must be an array, a string, a boolean or a number, got {type(leaf).__name__}")
    dtype = str(leaf.dtype)
    if dtype not in DTYPES and dtype not in KEYS:
        raise TypeError(f"{where} must hold numbers that safetensors knows or PRNG keys, got {dtype}")
    if arrays is not None:
        if is_template or isinstance(leaf, jax.core.Tracer):
            raise TypeError(f"{where} must have values, got a {type(leaf).__name__}: save outside jit, scan and vmap")
        if not is_numpy and leaf.is_deleted():
            raise ValueError(f"{where} must have values, got an array whose memory was donated to a computation")
        arrays[_name(path)] = np.asarray(jax.random.key_data(leaf) if dtype in KEYS else leaf)
    return {"array": dtype, "shape": list(leaf.shape), "numpy": is_numpy}


def _patterns_of(structure: Any) -> str:
    """The digests of all patterns in a tree structure."""
    tree = jax.tree.unflatten(structure, [0] * structure.num_leaves)
    parts = jax.tree.leaves(tree, is_leaf=lambda part: isinstance(part, SparseMatrix))
    return " ".join(part.pattern.digest for part in parts if isinstance(part, SparseMatrix))


def _key(key: Any, path: Path) -> str:
    """The name of a child in its parent."""
    for attribute in ("name", "idx", "key"):  # of JAX's keys: of an attribute, in a sequence, in a dict
        if hasattr(key, attribute):
            found = getattr(key, attribute)
            if isinstance(key, jax.tree_util.DictKey) and not isinstance(found, str):
                raise TypeError(f"`tree`{_shown(path)} must have strings as keys, got {found!r}")
            return str(found)
    return str(key)


def _name(path: Path) -> str:
    """The name of a leaf: its path with dots; names with other characters than letters and digits are quoted."""
    quoted = (
        part if re.fullmatch(r"\w+", part, re.ASCII) and part != "__metadata__" else json.dumps(part) for part in path
    )
    return ".".join(quoted) or "array"  # where the whole tree is one array


def _shown(path: Path) -> str:
    return f".{_name(path)}" if path else ""


# ---- and back


def _build(node: Node, path: Path, arrays: dict[str, np.ndarray]) -> PyTree:
    """The tree of a description, of known types only."""
    if "none" in node:
        return None
    if "children" not in node:
        return _leaf(node, path, arrays)
    if not node["known"] or node["type"] not in KNOWN:
        as_from = ", as from algo.init," if node["type"] == "State" else ""
        raise ValueError(f"`like` must be a template{as_from} for a tree with a {node['type']} in it, got None")
    children = {name: _build(child, (*path, name), arrays) for name, child in node["children"]}
    kind = KNOWN[node["type"]]
    if kind is SparseMatrix:
        return SparseMatrix(children["values"], _pattern(node, arrays))
    if kind is dict:
        return children
    return kind(children.values()) if kind in (list, tuple) else kind(**children)


def _leaves(node: Node, path: Path, arrays: dict[str, np.ndarray]) -> list[Any]:
    """The leaves of a description in JAX's order."""
    if "none" in node:
        return []
    if "children" not in node:
        return [_leaf(node, path, arrays)]
    return [leaf for name, child in node["children"] for leaf in _leaves(child, (*path, name), arrays)]


def _leaf(node: Node, path: Path, arrays: dict[str, np.ndarray]) -> Any:
    if "value" in node:
        return node["value"]
    array = arrays[_name(path)]
    if node["numpy"]:
        return array
    if node["array"] in KEYS:
        return jax.random.wrap_key_data(jnp.array(array), impl=KEYS[node["array"]])
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise ValueError(
            f"`jax_enable_x64` must be on to load {array.dtype}, as in {_name(path)!r}, got off: it would be rounded"
        )
    return jnp.array(array)


def _pattern(node: Node, arrays: dict[str, np.ndarray]) -> Pattern:
    shape = tuple(node["shape"])
    if node["positions"] is None:
        return Pattern.full(shape)
    return Pattern(*np.divmod(arrays[node["positions"]].astype(np.int64), shape[1]), shape)


# ---- a description against that of a template


def _difference(node: Node, wanted: Node, path: Path) -> str | None:
    """Where two descriptions differ first, in words, or None."""
    if (said := _say(node)) != (other_said := _say(wanted)):
        return f"with {said} in `tree`{_shown(path)}, got {other_said}"
    if node.get("pattern") != wanted.get("pattern"):
        return f"with the same sparsity pattern in `tree`{_shown(path)}, got another pattern"
    children, others = dict(node.get("children", ())), dict(wanted.get("children", ()))
    if list(children) != list(others):
        names, other_names = (", ".join(each) or "no children" for each in (children, others))
        return f"with {names} in `tree`{_shown(path)}, got {other_names}"
    found = (_difference(child, others[name], (*path, name)) for name, child in children.items())
    return next((difference for difference in found if difference is not None), None)


def _say(node: Node) -> str:
    """What a node is by itself; its pattern is compared apart."""
    if "none" in node:
        return "None"
    if "value" in node:
        return f"a Python {type(node['value']).__name__}"
    shape = f" {tuple(node['shape'])}" if "shape" in node else ""
    if "array" in node:
        return f"{node['array']}{shape}"
    return f"{node['type']}{shape}" + (f" of {node['origin']}" if "origin" in node else "")
