"""Hands runs of changing patterns to one compiled program.

A program is compiled for one structure of its arguments, patterns included. A run that rewires gives it another carry
each time, of the same sizes: its leaves are labelled with the structure that the program was compiled for, and its
plans are put into the slots of the program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from snapgrad.kernels.base import Structure
from snapgrad.kernels.native import NativeKernel
from snapgrad.kernels.slots import Slots


class Slotted:
    """The slots of a trainer's programs, and the structure that these were compiled for."""

    def __init__(self) -> None:
        self._slots: Slots | None = None
        self._structure: Any = None

    @contextmanager
    def labelled(self, carry: Any, structures: Sequence[Structure]) -> Iterator[Any]:
        """The carry for the program, with its plans in the slots for as long as the context lasts.

        If they do not fit there are new slots, with more room: the program must then be compiled anew.
        """
        if self._slots is None or not self._slots.fit(structures):
            self._slots = Slots(structures)
            origin = dataclasses.replace(carry.state.origin, kernel=NativeKernel(self._slots))
            state = dataclasses.replace(carry.state, origin=origin)
            self._structure = jax.tree.structure(carry._replace(state=state))
        with self._slots.holding(structures):
            yield jax.tree.unflatten(self._structure, jax.tree.leaves(carry))
