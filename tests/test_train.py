"""The trainer: equal to a loop written out by hand, however it is cut; and what it does when things go wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles import flat
from variants import case, relative_error

import snapgrad as sg
from snapgrad.algorithms.registry import ALGORITHMS, takes
from snapgrad.readouts import Readout
from snapgrad.tasks.characters import Crops
from snapgrad.tasks.copy import Copy
from snapgrad.tasks.streams import Streams
from snapgrad.train import Trainer

TEXT = np.random.default_rng(0).integers(97, 101, 300, np.uint8)
BATCH = 3


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax's Adam mixes integers and floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def network(task, cell=sg.GRU, hidden=()):
    cell, readout = cell(task.inputs, 6), Readout(task.outputs, hidden)
    params = sg.Params(cell.init(jax.random.key(0), sparsity=0.5), readout.init(jax.random.key(1), 6))
    return cell, readout, params


def trainer(task, make=lambda cell, loss: sg.snap(cell, loss, order=2), *, update_every=1, optimiser=None, **options):
    cell, readout, params = network(task, **options)
    made = Trainer(make(cell, task.loss(readout)), task, optimiser or optax.adam(1e-2), BATCH, update_every)
    return made, made.start(params, jax.random.key(2))


def by_hand(made, params, tokens, steps_of):
    """The same training as a Python loop; `steps_of` a task's state is the length of the next window."""
    for_algorithm, for_task = jax.random.split(jax.random.key(2))
    task, algorithm, optimiser = made.task, made.algorithm, made.optimiser
    state, opt_state = algorithm.init(params, BATCH, key=for_algorithm), optimiser.init(params)
    task_state, seen, cost = task.start(for_task, BATCH), 0, 0.0
    # Compiled only because one operation after another takes longer.
    window, reset, update = jax.jit(task.window, static_argnums=2), jax.jit(algorithm.reset), jax.jit(optimiser.update)
    while seen < tokens:
        task_state, (xs, targets, is_start, tokens_now) = window(task.data, task_state, steps_of(task_state))
        state = reset(state, is_start)
        gradient, state = algorithm.grad(params, state, xs, targets)
        updates, opt_state = update(gradient.grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        unit = 1.0 if isinstance(task, sg.tasks.NumberTask) else np.log(2)
        bits = np.asarray(gradient.info.losses, np.float32) / unit
        task_state = task.learn(task_state, jnp.asarray(bits, jnp.float32))
        cost += bits.sum()
        seen += int(tokens_now)
    return params, cost


@pytest.mark.parametrize(
    ("task", "update_every", "steps"),
    [
        (Crops(TEXT, 12), 1, 1),
        case(Crops(TEXT, 12), 5, 5, quick=False),
        (Crops(TEXT, 12), None, 16),
        (Streams(TEXT), 3, 3),
    ],
)
def test_training_equals_a_loop_written_by_hand(task, update_every, steps):
    made, carry = trainer(task, update_every=update_every, hidden=(5,))
    params = jax.tree.map(jnp.copy, carry.params)
    carry, progress = made.run(carry, 100)
    expected, bits = by_hand(made, params, 100, lambda state: steps)
    assert relative_error(flat(carry.params), flat(expected)) < 1e-10
    assert progress.cost == pytest.approx(bits, rel=1e-5)
    assert progress.tokens >= 100
    assert progress.asked == progress.tokens


@pytest.mark.parametrize(
    ("task", "update_every", "steps", "asked"),
    [(sg.tasks.Adding(6), None, 8, 1 / 6), (sg.tasks.MackeyGlass(delay=2, horizon=3), 2, 2, 1)],
    ids=["adding", "mackey-glass"],
)
def test_training_on_numbers_equals_a_loop_written_by_hand(task, update_every, steps, asked):
    made, carry = trainer(task, sg.bptt, update_every=update_every)
    params = jax.tree.map(jnp.copy, carry.params)
    carry, progress = made.run(carry, 60)
    expected, cost = by_hand(made, params, 60, lambda state: steps)
    assert relative_error(flat(carry.params), flat(expected)) < 1e-10
    assert progress.cost == pytest.approx(cost, rel=1e-5)
    assert progress.asked == pytest.approx(asked * progress.tokens)


class Angles(sg.tasks.Task):
    """A task with targets, a loss and a metric of its own: a random angle is read, and told as two numbers."""

    inputs, outputs, metric, guessing = 1, 2, "degrees", 90.0

    def start(self, key, batch):
        return jax.random.split(key, batch)

    def window(self, data, state, steps):
        angles = jax.vmap(lambda key: jax.random.uniform(key, (steps,), maxval=2 * jnp.pi), out_axes=1)(state)
        targets = {"cos": jnp.cos(angles), "sin": jnp.sin(angles)}
        after = jax.vmap(lambda key: jax.random.fold_in(key, 0))(state)
        never = jnp.zeros(len(state), bool)
        return after, sg.tasks.Window(angles[..., None], targets, never, jnp.int32(angles.size))

    def sequence_steps(self, state):
        return None

    def loss(self, readout):
        def distance(params, h, target):
            said = readout.logits(params, h)
            return (said[0] - target["cos"]) ** 2 + (said[1] - target["sin"]) ** 2

        return distance

    def costs(self, losses):
        return jnp.sqrt(losses)

    def asked(self, targets):
        return jnp.ones(targets["cos"].shape, bool)

    def count_wrong(self, window):
        return jnp.int32(0)

    allowed = "angles"

    def shapes(self, steps, batch):
        return {"xs": ("floats", jnp.floating, (steps, batch, 1))}


def test_a_task_may_bring_its_own_targets_loss_and_metric():
    made, carry = trainer(Angles(), sg.bptt)
    carry, before = made.run(carry, 300)
    carry, after = made.run(carry, 3000)
    assert before.asked == before.tokens
    assert after.cost / after.asked < 0.8 * before.cost / before.asked


def test_a_curriculum_outgrows_its_window_and_goes_on(monkeypatch):
    monkeypatch.setattr("snapgrad.tasks.copy.THRESHOLD", 10.0)  # every minibatch is good enough
    made, carry = trainer(Copy(), sg.bptt, update_every=None)
    params = jax.tree.map(jnp.copy, carry.params)
    carry, progress = made.run(carry, 160)
    assert int(made.task.level(carry.task)) > 3  # more than 8 steps: windows of 8 and 16 were needed
    assert {8, 16} <= {steps for steps, _ in made._programs}
    in_eights = lambda state: -(-int(2 * state.level + 2) // 8) * 8  # noqa: E731
    expected, bits = by_hand(made, params, 160, in_eights)
    assert relative_error(flat(carry.params), flat(expected)) < 1e-10
    assert progress.cost == pytest.approx(bits, rel=1e-5)


@pytest.mark.parametrize("update_every", [1, None])
def test_a_run_that_is_cut_has_the_same_bits(update_every):
    made, start = trainer(Copy(), update_every=update_every)
    copies = [jax.tree.map(jnp.copy, start) for _ in range(2)]
    whole, progress = made.run(copies[0], 400)
    cut, seen = copies[1], 0
    while seen < 400:
        cut, part = made.run(cut, min(70, 400 - seen))
        seen += part.tokens
    assert seen == progress.tokens
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(cut), strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "cell", "update_every"),
    [
        # A trainer knows no algorithm by name: with an influence, without, and with random numbers.
        case(
            name,
            cell,
            update_every,
            quick=(name == "snap") == (cell is sg.LSTM) and name in ("snap", "bptt", "uoro"),
            id=f"{name}-{cell.__name__}",
        )
        for name in ALGORITHMS
        for cell, update_every in ((sg.Vanilla, 1), (sg.LSTM, None))
    ],
)
def test_every_algorithm_trains(name, cell, update_every):
    def make(cell, loss):
        return ALGORITHMS[name](cell, loss, **{option: 2 for option in ("order", "k") if takes(name, option)})

    made, carry = trainer(Copy(), make, update_every=update_every, cell=cell, optimiser=optax.sgd(0.1))
    before = flat(carry.params)
    carry, progress = made.run(carry, 60)
    assert progress.finite
    assert np.isfinite(flat(carry.params)).all()
    assert (flat(carry.params) != before).any()


