"""Plans that can be exchanged: how one compiled program serves a network whose patterns change.

A program names a plan by its content, or a slot by its number. Slots are made for the structures of one network, in the
order in which the algorithm lists them, and hold the plans of another network of the same sizes just as well. Sizes
that go with the pattern have some room to grow.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from snapgrad.kernels import binding
from snapgrad.kernels.base import Structure, Sums
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks

ROOM = 1.25  # times what is needed now

_numbers = itertools.count()


class Slots:
    """The slots of one compiled program. Compared by identity: every program has its own."""

    def __init__(self, structures: Sequence[Structure]):
        digests = [_key(structure) for structure in structures]
        self._slot_of = {digest: n for n, digest in enumerate(dict.fromkeys(digests))}
        self._order = [self._slot_of[digest] for digest in digests]  # equal ones share a slot as long as they are equal
        first = [structures[self._order.index(n)] for n in range(len(self._slot_of))]
        number = next(_numbers)
        self._names = [binding.slot(f"slot {number}.{n}") for n in range(len(first))]
        self._fixed = [_fixed(structure) for structure in first]
        self._rooms = [math.ceil(ROOM * _size(structure)) for structure in first]
        self._lock = threading.Lock()

    def name(self, structure: Structure) -> binding.PlanName:
        """The slot of one of the structures that the slots were made for."""
        return self._names[self._slot_of[_key(structure)]]

    def room(self, structure: Structure) -> int:
        """How much its slot has room for."""
        return self._rooms[self._slot_of[_key(structure)]]

    def fit(self, structures: Sequence[Structure]) -> bool:
        """Whether these can take the places of the first ones."""
        if len(structures) != len(self._order):
            return False
        digests: dict[int, Any] = {}
        return all(
            _fixed(structure) == self._fixed[n]
            and _size(structure) <= self._rooms[n]
            and digests.setdefault(n, _key(structure)) == _key(structure)
            for n, structure in zip(self._order, structures, strict=True)
        )

    @contextmanager
    def holding(self, structures: Sequence[Structure]) -> Iterator[None]:
        """Puts their plans into the slots for as long as the context lasts; one thread at a time."""
        with self._lock:
            for n, structure in zip(self._order, structures, strict=True):
                self._names[n].plan.put(binding.plan(structure).plan)
            yield


def _key(structure: Structure) -> tuple[str, str]:
    return type(structure).__name__, structure.digest


def _size(structure: Structure) -> int:
    """What may change with the pattern: sums of D, rows of Lambda. (J has its own room; values keep their number.)"""
    match structure:
        case Sums():
            return len(structure.starts) - 1
        case Blocks():
            return structure.credits
        case _:
            return structure.nnz


def _fixed(structure: Structure) -> tuple[Any, ...]:
    """What must stay."""
    match structure:
        case Sums():
            return Sums, structure.left, structure.right
        case Blocks():
            return Blocks, structure.states, structure.n_params, structure.groups.entries.nnz
        case _:
            return Pattern, structure.shape, structure.nnz
