"""From options to what they name: cell, algorithm, task, optimiser, and a trainer with its beginning."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax

from snapgrad import arguments
from snapgrad.algorithms.interface import Algorithm, Params
from snapgrad.algorithms.registry import ALGORITHMS, takes
from snapgrad.cells.base import Cell
from snapgrad.cells.gru import GRU
from snapgrad.cells.lstm import LSTM
from snapgrad.cells.stack import Stack, stack
from snapgrad.cells.unit import UnitCell
from snapgrad.cells.vanilla import Vanilla
from snapgrad.evaluate import evaluator
from snapgrad.readouts import Readout
from snapgrad.runs.options import CharsOptions, CopyOptions, Options
from snapgrad.tasks.base import Task
from snapgrad.tasks.characters import Crops
from snapgrad.tasks.copy import Copy
from snapgrad.tasks.corpora import ARCHIVES, Corpus, corpus
from snapgrad.tasks.streams import Streams
from snapgrad.train import Carry, Trainer

CELLS: dict[str, Callable[[int, int], UnitCell]] = {"vanilla": Vanilla, "gru": GRU, "lstm": LSTM}
READOUTS: dict[str, tuple[int, ...]] = {"linear": (), "mlp": (1024,)}
CROP = 128  # bytes, as in the paper


@dataclass(frozen=True, eq=False)
class Experiment:
    """A trainer, how it begins, and how its result is validated."""

    trainer: Trainer
    params: Params
    key: jax.Array
    validate: Callable[[Params], float] | None  # bits per character
    data: str  # a digest of the texts; "" where there are none

    def start(self) -> Carry:
        """The beginning of the run."""
        return self.trainer.start(self.params, self.key)


def build(options: Options) -> Experiment:
    """Everything that the options name; refuses what does not fit together before anything is compiled."""
    for name in ("units", "layers", "batch", "tokens", "log_every"):
        arguments.positive_integer(name, getattr(options, name))
    arguments.sparsity(options.sparsity)
    if not 0 <= options.seed < 2**32:
        raise ValueError(f"`seed` must be in [0, 2^32), got {options.seed}")
    if not options.checkpoint_every >= 0:
        raise ValueError(f"`checkpoint_every` must be a number >= 0, got {options.checkpoint_every}")
    optimiser = _optimiser(options)
    _check_installed(options)
    task, text = _task(options)
    update_every = options.update_steps
    if update_every is None and isinstance(task, Streams):
        raise ValueError('`update_every` must be an integer with `continuous`, got "sequence": streams never end')
    cell, cell_params = network(options, task.inputs)
    readout = Readout(task.classes, READOUTS[options.readout])
    algorithm = _algorithm(options, cell, readout, update_every)
    trainer = Trainer(algorithm, task, optimiser, options.batch, update_every)
    _, for_readout, key = _keys(options)
    params = Params(cell_params, readout.init(for_readout, options.units))
    if text is None:
        return Experiment(trainer, params, key, None, "")
    length = task.length if isinstance(task, Crops) else None
    validate = evaluator(cell, readout.loss, text.valid, length, options.backend)
    digest = hashlib.sha256(text.train.tobytes() + text.valid.tobytes()).hexdigest()
    return Experiment(trainer, params, key, validate, digest)


def layered(name: str, inputs: int, units: int, layers: int) -> UnitCell | Stack:
    """The cell of that name, or a stack of so many of them."""
    cells = [CELLS[name](units if layer else inputs, units) for layer in range(layers)]
    return stack(*cells) if layers > 1 else cells[0]


def network(options: Options, inputs: int) -> tuple[UnitCell | Stack, Any]:
    """The recurrent network that the options name, as it is before training."""
    cell = layered(options.cell, inputs, options.units, options.layers)
    return cell, cell.init(_keys(options)[0], sparsity=options.sparsity, sparse_inputs=options.sparse_inputs)


def _keys(options: Options) -> jax.Array:
    """For the cell, the readout and the run."""
    return jax.random.split(jax.random.key(options.seed), 3)


def _algorithm(options: Options, cell: Cell, readout: Readout, update_every: int | None) -> Algorithm:
    given: dict[str, Any] = {"backend": options.backend}
    for name in ("order", "decay", "rank", "influence_dtype"):
        value = getattr(options, name)
        if value is not None and not takes(options.algorithm, name):
            raise ValueError(f"`{name}` must not be given with algorithm {options.algorithm!r}, got {value!r}")
        if value is not None:
            given[name] = value
    if takes(options.algorithm, "order"):
        given["order"] = options.snap_order
    # Windows that are whole sequences: the same gradient, computed the cheap way.
    if update_every is None and takes(options.algorithm, "episodic") and options.influence_dtype is None:
        given["episodic"] = True
    return ALGORITHMS[options.algorithm](cell, readout.loss, **given)


def _task(options: Options) -> tuple[Task, Corpus | None]:
    if isinstance(options, CopyOptions):
        return Copy(options.length), None
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
    needed = {"orbax": "train", "tomli_w": "train"} | ({"tensorboardX": "tensorboard"} if options.tensorboard else {})
    for module, extra in needed.items():
        if importlib.util.find_spec(module) is None:
            raise ValueError(
                f"training must have the extra `{extra}` of snapgrad installed, got none ({module} is missing)"
            )


def _optimiser(options: Options) -> optax.GradientTransformation:
    known = [
        name for name in dir(optax) if not name.startswith(("_", "scale_by")) and _is_optimiser(getattr(optax, name))
    ]
    if options.optimiser not in known:
        near = difflib.get_close_matches(options.optimiser, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"`optimiser` must name an optimiser of Optax that takes a learning rate, got {options.optimiser!r}{hint}"
        )
    if not options.learning_rate > 0:
        raise ValueError(f"`learning_rate` must be > 0, got {options.learning_rate}")
    return getattr(optax, options.optimiser)(options.learning_rate)


def _is_optimiser(thing: Any) -> bool:
    """Whether it is made from a learning rate alone, and updates from gradients alone (a line search does not)."""
    if not inspect.isfunction(thing):
        return False
    names = list(inspect.signature(thing).parameters)
    return names[:1] == ["learning_rate"] and "linesearch" not in names
