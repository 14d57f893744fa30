"""Expected costs against `sg.costs` on random patterns, in Python and on the page in a browser; meshes; the command."""

import functools
import itertools
import json
import shutil
import subprocess

import jax
import numpy as np
import pytest
from programs import answer

import snapgrad as sg
from snapgrad.cells.registry import CELLS
from snapgrad.planning import mesh as meshes
from snapgrad.planning.counted import counted, counts
from snapgrad.planning.expectations import Counts, Network, expected
from snapgrad.planning.mesh import Device, Mesh
from snapgrad.planning.page import page
from snapgrad.sparsity.masks import random_pattern
from snapgrad.sparsity.matrix import SparseMatrix

BATCH, WINDOW = 6, 10
DEVICE = Device(flops=1e11, bytes=2e10, network=1e9, memory=2e6)
ONE = Mesh(1, 1)
TOLERANCE = 0.05  # that the page states: of one random pattern, where a unit leads to ten others or more
NETWORKS = [  # a dense one; from many successors of a unit down to ten
    Network("vanilla", 48, 7, 0.0),
    Network("vanilla", 192, 7, 0.9),
    Network("vanilla", 512, 7, 0.98),
    Network("gru", 48, 7, 0.0),
    Network("gru", 96, 7, 0.75),
    Network("gru", 256, 7, 0.98),
    Network("gru", 512, 7, 0.993),
    Network("lstm", 48, 7, 0.0),
    Network("lstm", 96, 7, 0.75),
    Network("lstm", 256, 7, 0.985),
    Network("lstm", 384, 7, 0.993),
]
ORDERS = (1, 2, 3, 4, None)
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


def costs_of(network, order):
    cell = CELLS[network.cell](network.inputs, network.units)
    return sg.costs(cell, drawn(cell, network.sparsity), order=order, batch=BATCH, window=WINDOW)


@functools.cache
def drawn(cell, sparsity):
    """What `init` makes of seed 3, but for the values: drawing these is compiled anew for every number of weights."""
    keys = jax.random.split(jax.random.key(3), 4)

    def matrix(key, width):
        pattern = random_pattern(key, (cell.units, width), sparsity, gates=cell.gates)
        return SparseMatrix(np.zeros(pattern.nnz, np.float32), pattern)

    bias = np.zeros(cell.gates * cell.units, np.float32)
    return sg.UnitParams(matrix(keys[0], cell.units), matrix(keys[2], cell.inputs), bias)


@pytest.fixture(scope="module")
def real():
    """What `sg.costs` counts on one pattern of every network, for every order."""
    return {(network, order): costs_of(network, order) for network in NETWORKS for order in ORDERS}


def figures(counts, load, bptt_memory):
    """What a formula gives that `sg.costs` counts as well."""
    return {
        "states": counts["states"],
        "params": counts["params"],
        "kept": counts["kept"],
        "snap flops": load["flops"],
        "snap memory": load["memory"],
        "bptt flops": BATCH * counts["bptt"],
        "bptt memory": bptt_memory,
    }


def real_figures(costs):
    snap = costs.methods[f"snap-{'exact' if costs.order is None else costs.order}"]
    bptt = costs.methods["bptt"]
    return {
        "states": costs.states,
        "params": costs.params,
        "kept": costs.kept,
        "snap flops": snap.flops,
        "snap memory": snap.memory,
        "bptt flops": bptt.flops,
        "bptt memory": bptt.memory,
    }


def of_counts(found):
    load = meshes.load(found, BATCH, ONE, DEVICE)._asdict()
    return figures(found._asdict(), load, meshes.bptt_memory(found, BATCH, WINDOW))


def test_expectations_agree_with_the_counts_of_a_random_pattern(real):
    for (network, order), costs in real.items():
        assert of_counts(expected(network, order)) == pytest.approx(real_figures(costs), rel=TOLERANCE), (
            network,
            order,
        )


@pytest.mark.parametrize(
    "network", [Network("vanilla", 256, 7, 0.98), Network("gru", 256, 7, 0.993), Network("lstm", 192, 7, 0.993)]
)
def test_expectations_are_means_where_single_patterns_scatter(network):
    for order in (2, 3, 4):  # of a network in which a unit leads to five others
        several = [of_counts(counted(network, order, seed)) for seed in range(8)]
        means = {name: np.mean([one[name] for one in several]) for name in several[0]}
        assert of_counts(expected(network, order)) == pytest.approx(means, rel=TOLERANCE), order


def test_exact_is_exact_on_a_dense_network(real):
    for (network, order), costs in real.items():
        if network.sparsity == 0:
            assert of_counts(expected(network, order)) == pytest.approx(real_figures(costs), rel=1e-12)


@pytest.mark.parametrize("cell", ["vanilla", "gru", "lstm"])
def test_a_pattern_that_is_drawn_is_counted_as_costs_counts_it(cell):
    network = Network(cell, 40, 7, 0.8)
    for order in ORDERS:
        assert of_counts(counted(network, order, seed=3)) == real_figures(costs_of(network, order))


