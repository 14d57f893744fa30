"""One training loop for every cell, algorithm, task and optimiser.

    trainer = Trainer(algorithm, task, optax.adam(1e-3), batch=16, update_every=1)
    carry = trainer.start(params, key)
    carry, progress = trainer.run(carry, tokens=10_000)

`run` is one compiled loop: data, gradients, updates and the curriculum stay on the device until it returns. It returns
after the first update at which `tokens` have been seen; a run that is cut into several calls makes the same updates.
With `rewire` the sparsity patterns change on the way (plasticity.py), between two calls of the compiled loop.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from snapgrad import arguments, memory
from snapgrad.algorithms import checks
from snapgrad.algorithms.interface import Algorithm, Params, State
from snapgrad.algorithms.placement import EVERYWHERE, fetch, wait_for_all
from snapgrad.plasticity import Network, Plasticity, Rule
from snapgrad.readouts import ReadoutLoss
from snapgrad.slotted import Slotted
from snapgrad.sparsity.matrix import densify, describe, map_matrices
from snapgrad.sparsity.moves import check_mirrored
from snapgrad.tasks.base import Task, Window

# Whole sequences are filled up to a multiple of this, so that a curriculum which grows compiles only now and then.
PADDED_TO = 8

# Of one call of the compiled loop: long ones are cut, so that Python looks up now and then and sums stay exact enough.
MOST_TOKENS = 1 << 17

# Windows without a token, in a row: more are taken for a task that has come to a standstill.
MOST_IDLE = 1000


class Carry(NamedTuple):
    """Everything that a run goes on from."""

    params: Params
    opt_state: optax.OptState
    state: State
    task: Any
    wiring: Any = None  # `plasticity.Wiring` of a run whose patterns change


class Progress(NamedTuple):
    """What happened in one call of `run`."""

    tokens: int
    updates: int
    cost: float  # of all that was asked, in the unit of the task's metric: bits, for symbols
    asked: int
    finite: bool  # False: a loss or weight was not finite after the last update, and training stopped there
    seconds: float  # of training, without compilation
    churn: float = 0.0  # weights that were exchanged or pruned, as a share of those that existed
    rewiring_seconds: float = 0.0  # of `seconds`, in which patterns changed


class _Counts(NamedTuple):
    tokens: jax.Array
    updates: jax.Array
    cost: jax.Array
    asked: jax.Array
    finite: jax.Array
    wrong: jax.Array  # inputs and targets of the last window that are none of the task
    idle: jax.Array  # windows without a token, in a row


@dataclass(frozen=True, eq=False)
class Trainer:
    """A network, how it learns, and from what. It knows no algorithm by name.

    Args:
        algorithm: made for a cell and a loss on the task's targets (`task.loss(readout)`).
        task: where the data comes from.
        optimiser: any of Optax.
        batch: lanes side by side.
        update_every: steps between updates; None for one update at the end of each sequence.
        rewire: a rule of `sg.rewiring` or `sg.pruning` by which the cell's patterns change; None for fixed ones.
    """

    algorithm: Algorithm
    task: Task
    optimiser: optax.GradientTransformation
    batch: int = 16
    update_every: int | None = 1
    rewire: Rule | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, Algorithm):
            raise TypeError(f"`algorithm` must be one such as sg.snap returns, got {type(self.algorithm).__name__}")
        if not isinstance(self.task, Task):
            raise TypeError(f"`task` must be a sg.tasks.Task, got {type(self.task).__name__}")
        if not isinstance(self.optimiser, optax.GradientTransformation):
            raise TypeError(f"`optimiser` must be an optimiser of Optax, got {type(self.optimiser).__name__}")
        _ = self._plasticity  # checks the rule
        arguments.positive_integer("batch", self.batch)
        placement = self.algorithm.placement
        if placement.mesh is not None and self.rewire is not None:
            raise ValueError(
                f"`rewire` must be None for an algorithm on a mesh, got {type(self.rewire).__name__}: its patterns stay"
            )
        if self.batch % placement.share.batch:
            along = f"the {placement.share.batch} devices along `batch` of the mesh"
            raise ValueError(f"`batch` must be a multiple of {along}, got {self.batch}")
        if self.update_every is not None:
            arguments.positive_integer("update_every", self.update_every, arguments.MOST_STEPS)
        if self.algorithm.episodic and self.update_every is not None:
            raise ValueError(
                f"`update_every` must be None for {self.algorithm.name}, whose windows are whole sequences, "
                f"got {self.update_every}"
            )
        arguments.positive_integer("task.inputs", self.task.inputs)
        arguments.positive_integer("task.outputs", self.task.outputs)
        if self.algorithm.cell.inputs != self.task.inputs:
            raise ValueError(
                f"`algorithm` must have a cell with the task's {self.task.inputs} inputs, got {self.algorithm.cell}"
            )
        if isinstance(self.algorithm.loss, ReadoutLoss) and self.algorithm.loss.readout.classes != self.task.outputs:
            raise ValueError(
                f"`algorithm` must have a loss on the task's {self.task.outputs} classes, "
                f"got that of {self.algorithm.loss.readout}"
            )

    def start(self, params: Params, key: jax.Array) -> Carry:
        """The beginning of a run. It takes a copy of the parameters."""
        arguments.key("key", key)
        self.check_memory(params)
        placement = self.algorithm.placement
        if self._plasticity is None and placement.mesh is None:
            return jax.jit(self._begin)(params, key)  # one program in place of dozens of small ones
        carry = self._begin(params, key)
        if self._plasticity is not None:
            for_wiring = jax.random.fold_in(key, 2)  # a run that rewires sees the same data as one that does not
            state, wiring = self._plasticity.start(params, carry.state, for_wiring)
            carry = carry._replace(state=state, wiring=wiring)
            check_mirrored(carry.opt_state, params)
        if placement.mesh is not None:
            params, opt_state, task = self._placed((carry.params, carry.opt_state, carry.task))
            return Carry(params, opt_state, carry.state, task)
        return jax.tree.map(jnp.copy, carry)

    def _begin(self, params: Params, key: jax.Array) -> Carry:
        for_algorithm, for_task = jax.random.split(key)
        task = self.task.start(for_task, self.batch)
        state = self.algorithm.init(params, self.batch, key=for_algorithm)
        return Carry(params, self.optimiser.init(params), state, task)

    def template(self, params: Params, key: jax.Array) -> Carry:
        """What `start` makes, as a trainer without a mesh has it: shapes are enough to resume by."""
        if self._plasticity is not None:  # patterns are drawn outside of JAX
            return self.start(params, key)
        self.check_memory(params)
        return self.pieces(jax.eval_shape(self._begin, params, key))

    def pieces(self, carry: Carry) -> Carry:
        """The carry as a trainer without a mesh has it, to be saved; what is spread over a mesh comes in `Pieces`."""
        if self.algorithm.placement.mesh is None:
            return carry
        params, opt_state, task = fetch((carry.params, carry.opt_state, carry.task))
        return Carry(params, opt_state, self.algorithm.pieces(carry.state, carry.params), task)

    def scatter(self, carry: Carry) -> Carry:
        """A carry as a trainer without a mesh has it, in memory or in a file that is mapped, on this one's devices."""
        if self.algorithm.placement.mesh is None:
            return jax.tree.map(jnp.array, carry)
        params, opt_state, task = self._placed((carry.params, carry.opt_state, carry.task))
        return Carry(params, opt_state, self.algorithm.scatter(carry.state, carry.params), task)

    def check_memory(self, params: Params) -> None:
        """Refuses a run that does not fit into memory, before anything is allocated."""
        key = jax.random.key(0)
        memory.check("batch", "the task's state", {"counters": 8.0 * self.batch}, "a smaller batch")
        jax.eval_shape(lambda params: self.algorithm.init(params, self.batch, key=key), params)
        one_lane = jax.jit(self.task.start, static_argnums=1)(key, 1)
        if self.update_every is None and self.task.sequence_steps(one_lane) is None:
            raise ValueError("`update_every` must be an integer for a task whose sequences never end, got None")
        self._check_window(self._window_steps(one_lane), params)

    def _check_window(self, steps: int, params: Params) -> None:
        argument = "batch" if self.update_every is None else "update_every"
        if steps * self.batch >= 1 << 31:  # tokens of a window are counted in int32
            raise ValueError(
                f"`{argument}` must leave a window fewer than 2^31 tokens, got {steps} steps of {self.batch} sequences"
            )
        cell = self.algorithm.cell
        h = jax.eval_shape(lambda: cell.output(cell.initial_state()))
        itemsize = jnp.result_type(*jax.tree.leaves(params.cell)).itemsize
        part = self.algorithm.placement.lanes_in_memory
        memory.check_window(argument, steps, self.batch, h.size, self.task.outputs, itemsize, part)

    def run(self, carry: Carry, tokens: int) -> tuple[Carry, Progress]:
        """Trains until that many more tokens have been seen. Takes the memory of `carry`: go on from the result."""
        arguments.positive_integer("tokens", tokens)
        self._check_carry(carry)
        total = Progress(0, 0, 0.0, 0, True, 0.0)
        while total.finite and total.tokens < tokens:
            begun = time.perf_counter()
            carry, churn = self._change(carry)
            changed = time.perf_counter() - begun
            with self._in_slots(carry) as given:
                program = self._program(self._window_steps(carry.task), given)
                begun = time.perf_counter()
                most = self._placed(np.int32(min(tokens - total.tokens, MOST_TOKENS)))
                given, counts = program(self._data, given, most)
                counts = jax.device_get(counts)
            carry = jax.tree.unflatten(jax.tree.structure(carry), jax.tree.leaves(given))
            total = Progress(
                total.tokens + int(counts.tokens),
                total.updates + int(counts.updates),
                total.cost + float(counts.cost),
                total.asked + int(counts.asked),
                bool(counts.finite),
                total.seconds + changed + time.perf_counter() - begun,
                total.churn + churn,
                total.rewiring_seconds + changed,
            )
            self._check_counts(counts, total.updates)
        return carry, total

    def _check_counts(self, counts: _Counts, update: int) -> None:
        if counts.wrong > 0:
            raise ValueError(
                f"`task` must give {self.task.allowed}, got {int(counts.wrong)} others in the window of update {update}"
            )
        if counts.idle >= MOST_IDLE:
            raise ValueError(f"`task` must give windows with tokens, got {MOST_IDLE} in a row without one")
        if counts.updates == 0:
            raise ValueError("`task` must have a whole number of `sequence_steps`, got a window that holds no sequence")

    def _check_carry(self, carry: Any) -> None:
        """Refuses a carry that this trainer's `start` could not have begun; the same shapes are looked at once."""
        if not isinstance(carry, Carry):
            raise TypeError(f"`carry` must come from this trainer's start or run, got {type(carry).__name__}")
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(carry)):
            raise ValueError("`carry` must be the one that `run` returned last, got one that a `run` has used up")
        own = self._plasticity
        if carry.wiring is not None if own is None else carry.wiring is None or not own.began(carry.wiring):
            raise ValueError("`carry` must come from a trainer with the same `rewire`, got that of another")
        signature = _signature(carry)
        if signature in self._signatures:
            return
        checks.params(self.algorithm.cell, carry.params)
        key = jax.random.key(0)
        wanted = jax.eval_shape(
            lambda params: Carry(
                params,
                self.optimiser.init(params),
                self.algorithm.init(params, self.batch, key=key),
                self.task.start(key, self.batch),
            ),
            carry.params,
        )
        for part, maker in (("opt_state", "optimiser"), ("state", "algorithm"), ("task", "task")):
            own, given = getattr(wanted, part), getattr(carry, part)
            made: Any = jax.tree.structure(own)
            if made != jax.tree.structure(given):
                raise ValueError(f"`carry.{part}` must come from this trainer's {maker}, got that of another")
            if part == "state" and self.rewire is not None:  # its memory has room for other patterns
                own, given = own.cell, given.cell
            for leaf, other in zip(jax.tree.leaves(own), jax.tree.leaves(given), strict=True):
                if leaf.shape != jnp.shape(other) or leaf.dtype != other.dtype:
                    raise ValueError(
                        f"`carry.{part}` must come from this trainer's {maker} with a batch of {self.batch}, got "
                        f"{other.dtype} of shape {jnp.shape(other)} in place of {leaf.dtype} of shape {leaf.shape}"
                    )
        if self.rewire is not None:
            self._signatures.clear()  # patterns that have changed do not come again
        self._signatures.add(signature)

    @cached_property
    def _signatures(self) -> set[Any]:
        return set()

    @cached_property
    def _plasticity(self) -> Plasticity | None:
        return None if self.rewire is None else Plasticity(self.rewire, self.algorithm, self.batch)

    def _in_slots(self, carry: Carry) -> AbstractContextManager[Carry]:
        """The carry as the compiled loop takes it: where patterns change, its plans are in slots."""
        structures = None
        if self._plasticity is not None:
            structures = self._plasticity.structures(_network(carry))
        return nullcontext(carry) if structures is None else self._slots.labelled(carry, structures)

    @cached_property
    def _slots(self) -> Slotted:
        return Slotted()

    def _change(self, carry: Carry) -> tuple[Carry, float]:
        """Changes the patterns if that is due: it depends on the carry alone, so that a resumed run does the same."""
        if self._plasticity is None or not self._plasticity.is_due(carry.wiring):
            return carry, 0.0
        network, churn = self._plasticity.change(_network(carry), lambda: self._dense_gradient(carry))
        return carry._replace(**network._asdict()), churn

    def _dense_gradient(self, carry: Carry) -> Params:
        """The gradient of the next window, which is not taken yet, as if all weights existed."""
        dense = carry.params._replace(cell=map_matrices(densify, carry.params.cell))
        state = self.algorithm.rewire(carry.state, carry.params, dense)
        return self._gradient_ahead(self._data, dense, state, carry.task, self._window_steps(carry.task))

    @cached_property
    def _gradient_ahead(self) -> Any:
        def gradient(data: Any, params: Params, state: State, task: Any, steps: int) -> Params:
            _, window = self.task.window(data, task, steps)
            state = self.algorithm.reset(state, window.is_start)
            return self.algorithm.grad(params, state, window.xs, window.targets)[0].grads

        return jax.jit(gradient, static_argnums=4)

    @cached_property
    def _data(self) -> Any:
        return self._placed(self.task.data)

    def _placed(self, tree: Any) -> Any:
        """What all devices have."""
        return self.algorithm.placement.put(tree, EVERYWHERE)

    @cached_property
    def _programs(self) -> dict[tuple[int, Any], Any]:
        return {}

    def _window_steps(self, task: Any) -> int:
        """Steps of a window: a number that depends on the task's state alone, so that a resumed run takes the same."""
        if self.update_every is not None:
            return self.update_every
        steps = self.task.sequence_steps(task)
        assert steps is not None
        return -(-int(steps) // PADDED_TO) * PADDED_TO

    def _program(self, steps: int, carry: Carry) -> Any:
        signature = _signature(carry)
        if (steps, signature) not in self._programs:
            self._check_window(steps, carry.params)
            for key in [key for key in self._programs if key[1] != signature]:
                del self._programs[key]  # patterns that have changed do not come again
            on_mesh = self.algorithm.placement.mesh is not None
            # What comes out of a program goes into it again, so it must lie on the same devices.
            places = (jax.tree.map(lambda leaf: leaf.sharding, carry), None) if on_mesh else None
            loop = jax.jit(
                lambda data, carry, tokens: self._loop(data, carry, tokens, steps),
                donate_argnums=1,
                out_shardings=places,
            )
            self._programs[steps, signature] = loop.lower(self._data, carry, self._placed(np.int32(0))).compile()
            wait_for_all()
        return self._programs[steps, signature]

    def _loop(self, data: Any, carry: Carry, tokens: jax.Array, steps: int) -> tuple[Carry, _Counts]:
        plasticity = self._plasticity

        def going_on(both: tuple[Carry, _Counts]) -> jax.Array:
            carry, counts = both
            go = counts.finite & (counts.tokens < tokens) & (counts.wrong == 0) & (counts.idle < MOST_IDLE)
            if plasticity is not None:
                go &= ~plasticity.is_due(carry.wiring)
            if self.update_every is None:  # sequences may have outgrown the window
                longest = self.task.sequence_steps(carry.task)
                assert longest is not None  # `start` has seen to it
                go &= longest <= steps
            return go

        def update(both: tuple[Carry, _Counts]) -> tuple[Carry, _Counts]:
            (params, opt_state, state, task, wiring), counts = both
            task, window = self.algorithm.placement.replicated(self.task.window(data, task, steps))
            window = self._checked(window, steps)
            before = self.algorithm.reset(state, window.is_start)
            gradient, state, trajectory = self.algorithm.grad_along(params, before, window.xs, window.targets)
            grads = gradient.grads
            if plasticity is not None:
                wiring = plasticity.observe(wiring, params, before, window, gradient.info.deltas, trajectory)
                grads = plasticity.mask(wiring, grads)
            updates, opt_state = self.optimiser.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            if plasticity is not None:
                params = plasticity.mask(wiring, params)
            costs = self.task.costs(gradient.info.losses.astype(jnp.float32))  # [T, B]
            task = self.algorithm.placement.replicated(self.task.learn(task, costs))
            carry = Carry(params, opt_state, state, task, wiring)
            new = jnp.maximum(window.tokens.astype(jnp.int32), 0)
            return carry, _Counts(
                counts.tokens + new,
                counts.updates + 1,
                counts.cost + costs.sum(),
                counts.asked + jnp.sum(self.task.asked(window.targets), dtype=jnp.int32),
                jnp.isfinite(gradient.loss),
                self.task.count_wrong(window),
                jnp.where(new > 0, 0, counts.idle + 1),
            )

        zero = jnp.int32(0)
        start = carry, _Counts(zero, zero, jnp.float32(0), zero, jnp.array(True), zero, zero)
        carry, counts = jax.lax.while_loop(going_on, update, start)
        # The last update may have broken what the next loss would show.
        whole = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((carry.params, carry.opt_state))]
        return carry, counts._replace(finite=counts.finite & jnp.stack(whole).all())

    def _checked(self, window: Any, steps: int) -> Window:
        """The window, if it is what a task should give."""
        if not isinstance(window, Window):
            raise TypeError(f"`task` must give a sg.tasks.Window, got {type(window).__name__}")
        parts = {
            name: jax.tree.map(partial(arguments.array, f"task.window.{name}"), part)
            for name, part in window._asdict().items()
        }
        arrays = Window(**parts)
        wanted = self.task.shapes(steps, self.batch) | {
            "is_start": ("booleans", jnp.bool_, (self.batch,)),
            "tokens": ("integers", jnp.integer, ()),
        }
        for name, (word, kind, shape) in wanted.items():
            try:
                array = attrgetter(name)(arrays)
            except AttributeError:
                array = None
            if getattr(array, "shape", None) != shape or not jnp.issubdtype(array.dtype, kind):
                needed = f"{word} of shape {shape}"
                raise ValueError(f"`task` must give windows whose {name} are {needed}, got {describe(array)}")
        return arrays


def _network(carry: Carry) -> Network:
    return Network(carry.params, carry.opt_state, carry.state, carry.wiring)


def _signature(carry: Carry) -> Any:
    """What a program is compiled for."""
    leaves, structure = jax.tree.flatten(carry)
    return structure, tuple(map(checks.signature, leaves))
