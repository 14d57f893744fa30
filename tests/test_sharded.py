"""Algorithms on a mesh against the same ones on one device; on eight devices that share this processor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec
from networks import CELLS, SPARSE, loss, network
from oracles import flat
from variants import EACH_ALGORITHM, VARIANTS, WINDOW, case, relative_error, runs_on

import snapgrad as sg
from snapgrad.algorithms.kronecker import Terms
from snapgrad.bench.traffic import collectives
from snapgrad.sparsity.partition import assignment, block_costs, partition
from snapgrad.sparsity.reach import influence_blocks

LANES = 16  # on two devices a tile of lanes each, on eight too few to fill one
MESHES = {"batch": (8, 1), "params": (1, 8), "both": (2, 4)}
TOLERANCE = 1e-10


def mesh(shape, axes=("batch", "params")):
    return Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), axes)


def windows(algorithm, net, *others):
    """Two windows, the second with new sequences in some lanes; the state goes on with the others in turn."""
    state, total = algorithm.init(net.params, LANES, key=jax.random.key(3)), 0.0
    where = jnp.arange(LANES) % 3 == 1
    for start in (0, WINDOW):
        part = slice(start, start + WINDOW)
        state = algorithm.reset(state, where & (start > 0))
        gradient, state = jax.jit(algorithm.grad)(net.params, state, net.xs[part], net.targets[part])
        total = total + np.append(flat(gradient.grads), gradient.loss)
        state = algorithm.gather(state, net.params)
        algorithm = others[0] if others else algorithm
        state = algorithm.scatter(state, net.params)
    return total, algorithm.gather(state, net.params), gradient.info


def arrays_of(tree):
    """The arrays of a tree; of a sum of Kronecker products what it comes to, for many factors give the same one."""

    def is_sum(node):
        return isinstance(node, Terms)

    return [
        jnp.einsum("...ns,...npq->...spq", node.sources, node.states) if is_sum(node) else node
        for node in jax.tree.leaves(tree, is_leaf=is_sum)
    ]


def assert_equal(one, other):
    (total, state, info), (wanted, wanted_state, wanted_info) = one, other
    assert relative_error(total, wanted) < TOLERANCE
    assert jax.tree.structure(state) == jax.tree.structure(wanted_state)
    for leaf, expected in zip(arrays_of((state, info)), arrays_of((wanted_state, wanted_info)), strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, expected = jax.random.key_data(leaf), jax.random.key_data(expected)
        assert leaf.dtype == expected.dtype
        assert relative_error(np.asarray(leaf, float), np.asarray(expected, float)) < TOLERANCE


def is_quick(variant, name, where, backend):
    if backend == "reference":
        return name == "gru" and variant == "snap_2" and where == "both"
    if name == "gru":
        return where == "both" or variant == "snap_2"
    if variant == "rflo_episodic":  # where its blocks are not SnAp's: layers
        return name == "two_layers" and where == "both"
    # A general cell on two meshes: what was detected for the one serves the other.
    return variant == "snap_2" and (where == "both" or (name == "two_layers" and where == "params"))


@pytest.mark.parametrize(
    ("variant", "name", "where", "backend"),
    [
        case(variant, name, where, backend, quick=is_quick(variant, name, where, backend))
        for name in ("gru", "vanilla", "lstm", "two_layers")
        for variant in EACH_ALGORITHM
        for where in MESHES
        for backend in ("native", "reference")
        if runs_on(variant, name)
    ],
)
def test_gradients_and_states_are_those_of_one_device(variant, name, where, backend):
    net = network(name, batch=LANES)
    algorithm = VARIANTS[variant].make(net.cell, backend)
    assert_equal(windows(sg.shard(algorithm, mesh(MESHES[where])), net), windows(algorithm, net))


@pytest.mark.parametrize("variant", ["snap_2", case("snap_topk", quick=False), case("rtrl", quick=False)])
@pytest.mark.parametrize("backend", ["native", case("reference", quick=False)])
def test_a_state_goes_on_with_another_mesh(variant, backend):
    net = network("lstm", batch=LANES)
    algorithm = VARIANTS[variant].make(net.cell, backend)
    on = {shape: sg.shard(algorithm, mesh(shape)) for shape in ((1, 4), (8, 1), (2, 4))}
    expected = windows(algorithm, net)
    assert_equal(windows(on[1, 4], net, algorithm), expected)
    assert_equal(windows(on[1, 4], net, on[8, 1]), expected)
    assert_equal(windows(algorithm, net, on[2, 4]), expected)


def test_bfloat16_is_rounded_alike_on_any_mesh():
    """The draws go by lane and entry, so that with lanes in the same tiles J has the same bits."""
    net = network("gru", batch=LANES, dtype=np.float32)
    algorithm = sg.snap(net.cell, loss, order=2, influence_dtype="bfloat16")
    one, other = (windows(algorithm, net)[1].memory, windows(sg.shard(algorithm, mesh((2, 4))), net)[1].memory)
    assert one.J.J.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(one.J.J, np.float32), np.asarray(other.J.J, np.float32))
    np.testing.assert_array_equal(one.rounding, other.rounding)


def squares(readout, h, target):
    return jnp.sum((readout @ h - target) ** 2)


def compiled_step(where, backend):
    """A compiled SnAp step of a larger network, and its sizes in bytes: parameters, J on a device, history."""
    cell, steps = sg.GRU(3, 48), 4
    params = sg.Params(cell.init(jax.random.key(0), sparsity=0.8), jnp.zeros((5, 48)))
    algorithm = sg.snap(cell, squares, order=2, backend=backend)
    algorithm = sg.shard(algorithm, mesh(MESHES[where]))
    xs, targets = jnp.ones((steps, LANES, 3)), jnp.ones((steps, LANES, 5))
    state = algorithm.init(params, LANES)
    assert {leaf.sharding.num_devices for leaf in jax.tree.leaves(state)} == {8}
    compiled = jax.jit(algorithm.grad).lower(params, state, xs, targets).compile()
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state.memory))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state.memory))
    return compiled, flat(params.cell).nbytes, flat(params.readout).nbytes, held, whole


@pytest.mark.parametrize("backend", ["native", case("reference", quick=False)])
@pytest.mark.parametrize("where", MESHES)
def test_only_gradients_travel(where, backend):
    compiled, of_cell, of_readout, held, whole = compiled_step(where, backend)
    lanes, parts = MESHES[where]
    sent = {"all-reduce": 0, "all-gather": 0}
    for exchange in collectives(compiled):
        sent[exchange.kind] += exchange.size
    scalars = 16  # the loss, and how many targets were left out
    padded = 1.25 * of_cell  # parts have parameters of like number, not the same
    summed = padded / parts + of_readout + scalars
    gathered = padded if parts > 1 else 0
    if lanes == 2:  # what two devices sum they send to each other
        assert sent["all-reduce"] == 0
        gathered += 2 * summed
    else:
        assert 0 < sent["all-reduce"] <= summed if lanes > 1 else sent["all-reduce"] == 0
    assert (of_cell if parts > 1 else 0) <= sent["all-gather"] <= gathered
    assert (" all-reduce(" in compiled.as_text()) == (lanes > 2)  # none of groups of one device either
    assert held <= 1.3 * whole / 8
    assert max(exchange.size for exchange in collectives(compiled)) < held / 4


def test_init_and_grad_inside_a_shard_map_of_the_user():
    """Of one's own, with JAX's check of what varies between devices, and gradients that are not summed."""
    net = network("gru", batch=LANES)
    for algorithm in (
        sg.snap(net.cell, loss, order=2),
        sg.snap(net.cell, loss, order=2, episodic=True),
        sg.bptt(net.cell, loss),
    ):

        def one_window(params, xs, targets, algorithm=algorithm):
            state = algorithm.init(params, xs.shape[1])
            gradient, state = algorithm.grad(params, state, xs, targets)
            return jax.tree.map(lambda g: jax.lax.pmean(g, "batch"), gradient.grads), state.memory

        memory = jax.eval_shape(lambda algorithm=algorithm: algorithm.init(net.params, 8)).memory
        split = PartitionSpec(None, "batch")
        grads, _ = jax.jit(
            jax.shard_map(
                one_window,
                mesh=mesh((2,), ("batch",)),
                in_specs=(PartitionSpec(), split, split),
                out_specs=(PartitionSpec(), jax.tree.map(lambda _: PartitionSpec("batch"), memory)),
            )
        )(net.params, net.xs, net.targets)
        expected, _ = algorithm.grad(net.params, algorithm.init(net.params, LANES), net.xs, net.targets)
        assert relative_error(flat(grads), flat(expected.grads)) < TOLERANCE


@pytest.mark.parametrize("parts", [1, 3, 64])
def test_parts_have_every_block_once_and_like_costs(parts):
    cell = sg.GRU(3, 48)
    jacobians = cell.jacobians(cell.init(jax.random.key(0), sparsity=0.8))
    blocks = influence_blocks(jacobians.groups, jacobians.dynamics, 2)
    split = partition(blocks, parts)
    assert sum(part.kept for part in split) == blocks.kept
    np.testing.assert_array_equal(sum(part.reach.mask().astype(int) for part in split), blocks.reach.mask())
    costs = block_costs(blocks)
    of_parts = np.bincount(assignment(blocks, parts), costs, minlength=parts)
    assert of_parts.max() <= costs.sum() / parts + costs.max()


def test_an_axis_may_be_missing_and_stand_in_any_order():
    net = network("gru", batch=LANES)
    algorithm = sg.snap(net.cell, loss, order=1)
    expected = windows(algorithm, net)
    assert_equal(windows(sg.shard(algorithm, mesh((4,), ("params",))), net), expected)
    assert_equal(windows(sg.shard(algorithm, mesh((2, 4), ("params", "batch"))), net), expected)


def test_what_does_not_fit_is_refused_in_one_sentence():
    net = network("gru", batch=LANES)
    algorithm = sg.snap(net.cell, loss, order=1)
    with pytest.raises(ValueError, match="`mesh` must have the axes 'batch', 'params' or both, got 'model'"):
        sg.shard(algorithm, mesh((8,), ("model",)))
    with pytest.raises(TypeError, match=r"`mesh` must be a jax.sharding.Mesh, got tuple"):
        sg.shard(algorithm, (2, 4))
    with pytest.raises(TypeError, match=r"`algorithm` must be one such as sg.snap returns, got UnitCell"):
        sg.shard(net.cell, mesh((2, 4)))
    sharded, other = (sg.shard(algorithm, mesh(shape)) for shape in ((4, 2), (2, 4)))
    with pytest.raises(ValueError, match=r"`batch_size` must be a multiple of the 4 devices along `batch`.*, got 6"):
        sharded.init(net.params, 6)
    state = sharded.init(net.params, LANES)
    needed = (
        r"`state` must come from init on a mesh of batch=2, params=4, got one from .*batch=4, params=2: `gather` it"
    )
    with pytest.raises(ValueError, match=needed):
        other.reset(state, jnp.zeros(LANES, bool))
    with pytest.raises(ValueError, match=needed):
        other.grad(net.params, state, net.xs, net.targets)
    with pytest.raises(ValueError, match="`rewire` must be called for an algorithm on one device"):
        sharded.rewire(state, net.params, net.params)


def test_memory_is_counted_for_a_share(monkeypatch):
    """What is too large for the memory of a process fits if others have their part of it."""
    cell = CELLS["gru"]
    net = network("gru", SPARSE, batch=LANES)
    algorithm = sg.shard(sg.rtrl(cell, loss), mesh((2, 4)))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(algorithm.init(net.params, 1024).memory))
    monkeypatch.setattr("snapgrad.memory.available", lambda: 0.6 * whole)
    with pytest.raises(ValueError, match=r"`batch_size` must leave"):
        algorithm.init(net.params, 1024)
    monkeypatch.setattr(Mesh, "local_devices", property(lambda self: self.devices.ravel()[:4]))  # half are elsewhere
    algorithm.init(net.params, 1024)


def test_a_window_is_counted_for_the_lanes_of_a_memory(monkeypatch):
    task = sg.tasks.Copy(length=1)
    cell, readout = sg.GRU(task.inputs, 8), sg.Readout(task.outputs)
    params = sg.Params(cell.init(jax.random.key(0)), readout.init(jax.random.key(1), 8))

    def check(shape, local):
        made = sg.bptt(cell, task.loss(readout))
        trainer = sg.Trainer(sg.shard(made, mesh(shape)), task, optax.sgd(0.1), batch=8, update_every=1000)
        monkeypatch.setattr(Mesh, "local_devices", property(lambda self: self.devices.ravel()[:local]))
        trainer.check_memory(params)

    whole = 1000 * 8 * (8 * (2 * 8 + task.outputs) + 8)
    monkeypatch.setattr("snapgrad.memory.available", lambda: 0.6 * whole)
    check((2, 1), 1)
    with pytest.raises(ValueError, match="`update_every` must leave a window"):
        check((2, 1), 2)
    with pytest.raises(ValueError, match="`update_every` must leave a window"):
        check((1, 2), 1)  # all lanes, with other blocks of J
