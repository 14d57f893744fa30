"""What is asked of an algorithm's arguments together. Every refusal is one sentence: the argument, the need, the value.

All of it looks at types, shapes and dtypes only, so it works on traced values and costs nothing at run time.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.algorithms.interface import Origin, Params, State
from snapgrad.cells.base import Cell
from snapgrad.kernels.share import Share
from snapgrad.readouts import ReadoutLoss
from snapgrad.sparsity.matrix import as_index


def cell(value: Any) -> None:
    """Refuses what is not a cell."""
    if not isinstance(value, Cell):
        raise TypeError(f"`cell` must be a snapgrad cell such as sg.GRU(inputs, units), got {type(value).__name__}")
    if type(value).__hash__ is None:
        raise TypeError(f"`cell` must be hashable, as a frozen dataclass is, got {type(value).__name__}")


def loss(value: Any) -> None:
    """Refuses what is not a function."""
    if not callable(value):
        raise TypeError(f"`loss` must be a function (readout, h, target) -> scalar, got {type(value).__name__}")


def key(algorithm: str, value: Any) -> None:
    """Refuses what is not a PRNG key where an algorithm draws from one."""
    if not isinstance(value, jax.Array):
        raise ValueError(
            f"`key` must be a PRNG key for {algorithm}, which draws random signs, got {arguments.shown(value)}"
        )


def episodic(value: Any, influence_dtype: Any) -> None:
    """Refuses what is not a bool, and a dtype for the J that windows of whole sequences do without."""
    arguments.boolean("episodic", value)
    if value and influence_dtype is not None:
        given = arguments.shown(influence_dtype)
        raise ValueError(f"`influence_dtype` must be None with `episodic`, which has no J, got {given}")


def params(cell: Cell, value: Any) -> None:
    """Refuses what is not `sg.Params`, holds other than floats, or does not fit the cell."""
    if not isinstance(value, Params):
        raise TypeError(f"`params` must be sg.Params(cell=..., readout=...), got {type(value).__name__}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        dtype = _dtype(leaf)
        if isinstance(dtype, str) or not arguments.is_float(dtype):
            where = jax.tree_util.keystr(path)
            raise TypeError(f"`params` must hold floating-point arrays only, got {dtype} in params{where}")
    cell.check(value.cell)
    dtypes = {str(_dtype(leaf)) for leaf in jax.tree.leaves(value.cell)}
    if len(dtypes) > 1:
        raise TypeError(f"`params.cell` must be of one dtype, got {' and '.join(sorted(dtypes))}")


def _dtype(leaf: Any) -> Any:
    """The dtype of a leaf, or what it is instead of an array."""
    if isinstance(leaf, str | type):  # which JAX would take for the name of a dtype
        return type(leaf).__name__
    try:
        return jnp.result_type(leaf)
    except TypeError:
        return type(leaf).__name__


def maker(state: Any, algorithm: str, cell: Cell, share: Share) -> None:
    """Refuses a state that another algorithm or cell has made, or the same one on another mesh."""
    if not isinstance(state, State):
        raise TypeError(f"`state` must come from this algorithm's init, got {type(state).__name__}")
    if (state.origin.algorithm, state.origin.cell) != (algorithm, cell):
        wanted = f"{algorithm} on {cell}"
        if str(state.origin).startswith(wanted):
            wanted += " with the same rule function"
        raise ValueError(f"`state` must come from this algorithm's init ({wanted}), got one from {state.origin}")
    if state.origin.kernel.share != share:
        needed = f"batch={share.batch}, params={share.params}"
        raise ValueError(
            f"`state` must come from init on a mesh of {needed}, got one from {state.origin}: `gather` it there and "
            "`scatter` it here"
        )


def state(value: Any, origin: Origin) -> None:
    """Refuses a state of another algorithm, cell or sparsity pattern."""
    maker(value, origin.algorithm, origin.cell, origin.kernel.share)
    if value.origin.kernel.name != origin.kernel.name:
        wanted, got = origin.kernel.name, value.origin.kernel.name
        raise ValueError(f"`state` must come from init with the same backend ({wanted}), got one from {got}")
    if value.origin.structure != origin.structure:
        raise ValueError(
            "`state` must come from init with parameters of the same sparsity pattern, got one made for another pattern"
        )


def signature(leaf: Any) -> Any:
    """What the checks see of a leaf."""
    return (leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array | np.ndarray) else type(leaf)


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(jnp.shape(array))


def as_window(xs: Any, targets: Any) -> tuple[jax.Array, Any]:
    """Both as arrays: `xs` one, with integers of any width as int32, and `targets` a pytree of them."""
    xs = arguments.array("xs", xs)
    if jnp.issubdtype(xs.dtype, jnp.integer):
        xs = as_index(xs)
    if isinstance(targets, list) and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(targets)):
        return xs, arguments.array("targets", targets)  # nested lists of numbers, not a pytree of scalars
    return xs, jax.tree.map(lambda leaf: arguments.array("targets", leaf), targets)


def target_values(loss: Any, targets: Any) -> None:
    """Refuses targets that are no classes of the readout, if the loss is that of one and they can be seen."""
    if isinstance(loss, ReadoutLoss) and isinstance(targets, jax.Array) and not isinstance(targets, jax.core.Tracer):
        loss.check_targets(targets)


def window(cell: Cell, params: Any, state: Any, xs: Any, targets: Any) -> None:
    """Refuses a window that does not fit the cell, the state or itself."""
    integer = jnp.issubdtype(xs.dtype, jnp.integer)
    if not integer and not jnp.issubdtype(xs.dtype, jnp.floating):
        raise TypeError(f"`xs` must hold floats (vectors) or integers (indices), got {xs.dtype}")
    wanted = "[T, B] of integers" if integer else f"[T, B, {cell.inputs}]"
    if xs.ndim != (2 if integer else 3) or (not integer and xs.shape[2] != cell.inputs):
        raise ValueError(f"`xs` must have shape {wanted}, got {_shape(xs)}")
    if xs.shape[0] < 1:
        raise ValueError(f"`xs` must have at least one step, got shape {_shape(xs)}")
    leaves = jax.tree.leaves(state.cell)
    lanes, dtype = leaves[0].shape[0], leaves[0].dtype
    if xs.shape[1] != lanes:
        raise ValueError(f"`xs` must have the state's batch size {lanes} as its second axis, got shape {_shape(xs)}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(targets):
        if _shape(leaf)[:2] != xs.shape[:2]:
            where = jax.tree_util.keystr(path)
            raise ValueError(f"`targets`{where} must begin with the shape {xs.shape[:2]} of `xs`, got {_shape(leaf)}")
    needed = jnp.result_type(*jax.tree.leaves(params.cell))
    if dtype != needed:
        raise TypeError(f"`state` must have the dtype of `params`, {needed}, got {dtype}")
    if not integer and xs.dtype != needed:
        raise TypeError(f"`xs` must have the dtype of `params`, {needed}, got {xs.dtype}")


def loss_value(loss: Any, readout: Any, hs: Any, targets: Any) -> None:
    """Refuses a loss that does not take what it is given, or is not a scalar."""
    first = jax.eval_shape(lambda *window: jax.tree.map(lambda leaf: leaf[0, 0], window), hs, targets)
    try:
        out = jax.eval_shape(lambda *args: jax.tree.map(jnp.asarray, loss(*args)), readout, *first)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        h, _ = first
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"`loss` must take (readout, h {list(h.shape)}, target) of one example at one step, got: {said}"
        ) from error
    if not hasattr(out, "shape") or out.shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
        got = f"{out.dtype} of shape {out.shape}" if hasattr(out, "shape") else type(out).__name__
        raise ValueError(f"`loss` must return a floating-point scalar for one example at one step, got {got}")


def where(value: Any, state: Any) -> None:
    """Refuses what does not say yes or no for every lane."""
    lanes = jax.tree.leaves(state.cell)[0].shape[0]
    if value.dtype != jnp.bool_ or value.shape != (lanes,):
        raise ValueError(f"`where` must be booleans of shape {(lanes,)}, got {value.dtype} of shape {_shape(value)}")
