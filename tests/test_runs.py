"""Runs through the real command line: killed, interrupted, resumed, refused, reported."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args, get_type_hints

import jax
import numpy as np
import pytest
import safetensors.numpy
import tyro
from programs import answer, as_in_a_program, assert_same_run, command, snapgrad
from variants import case

import snapgrad as sg
from snapgrad.algorithms.registry import ALGORITHMS, TITLES
from snapgrad.commands.analyse import sequences
from snapgrad.commands.export import Export
from snapgrad.report.collect import collect
from snapgrad.report.page import command as command_line
from snapgrad.report.page import write
from snapgrad.runs import options, toml
from snapgrad.runs.build import build
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.training import run_training

SMALL = "--units", "8", "--log-every", "400", "--checkpoint-every", "0"
TOKENS = "20000"
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


def begin(*args):
    return subprocess.Popen(command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_records(process, path, count):
    """Until so many lines of metrics are written."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if (path / "metrics.jsonl").read_text().count("\n") >= count:
                return
        except FileNotFoundError:
            pass
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("no records")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run that nobody disturbed."""
    path = tmp_path_factory.mktemp("whole") / "run"
    snapgrad("train", "copy", *SMALL, "--tokens", TOKENS, "--out", path)
    return path


def test_killed_at_any_moment_it_resumes_to_the_same_bits_and_is_reported(uninterrupted, tmp_path):
    path = tmp_path / "runs" / "killed"
    args = "train", "copy", *SMALL, "--tokens", TOKENS, "--out", path
    for records in (1, 13):  # killed in the midst of whatever comes after so many records
        process = begin(*args)
        wait_for_records(process, path, records)
        time.sleep(0.013 * records)
        process.kill()
        process.communicate()
        assert RunDirectory.open(path).outcome() is None
        args = "resume", path
    outcome = json.loads(snapgrad("resume", path, "--json").out)
    assert outcome["status"] == "finished"
    assert_same_run(path, uninterrupted)

    shutil.copytree(uninterrupted, tmp_path / "runs" / "whole")
    report = json.loads(snapgrad("report", tmp_path / "runs", "--out", tmp_path / "report", "--json").out)
    assert report["results"][0]["metric"] == "level"
    check_page(Path(report["page"]), figures=4)


def test_killed_before_its_first_record_it_begins_again(uninterrupted, tmp_path):
    path = tmp_path / "run"
    process = begin("train", "copy", *SMALL, "--tokens", TOKENS, "--out", path)
    while not (path / "config.toml").exists():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    snapgrad("resume", path)
    assert_same_run(path, uninterrupted)


def test_a_line_cut_off_by_a_crash_is_dropped(uninterrupted, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(uninterrupted, path)
    run = RunDirectory.open(path)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"tokens": 99')
    assert run.metrics() == RunDirectory.open(uninterrupted).metrics()
    run.forget_after(4000)
    assert run.metrics()[-1]["tokens"] == 4000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_can_be_resumed(number, tmp_path):
    path = tmp_path / "run"
    process = begin("train", "copy", *SMALL[:4], "--checkpoint-every", 1000, "--tokens", 10**7, "--out", path)
    wait_for_records(process, path, 3)
    assert "another process is training" in snapgrad("resume", path, code=2).err
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert f"go on with: snapgrad resume {path}" in err
    run = RunDirectory.open(path)
    assert run.checkpoint().totals.tokens == run.metrics()[-1]["tokens"]


class Stop(Exception):
    """As sudden as a kill, but in this process."""


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(b"the cat sat on the mat. " * 200)
    return path


@pytest.mark.parametrize(
    "given",
    [
        case(options.CopyOptions(cell="lstm", algorithm="uoro", rank=2, units=5), quick=False),
        case(options.CopyOptions(algorithm="ok", rank=2, units=5), quick=False),
        case(options.CopyOptions(cell="vanilla", algorithm="bptt", update_every="sequence", units=5), quick=False),
        options.CharsOptions(algorithm="snap", units=5, layers=2, validate_every=1000, length=20),
        options.CharsOptions(
            algorithm="rflo",
            units=5,
            continuous=True,
            update_every=3,
            tensorboard=True,
            optimiser="adam(b1=0.5)",
            schedule="cosine",
            warmup=20,
            clip=0.1,
            weight_decay=0.1,
        ),
    ],
    ids=lambda given: given.algorithm,
)
def test_every_kind_of_run_resumes_to_the_same_bits(given, tmp_path, text_file):
    more = {"corpus": str(text_file), "readout": "linear"} if given.task == "chars" else {}
    given = replace(given, tokens=4000, log_every=400, batch=4, checkpoint_every=0.0, **more)
    with as_in_a_program():
        experiment = build(given)
        runs = [RunDirectory.create(tmp_path / name, given, experiment.data) for name in ("whole", "stopped")]
        run_training(runs[0], lambda record: None, experiment)

        def stop(record):
            if record["tokens"] in range(1500, 2300):
                raise Stop

        with pytest.raises(Stop):
            run_training(runs[1], stop, experiment)
        run_training(RunDirectory.open(runs[1].path), lambda record: None)
    assert_same_run(*(run.path for run in runs))
    if given.tensorboard:
        assert list((runs[0].path / "tensorboard").iterdir())
    if given.task == "chars":
        assert sum("valid_bits" in record for record in runs[1].metrics()) in (1, 4)
        window = sequences(given, runs[1].checkpoint(), 2)
        assert window.xs.shape == window.targets.shape == (128 if given.continuous else 20, 2)


@pytest.mark.parametrize("algorithm", ["snap", "rflo"])
def test_whole_sequences_are_trained_without_an_influence(algorithm):
    given = {"every step": {"update_every": 1}, "in bfloat16": {"influence_dtype": "bfloat16"}, "whole": {}}
    for name, more in given.items():
        asked = options.CopyOptions(algorithm=algorithm, units=5, **({"update_every": "sequence"} | more))
        with as_in_a_program():
            assert build(asked).trainer.algorithm.episodic == (name == "whole")


SAMPLING = [("--temperature", heat, "--seed", seed) for heat, seed in (("0", "0"), ("1.5", "0"), ("1.5", "1"))]


def test_a_run_is_loaded_evaluated_and_exported_whether_it_has_ended_or_not(tmp_path, text_file):
    text = shutil.copy(text_file, tmp_path / "text")
    given = options.CharsOptions(corpus=str(text), units=5, sparsity=0.5, readout="linear", batch=4, length=20)
    given = replace(given, tokens=400, log_every=200)
    with as_in_a_program():
        experiment = build(given)
        run = RunDirectory.create(tmp_path / "run", given, experiment.data)
        with pytest.raises(ValueError, match=r"a run must have a checkpoint to be loaded, got none in '.*run'"):
            sg.load_run(run.path)
        outcome = run_training(run, lambda record: None, experiment)
        for status in ("finished", "interrupted"):
            if status == "interrupted":
                (run.path / "outcome.json").unlink()
            loaded = sg.load_run(str(run.path))
            valid = sg.tasks.corpus(str(text)).valid
            assert sg.evaluate(*loaded[:3], valid, length=given.length) == outcome["valid_bits"]
        assert loaded.options == given
        untrained = np.asarray(experiment.params.cell.recurrent.values)
        assert (np.asarray(loaded.params.cell.recurrent.values) != untrained).any()

        Export(run.path).run()
        ours = sg.load(run.path / "params.safetensors")
        assert jax.tree.structure(ours) == jax.tree.structure(loaded.params)  # with the patterns
        jax.tree.map(np.testing.assert_array_equal, ours, loaded.params)
        Export(run.path, out=tmp_path / "x.safetensors", torch=True).run()
        weights = safetensors.numpy.load_file(tmp_path / "x.safetensors")
        np.testing.assert_array_equal(weights["weight_hh_l0"], loaded.params.cell.recurrent.to_dense())
        assert not weights["bias_hh_l0"].any()
        said = [answer("generate", run.path, "--prompt", "a tä", "--length", 9, "--json", *more) for more in SAMPLING]
        for one, (_, temperature, _, seed) in zip(said, SAMPLING, strict=True):
            key = jax.random.key(int(seed))
            expected = sg.generate(*loaded[:3], "a tä".encode(), 9, key, float(temperature)).decode(errors="replace")
            assert json.loads(one.out) == {"prompt": "a tä", "text": expected}
        assert len({one.out for one in said}) == len(said)
        plain = answer("generate", run.path, "--prompt", "a tä", "--length", 9, *SAMPLING[0])
        assert plain.out == "a tä" + json.loads(said[0].out)["text"] + "\n"
        with pytest.raises(ValueError, match=r"`run` must be a directory with a config.toml"):
            sg.load_run(tmp_path)
        # While it is being trained, and without its text.
        text.unlink()
        with run.locked():
            again = sg.load_run(run.path)
        jax.tree.map(np.testing.assert_array_equal, again.params, loaded.params)


def test_the_command_exports(uninterrupted, tmp_path):
    out = tmp_path / "weights.safetensors"
    said = json.loads(snapgrad("export", uninterrupted, "--out", out, "--json").out)
    assert said == {"file": str(out), "tokens": said["tokens"]}
    assert said["tokens"] > 0
    assert sg.load(out).cell.recurrent.values.dtype == np.float32
    assert (
        "`path` must be in a folder that exists"
        in snapgrad("export", uninterrupted, "--out", out / "x.safetensors", code=2).err
    )


def test_a_run_does_not_go_on_with_another_text(tmp_path, text_file):
    given = options.CharsOptions(corpus=str(text_file), units=5, tokens=100)
    run = RunDirectory.create(tmp_path / "run", given, data="that of another text")
    with as_in_a_program(), pytest.raises(ValueError, match="`corpus` must be the text that the run was begun with"):
        run_training(run, lambda record: None)


def test_a_run_that_diverges_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    path = tmp_path / "run"
    args = "--optimiser", "sgd", "--learning-rate", "1e38", "--tokens", "16000", "--out", path
    error = snapgrad("train", "copy", *SMALL, *args, code=1).err
    outcome = RunDirectory.open(path).outcome()
    assert f"not finite at update {outcome['updates']};" in error
    good = RunDirectory.open(path).checkpoint()
    assert good.totals.tokens < outcome["tokens"]
    assert all(np.isfinite(array).all() for array in good.leaves.values() if array.dtype == np.float32)
    assert "not finite" in snapgrad("resume", path, code=1).err


def test_characters_are_trained_validated_and_reported(tmp_path, text_file):
    kinds = ("--algorithm", "bptt"), ("--continuous", "--update-every", "4")
    for number, kind in enumerate(kinds):
        args = *SMALL[:2], "--batch", 4, "--tokens", 3000, "--log-every", 1000, "--corpus", text_file, *kind
        common = "--readout", "linear", "--validate-every", 2000, "--out", tmp_path / "runs" / str(number)
        done = json.loads(snapgrad("train", "chars", *args, *common, "--json").out)
        assert 0 < done["valid_bits"] < 9
    validated = ["valid_bits" in record for record in RunDirectory.open(tmp_path / "runs" / "0").metrics()]
    assert validated == [False, True, True]
    report = json.loads(snapgrad("report", tmp_path / "runs", "--out", tmp_path / "report", "--json").out)
    assert {one["metric"] for one in report["results"]} == {"valid_bits"}
    check_page(Path(report["page"]), figures=6)


def test_the_demo_ends_with_a_table_and_a_page_and_does_not_train_twice(tmp_path):
    args = "demo", "--tokens", "1500", "--out", tmp_path / "demo"
    done = snapgrad(*args)
    page = Path(done.out.strip().splitlines()[-1].removeprefix("page: "))
    for name in ("BPTT, whole sequences", "Truncated BPTT, T = 1", "RFLO", "SnAp-1", "SnAp-2"):
        assert name in done.out
    check_page(page, figures=4)
    assert "L is the length of the longest strings" in page.read_text(encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert len(before) == 5
    assert len(json.loads(snapgrad(*args, "--json").out)["results"]) == 5
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}


class Images(HTMLParser):
    """Counts a page's figures and what it would fetch from elsewhere."""

    def __init__(self):
        super().__init__()
        self.figures, self.fetched = 0, []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href") and not value.startswith("data:"):
                self.fetched.append(value)
        self.figures += tag == "img"


