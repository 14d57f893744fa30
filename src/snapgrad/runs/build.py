"""From options to what they name: cell, algorithm, task, optimiser, and a trainer with its beginning."""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from snapgrad import arguments
from snapgrad.algorithms.interface import Algorithm, Loss, Params
from snapgrad.algorithms.placement import fetch
from snapgrad.algorithms.registry import ALGORITHMS, takes
from snapgrad.algorithms.sharded import shard
from snapgrad.cells.base import Cell
from snapgrad.cells.registry import layered
from snapgrad.cells.stack import Stack
from snapgrad.cells.unit import UnitCell, UnitParams
from snapgrad.evaluate import evaluate
from snapgrad.readouts import Readout
from snapgrad.runs.optimiser import optimiser
from snapgrad.runs.options import AddingOptions, CharsOptions, CopyOptions, MackeyGlassOptions, Options
from snapgrad.runs.wiring import rule
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.tasks.adding import Adding
from snapgrad.tasks.base import Task
from snapgrad.tasks.characters import BYTES, Crops, check_text
from snapgrad.tasks.copy import Copy
from snapgrad.tasks.corpora import ARCHIVES, Corpus, corpus
from snapgrad.tasks.mackey_glass import MackeyGlass
from snapgrad.tasks.streams import Streams
from snapgrad.train import Carry, Trainer

READOUTS: dict[str, tuple[int, ...]] = {"linear": (), "mlp": (1024,)}
SIZES = {  # of the tasks, in and out
    "copy": (Copy.inputs, Copy.classes),
    "chars": (BYTES, BYTES),
    "adding": (Adding.inputs, Adding.outputs),
    "mackey-glass": (MackeyGlass.inputs, MackeyGlass.outputs),
}
CROP = 128  # bytes, as in the paper


@dataclass(frozen=True, eq=False)
class Experiment:
    """A network with its trainer, how it begins, and how its result is validated."""

    cell: UnitCell | Stack
    readout: Readout
    trainer: Trainer
    params: Params
    key: jax.Array
    validate: Callable[[Params], float] | None  # bits per character
    data: str  # a digest of the texts; "" where there are none

    def start(self) -> Carry:
        """The beginning of the run."""
        return self.trainer.start(self.params, self.key)

    def template(self) -> Carry:
        """What a checkpoint of the run must be like."""
        return self.trainer.template(self.params, self.key)


def build(options: Options, mesh: Mesh | None = None) -> Experiment:
    """Everything that the options name; refuses what does not fit together before anything is compiled.

    With a mesh it is trained on all its devices (`sg.shard`).
    """
    for name in ("units", "layers", "batch", "tokens", "log_every"):
        arguments.positive_integer(name, getattr(options, name))
    arguments.sparsity(options.sparsity)
    seed_in_range(options.seed)
    if not options.checkpoint_every >= 0:
        raise ValueError(f"`checkpoint_every` must be a number >= 0, got {options.checkpoint_every}")
    _check_installed(options)
    task, text = named_task(options)
    update_every = options.update_steps
    if update_every is None and isinstance(task, Streams | MackeyGlass):
        where = "with `continuous`" if isinstance(task, Streams) else f"for {options.task}"
        raise ValueError(f'`update_every` must be an integer {where}, got "sequence": streams never end')
    cell, readout, params = network(options)
    algorithm = _algorithm(options, cell, task.loss(readout), update_every)
    if mesh is not None:
        algorithm = shard(algorithm, mesh)
    trainer = Trainer(algorithm, task, optimiser(options, task), options.batch, update_every, rule(options))
    trainer.check_memory(params)
    key = _keys(options)[2]
    if text is None:
        return Experiment(cell, readout, trainer, params, key, None, "")
    check_text(text.valid, 2)
    length = task.length if isinstance(task, Crops) else None

    def validate(params: Params) -> float:
        params = jax.tree.map(jnp.asarray, fetch(params)) if mesh is not None else params
        return evaluate(cell, readout, params, text.valid, length=length, backend=options.backend)

    digest = hashlib.sha256(text.train.tobytes() + text.valid.tobytes()).hexdigest()
    return Experiment(cell, readout, trainer, params, key, validate, digest)


