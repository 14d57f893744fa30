"""One object for a stream: it predicts, then learns, sample by sample.

    learner = sg.OnlineLearner(inputs=3, outputs=1)
    for x, y in stream:
        prediction, loss = learner.learn(x, y)

NumPy in, NumPy out. What changes is a short list of arrays, whose memory every call hands to the next; what is compiled
is shared by all copies of a learner.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import collection
from snapgrad.algorithms import checks
from snapgrad.algorithms.base import param_dtype
from snapgrad.algorithms.interface import Algorithm, Params
from snapgrad.cells.base import Cell
from snapgrad.cells.stack import Stack
from snapgrad.cells.unit import UnitCell
from snapgrad.kernels.select import Backend
from snapgrad.learner import cache, dispatch, generation, stored
from snapgrad.learner.guards import BadValues, Events, InfluenceGrowth
from snapgrad.learner.packing import Packing
from snapgrad.learner.samples import Samples
from snapgrad.learner.settings import Settings
from snapgrad.learner.step import Carry
from snapgrad.pytorch import from_torch, to_torch

FEWEST = 16  # steps that `learn_many` is compiled for


class OnlineLearner:
    """A recurrent network that learns from every sample of a stream once, in constant memory.

    Args:
        inputs: width of x; with `symbols`, how many there are.
        outputs: how many numbers are predicted, or how many classes are told apart.
        cell: "vanilla", "gru", "lstm", or any cell such as `sg.stack(...)`.
        units: of a cell that is named; 64 unless given.
        sparsity: share of the cell's weights that do not exist, chosen at random; 0 is dense.
        hidden: widths of hidden layers between the cell and the outputs.
        algorithm: a name, such as "snap", "rtrl", "rflo", "uoro", or a function (cell, loss) -> `sg.Algorithm`.
        order: n of SnAp-n, for algorithms that have one.
        loss: "squared" (the mean over outputs), "cross_entropy" (y is a class, predictions are probabilities), or a
            function (prediction, y) -> scalar of one sample, in `jax.numpy`.
        optimiser: of Optax, by name, such as "adam" or "sgd(momentum=0.9)", or made.
        learning_rate: of an optimiser that is named; 3e-3 unless given.
        clip: the gradient's global norm is clipped to it; None for no clipping.
        lanes: streams side by side that share the weights: x, y, predictions and losses then have a first axis of that
            size. None for one stream without such an axis.
        symbols: x is an integer in [0, inputs), or -1 for no input, in place of a vector.
        limit: values of x and y beyond it in magnitude are bad, as are those that are not finite; None: only these.
        bad_values: "skip" reads bad values of x as 0 and does not learn from the sample; "clip" reads them as the
            limit, NaN as 0, and learns. A y with a NaN is never learnt from.
        influence_limit: a magnitude that the influence is not to exceed.
        influence_growth: what is done where it does: "warn" (once), "decay" (scale it back) or "reset" (forget it). One
            that is not finite is always forgotten.
        seed: determines weights and sparsity; the same seed gives the same bits.
        backend: "native" (C++, CPU), "reference" (plain JAX, any device), or "auto": native wherever it can run.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int = 1,
        *,
        cell: str | Cell = "gru",
        units: int | None = None,
        sparsity: float = 0.0,
        hidden: tuple[int, ...] = (),
        algorithm: Any = "snap",
        order: int | None = 1,
        loss: Any = "squared",
        optimiser: Any = "adam",
        learning_rate: float | None = None,
        clip: float | None = 1.0,
        lanes: int | None = None,
        symbols: bool = False,
        limit: float | None = 1e6,
        bad_values: BadValues = "skip",
        influence_limit: float = 1e6,
        influence_growth: InfluenceGrowth = "warn",
        seed: int = 0,
        backend: Backend = "auto",
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        with collection.paused(), cache.on_disk():
            self._build(Settings(**given))
            self._begin()

    def _build(self, settings: Settings) -> None:
        """Everything that does not change."""
        dispatch.in_this_thread()
        self._settings = settings
        self._cell = settings.make_cell()
        self._learning = settings.make_learning(self._cell)
        self._samples = Samples.of(settings)
        self._programs: dict[Any, Any] = {}
        self._events, self._seen, self._warned = Events(), 0, False

    def _begin(self) -> None:
        settings, learning = self._settings, self._learning

        def begin() -> Carry:
            return learning.start(settings.make_params(self._cell, learning.objective), settings.batch, settings.key)

        # One program in place of dozens of small ones; a random pattern cannot be drawn inside one.
        if settings.sparsity == 0 and isinstance(self._cell, UnitCell | Stack):
            self._go_on_from(jax.jit(begin))
        else:
            self._go_on(begin())

    def _go_on(self, carry: Carry) -> None:
        """Goes on from a copy of a carry."""
        self._go_on_from(lambda carry: carry, carry)

    def _go_on_from(self, make: Callable[..., Carry], *arguments: Any) -> None:
        like = jax.eval_shape(make, *arguments)
        self._samples.dtype = np.dtype(param_dtype(like.params.cell))
        self._packing = packing = Packing(like)
        self._unpacked = jax.jit(packing.unpack)
        self._arrays = jax.jit(lambda *arguments: packing.pack(make(*arguments)))(*arguments)

    # ---- what a learner does

    def predict(self, x: Any) -> Any:
        """The prediction for the next x, which is not read yet: nothing changes."""
        x = self._samples.x(x)
        program = self._programs.get("predict") or self._compile("predict", self._learning.predict, x, changes=False)
        return self._samples.prediction(np.array(program(self._arrays, x)))

    def learn(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Reads x, predicts, then learns from y. Returns the prediction and its loss, NaN where nothing was learnt."""
        x, y = self._samples.x(x), self._samples.y(y)
        program = self._programs.get("learn") or self._compile("learn", self._learning.learn, x, y)
        self._arrays, told = program(self._arrays, x, y)
        predictions, losses, events = self._samples.split(np.array(told))
        self._seen += self._settings.batch
        if any(events):
            self._count(events)
        return predictions, losses

    def learn_many(self, xs: Any, ys: Any) -> tuple[np.ndarray, np.ndarray]:
        """`learn` for every sample of xs [T, ...] and ys [T, ...], in one compiled loop.

        It compiles once for all T up to the next power of two.
        """
        xs, ys = self._samples.xs(xs), self._samples.ys(ys)
        steps = self._samples.steps(xs, ys)
        room = max(FEWEST, 1 << (steps - 1).bit_length())
        xs, ys = jax.tree.map(lambda leaf: np.pad(leaf, [(0, room - steps), *[(0, 0)] * (leaf.ndim - 1)]), (xs, ys))
        name, count = ("learn_many", room), np.int32(steps)
        program = self._programs.get(name) or self._compile(name, self._learning.learn_many, xs, ys, count)
        self._arrays, told = program(self._arrays, xs, ys, count)
        predictions, losses, events = self._samples.split(np.array(told)[:steps])
        self._seen += self._settings.batch * steps
        self._count(events.sum(axis=0, dtype=np.float64))
        return predictions, losses

    def reset(self, lanes: Any = None) -> None:
        """Begins a new sequence: in all lanes, or where `lanes` is True. What was learnt stays."""
        where = self._samples.where(lanes)

        def reset(carry: Carry, where: jax.Array) -> tuple[Carry, tuple[()]]:
            return carry._replace(state=self._learning.algorithm.reset(carry.state, where)), ()

        program = self._programs.get("reset") or self._compile("reset", reset, where)
        self._arrays, _ = program(self._arrays, where)

    def generate(
        self, x: Any, length: int, *, features: Any = None, temperature: float = 1.0, seed: int = 0
    ) -> np.ndarray:
        """What the learner expects to come: `length` predictions, each read as the next x. Nothing changes.

        It compiles once a length.

        Args:
            x: the next x, as for `predict`.
            length: number of predictions.
            features: where x is wider than the prediction, which is put into its first entries: the other entries of
                the later x [length - 1, ..., inputs - outputs]. They stay as in x if nothing is given.
            temperature: for symbols, which are drawn: below 1 likely ones become likelier, at 0 the likeliest is taken.
            seed: what is drawn is determined by it.
        """
        xs, keys = generation.prepare(self._settings, self._samples, x, length, features, temperature, seed)
        heat = np.asarray(temperature, self._samples.dtype)
        name = ("generate", length, keys is None)
        function = partial(generation.generate, self._learning)
        program = self._programs.get(name) or self._compile(name, function, xs, keys, heat, changes=False)
        out = np.array(program(self._arrays, xs, keys, heat))
        return (
            out.reshape(length, *self._samples.lead) if keys is not None else self._samples.prediction(out, (length,))
        )

    # ---- what it has

    @property
    def cell(self) -> Cell:
        """The recurrent cell."""
        return self._cell

    @property
    def algorithm(self) -> Algorithm:
        """How gradients are computed."""
        return self._learning.algorithm

    @property
    def params(self) -> Params:
        """A copy of the weights; assign to change them."""
        return self._carry().params

    @params.setter
    def params(self, params: Params) -> None:
        own = self._carry()
        checks.params(self._cell, params)
        wanted, given = (
            (jax.tree.structure(tree), list(map(checks.signature, jax.tree.leaves(tree))))
            for tree in (own.params, params)
        )
        if wanted != given:
            raise ValueError(
                "`params` must have the structure, shapes, dtypes and sparsity patterns of the learner's, got others"
            )
        self._go_on(own._replace(params=params))

    @property
    def counts(self) -> dict[str, int]:
        """Samples seen, and how often the guards had to do something (`Events`)."""
        return {"samples": self._seen, **self._events._asdict()}

    # ---- to and from disk

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole learner to one file, in place of what was there; a crash on the way leaves it as it was."""
        stored.save(path, self._settings, self._seen, self._events, self._carry())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        cell: Cell | None = None,
        algorithm: Any = None,
        loss: Any = None,
        optimiser: Any = None,
    ) -> Self:
        """The learner of a file, which goes on to the same bits.

        Args:
            path: the file.
            cell: needed where the learner was made with a cell of one's own, which a file cannot hold.
            algorithm: likewise, where it was made with a function.
            loss: likewise.
            optimiser: likewise, where it was made with an object.
        """
        found = stored.read(path)
        learner = cls.__new__(cls)
        with collection.paused(), cache.on_disk():
            learner._build(found.settings({"cell": cell, "algorithm": algorithm, "loss": loss, "optimiser": optimiser}))
            learner._go_on(found.carry(learner._learning, learner._settings))
        learner._remember(*found.counts())
        return learner

    def to_torch(self) -> dict[str, np.ndarray]:
        """The weights as dense arrays in PyTorch's names (`sg.to_torch`)."""
        return to_torch(self._cell, self.params)

    def from_torch(self, weights: Mapping[str, Any]) -> None:
        """Takes weights in PyTorch's names (`sg.from_torch`); the readout stays as it is if they have none."""
        found = from_torch(cast(Any, self._cell), weights)
        self.params = found if found.readout else found._replace(readout=self._carry().params.readout)

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # a call takes over the memory of the arrays, so that no two learners can share them

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(self.__dict__)  # what is compiled is shared
        other._arrays = [jnp.copy(leaf) for leaf in self._arrays]
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self._settings, "carry": self._carry(), "seen": self._seen, "events": self._events}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._build(state["settings"])
        self._go_on(state["carry"])
        self._remember(state["seen"], state["events"])

    def _remember(self, seen: int, events: Events) -> None:
        self._seen, self._events, self._warned = seen, events, events.grown > 0

    def _carry(self) -> Carry:
        """A copy of all that changes."""
        return self._unpacked(self._arrays)

    def _count(self, events: Iterable[float]) -> None:
        self._events = Events(*(int(new) + old for new, old in zip(events, self._events, strict=True)))
        if self._events.grown and not self._warned:
            self._warned = True
            what = {"warn": "left as it is", "decay": "scaled back", "reset": "forgotten"}
            limit, growth = self._settings.influence_limit, self._settings.influence_growth
            warnings.warn(
                f"the influence has grown beyond {limit:g} and is {what[growth]}; "
                '`influence_growth` ("decay", "reset") and `influence_limit` say what is done',
                RuntimeWarning,
                stacklevel=3,
            )

    def _compile(self, name: Any, function: Any, *arguments: Any, changes: bool = True) -> Any:
        """The program for arguments of these shapes. One that `changes` the learner's arrays takes their memory."""
        packing = self._packing

        def packed(arrays: list[jax.Array], *arguments: Any) -> Any:
            out = function(packing.unpack(arrays), *arguments)
            return (packing.pack(out[0]), out[1]) if changes else out

        program = jax.jit(dispatch.in_one_thread(packed), donate_argnums=0) if changes else jax.jit(packed)
        with collection.paused(), cache.on_disk():
            compiled = dispatch.compiled(program.lower(self._arrays, *arguments))
        self._programs[name] = compiled
        return compiled
