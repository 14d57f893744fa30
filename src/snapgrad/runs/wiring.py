"""The options of a run whose patterns change, and the rule that they name."""

from __future__ import annotations

import dataclasses
from typing import Any

from snapgrad.plasticity import Rule
from snapgrad.runs.options import Options
from snapgrad.sparsity.pruning import Magnitude
from snapgrad.sparsity.rewiring import SET, Probe, Rewiring, RigL

RULES: dict[str, type[Rewiring]] = {"set": SET, "rigl": RigL, "probe": Probe}
TITLES = {"set": "SET", "rigl": "RigL", "probe": "Probe"}


def rule(options: Options) -> Rule | None:
    """The rule by which a run's patterns change; refuses options that do not belong together."""
    for name, of in (("rewire_every", "rewire"), ("rewire_share", "rewire"), ("rewire_end", "rewire"),
                     ("prune_every", "prune"), ("prune_end", "prune")):  # fmt: skip
        if getattr(options, name) is not None and getattr(options, of) is None:
            raise ValueError(f"`{name}` must not be given without `{of}`, got {getattr(options, name)}")
    if options.rewire is not None and options.prune is not None:
        raise ValueError(f"`prune` must not be given with `rewire`, got {options.prune} and {options.rewire!r}")
    if options.rewire is not None:
        _check_rewire(options)
        return _made(RULES[options.rewire], "rewire", _given(options, "rewire", ("every", "share", "end")))
    if options.prune is None:
        return None
    if options.prune_end is None:
        raise ValueError("`prune_end` must be given with `prune`, got nothing")
    if not options.sparsity < options.prune:
        begun = f"`sparsity`, {options.sparsity}, which the run begins with"
        raise ValueError(f"`prune` must be larger than {begun}, got {options.prune}")
    given = _given(options, "prune", ("every", "end"))
    every = given.get("every", Magnitude.every)
    if every >= 1 and options.prune_end % every:
        raise ValueError(f"`prune_end` must be a multiple of `prune_every`, {every} updates, got {options.prune_end}")
    return _made(Magnitude, "prune", {"sparsity": options.prune, "inputs": options.sparse_inputs, **given})


def _check_rewire(options: Options) -> None:
    """Refuses what a rule cannot work with, before a run is begun."""
    if options.rewire == "rigl" and options.algorithm != "bptt":
        raise ValueError(
            f'`rewire` must be "set" or "probe" with algorithm {options.algorithm!r}, got "rigl", '
            "whose dense gradients bptt alone has"
        )
    if options.sparsity == 0:
        raise ValueError("`sparsity` must be larger than 0 with `rewire`, got 0.0: there is nothing to exchange")


def resolved(options: Options) -> dict[str, Any]:
    """What the rule has by default, of the options that a run has."""
    made = rule(options)
    if made is None:
        return {}
    if isinstance(made, Magnitude):
        return {"prune_every": made.every}
    return {"rewire_every": made.every, "rewire_share": made.share}


def title(options: Options) -> str:
    """What is said of a run whose patterns change, such as "SET"; "" for others."""
    if options.prune is not None:
        return f"pruned to {100 * options.prune:.4g} %"
    return "" if options.rewire is None else TITLES[options.rewire]


def _given(options: Options, prefix: str, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(options, f"{prefix}_{name}") for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _made(kind: Any, prefix: str, given: dict[str, Any]) -> Rule:
    """The rule; what it refuses is said in the names of the options."""
    try:
        return kind(**given)
    except ValueError as error:
        message = str(error).replace("`sparsity`", f"`{prefix}`")
        for field in dataclasses.fields(kind):
            message = message.replace(f"`{field.name}`", f"`{prefix}_{field.name}`")
        raise ValueError(message) from None
