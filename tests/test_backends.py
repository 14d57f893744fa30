"""Which backend runs, what is said about it, and the command line's view of it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import loss, network

import snapgrad as sg
from snapgrad.bench import programs, suite, timing
from snapgrad.kernels import binding, select


def test_auto_takes_native_on_cpu_and_says_so():
    info = sg.backend_info()
    assert info["backend"] == "native"
    assert info["instructions"] in ("avx512", "avx2", "portable")
    assert select.kernel("auto", np.float32) is select.NATIVE
    assert select.kernel("reference", np.float32) is select.REFERENCE
    assert select.kernel("auto", np.float16) is select.REFERENCE  # which the native part does not compute in
    with pytest.raises(ValueError, match='`params` must be float32 or float64 with backend="native", got float16'):
        select.kernel("native", np.float16)


def test_a_state_stays_with_its_backend():
    net = network("gru")
    native, reference = (sg.snap(net.cell, loss, order=2, backend=name) for name in ("native", "reference"))
    state = native.init(net.params, batch_size=3)
    halved = sg.Params(*jax.tree.map(lambda leaf: leaf.astype(np.float32), net.params))
    half = sg.snap(net.cell, loss, order=2, influence_dtype="bfloat16").init(halved, batch_size=3)
    with pytest.raises(ValueError, match=r"got one from .* in bfloat16"):
        native.reset(half, jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"same backend \(reference\), got one from native"):
        reference.grad(net.params, state, net.xs, net.targets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "gpu"}, '`backend` must be "auto", "native" or "reference", got \'gpu\''),
        ({"influence_dtype": "float16"}, "`influence_dtype` must be None .* got 'float16'"),
        ({"influence_dtype": "bfloat16", "episodic": True}, "`influence_dtype` must be None with `episodic`"),
    ],
)
@pytest.mark.parametrize("make", [partial(sg.snap, order=2), sg.rflo], ids=["snap", "rflo"])
def test_what_an_algorithm_refuses(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(network("gru").cell, loss, **options)


def test_bfloat16_storage_needs_float32_parameters():
    net = network("gru")
    with pytest.raises(ValueError, match="`params` must be float32 with an `influence_dtype` of bfloat16, got float64"):
        sg.snap(net.cell, loss, order=2, influence_dtype="bfloat16").init(net.params, batch_size=3)


WITHOUT = """
import sys, warnings
sys.modules["snapgrad.kernels._native"] = None  # as if it had not been built
import jax, jax.numpy as jnp, snapgrad as sg
cell = sg.GRU(2, 5)
params = sg.Params(cell.init(jax.random.key(0), sparsity=0.5), ())
loss = lambda readout, h, target: jnp.sum((h - target) ** 2)
print(sg.backend_info()["backend"])
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for make in (sg.bptt, sg.rtrl, sg.rflo):
        algorithm = make(cell, loss)
        algorithm.grad(params, algorithm.init(params, 2), jnp.ones((3, 2, 2)), jnp.ones((3, 2, 5)))
print(sum("without its native part" in str(warning.message) for warning in seen))
try:
    sg.rtrl(cell, loss, backend="native")
except ValueError as error:
    print(error)
"""


def test_without_the_native_part_it_works_and_says_so_once():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    backend, warned, refusal = done.stdout.strip().splitlines()
    assert (backend, warned) == ("reference", "1")
    assert refusal.startswith(
        '`backend` must be "auto" or "reference" without the native part (it was not built; install a C++'
    )


def test_a_large_sparse_product_does_no_dense_one():
    """A matrix of 4096 units at 99.9 % is never made dense: nothing of its size is in the compiled program."""
    cell = sg.GRU(4, 4096)
    params = cell.init(jax.random.key(0), sparsity=0.999, dtype=np.float32)
    algorithm = sg.bptt(cell, lambda readout, h, target: jnp.sum(h))
    params = sg.Params(params, ())
    state = algorithm.init(params, batch_size=2)
    window = jnp.ones((2, 2, 4), np.float32), jnp.ones((2, 2), np.float32)
    memory = jax.jit(algorithm.grad).lower(params, state, *window).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.05 * 4 * 3 * 4096 * 4096


def test_the_command_line_tells_about_itself():
    done = subprocess.run(
        [sys.executable, "-m", "snapgrad.cli", "info", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["instructions"] == binding.instructions
    help_text = subprocess.run(
        [sys.executable, "-m", "snapgrad.cli", "bench", "--help"], capture_output=True, text=True
    )
    assert all(option in help_text.stdout for option in ("--json", "--quick", "--out"))
    wrong = subprocess.run([sys.executable, "-m", "snapgrad.cli", "bench", "--fast"], capture_output=True, text=True)
    assert wrong.returncode == 2


def test_the_programs_of_the_benchmark_compute_what_they_say(monkeypatch):
    """On a small network: the records are whole, and the work that is counted is that of `sg.costs`."""
    monkeypatch.setattr(timing, "SECONDS", 1e-6)
    monkeypatch.setattr("snapgrad.bench.rates.GEMM_SIZE", 8)
    monkeypatch.setattr("snapgrad.bench.rates.STREAM_FLOATS", 64)
    monkeypatch.setattr(suite, "WINDOW", 2)
    # As it runs: in float32, and Optax's Adam mixes integers and floats.
    relaxed = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with jax.enable_x64(False), relaxed[0], relaxed[1]:
        records = suite.cells("GRU", 8, 0.5, 2, rounds=1)
    assert [record["order"] for record in records] == [1, 2, 3]
    assert all(np.isfinite(v) and v > 0 for r in records for v in r.values() if isinstance(v, float))
    net = programs.network("GRU", 8, 0.5)
    methods = sg.costs(net.cell, net.params.cell, order=2, batch=2).methods
    assert programs.work(net.blocks(2), 2)[0] == methods["snap-2"].flops - methods["frozen"].flops
