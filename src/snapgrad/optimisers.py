"""Optimisers of Optax by name, with arguments: `adam`, `adam(b1=0.5, eps=1e-4)`."""

from __future__ import annotations

import ast
import functools
import inspect
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from snapgrad import arguments

# Those that treat every entry by itself, so that it makes no difference how parameters are cut into arrays.
ELEMENTWISE = {"adabelief", "adagrad", "adam", "adamax", "adamw", "amsgrad", "lion", "rmsprop", "sgd", "yogi"}


class Call(NamedTuple):
    """An optimiser of Optax by its name, and arguments beside the learning rate."""

    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({given})" if given else self.name


# Those whose state and updates stay bounded where gradients are, with the arguments that they have by default.
BOUNDED = [Call(name, {}) for name in ("adam", "adamw", "rmsprop", "sgd")]


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
    known = _known()
    if function.id not in known:
        raise ValueError(
            f"`optimiser` must name an optimiser of Optax that takes a learning rate, got {function.id!r}"
            + arguments.did_you_mean(function.id, known)
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


@functools.cache
def _known() -> list[str]:
    return [name for name in dir(optax) if not name.startswith(("_", "scale_by")) and _takes_rate(name)]


def make(call: Call, rate: Any) -> optax.GradientTransformation:
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


def _takes_rate(name: str) -> bool:
    """Whether it is made from a learning rate alone, and updates from gradients alone (a line search does not)."""
    thing = getattr(optax, name)
    if not inspect.isfunction(thing):
        return False
    names = list(inspect.signature(thing).parameters)
    return names[:1] == ["learning_rate"] and "linesearch" not in names
