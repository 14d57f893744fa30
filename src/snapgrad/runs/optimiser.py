"""The optimiser that the options name: one of Optax, with clipping, a schedule and weight decay around it."""

from __future__ import annotations

import ast
import inspect
import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from snapgrad.algorithms.interface import Params
from snapgrad.arguments import did_you_mean
from snapgrad.runs.options import Options
from snapgrad.runs.schedule import learning_rate
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.tasks.base import Task


class Call(NamedTuple):
    """An optimiser of Optax by its name, and arguments beside the learning rate."""

    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({given})" if given else self.name


def optimiser(options: Options, task: Task) -> optax.GradientTransformation:
    """Clips, then updates as the optimiser does, then decays the weights; refuses what Optax would not take."""
    call = parse(options.optimiser)
    _positive("learning_rate", options.learning_rate)
    rate = learning_rate(options, task)
    parts = [_made(call, rate)]
    if options.clip is not None:
        _positive("clip", options.clip)
        parts.insert(0, optax.clip_by_global_norm(options.clip))
    if options.weight_decay is not None:
        _positive("weight_decay", options.weight_decay)
        # Behind the optimiser, which has the learning rate in its updates already: the decay needs one of its own.
        decay = -options.weight_decay
        scaled = (lambda count: decay * rate(count)) if callable(rate) else decay * rate
        parts.append(optax.add_decayed_weights(scaled, mask=_is_weight))
    whole = optax.chain(*parts) if len(parts) > 1 else parts[0]
    return skip_zero(whole) if options.skip_idle else whole


def skip_zero(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser, left alone by gradients that are zero everywhere: nothing was asked in their window."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        used = jnp.stack([jnp.any(leaf != 0) for leaf in jax.tree.leaves(grads)]).any()
        updates, after = inner.update(grads, state, params)
        zeros = jax.tree.map(jnp.zeros_like, updates)
        return jax.tree.map(lambda *both: jnp.where(used, *both), (updates, after), (zeros, state))

    return optax.GradientTransformation(inner.init, update)


def parse(text: str) -> Call:
    """The call that `adam` or `adam(b1=0.5, eps=1e-4)` spells; the arguments are literals by name."""
    wanted = f"`optimiser` must be a name or a call such as adam(b1=0.5), got {text!r}"
    try:
        node = ast.parse(text.strip(), mode="eval").body
        function, given = (node.func, node.keywords) if isinstance(node, ast.Call) else (node, [])
        if not isinstance(function, ast.Name) or (isinstance(node, ast.Call) and node.args):
            raise ValueError
        values = {word.arg: ast.literal_eval(word.value) for word in given}
    except (SyntaxError, ValueError):
        raise ValueError(wanted) from None
    known = [name for name in dir(optax) if not name.startswith(("_", "scale_by")) and _takes_rate(name)]
    if function.id not in known:
        raise ValueError(
            f"`optimiser` must name an optimiser of Optax that takes a learning rate, got {function.id!r}"
            + did_you_mean(function.id, known)
        )
    takes = [name for name in inspect.signature(getattr(optax, function.id)).parameters if name != "learning_rate"]
    for name in values:
        if name == "learning_rate":
            raise ValueError(f"`optimiser` must not have a learning rate in it, got {text!r}: give `learning_rate`")
        if name not in takes:
            raise ValueError(
                f"`optimiser` must have arguments that {function.id} takes ({', '.join(takes)}), got {name!r}"
            )
    return Call(function.id, values)  # type: ignore[arg-type]  # `**` has no name, and is refused as unknown


def _made(call: Call, rate: Any) -> optax.GradientTransformation:
    """The optimiser of Optax, tried on shapes so that wrong arguments are found before anything is compiled."""
    vector = {"vector": jax.ShapeDtypeStruct((2,), jnp.result_type(float))}
    try:
        with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
            warnings.simplefilter("ignore")  # some speak of arguments that they will ask for one day
            made = getattr(optax, call.name)(rate, **call.arguments)
            jax.eval_shape(lambda params: made.update(params, made.init(params), params), vector)
    except Exception as error:
        reason = str(error).splitlines()[0]
        if callable(rate):
            raise ValueError(
                "`optimiser` must be one that takes a schedule, or `schedule` constant and `warmup` 0, "
                f"got {str(call)!r} ({reason})"
            ) from None
        raise ValueError(f"`optimiser` must have arguments that Optax can use, got {str(call)!r} ({reason})") from None
    return made


def _is_weight(params: Params) -> Params:
    """Which parts are weight matrices, by their place: a sparse matrix's values are a vector, as a bias is."""
    is_matrix = lambda leaf: isinstance(leaf, SparseMatrix)  # noqa: E731
    return Params(
        cell=jax.tree.map(is_matrix, params.cell, is_leaf=is_matrix),
        readout=[(True, False) for _ in params.readout],
    )


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be a number > 0, got {value}")


def _takes_rate(name: str) -> bool:
    """Whether it is made from a learning rate alone, and updates from gradients alone (a line search does not)."""
    thing = getattr(optax, name)
    if not inspect.isfunction(thing):
        return False
    names = list(inspect.signature(thing).parameters)
    return names[:1] == ["learning_rate"] and "linesearch" not in names