def test_what_would_take_long_is_not_drawn():
    assert counts(Network("gru", 64, 4, 0.9), 2)[1]
    for network, order in ((Network("gru", 8192, 4, 0.99), None), (Network("lstm", 2048, 4, 0.0), 1)):
        found, drawn = counts(network, order)
        assert not drawn
        assert found == expected(network, order)


# ---- meshes

COUNTS = Counts(states=30, params=1000, blocks=20, kept=24000, forward=2000, influence=600_000, bptt=6000)


def test_a_mesh_splits_what_can_be_split():
    one, both = (meshes.load(COUNTS, 6, mesh, DEVICE) for mesh in (ONE, Mesh(3, 4)))
    assert one.network == 0
    assert one.memory == 4 * (6 * (30 + 24000) + 1000)
    assert both.memory == 4 * (2 * (30 + 24000 / 4) + 1000)  # lanes go with the batch, J with both
    assert both.flops == 2 * (2000 + 600_000 / 4)
    assert both.traffic == one.traffic / 12
    assert both.network == pytest.approx(2 * (2 / 3) * 4 * 1000 / 4 + (3 / 4) * 4 * 1000)
    busy = max(both.flops / DEVICE.flops, both.traffic / DEVICE.bytes) / meshes.EFFICIENCY
    assert both.seconds == pytest.approx(busy + both.network / DEVICE.network)


def every_mesh(batch):
    return [Mesh(b, p) for b in range(1, batch + 1) if batch % b == 0 for p in range(1, COUNTS.blocks + 1)]


@pytest.mark.parametrize("memory", [6e5, 1e5, 5e4, 3e4, 1.5e4, 8e3, 4e3])
def test_the_smallest_mesh_is_the_smallest_of_all(memory):
    device = DEVICE._replace(memory=memory)
    fitting = [mesh for mesh in every_mesh(6) if meshes.load(COUNTS, 6, mesh, device).memory <= memory]
    found = meshes.smallest(COUNTS, 6, device)
    if not fitting:
        assert found is None
        return
    assert found in fitting
    assert found.devices == min(mesh.devices for mesh in fitting)


def test_the_fastest_mesh_fits_if_one_does():
    for devices, memory in itertools.product((1, 2, 6, 12, 40), (6e5, 5e4, 3e4, 1.5e4)):
        device = DEVICE._replace(memory=memory)
        loads = {m: meshes.load(COUNTS, 6, m, device) for m in every_mesh(6) if m.devices == devices}
        fitting = {m: one for m, one in loads.items() if one.memory <= memory} or loads
        found = meshes.fastest(COUNTS, 6, devices, device)
        assert found in fitting
        assert loads[found].seconds == min(one.seconds for one in fitting.values())
    assert meshes.fastest(COUNTS, 6, 23, DEVICE) is None  # a prime, and more than there are blocks


# ---- the page