def test_a_loss_that_is_not_finite_stops_training_at_once():
    explode = optax.GradientTransformation(
        lambda params: jnp.int32(0),
        lambda grads, n, params=None: (jax.tree.map(lambda g: jnp.where(n == 4, jnp.inf, 0 * g), grads), n + 1),
    )
    made, carry = trainer(Streams(TEXT), optimiser=explode)
    _, progress = made.run(carry, 1000)
    assert not progress.finite
    assert progress.updates == 6  # the fifth update breaks the weights, the sixth finds out


def test_it_compiles_once():
    traced = []

    def counted(cell, loss):
        return sg.snap(cell, lambda *args: (traced.append(1), loss(*args))[1], order=2)

    made, carry = trainer(Copy(), counted)
    carry, _ = made.run(carry, 40)
    once = len(traced)
    for _ in range(3):
        carry, _ = made.run(carry, 40)
    assert len(traced) == once


def test_long_runs_are_cut_without_a_trace(monkeypatch):
    made, start = trainer(Copy())
    other = jax.tree.map(jnp.copy, start)
    whole, progress = made.run(start, 300)
    monkeypatch.setattr("snapgrad.train.MOST_TOKENS", 50)
    cut, in_parts = made.run(other, 300)
    assert progress[:2] == in_parts[:2]
    np.testing.assert_array_equal(flat(whole.params), flat(cut.params))


def test_weights_broken_by_the_last_update_are_noticed():
    explode = optax.GradientTransformation(
        lambda params: jnp.int32(0), lambda grads, n, params=None: (jax.tree.map(lambda g: g / 0, grads), n + 1)
    )
    made, carry = trainer(Streams(TEXT), optimiser=explode)
    _, progress = made.run(carry, 1)
    assert progress.updates == 1
    assert not progress.finite


