"""A learner to and from one file: its settings, its counts, and everything that it goes on from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import jax

from snapgrad import persistence
from snapgrad.learner.guards import Events
from snapgrad.learner.settings import Settings
from snapgrad.learner.step import Carry, Learning
from snapgrad.persistence import Stored


def save(path: str | os.PathLike[str], settings: Settings, seen: int, events: Events, carry: Carry) -> None:
    """Writes a learner, whole or not at all."""
    about = {"settings": settings.describe(), "seen": seen, "events": events._asdict()}
    params, *rest = carry
    persistence.save(path, {"learner": json.dumps(about), "params": params, "rest": tuple(rest)})


@dataclass(frozen=True)
class File:
    """The file of a learner, read."""

    about: dict[str, Any]
    parts: Stored

    def settings(self, given: dict[str, Any]) -> Settings:
        """Its settings, with the objects that a file cannot hold."""
        return Settings.from_description(self.about["settings"], given)

    def counts(self) -> tuple[int, Events]:
        """Samples and events."""
        return self.about["seen"], Events(**self.about["events"])

    def carry(self, learning: Learning, settings: Settings) -> Carry:
        """What the learner goes on from."""
        stored, rest = self.parts.child("params"), self.parts.child("rest")
        assert stored is not None
        assert rest is not None
        # Parameters of the library's cells come with their patterns; those of others need a template.
        own = self.about["settings"]["cell"] is None
        cell = learning.algorithm.cell
        params = stored.tree(settings.make_params(cell, learning.objective) if own else None)
        like = jax.eval_shape(lambda params: learning.start(params, settings.batch, settings.key), params)
        try:
            return Carry(params, *rest.tree(tuple(like[1:])))
        except ValueError as error:
            if "`like`" not in str(error):
                raise
            why = str(error).partition(", with ")[2]
            raise ValueError(
                f"`path` must hold a learner that this version and backend can go on from, got {self.parts.path!r}, "
                f"which has {why.replace(', got', ' in place of')}"
            ) from None


def read(path: str | os.PathLike[str]) -> File:
    """The file of a learner; refuses any other."""
    tree = persistence.open_tree(path)
    about = tree.child("learner")
    if about is None:
        raise ValueError(
            f"`path` must be a file that OnlineLearner.save wrote, got {os.fspath(path)!r}, which holds another tree"
        )
    return File(json.loads(about.tree()), tree)
