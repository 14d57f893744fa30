"""Experiments: what they expand to, what is left to do, who wins; and a sweep through the command line, killed too."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from programs import answer, as_in_a_program
from studies import result, tiny

from snapgrad import machine
from snapgrad.commands.reproduce import Reproduce
from snapgrad.reproduction import markdown
from snapgrad.runs import disk
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.options import CopyOptions
from snapgrad.runs.training import Interrupted
from snapgrad.sweep import experiment, local, process, results, runner, view, worker
from snapgrad.sweep.experiment import SIZES, Experiment
from snapgrad.sweep.results import Result
from snapgrad.sweep.study import Planned, identity

TRAINING = [name for name in experiment.names() if experiment.load(name).kind == "runs"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TRAINING)
def test_every_experiment_is_whole(name, size):
    one = experiment.load(name)
    runs = one.study(size).planned
    assert runs
    assert one.settings(size)["scaled"]
    directories = {run.name: run.identity for run in runs}
    assert len(directories) == len({run.identity for run in runs})  # no two runs share a directory
    known = set(one.content["methods"])
    for claim in one.claims:
        assert known >= {*claim.better, *claim.than}
        assert set(one.content["networks"]) >= set(claim.networks)
        assert not claim.pairwise or len(claim.better) == len(claim.than)


def test_a_wrong_word_names_the_file_and_the_nearest_option():
    with pytest.raises(ValueError, match=r"'unit' in x\.toml is not an option of `train copy`; did you mean 'units'\?"):
        tiny(networks={"one": {"unit": 3}}).choices("smoke")
    with pytest.raises(ValueError, match=r"`methods` of x\.toml must have 'SnAp-9', got BPTT, SnAp-1"):
        tiny(methods=["SnAp-9"]).choices("smoke")
    with pytest.raises(
        ValueError, match=r"`name` must be one of ablations, copy, costs, influence, .* or all, got 'figure5'"
    ):
        experiment.load("figure5")


def test_a_run_that_two_processes_have_written_gives_no_result():
    """One of them was still writing its last record while the other began the run anew."""
    records = [{"tokens": tokens, "seconds": 1.0} for tokens in (400, 100, 200)]
    run = SimpleNamespace(path=Path("r"), outcome=lambda: {}, options=CopyOptions, metrics=lambda: records)
    with pytest.raises(ValueError, match=r"metrics.jsonl must have records in the order of their tokens, got \[400, 1"):
        results.of_run(run)


def test_other_seeds_wait_for_the_choice():
    one, found = tiny(), {}
    first = results.missing(one.study("smoke"), found)
    assert [(run.method, run.options.learning_rate, run.options.seed) for run in first] == [
        (method, rate, 0) for method in ("BPTT", "SnAp-1") for rate in (1e-3, 1e-2, 1e-4)
    ]
    assert len(results.asked(one.study("smoke"), found)[1]) == 2 * 2
    # 1e-2 is best for BPTT; of SnAp-1's two best the one with fewer bits; what diverged is never chosen.
    ends = {
        ("BPTT", 1e-3): 4,
        ("BPTT", 1e-2): 6,
        ("BPTT", 1e-4): 2,
        ("SnAp-1", 1e-3): 3,
        ("SnAp-1", 1e-2): 9,
        ("SnAp-1", 1e-4): 3,
    }
    for run in first[:-1]:
        key = run.method, run.options.learning_rate
        status = "diverged" if key == ("SnAp-1", 1e-2) else "finished"
        found[run.identity] = result(run, ends[key], status, bits=1.0)
    left = results.missing(one.study("smoke"), found)
    assert [(run.method, run.options.learning_rate, run.options.seed) for run in left] == [
        ("BPTT", 1e-2, 1), ("BPTT", 1e-2, 2), ("SnAp-1", 1e-4, 0)
    ]  # fmt: skip
    found[first[-1].identity] = result(first[-1], 3, bits=0.5)
    assert {(run.method, run.options.learning_rate) for run in results.missing(one.study("smoke"), found)} == {
        ("BPTT", 1e-2), ("SnAp-1", 1e-4)
    }  # fmt: skip
    for run in results.missing(one.study("smoke"), found):
        found[run.identity] = result(run, 5)
    assert results.missing(one.study("smoke"), found) == []
    assert results.asked(one.study("smoke"), found)[1] == []


def test_results_go_through_a_file_and_a_new_option_finds_its_old_results(tmp_path):
    one = tiny()
    run = results.missing(one.study("smoke"), {})[0]
    made = result(run, 4)
    path = results.path_of(tmp_path, "x-smoke")
    assert results.read(path) == {}
    results.write(path, [made])
    assert results.read(path) == {run.identity: made}
    del made.options["readout"]  # as if it had been made before there was such an option
    results.write(path, [made])
    assert run.identity in results.read(path)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match=r"line 1 of .*x-smoke\.jsonl must be a result"):
        results.read(path)


class Recorded:
    """An executor that trains nothing: what is started ends at the next look, as the test says."""

    def __init__(self, outcomes):  # lists of exit codes, by algorithm; then all end well
        self.outcomes, self.running, self.started = outcomes, [], []

    @property
    def free(self):
        return len(self.running) < 2

    def start(self, directory, options):
        self.started.append(directory.name)
        codes = self.outcomes.get(options.algorithm, [])
        run = Planned("", "", "", options)
        self.running.append(_Job(directory, codes.pop(0) if codes else 0, result(run, 3)))

    def ended(self):
        done, self.running = self.running, []
        return done

    def stop(self):
        self.running = []


@dataclasses.dataclass
class _Job:
    directory: Path
    exit_code: int

    run: Result

    def code(self):
        return self.exit_code

    def message(self):
        return "error: it broke"

    def result(self):
        return self.run


def test_a_run_that_fails_does_not_hold_up_the_others(tmp_path):
    study = tiny(learning_rate=[1e-3]).study("smoke")
    sweep = runner.Sweep([study], tmp_path / "results", tmp_path / "runs")
    failed = runner.carry_out(sweep, Recorded({"bptt": [70]}), Silent())
    assert len(failed) == 1  # its other seeds wait for a choice that never comes
    assert "error: it broke" in failed[0]
    assert len(results.read(results.path_of(tmp_path / "results", "x-smoke"))) == 3
    again = Recorded({})
    assert runner.carry_out(sweep, again, Silent()) == []
    assert [name for name in again.started if "snap" in name] == []  # what has a result is not trained again


def test_a_run_whose_process_is_killed_is_started_again_but_not_for_ever(tmp_path):
    study = tiny(learning_rate=[1e-3], seeds=1).study("smoke")
    sweep = runner.Sweep([study], tmp_path / "results", tmp_path / "runs")
    executor = Recorded({"bptt": [-9] * 3, "snap": [-9] * 4})
    failed = runner.carry_out(sweep, executor, Silent())
    assert [sum(name in started for started in executor.started) for name in ("bptt", "snap")] == [4, 4]
    assert len(failed) == 1
    assert "snap" in failed[0]


def test_a_run_of_two_experiments_is_trained_once(tmp_path):
    one, two = tiny(learning_rate=[1e-3]), dataclasses.replace(tiny(learning_rate=[1e-3]), name="y")
    sweep = runner.Sweep([one.study("smoke"), two.study("smoke")], tmp_path, tmp_path / "runs")
    assert len(sweep.missing()) == 2  # first seeds of two methods
    run = results.missing(one.study("smoke"), {})[0]
    results.write(results.path_of(tmp_path, "x-smoke"), [result(run, 4)])
    (tmp_path / "somebody's.jsonl").write_text('{"not": "a result"}\n')
    sweep.take_over()
    assert run.identity not in {planned.identity for _, planned in sweep.missing()}
    assert run.identity in results.read(results.path_of(tmp_path, "y-smoke"))
    alone = Experiment("z", {**two.content, "smoke": {**two.content["smoke"], "alone": True}})
    assert sweep.collected(alone.study("smoke")) == {}


class Silent:
    def show(self, waiting, later, running): ...
    def ended(self, experiment, run, result): ...
    def say(self, sentence): ...


def test_what_claims_hang_on_is_trained_first(tmp_path):
    def order(one):
        return [run.method for _, run in runner.Sweep([one.study("smoke")], tmp_path, tmp_path / "runs").missing()]

    one = tiny(learning_rate=[1e-3], seeds=1)
    for said in (["BPTT"], ["SnAp-1"]):
        claim = {"words": "It is said.", "better": said, "than": said}
        others = {"BPTT", "SnAp-1"} - {*said}
        assert order(Experiment("x", {**one.content, "claims": [claim]})) == [*said, *others]
    both = [dataclasses.replace(one, content={**one.content, "claims": [claim]}), dataclasses.replace(one, name="y")]
    sweep = runner.Sweep([one.study("smoke") for one in both], tmp_path, tmp_path / "runs")
    assert [run.method for _, run in sweep.missing()] == ["SnAp-1", "BPTT"]  # also if another asks for it too
    first = order(one)
    asked = {**claim, "better": first[1:], "than": first[1:], "question": True}
    assert order(Experiment("x", {**one.content, "claims": [asked]})) == first  # a question of our own can wait


def test_cores_are_shared(monkeypatch):
    monkeypatch.setattr(local.machine, "cores", lambda: [0, 1, 2, 3, 4])
    assert local.LocalExecutor(2)._slots == [(0, 2, 4), (1, 3)]
    assert local.LocalExecutor(9)._slots == [(0,), (1,), (2,), (3,), (4,)]


def program(folder, *arguments, **environment):
    """The command line in a process group of its own."""
    command = [sys.executable, "-m", "snapgrad.cli", *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    environment.pop("JAX_ENABLE_X64", None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipes)


class InThisProcess:
    """In place of `subprocess.Popen`: a run of a sweep, at once and in this process, where JAX is loaded already."""

    def __init__(self, command, stderr, **others):
        done = answer(*command[command.index("snapgrad.sweep.worker") + 3 :])  # behind the cores and the parent
        stderr.write(done.err)
        self.returncode = done.code

    def poll(self):
        return self.returncode


def test_every_smoke_passes_and_is_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process.subprocess, "Popen", InThisProcess)
    everything = [experiment.load(name) for name in experiment.names()]
    with as_in_a_program():
        assert Reproduce("all", size="smoke").train(everything) == []
    for one in everything:
        if one.kind == "runs":
            assert_whole(one, tmp_path)
    markdown.write(everything, "smoke", tmp_path / "results", tmp_path / "all")
    assert all(one.title in (tmp_path / "all/results.md").read_text() for one in everything)
    pages, some = [tmp_path / "one", tmp_path / "two"], [experiment.load(name) for name in ("copy", "influence")]
    drawn = [markdown.write(some, "smoke", tmp_path / "results", page) for page in pages]
    for one, two in zip(*drawn, strict=True):  # the same results give the same files
        assert one.relative_to(pages[0]) == two.relative_to(pages[1])
        assert one.read_bytes() == two.read_bytes()


def assert_whole(one, folder):
    found = results.read(results.path_of(folder / "results", f"{one.name}-smoke"))
    assert results.asked(one.study("smoke"), found)[1] == []
    assert {r.status for r in found.values()} == {"finished"}


def test_a_sweep_that_is_killed_goes_on(tmp_path):
    killed = program(tmp_path, "reproduce", "rewiring", "--size", "smoke")
    runs = tmp_path / "runs/reproduce"
    while not any(runs.rglob("checkpoints")):  # something is being trained
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.1)
    begun = {path: path.stat().st_ino for path in runs.rglob("config.toml")}
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    whole = program(tmp_path, "reproduce", "rewiring", "--size", "smoke")
    _, err = whole.communicate(timeout=900)
    assert whole.returncode == 0, err
    assert_whole(experiment.load("rewiring"), tmp_path)
    assert begun  # what was begun is gone on with
    assert {path: path.stat().st_ino for path in begun} == begun


def test_what_a_dead_worker_holds_is_waited_for(tmp_path):
    with disk.locked(tmp_path / "lock", "held"):
        begun = time.monotonic()
        worker.await_release(tmp_path, patience=0.5)
        assert time.monotonic() - begun >= 0.5  # somebody else is training it: the run itself refuses
        waiting = threading.Thread(target=worker.await_release, args=(tmp_path,))
        waiting.start()
        waiting.join(timeout=0.5)
        assert waiting.is_alive()
    waiting.join(timeout=60)
    assert not waiting.is_alive()


def test_a_second_sweep_of_the_same_results_is_refused(tmp_path):
    sweep = runner.Sweep([tiny(learning_rate=[1e-3]).study("smoke")], tmp_path / "results", tmp_path / "runs")

    class Meanwhile(Silent):
        def show(self, waiting, later, running):
            with pytest.raises(ValueError, match=r"another process is carrying out x-smoke in .*results"):
                runner.carry_out(sweep, Recorded({}), Silent())

    assert runner.carry_out(sweep, Recorded({}), Meanwhile()) == []
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [".x-smoke.lock", "x-smoke.jsonl"]
    assert runner.carry_out(sweep, Recorded({}), Silent()) == []


def test_the_time_left_counts_what_is_trained_here(monkeypatch):
    """A run that was at 90 % when it was resumed tells nothing of the speed with that; seeds to come count."""
    clock = [0.0]
    monkeypatch.setattr(view.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(view.estimate, "seconds", lambda options: 100.0)
    runs = results.missing(tiny(learning_rate=[1e-3]).study("smoke"), {})
    record = {"tokens": 90, "tokens_per_second": 1.0}
    job = SimpleNamespace(directory=Path("one"), record=lambda: record)
    study = SimpleNamespace(name="x")
    shown = view.View(4, 0)
    shown._progress.disable = False
    with shown:
        shown.show([(study, run) for run in runs], 200.0, [(job, study, runs[0])])
        clock[0], record["tokens"] = 10.0, 95  # 5 of 100 estimated seconds in 10 of the clock
        shown.show([(study, run) for run in runs], 200.0, [(job, study, runs[0])])
        (whole,) = (task for task in shown._progress.tasks if task.description == "4 runs")
        assert whole.fields["now"] == "about 10 min left"  # 5 + 100 + 200 estimated seconds, at half of their speed
        clock[0] = 20.0
        shown.ended(study, runs[0], result(runs[0], 3))
        shown.show([(study, runs[1])], 200.0, [])
        assert whole.fields["now"] == "about 10 min left"  # 300, at 10 in 20


def test_two_runs_get_cores_of_their_own(monkeypatch):
    monkeypatch.setattr(local.machine, "cores", lambda: [0, 1, 2, 3])
    codes = {}

    def started(directory, options, cores):
        return SimpleNamespace(cores=cores, code=lambda: codes.get(directory))

    monkeypatch.setattr(local, "RunProcess", started)
    executor = local.LocalExecutor(2)
    for name in ("one", "two"):
        executor.start(name, None)
    assert [job.cores for job in executor.running] == [(0, 2), (1, 3)]
    codes["one"] = 0
    assert [job.cores for job in executor.ended()] == [(0, 2)]
    executor.start("three", None)
    assert [job.cores for job in executor.running] == [(1, 3), (0, 2)]


def test_a_run_that_diverged_has_a_result_too(tmp_path):
    study = tiny(learning_rate=[1e-3], seeds=1).study("smoke")
    sweep = runner.Sweep([study], tmp_path, tmp_path / "runs")
    assert runner.carry_out(sweep, Recorded({"bptt": [1]}), Silent()) == []  # as the exit code of a run says it
    assert len(results.read(results.path_of(tmp_path, "x-smoke"))) == 2


def test_the_best_of_a_choice_has_the_fewest_bits():
    (choice,) = tiny(methods=["BPTT"]).choices("smoke")
    bits = dict(zip((series.runs[0].identity for series in choice.series), (2.0, 1.5, 3.0), strict=True))
    found = {key: Result("chars", {}, "finished", {"valid_bits": value}, {}, {}) for key, value in bits.items()}
    assert dict(results.best(choice, found, "valid_bits").axes) == {"learning_rate": 1e-2}


def test_validations_are_kept_between_other_records():
    records = [{"tokens": n, "seconds": float(n), "bits": 1.0} for n in range(1, 1001)]
    for n in (123, 777):
        records[n - 1]["valid_bits"] = 2.0
    curve = results._thinned(records)
    assert [t for t, v in zip(curve["tokens"], curve["valid_bits"], strict=True) if v is not None] == [123, 777]
    assert len(curve["tokens"]) == results.POINTS + 2
    assert (curve["tokens"][0], curve["tokens"][-1]) == (1, 1000)


def test_a_curve_is_thinned_and_keeps_its_end():
    records = [{"tokens": 10 * n, "seconds": n / 3, "bits": 1 / n, "level": n // 50} for n in range(1, 1000)]
    curve = results._thinned(records)
    assert results.POINTS <= len(curve["tokens"]) <= results.POINTS + 19
    assert (curve["tokens"][0], curve["tokens"][-1]) == (10, 9990)
    assert curve["tokens"][curve["level"].index(7)] == 3500  # the moment it grew, not the next one that is kept
    assert curve["level"][-1] == 19
    between = [1 / n for n in range(1, 1000) if curve["tokens"][3] < 10 * n <= curve["tokens"][4]]
    assert curve["bits"][4] == pytest.approx(np.mean(between), rel=1e-4)
    json.dumps(curve)


def test_speed_is_that_of_the_time_in_which_a_run_was_not_halted():
    curve = {"tokens": [100, 200, 300, 400], "seconds": [10.0, 20.0, 1020.0, 1030.0]}
    assert Result("copy", {}, "finished", {}, curve, {}).tokens_per_second == 10


def test_what_does_not_change_learning_does_not_make_another_run():
    plain = CopyOptions()
    same = dataclasses.replace(plain, log_every=3, checkpoint_every=1.0)
    other = dataclasses.replace(plain, units=3)
    keys = [identity(dataclasses.asdict(options), options) for options in (plain, same, other)]
    assert keys[0] == keys[1] != keys[2]


class Stopping(Recorded):
    """Its jobs go on until they are stopped."""

    def ended(self):
        done, self.running = [job for job in self.running if job.exit_code is not None], []
        return done

    def stop(self):
        self.stopped = True


def test_a_sweep_is_stopped_whole(tmp_path):
    """By Ctrl-C, and by an error of its own: runs are stopped before it ends, and it says how to go on."""
    study = tiny(learning_rate=[1e-3]).study("smoke")

    class Asked(Silent):
        def show(self, waiting, later, running):
            os.kill(os.getpid(), signal.SIGINT)

    executor = Stopping({"bptt": [143], "snap": [143]})
    with pytest.raises(Interrupted, match="to go on, start it again in the same way"):
        runner.carry_out(runner.Sweep([study], tmp_path, tmp_path / "runs"), executor, Asked())
    assert executor.stopped
    assert not results.read(results.path_of(tmp_path, "x-smoke"))

    class Full(Silent):
        def ended(self, experiment, run, result):
            raise OSError("the disk is full")

    executor = Stopping({})
    with pytest.raises(OSError, match="the disk is full"):
        runner.carry_out(runner.Sweep([study], tmp_path, tmp_path / "runs"), executor, Full())
    assert executor.stopped


def test_seconds_of_two_machines_are_not_mixed(tmp_path):
    """Neither in the results nor in a run that was begun elsewhere; nothing is lost, and what is whole stays."""
    one = tiny(learning_rate=[1e-3])
    alone = Experiment("z", {**one.content, "smoke": {**one.content["smoke"], "alone": True}})
    study, here = alone.study("smoke"), machine.describe()
    runs = [run for choice in study.choices for run in choice.series[0].runs]
    of = lambda run, about: dataclasses.replace(result(run, 4), about=about)  # noqa: E731
    path = results.path_of(tmp_path, study.name)
    sweep = runner.Sweep([study], tmp_path, tmp_path / "runs")
    results.write(path, [of(run, {"processor": "another"}) for run in runs])
    sweep.refuse_other_machines()  # there is nothing left to be measured
    results.write(path, [of(runs[0], {**here, "cores": 64}), *(of(run, here) for run in runs[1:-1])])
    with pytest.raises(
        ValueError, match=r"z-smoke compares by its seconds must be of one machine, got .*cores 64.* in .*z-smoke"
    ):
        sweep.refuse_other_machines()
    assert len(results.read(path)) == 5
    results.write(path, [of(run, here) for run in runs[:-1]])
    sweep.refuse_other_machines()
    begun = RunDirectory.create(sweep.directory(study, runs[-1]), runs[-1].options, data="")
    sweep.refuse_other_machines()
    (begun.path / "about.json").write_text(json.dumps({**begun.about(), "processor": "another"}))
    with pytest.raises(ValueError, match=r"got processor another, .* in .*seed-2 and .* here"):
        sweep.refuse_other_machines()


def test_a_run_that_is_being_trained_is_not_begun_by_another_study(tmp_path):
    """A choice may give it to a study whose claims hang on it while it is trained for one that only asks for it."""
    one = tiny(learning_rate=[1e-3])
    run = results.missing(one.study("smoke"), {})[0]
    studies = [Experiment(name, one.content).study("smoke") for name in ("x", "y")]
    sweep = runner.Sweep(studies, tmp_path, tmp_path / "runs")
    active = {sweep.directory(studies[0], run): (studies[0], run)}
    assert runner._first([(studies[1], run)], sweep, active, {}) is None
    assert runner._first([(studies[1], run)], sweep, {}, {}) == (studies[1], run)


WHOLE = json.loads(json.dumps(dataclasses.asdict(result(results.missing(tiny().study("smoke"), {})[0], 4))))


@pytest.mark.parametrize(
    "line",
    [
        '{"task": "knitting"}', "[1]", '{"a": null}', "\xff", json.dumps({**WHOLE, "options": None}),
        json.dumps({**WHOLE, "task": "knitting"}), json.dumps({**WHOLE, "status": "gone"}),
        json.dumps({**WHOLE, "final": {}}),
        json.dumps({**WHOLE, "curve": {**WHOLE["curve"], "level": [1, "x"]}}),
        json.dumps({**WHOLE, "curve": {**WHOLE["curve"], "level": [1]}}),
        json.dumps({**WHOLE, "final": {**WHOLE["final"], "level": "x"}}),
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused_by_its_line(tmp_path, line):
    path = results.path_of(tmp_path, "x-smoke")
    path.write_bytes(line.encode("latin-1"))
    with pytest.raises(ValueError, match=r"line 1 of .*x-smoke\.jsonl must be a result"):
        results.read(path)


def test_two_results_of_one_run_are_refused(tmp_path):
    path = results.path_of(tmp_path, "x-smoke")
    path.write_text(f"{json.dumps(WHOLE)}\n\n{json.dumps({**WHOLE, 'status': 'diverged'})}\n")
    with pytest.raises(ValueError, match=r"line 3 of .*x-smoke\.jsonl must be of another run than those before it"):
        results.read(path)


def test_files_of_somebody_else_are_left_alone_and_damaged_ones_are_not(tmp_path):
    study = tiny(learning_rate=[1e-3]).study("smoke")
    sweep = runner.Sweep([study], tmp_path, tmp_path / "runs")
    other = tmp_path / "other.jsonl"
    for text in ("a diary\n", "", '{"price": 3}\n'):
        other.write_text(text)
        assert len(sweep.missing()) == 2
    other.write_text(json.dumps(WHOLE) + "\n{")
    with pytest.raises(ValueError, match=r"line 2 of .*other\.jsonl must be a result"):
        sweep.missing()
