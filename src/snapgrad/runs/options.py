"""The options of a training run: one dataclass a task, a line of help a field. They are command line and TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Options:
    """What every run has."""

    task: ClassVar[str]

    cell: Literal["vanilla", "gru", "lstm"] = "gru"
    """The recurrent cell."""

    units: int = 64
    """Its units."""

    layers: int = 1
    """So many of these cells on top of each other, each reading the h of the one below; the readout sees the last."""

    sparsity: float = 0.75
    """Share of its weights that do not exist, chosen at random; 0 is dense."""

    sparse_inputs: bool = True
    """Whether that goes for the input weights too, or for the recurrent ones only."""

    rewire: Literal["set", "rigl", "probe"] | None = None
    """Exchange the smallest weights as training goes: for random ones (set), for those with the largest gradient of a
    dense network (rigl, with bptt), or of SnAp in a random sample (probe)."""

    rewire_every: int | None = None
    """Updates between two rewirings; 1000 unless given."""

    rewire_share: float | None = None
    """Share of the weights that a rewiring exchanges; 0.3 unless given."""

    rewire_end: int | None = None
    """The update after which weights stay; until then the share falls along a cosine. Without an end unless given."""

    prune: float | None = None
    """Prune the smallest weights, of matrices that may be sparse, until this share is gone; needs `prune_end`."""

    prune_every: int | None = None
    """Updates between two prunings; 1000 unless given."""

    prune_end: int | None = None
    """The update of the last pruning."""

    readout: Literal["linear", "mlp"] = "linear"
    """From the units to the classes: linear, or through 1024 hidden units as in the paper's language models."""

    algorithm: Literal["bptt", "rtrl", "snap", "snap_topk", "rflo", "uoro", "kf_rtrl", "ok", "frozen"] = "snap"
    """How gradients are computed."""

    order: int | None = None
    """Order n of SnAp-n; 2 unless given. For snap only."""

    decay: float | None = None
    """How much of the influence is left after a step; 1 unless given. For rflo only."""

    rank: int | None = None
    """Independent estimates that uoro averages, or Kronecker products that ok keeps; 1 unless given."""

    k: int | None = None
    """Entries of every column of J that are kept. For snap_topk only, which needs it."""

    initial_scale: float = 1.0
    """Factor of the initial recurrent weights, whose variance is 1 / fan-in before it."""

    influence_dtype: Literal["bfloat16"] | None = None
    """Store the influence in half the memory. For snap, rtrl and rflo."""

    update_every: int | Literal["sequence"] = 1
    """Steps between weight updates, or "sequence" for one at the end of each sequence."""

    optimiser: str = "adam"
    """Any optimiser of Optax that takes a learning rate, by its name there; with arguments: adam(b1=0.5, eps=1e-4)."""

    learning_rate: float = 1e-3
    """Its learning rate; with a schedule, the largest."""

    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the learning rate goes on after the warmup: it stays, or falls to zero over the updates of the run."""

    warmup: int = 0
    """Updates over which the learning rate first grows from zero."""

    schedule_updates: int | None = None
    """Updates, with the warmup, until a schedule is at zero; by default those of the run, where they can be counted."""

    clip: float | None = None
    """Scale gradients down to this global norm where theirs is larger."""

    skip_idle: bool = False
    """Leave weights and optimiser as they are at updates that have nothing to learn from: no target in the window."""

    weight_decay: float | None = None
    """Decoupled decay of the weight matrices, not of biases: times the learning rate, at every update."""

    batch: int = 16
    """Sequences side by side."""

    tokens: int = 1_000_000
    """How much data to train on: steps times batch, without filling."""

    seed: int = 0
    """Determines weights, sparsity and data; the same seed gives the same bits."""

    backend: Literal["auto", "native", "reference"] = "auto"
    """C++ or plain JAX; auto takes C++ wherever it runs."""

    log_every: int = 10_000
    """Tokens between two records of the metrics, and between two looks at Ctrl-C."""

    checkpoint_every: float = 30.0
    """Seconds between checkpoints, at least. One is also made at the end and on Ctrl-C."""

    tensorboard: bool = False
    """Also write TensorBoard events; needs the extra `tensorboard`."""

    default_order: ClassVar[int] = 2

    @property
    def snap_order(self) -> int:
        """The order of SnAp, given or not."""
        return self.default_order if self.order is None else self.order

    @property
    def update_steps(self) -> int | None:
        """Steps between updates; None for whole sequences."""
        return None if isinstance(self.update_every, str) else self.update_every


@dataclass(frozen=True)
class CopyOptions(Options):
    """Learn to copy binary strings that get longer as they are mastered."""

    task = "copy"

    sparse_inputs: bool = False
    """Whether sparsity goes for the input weights too; with four symbols only, few units would see each of them."""

    length: int | None = None
    """Train on strings of this one length, without a curriculum."""

    minibatch: Literal["sequences", "window"] = "sequences"
    """What must cost below 0.15 bits per character for longer strings: as many sequences as lanes, or one update."""


@dataclass(frozen=True)
class CharsOptions(Options):
    """Learn to predict the next byte of a text. The defaults are the paper's dense language model."""

    task = "chars"
    default_order = 1

    units: int = 128
    """Its units."""

    sparsity: float = 0.0
    """Share of its weights that do not exist, chosen at random; 0 is dense."""

    readout: Literal["linear", "mlp"] = "mlp"
    """From the units to the 256 bytes: linear, or through 1024 hidden units as in the paper."""

    order: int | None = None
    """Order n of SnAp-n; 1 unless given, because on a dense network 2 is exact. For snap only."""

    update_every: int | Literal["sequence"] = "sequence"
    """Steps between weight updates, or "sequence" for one at the end of each crop."""

    batch: int = 32
    """Sequences side by side."""

    log_every: int = 50_000
    """Tokens between two records of the metrics, and between two looks at Ctrl-C."""

    corpus: str = "stdlib"
    """A file or a folder, or "wikitext2", "wikitext103", or "stdlib": the source text of Python's own library."""

    data_dir: Path | None = None
    """Where WikiText is looked for and downloaded to; by default $SNAPGRAD_DATA, else ~/.cache/snapgrad."""

    length: int | None = None
    """Bytes of a crop; 128 unless given."""

    continuous: bool = False
    """One endless stream in each lane, never reset, in place of crops. Needs a number for update-every."""

    validate_every: int = 1_000_000
    """Tokens between validations, which go over the whole validation text; one is also made at the end."""


@dataclass(frozen=True)
class AddingOptions(Options):
    """Learn to add the two marked numbers of a sequence (Hochreiter & Schmidhuber 1997)."""

    task = "adding"

    sparse_inputs: bool = False
    """Whether sparsity goes for the input weights too; with two inputs only, few units would see each of them."""

    length: int = 50
    """Steps of a sequence."""


@dataclass(frozen=True)
class MackeyGlassOptions(Options):
    """Learn to forecast a chaotic series (Mackey & Glass 1977)."""

    task = "mackey-glass"

    sparse_inputs: bool = False
    """Whether sparsity goes for the input weights too; with one input only, few units would see it."""

    delay: int = 17
    """Delay tau of the equation; from 17 on it is chaotic."""

    horizon: int = 6
    """Units of time between what is read and what is predicted."""


# What a run may be resumed with another value of: no weight depends on it. Of `corpus` the text counts, not the path.
MAY_CHANGE = ("tokens", "log_every", "checkpoint_every", "tensorboard", "validate_every", "corpus", "data_dir")

TASKS: dict[str, type[Options]] = {
    options.task: options for options in (CopyOptions, CharsOptions, AddingOptions, MackeyGlassOptions)
}
