"""What a compiled program sends between devices, and what it holds: read from the program, not from a model of it."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")
_CALL = re.compile(rf"= (?P<shape>.*?) (?P<kind>{'|'.join(KINDS)})(-start)?\((?P<rest>.*)")
_ARRAY = re.compile(r"\b(?P<kind>pred|bf16|[a-z]+(?P<bits>\d+))\[(?P<dims>[\d,]*)\]")
_GROUPS = re.compile(
    r"replica_groups=(?:\[\d+,(?P<size>\d+)\]|\{\{(?P<first>[\d,]*)\}|mesh\[(?P<mesh>[^\]]*)\] \{(?P<axes>[^}]*)\})"
)


class Collective(NamedTuple):
    """One exchange between the devices of a group."""

    kind: str
    size: int  # bytes of the result on a device
    group: int  # devices that take part

    @property
    def sent(self) -> float:
        """Bytes that a device sends, in a ring, which sends the least."""
        others = (self.group - 1) / self.group
        return {"all-reduce": 2 * others, "all-gather": others}.get(self.kind, 1.0) * self.size


def collectives(compiled: Any) -> list[Collective]:
    """All exchanges of a program that `jax.jit(...).lower(...).compile()` returned, but for those of one device."""
    found = []
    for line in compiled.as_text().splitlines():
        if (call := _CALL.search(line)) is None:
            continue
        groups = _GROUPS.search(call["rest"])
        if groups is None:
            raise ValueError(f"`compiled` must say which devices take part in an exchange, got {line.strip()}")
        if (group := _group_size(groups)) > 1:
            found.append(Collective(call["kind"], _bytes(call["shape"]), group))
    return found


def _group_size(groups: re.Match[str]) -> int:
    if groups["mesh"] is not None:
        sizes = dict(axis.split("=") for axis in groups["mesh"].replace("'", "").replace(" ", "").split(","))
        return math.prod(int(sizes[axis.strip(" '")]) for axis in groups["axes"].split(","))
    return int(groups["size"]) if groups["size"] else groups["first"].count(",") + 1


def _bytes(shape: str) -> int:
    arrays = _ARRAY.finditer(shape)
    return sum(
        math.prod(map(int, filter(None, array["dims"].split(",")))) * max(int(array["bits"] or 8) // 8, 1)
        if array["kind"] != "bf16"
        else 2 * math.prod(map(int, filter(None, array["dims"].split(","))))
        for array in arrays
    )