def seed_in_range(seed: int) -> None:
    """Refuses a seed that is not one of 32 bits."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be in [0, 2^32), got {seed}")


def network(options: Options) -> tuple[UnitCell | Stack, Readout, Params]:
    """The network that the options name, as it is before training."""
    inputs, outputs = SIZES[options.task]
    for_cell, for_readout, _ = _keys(options)
    cell = layered(options.cell, inputs, options.units, options.layers)
    params = cell.init(for_cell, sparsity=options.sparsity, sparse_inputs=options.sparse_inputs)
    if not 0 < options.initial_scale < math.inf:
        raise ValueError(f"`initial_scale` must be a number > 0, got {options.initial_scale}")

    def scaled(layer: UnitParams) -> UnitParams:
        recurrent = layer.recurrent
        return layer._replace(recurrent=SparseMatrix(options.initial_scale * recurrent.values, recurrent.pattern))

    if options.initial_scale != 1:
        params = jax.tree.map(scaled, params, is_leaf=lambda node: isinstance(node, UnitParams))
    readout = Readout(outputs, READOUTS[options.readout])
    return cell, readout, Params(params, readout.init(for_readout, options.units))


def _keys(options: Options) -> jax.Array:
    """For the cell, the readout and the run."""
    return jax.random.split(jax.random.key(options.seed), 3)


def _algorithm(options: Options, cell: Cell, loss: Loss, update_every: int | None) -> Algorithm:
    given: dict[str, Any] = {"backend": options.backend}
    for name in ("order", "decay", "rank", "k", "influence_dtype"):
        value = getattr(options, name)
        if value is not None and not takes(options.algorithm, name):
            raise ValueError(f"`{name}` must not be given with algorithm {options.algorithm!r}, got {value!r}")
        if value is not None:
            given[name] = value
    if takes(options.algorithm, "k") and options.k is None:
        raise ValueError(f"`k` must be an integer >= 1 with algorithm {options.algorithm!r}, got none")
    if takes(options.algorithm, "order"):
        given["order"] = options.snap_order
    # Windows that are whole sequences: the same gradient, computed the cheap way.
    if update_every is None and takes(options.algorithm, "episodic") and options.influence_dtype is None:
        given["episodic"] = True
    return ALGORITHMS[options.algorithm](cell, loss, **given)


def named_task(options: Options) -> tuple[Task, Corpus | None]:
    """The task that the options name, and its text."""
    if isinstance(options, CopyOptions):
        return Copy(options.length, options.minibatch), None
    if isinstance(options, AddingOptions):
        return Adding(options.length), None
    if isinstance(options, MackeyGlassOptions):
        return MackeyGlass(options.delay, options.horizon), None
    assert isinstance(options, CharsOptions)
    arguments.positive_integer("validate_every", options.validate_every)
    if options.continuous and options.length is not None:
        raise ValueError(f"`length` must not be given with `continuous`, got {options.length}: streams never end")
    if options.data_dir is not None and options.corpus not in ARCHIVES:
        raise ValueError(f"`data_dir` must not be given with corpus {options.corpus!r}, got {str(options.data_dir)!r}")
    text = corpus(options.corpus, options.data_dir)
    if options.continuous:
        return Streams(text.train), text
    length = CROP if options.length is None else options.length
    if len(text.train) <= length:
        raise ValueError(
            f"`corpus` must have more than `length`, {length} bytes, beside what is kept for validation, "
            f"got {len(text.train)}"
        )
    return Crops(text.train, length), text


def _check_installed(options: Options) -> None:
    """Refuses to begin what could not be written down."""
    needed = {"tomli_w": "train"} | ({"tensorboardX": "tensorboard"} if options.tensorboard else {})
    for module, extra in needed.items():
        if importlib.util.find_spec(module) is None:
            raise ValueError(
                f"training must have the extra `{extra}` of snapgrad installed, got none ({module} is missing)"
            )