def check_page(page, figures):
    """Self-contained, with all its figures."""
    images = Images()
    images.feed(page.read_text(encoding="utf-8"))
    assert images.figures == figures
    assert not images.fetched
    for suffix in ("png", "svg"):
        assert len(list(page.parent.glob(f"*.{suffix}"))) == figures


LOOK = """<script>addEventListener("load", () => {
const shown = [...document.images].filter(image => image.complete && image.naturalWidth > 100 && image.width > 100);
document.title = "shown " + shown.length + " of " + document.images.length;
console.log("the page was looked at");
});</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to look at the page with")
def test_a_browser_shows_every_figure_and_complains_about_nothing(uninterrupted, tmp_path):
    page = write(collect([uninterrupted]), tmp_path)
    looked_at = tmp_path / "looked-at.html"
    looked_at.write_text(page.read_text(encoding="utf-8").replace("</body>", LOOK), encoding="utf-8")
    flags = "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000"
    seen = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", looked_at.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "<title>shown 4 of 4</title>" in seen.stdout
    said = [line for line in seen.stderr.splitlines() if "CONSOLE" in line]
    assert len(said) == 1, said
    assert "the page was looked at" in said[0]


def test_reports_of_runs_that_stopped_early_or_never_began(tmp_path):
    def run(name, records, **given):
        made = RunDirectory.create(tmp_path / name, options.CopyOptions(tokens=900, **given), data="")
        for tokens, level, bits in records:
            numbers = {"updates": tokens, "seconds": tokens / 100, "tokens_per_second": 100.0}
            made.append({"tokens": tokens, "bits": bits, **numbers, **({} if level is None else {"level": level})})

    run("long", [(100, 1, 0.5), (200, 2, 0.4), (300, 3, 0.3)], seed=0)
    run("short", [(50, 1, 0.6)], seed=1)  # ended before the other's first record
    run("other", [(100, 1, None), (300, 9, 0.2)], seed=0, learning_rate=0.5)
    run("nothing", [], seed=2)
    found = collect([tmp_path])
    assert [one.name for one in found.series] == [f"SnAp-2, every step, learning rate {rate}" for rate in (0.5, 0.001)]
    assert found.metric == "level"
    assert len(found.left_out) == 1
    curve = found.series[1].curve("level", "tokens")
    assert (curve.x.tolist(), curve.mean.tolist()) == ([100, 200, 300], [1, 2, 3])
    check_page(write(found, tmp_path / "report"), figures=4)
    run("fixed", [(100, None, 0.5), (200, None, None)], length=3)  # has no level: bits are what all have
    assert collect([tmp_path]).metric == "bits"
    with pytest.raises(ValueError, match="`runs` must have records, got 1 without any"):
        collect([tmp_path / "nothing"])


def test_the_command_on_the_page_is_the_run():
    given = options.CharsOptions(corpus="a b", sparse_inputs=False, continuous=True, update_every=2, order=3)
    words = shlex.split(command_line(given))
    assert words[:3] == ["snapgrad", "train", "chars"]
    assert tyro.cli(options.CharsOptions, args=words[3:]) == given


def test_a_config_file_is_read_and_the_command_line_goes_before_it(tmp_path):
    path = tmp_path / "given.toml"
    path.write_text('algorithm = "bptt"\nupdate_every = "sequence"\nunits = 7\ntokens = 300\nbatch = 2\n')
    out = tmp_path / "run"
    snapgrad("train", "copy", "--config", path, "--units", 5, "--out", out)
    used = RunDirectory.open(out).options()
    assert (used.algorithm, used.update_every, used.units, used.tokens) == ("bptt", "sequence", 5, 300)
    assert "must be new or empty" in snapgrad("train", "copy", "--out", out, code=2).err
    assert "`run` must be a directory with a config.toml" in snapgrad("resume", tmp_path, code=2).err
    assert "`config` must be a TOML file that can be read" in snapgrad("train", "copy", "--config", "no", code=2).err
    assert snapgrad("resume", out).code == 0  # finished already


def test_the_newest_checkpoint_is_analysed(uninterrupted, tmp_path):
    printed = snapgrad("analyse", uninterrupted, "--sequences", 3, "--out", tmp_path, "--json").out
    result = json.loads((tmp_path / "analysis.json").read_text())
    assert json.loads(printed) == {"out": str(tmp_path), **result}
    last = RunDirectory.open(uninterrupted).metrics()[-1]
    assert (result["tokens"], result["updates"]) == (last["tokens"], last["updates"])
    assert result["steps"] == 2 * last["level"] + 2  # the longest that it has come to
    assert [row["order"] for row in result["orders"]] == [1, 2, 3]
    magnitudes = [row["magnitude"] for row in result["orders"]]
    assert 0 < magnitudes[0] < magnitudes[1] <= magnitudes[2] <= 1 + 1e-6
    assert "added by SnAp-2" in (tmp_path / "hinton.svg").read_text()
    assert (tmp_path / "hinton.png").read_bytes().startswith(b"\x89PNG")


def test_options_survive_being_written_and_read(tmp_path):
    given = options.CharsOptions(order=3, corpus='a "b" \\ c', data_dir=tmp_path, update_every=5, continuous=True)
    run = RunDirectory.create(tmp_path / "run", given, data="")
    assert run.options() == given
    assert toml.read(tmp_path / "run" / "config.toml")["task"] == "chars"
    assert {"snapgrad", "jax", "backend", "processor"} <= run.about().keys()


def test_the_command_line_knows_all_algorithms_and_costs():
    named = get_args(get_type_hints(options.Options)["algorithm"])
    assert set(named) == ALGORITHMS.keys() == TITLES.keys()
    counts = json.loads(snapgrad("costs", "--units", 16, "--json").out)
    assert counts["methods"]["snap-2"]["flops"] > counts["methods"]["bptt"]["flops"]


@pytest.mark.parametrize("task", ["adding", "mackey-glass"])
def test_runs_on_numbers_are_trained_resumed_and_reported(task, tmp_path):
    run = tmp_path / "run"
    small = ("--units", 3, "--batch", 2, "--algorithm", "frozen", "--log-every", 50, "--out", run)
    assert answer("train", task, "--tokens", 100, *small).code == 0
    config = run / "config.toml"
    config.write_text(config.read_text().replace("tokens = 100", "tokens = 200"))
    assert "error" in answer("resume", run).out
    assert [record["tokens"] for record in RunDirectory.open(run).metrics()] == [50, 100, 150, 200]
    shown = answer("report", run, "--out", tmp_path / "report")
    assert shown.code == 0, shown.err
    assert "squared error" in (tmp_path / "report" / "report.html").read_text()