@pytest.mark.parametrize("length", [7, None])
@pytest.mark.parametrize("size", [64 * 7 + 1, 64 * 150])  # in parts, without a length
def test_validation_predicts_every_byte_once(length, size):
    text = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    cell, readout, params = network(Streams(text))
    found = sg.evaluate(cell, readout, params, text, length=length)
    steps = length or -(-(size - 1) // 64)

    def read(s, pair):
        s = cell.step(params.cell, s, pair[0])
        return s, readout.loss(params.readout, cell.output(s), pair[1])

    nats, whole = 0.0, jax.jit(lambda xs, ys: jax.lax.scan(read, cell.initial_state(), (xs, ys))[1].sum())
    symbols = jnp.asarray(text, jnp.int32)
    for begin in range(0, size - 1, steps):
        end = min(begin + steps, size - 1)
        nats += float(whole(symbols[begin:end], symbols[begin + 1 : end + 1]))
    assert found == pytest.approx(nats / np.log(2) / (size - 1), rel=1e-9)


def test_what_a_trainer_refuses():
    with pytest.raises(ValueError, match="`update_every` must be an integer for a task whose sequences never end"):
        trainer(Streams(TEXT), update_every=None)
    with pytest.raises(ValueError, match="`update_every` must be an integer >= 1, got 0"):
        trainer(Streams(TEXT), update_every=0)
    made, carry = trainer(Streams(TEXT))
    with pytest.raises(ValueError, match="`tokens` must be an integer >= 1, got 0"):
        made.run(carry, 0)
    after, _ = made.run(carry, 5)
    with pytest.raises(ValueError, match="`carry` must be the one that `run` returned last, got one that a `run` has"):
        made.run(carry, 5)
    made.run(after, 5)


class Broken(sg.tasks.SymbolTask):
    """A task of one's own: one symbol, which is also the target, and so many tokens a window."""

    inputs = classes = 2

    def __init__(self, symbol=0, target=0, tokens=BATCH, dtype=jnp.int32):
        self.symbol, self.target, self.tokens, self.dtype = symbol, target, tokens, dtype

    def start(self, key, batch):
        return jnp.zeros(batch, jnp.int32)

    def window(self, data, state, steps):
        fill = lambda symbol: jnp.full((steps, len(state)), symbol, self.dtype)  # noqa: E731
        is_start, tokens = jnp.zeros(len(state), bool), jnp.int32(self.tokens)
        return state + 1, sg.tasks.Window(fill(self.symbol), fill(self.target), is_start, tokens)

    def sequence_steps(self, state):
        return None


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Broken(tokens=0), "`task` must give windows with tokens, got 1000 in a row without one"),
        (Broken(tokens=-5), "`task` must give windows with tokens, got 1000 in a row without one"),
        (Broken(target=2), "`task` must give symbols in .* and targets in .*, got 3 others in the window of update 1"),
        (Broken(target=-2), "`task` must give symbols in .* and targets in .*, got 3 others in the window of update 1"),
        (Broken(symbol=7), "`task` must give symbols in .* and targets in .*, got 3 others in the window of update 1"),
        (Broken(dtype=float), "`task` must give windows whose xs are integers of shape .1, 3., got float64 of shape"),
    ],
)
def test_a_task_that_is_wrong_stops_with_a_sentence(task, message):
    made, carry = trainer(task, sg.frozen)
    with pytest.raises(ValueError, match=message):
        made.run(carry, 10)


def test_targets_outside_the_classes_cost_nothing_where_they_cannot_be_seen():
    readout = Readout(3)
    params, h = readout.init(jax.random.key(0), 4), jnp.arange(4.0)
    grad = jax.jit(jax.value_and_grad(readout.loss))
    for target in (-1, -2, 3, 100):
        loss, grads = grad(params, h, jnp.int32(target))
        assert loss == 0
        assert not flat(grads).any()
    nats = [grad(params, h, jnp.int32(target))[0] for target in range(3)]
    assert sum(np.exp(-np.asarray(nats))) == pytest.approx(1)


def test_one_trainer_takes_networks_of_other_patterns():
    made, first = trainer(Streams(TEXT), sg.frozen)
    cell, readout, _ = network(Streams(TEXT))
    other = sg.Params(cell.init(jax.random.key(5), sparsity=0.6), readout.init(jax.random.key(1), 6))
    assert made.run(first, 5)[1].finite
    assert made.run(made.start(other, jax.random.key(2)), 5)[1].finite


def test_targets_that_cannot_be_seen_are_counted():
    cell, readout = sg.Vanilla(2, 3), sg.Readout(2)
    params = sg.Params(cell.init(jax.random.key(0)), readout.init(jax.random.key(1), 3))
    algorithm = sg.bptt(cell, readout.loss)
    targets = jnp.array([[0, 5, -1, -7]])
    found, _ = jax.jit(algorithm.grad)(params, algorithm.init(params, 4), jnp.zeros((1, 4), int), targets)
    assert found.info.outside == 2
    assert found.info.losses[0, 0] > 0
    np.testing.assert_array_equal(found.info.losses[0, 1:], 0)