ASK = """<script>
const asked = %s;
const one = { batch: 1, params: 1 };
const answers = asked.networks.map(([network, order]) => {
  const counts = expected(network, order);
  const mesh = fastest(counts, asked.batch, 12, asked.device), each = load(counts, asked.batch, mesh, asked.device);
  return {
    counts, mesh, each, one: load(counts, asked.batch, one, asked.device),
    smallest: smallest(counts, asked.batch, asked.device), bptt: bpttMemory(counts, asked.batch, asked.window),
  };
});
const figures = ["memory-each", "seconds-each", "flops-ratio", "smallest", "command"];
const shown = () => figures.map((id) => byId(id).textContent);
const before = shown();
byId("order").value = 0;
byId("cell").value = "vanilla";
byId("controls").dispatchEvent(new Event("input"));
const found = { answers, before, after: shown(), rows: byId("orders").rows.length };
document.body.textContent = `FOUND${JSON.stringify(found)}FOUND`;
console.log("the page was asked");
</script></body>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """What the page answers in a browser."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here to open the page with")
    settings = {"cell": "gru", "units": 256, "inputs": 7, "sparsity": 0.98, "order": 3, "batch": BATCH, "devices": 12}
    text = page({**settings, "window": WINDOW, **DEVICE._asdict()})
    networks = [(network._asdict(), order) for network in NETWORKS for order in ORDERS]
    asked = {"networks": networks, "batch": BATCH, "window": WINDOW, "device": DEVICE._asdict()}
    path = tmp_path_factory.mktemp("page") / "plan.html"
    path.write_text(text.replace("</body>", ASK % json.dumps(asked)), encoding="utf-8")
    flags = "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000"
    seen = subprocess.run([CHROMIUM, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120)
    said = [line for line in seen.stderr.splitlines() if "CONSOLE" in line]
    assert len(said) == 1, said
    assert "the page was asked" in said[0]
    return json.loads(seen.stdout.split("FOUND")[1])


def test_the_page_has_the_formulas_of_python(browser):
    asked = [(network, order) for network in NETWORKS for order in ORDERS]
    for (network, order), said in zip(asked, browser["answers"], strict=True):
        found = expected(network, order)
        assert said["counts"] == pytest.approx(found._asdict(), rel=1e-9), (network, order)
        assert said["one"] == pytest.approx(meshes.load(found, BATCH, ONE, DEVICE)._asdict(), rel=1e-9)
        mesh = meshes.fastest(found, BATCH, 12, DEVICE)
        assert said["mesh"] == mesh._asdict()
        assert said["each"] == pytest.approx(meshes.load(found, BATCH, mesh, DEVICE)._asdict(), rel=1e-9)
        least = meshes.smallest(found, BATCH, DEVICE)
        assert said["smallest"] == (None if least is None else least._asdict())
    assert (
        len({json.dumps(said["smallest"]) for said in browser["answers"]}) > 3
    )  # some fit, some need more, some never


def test_the_page_agrees_with_costs(browser, real):
    for said, costs in zip(browser["answers"], real.values(), strict=True):
        got = figures(said["counts"], said["one"], said["bptt"])
        assert got == pytest.approx(real_figures(costs), rel=TOLERANCE), costs.cell


def test_the_sliders_move_the_figures(browser):
    network = Network("gru", 256, 7, 0.98)
    found = expected(network, 3)
    each = meshes.load(found, BATCH, meshes.fastest(found, BATCH, 12, DEVICE), DEVICE)
    memory, seconds, ratio, _, command = browser["before"]
    assert memory == f"{each.memory / 2**20:.2f} MiB"
    assert seconds == f"{1e6 * each.seconds:.0f} µs"
    assert ratio[:-2] == f"{(found.forward + found.influence) / found.bptt:.0f}"
    assert "--cell gru --units 256 --inputs 7 --sparsity 0.98 --order 3 --batch 6 --devices 12" in command
    assert "--cell vanilla --units 256 --inputs 7 --sparsity 0.98 --order 1 --batch 6" in browser["after"][-1]
    assert browser["after"][0] != memory
    assert browser["rows"] == 8  # orders 1 to 6, RTRL, BPTT


def test_the_page_needs_nothing_from_elsewhere():
    settings = {"cell": "lstm", "units": 100, "inputs": 4, "sparsity": 0.5, "order": "exact", "batch": 3, "devices": 2}
    text = page({**settings, "window": WINDOW, **DEVICE._asdict()})
    assert "http" not in text
    assert "src=" not in text


# ---- the command

RATES = ("--gflops", 100, "--gbs", 20, "--network", 1, "--memory", 4)


def test_a_plan_says_how_it_was_counted(tmp_path):
    wanted = ("--cell", "gru", "--units", 128, "--sparsity", 0.9, "--order", 3, "--batch", 16, "--devices", 8)
    done = answer("plan", *wanted, *RATES, "--page", tmp_path / "plan.html")
    assert done.code == 0, done.err
    assert "each of 8: batch=" in done.out
    assert "counted on a random pattern" in done.out
    assert "one device is enough, with 4 GiB a device" in done.out
    assert "measuring" not in done.err  # rates were given
    assert "SnAp-" in (tmp_path / "plan.html").read_text()
    large = ("--cell", "lstm", "--units", 4096, "--sparsity", 0.99, "--order", "exact", "--devices", 6)
    done = answer("plan", *large, *RATES)
    assert "expected of random patterns" in done.out
    assert "RTRL on lstm 4096" in done.out
    assert "the smallest mesh that fits is batch=" in done.out


def test_a_plan_as_json_is_what_was_counted():
    done = answer("plan", "--units", 64, "--devices", 4, "--batch", 2, *RATES, "--json")
    found = json.loads(done.out)
    assert found["counts"].pop("drawn")
    exact = counted(Network("gru", 64, 4, 0.75), 2)
    assert found["counts"] == exact._asdict()
    device = Device(1e11, 2e10, 1e9, 4 * 2**30)
    mesh = meshes.fastest(exact, 2, 4, device)
    assert found["mesh"] == mesh._asdict()
    assert found["each_device"] == meshes.load(exact, 2, mesh, device)._asdict()
    assert found["smallest_mesh"] == {"batch": 1, "params": 1}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--units", 0), "`units` must be an integer >= 1, got 0"),
        (("--order", 0), "`order` must be an integer >= 1 or None (exact), got 0"),
        (("--sparsity", 1), "`sparsity` must be a number in [0, 1), got 1.0"),
        (("--page", "nowhere/x.html"), "`page` must be a file in a folder that exists, got 'nowhere/x.html'"),
        (("--gbs", -1), "`gbs` must be a number > 0, got -1.0"),
        (
            ("--units", 10, "--batch", 2, "--devices", 21),
            "`devices` must be an integer <= 20, one for every block of J and lane of the batch, got 21",
        ),
        (
            ("--units", 10, "--batch", 2, "--devices", 11),
            "`devices` must be a product of a divisor of `batch`, 2, and a number of blocks, at most 10, got 11",
        ),
    ],
)
def test_a_plan_is_refused_in_a_sentence(given, words):
    done = answer("plan", *RATES, *given)
    assert (done.code, done.err.strip()) == (2, f"error: {words}")
