"""States between one device and a mesh, and checkpoints of runs on a mesh: the same bits, and never the whole of J."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from networks import network
from programs import arrays_of, as_in_a_program
from variants import case

from snapgrad.algorithms import pieces
from snapgrad.kernels import binding, resharding
from snapgrad.kernels.native import NativeKernel
from snapgrad.kernels.share import Share
from snapgrad.runs import checkpoint, toml
from snapgrad.runs.build import build
from snapgrad.runs.options import CopyOptions
from snapgrad.sparsity.partition import partition
from snapgrad.sparsity.reach import influence_blocks

MESHES = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (8, 1), (2, 4), (1, 8)]
OPTIONS = CopyOptions(units=9, batch=16, tokens=100, sparsity=0.5, order=2)
TOTALS = checkpoint.Totals(100, 10, 1.0)


def experiment(options, shape):
    if shape is None:
        return build(options)
    return build(options, Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), ("batch", "params")))


def trained(options, shape, tokens=40):
    made = experiment(options, shape)
    return made.trainer, made.trainer.run(made.start(), tokens)[0]


def write(path, trainer, carry, options):
    checkpoint.write(path, trainer.pieces(carry), TOTALS, toml.plain(options))


def read(path, options, shape):
    made = experiment(options, shape)
    return made.trainer, made.trainer.scatter(checkpoint.read(path).carry(made.template()))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"backend": "reference"},
        case({"algorithm": "snap_topk", "k": 3, "order": None}, quick=False),
        case({"algorithm": "uoro", "order": None}, quick=False),
        case({"algorithm": "kf_rtrl", "order": None}, quick=False),
        case({"influence_dtype": "bfloat16"}, quick=False),
        case({"algorithm": "rtrl", "order": None}, quick=False),
        case({"batch": 8, "algorithm": "rflo", "order": None, "decay": 0.5}, quick=False),
        case({"cell": "lstm", "layers": 2}, quick=False),
    ],
    ids=str,
)
def test_a_checkpoint_has_the_same_bits_wherever_it_is_read(tmp_path, given, monkeypatch):
    """Written on 4 devices, read on 1 to 8, and written there again: the same file."""
    monkeypatch.setattr(resharding, "SLICE_BYTES", 1 << 10)  # many slices, which end within blocks
    options = replace(OPTIONS, **given)
    with as_in_a_program():
        path = tmp_path / f"{TOTALS.tokens}.safetensors"
        trainer, carry = trained(options, (2, 2))
        write(path, trainer, carry, options)
        gone_on, _ = trainer.run(carry, 20)
        for shape in [None, *MESHES]:
            other, back = read(path, options, shape)
            write(tmp_path / "again.safetensors", other, back, options)
            assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
            if shape == (2, 2):
                gone_on_there, _ = other.run(back, 20)
                for leaf, expected in zip(arrays_of(gone_on_there), arrays_of(gone_on), strict=True):
                    np.testing.assert_array_equal(leaf, expected)


@pytest.mark.parametrize("lanes", [8, 16, 24, 32])
@pytest.mark.parametrize("shards", [2, 4, 8])
def test_places_are_those_of_the_compiled_kernel(lanes, shards, monkeypatch):
    """Every element of J is labelled with its lane, state entry and parameter, in the order that the kernel has."""
    monkeypatch.setattr(resharding, "SLICE_BYTES", 1 << 10)
    net = network("lstm")
    jacobians = net.cell.jacobians(net.params.cell)
    blocks = influence_blocks(jacobians.groups, jacobians.dynamics, 2)
    kernel = NativeKernel(share=Share(shards, 3))
    how = kernel.influence_resharding(blocks, lanes).J

    def labelled(part, lanes, tile, room):
        states, params = (places.astype(np.int64) for places in binding.influence_places(part, tile))
        tiles = -(-len(lanes) // tile)
        J = np.zeros((tiles, room, tile), np.int64)
        for n, lane in enumerate(lanes):
            J[n // tile, : part.kept, n % tile] = 1 + (lane * blocks.states + states) * blocks.n_params + params
        return J

    one = labelled(blocks, range(lanes), how.tile, blocks.kept)
    own = lanes // shards
    parts = partition(blocks, 3)
    devices = {
        (shard, number): labelled(part, range(shard * own, (shard + 1) * own), how.own_tile, how.split.room)
        for shard in range(shards)
        for number, part in enumerate(parts)
    }
    saved = np.concatenate([piece.ravel() for piece in how.to_saved(devices, one.shape, one.dtype)])
    np.testing.assert_array_equal(saved.reshape(one.shape), one)
    for (shard, number), wanted in devices.items():
        made = np.zeros_like(wanted).reshape(-1, how.split.room, how.own_tile, 1)
        for tile, place, values in how.from_saved(one, shard, number, wanted.shape):
            made[tile, place : place + len(values)] = values
        np.testing.assert_array_equal(made.reshape(wanted.shape), wanted)


def bytes_of_devices():
    """What the arrays of every device take; those that share their memory count once."""
    held = {device: {} for device in jax.devices()}
    for array in jax.live_arrays():
        if not jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            for shard in array.addressable_shards:
                held[shard.device][shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    return np.array([sum(buffers.values()) for buffers in held.values()])


def test_neither_saving_nor_resuming_holds_more_than_a_part_of_J_and_a_slice(tmp_path, monkeypatch):
    """The memory that NumPy takes, by its own account, and the largest sum of arrays that any device has."""
    slice_bytes, peak = 1 << 16, []
    monkeypatch.setattr(resharding, "SLICE_BYTES", slice_bytes)
    put = pieces._put

    def watched(array, *rest):
        place = array.unsafe_buffer_pointer()
        made = put(array, *rest)
        assert made.unsafe_buffer_pointer() == place  # in its own memory
        peak.append(bytes_of_devices())
        return made

    options = replace(OPTIONS, units=40, sparsity=0.0, algorithm="rtrl", order=None)
    with as_in_a_program():
        path = tmp_path / f"{TOTALS.tokens}.safetensors"
        trainer, carry = trained(options, (1, 8), tokens=16)
        whole = carry.state.memory.J.J.nbytes
        assert whole > 200 * slice_bytes
        write(path, trainer, carry, options)  # so that everything is compiled and every plan made
        read(path, options, (1, 8))
        monkeypatch.setattr(pieces, "_put", watched)
        tracemalloc.start()
        try:
            before = bytes_of_devices()
            write(path, trainer, carry, options)
            assert np.all(bytes_of_devices() <= before)
            _, to_write = tracemalloc.get_traced_memory()
            del carry
            template = experiment(options, (1, 8)).template()
            before = bytes_of_devices()
            tracemalloc.reset_peak()
            back = trainer.scatter(checkpoint.read(path).carry(template))
            _, to_read = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    own = back.state.memory.J.J.addressable_shards[0].data.nbytes
    assert len(peak) > 200
    assert np.max(peak - before) < own + 8 * slice_bytes
    # An index of eight bytes for every place of a slice goes with its values; J itself is not NumPy's.
    assert to_write < own
    assert to_read < own
    assert max(to_write, to_read) < whole / 12
