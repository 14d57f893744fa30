"""Experiments: what they expand to, what is left to do, who wins; and a sweep through the command line, killed too."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from programs import answer, as_in_a_program

from snapgrad.commands.reproduce import Reproduce
from snapgrad.reproduction import claims, markdown, tables
from snapgrad.reproduction.measured import Measured, measure
from snapgrad.runs.options import CopyOptions
from snapgrad.sweep import experiment, local, process, results, runner
from snapgrad.sweep.experiment import SIZES, Claim, Experiment
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


def tiny(networks=None, methods=("BPTT", "SnAp-1"), **size) -> Experiment:
    """Two methods on one network, three learning rates to choose from, three seeds."""
    return Experiment(
        "x",
        {
            "title": "A title",
            "source": "nowhere",
            "task": "copy",
            "networks": networks or {"one": {"units": 8}},
            "methods": {
                "BPTT": {"algorithm": "bptt", "update_every": "sequence"},
                "SnAp-1": {"algorithm": "snap", "order": 1},
            },
            "smoke": {
                "seeds": 3,
                "tokens": 100,
                "scaled": "small",
                "runs": [
                    {
                        "networks": ["one"] if networks is None else list(networks),
                        "methods": list(methods),
                        "select": "learning_rate",
                        "learning_rate": [1e-3, 1e-2, 1e-4],
                        **size,
                    }
                ],
            },
        },
    )


def result(run, level, status="finished", bits=1.0) -> Result:
    options = {name: value for name, value in dataclasses.asdict(run.options).items() if value is not None}
    final = {"tokens": 100, "updates": 7, "seconds": 2.0, "level": level, "bits": bits}
    curve = {"tokens": [50, 100], "seconds": [1.0, 2.0], "level": [1, level], "bits": [None, bits]}
    return Result("copy", options, status, final, curve, {"processor": "a machine", "instructions": "avx2"})


def test_other_seeds_wait_for_the_choice():
    one, found = tiny(), {}
    first = results.missing(one.study("smoke"), found)
    assert [(run.method, run.options.learning_rate, run.options.seed) for run in first] == [
        (method, rate, 0) for method in ("BPTT", "SnAp-1") for rate in (1e-3, 1e-2, 1e-4)
    ]
    assert results.expected(one.study("smoke")) == 2 * (3 + 2)
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
    assert len(found) == results.expected(one.study("smoke"))


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


@pytest.mark.parametrize(
    ("ours", "theirs", "or_equal", "verdict"),
    [
        ([9, 10, 11], [5, 6, 7], False, "reproduced"),
        ([9, 10, 11], [9, 9, 10], False, "not reproduced"),  # ahead, but not beyond the spread
        ([9, 10, 11], [10, 10, 11], True, "reproduced"),
        ([9, 9, 9], [10, 10, 10], True, "not reproduced"),
    ],
)
def test_verdicts(ours, theirs, or_equal, verdict):
    one, found = tiny(learning_rate=[1e-3]), {}
    for choice, ends in zip(one.choices("smoke"), (theirs, ours), strict=True):
        for run, level in zip(choice.series[0].runs, ends, strict=True):
            found[run.identity] = result(run, level)
    claim = Claim("It is said.", ("SnAp-1",), ("BPTT",), or_equal=or_equal)
    planned = [("one", "BPTT"), ("one", "SnAp-1")]
    measured = measure(one, "smoke", found)
    assert claims.judge(claim, measured, planned, "level").verdict == verdict
    planned += [("two", "BPTT"), ("two", "SnAp-1")]
    finding = claims.judge(claim, measured, planned, "level")
    assert finding.verdict == f"{verdict}, so far"
    assert finding.evidence == f"{int(verdict == 'reproduced')} of 1 comparisons hold, 3 seeds, 1 still to be made"
    assert claims.judge(claim, [], planned, "level").verdict == "not yet measured"
    asked = dataclasses.replace(claim, question=True)
    answer = {"reproduced": "yes", "not reproduced": "no"}[verdict]
    assert claims.judge(asked, measured, planned[:2], "level").verdict == answer


PLANNED = [("one", "A"), ("one", "B")]


def test_fewer_bits_are_better_and_what_diverged_is_worst():
    def measured(method, *bits):
        runs = tuple(
            Result("chars", {"tokens": 9}, "finished" if b else "diverged", {"valid_bits": b} if b else {}, {}, {})
            for b in bits
        )
        return Measured("one", method, {}, runs, len(runs))

    claim = Claim("It is said.", ("A",), ("B",))
    both = [measured("A", 1.0, 1.1), measured("B", 2.0, 2.1)]
    assert claims.judge(claim, both, PLANNED, "valid_bits").verdict == "reproduced"
    assert claims.judge(claim, [both[0], measured("B", 2.0, None)], PLANNED, "valid_bits").verdict == "reproduced"
    assert claims.judge(claim, [measured("A", None, 1.0), both[1]], PLANNED, "valid_bits").verdict == "not reproduced"
    by_plan = claims.judge(claim, [both[0], measured("B", 2.0)], PLANNED, "valid_bits")
    assert (by_plan.verdict, by_plan.evidence) == ("reproduced", "1 of 1 comparisons hold, 1 to 2 seeds")
    begun = [dataclasses.replace(one, wanted=3) for one in (measured("A", 1.0), measured("B", 2.0))]
    finding = claims.judge(claim, begun, PLANNED, "valid_bits")
    assert (finding.verdict, finding.evidence) == ("reproduced, so far", "1 of 1 comparisons hold, 1 seed")


def timed(method, seconds, levels, **axes):
    curve = {"tokens": [3, 6, 9], "seconds": seconds, "level": levels}
    final = {"tokens": 9, "updates": 3, "seconds": seconds[-1], "level": levels[-1]}
    return Measured("one", method, axes, (Result("copy", {"tokens": 9}, "finished", final, curve, {}),), 1)


def test_methods_are_compared_after_the_same_seconds():
    quick, slow = timed("A", [1.0, 2.0, 3.0], [2, 3, 4]), timed("B", [2.0, 4.0, 6.0], [3, 5, 7])
    claim = Claim("It is said.", ("A",), ("B",))
    assert not claims.judge(claim, [quick, slow], PLANNED, "level").comparisons[0].holds  # 4 against 7
    finding = claims.judge(dataclasses.replace(claim, after="seconds"), [quick, slow], PLANNED, "level")
    assert finding.comparisons[0].holds  # after 3 seconds: 4 against 3
    assert tables.comparisons(finding, "level").rows == [("one", "3", "A: 4", "B: 3", "yes")]
    unseen = timed("B", [4.0, 8.0, 12.0], [3, 5, 7])  # nothing is known of it after 3 seconds but how it began
    finding = claims.judge(dataclasses.replace(claim, after="seconds"), [quick, unseen], PLANNED, "level")
    assert tables.comparisons(finding, "level").rows == [("one", "3", "A: 4", "B: 1", "yes")]


def test_tables_of_ends_by_axis_and_by_the_clock():
    by_clock = tables.results(
        Experiment("wide", {"task": "copy", "figure": "seconds"}),
        [timed("BPTT", [2.0, 4.0, 6.0], [3, 5, 7]), timed("SnAp-1", [1.0, 2.0, 3.0], [2, 3, 5])],
    )[1]
    assert by_clock.rows == [("one: BPTT", "6", "1.00", "5", "4.0"), ("one: SnAp-1", "3", "0.50", "5", "3.0")]
    measured = [timed("A", [1.0, 2.0, 3.0], [2, 3, end], every=n, rate=0.1) for n, end in ((1, 5), ("sequence", 4))]
    measured.append(dataclasses.replace(timed("B", [1.0, 2.0, 3.0], [2, 3, 6], every=1, rate=0.1), wanted=2))
    content = {"task": "copy", "figure": "ends", "axes": ["every", "rate"]}
    (by_axis,) = tables.results(Experiment("staleness", content), measured)
    assert by_axis.columns == ("L reached by", "rate", "every 1", "every sequence")
    assert by_axis.rows == [("A", "0.1", "5", "4"), ("B", "0.1", "6 †", "")]


def test_runs_of_different_length_are_compared_where_both_have_been():
    def measured(method, tokens, *bits):
        curve = {"tokens": [3, 6, 9][: len(bits)], "seconds": [1.0] * len(bits), "valid_bits": list(bits)}
        run = Result("chars", {"tokens": tokens}, "finished", {"valid_bits": bits[-1]}, curve, {})
        return Measured("one", method, {}, (run,), 1)

    short, long = measured("A", 6, 3.0, 2.0), measured("B", 9, 4.0, 2.5, 1.0)
    finding = claims.judge(Claim("It is said.", ("A",), ("B",)), [short, long], PLANNED, "valid_bits")
    (comparison,) = finding.comparisons
    assert comparison.holds  # at 6 tokens: 2.0 against 2.5
    assert (comparison.amount, comparison.difference) == (6, 0.5)


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
    assert run.identity not in {planned.identity for _, planned in sweep.missing()}
    assert run.identity in results.read(results.path_of(tmp_path, "y-smoke"))
    alone = Experiment("z", {**two.content, "smoke": {**two.content["smoke"], "jobs": 1}})
    assert sweep.collected(alone.study("smoke")) == {}


class Silent:
    def show(self, waiting, running): ...
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
    assert len(found) == results.expected(one.study("smoke"))
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
    deadline = time.monotonic() + 60
    while any(_alive(name) for name in runs.rglob("lock")):  # its workers end with it
        assert time.monotonic() < deadline
        time.sleep(0.1)
    whole = program(tmp_path, "reproduce", "rewiring", "--size", "smoke")
    _, err = whole.communicate(timeout=900)
    assert whole.returncode == 0, err
    assert_whole(experiment.load("rewiring"), tmp_path)
    assert begun  # what was begun is gone on with
    assert {path: path.stat().st_ino for path in begun} == begun


def _alive(lock) -> bool:
    import fcntl

    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_a_curve_is_thinned_and_keeps_its_end():
    records = [{"tokens": 10 * n, "seconds": n / 3, "bits": 1 / n, "level": n // 50} for n in range(1, 1000)]
    curve = results._thinned(records)
    assert len(curve["tokens"]) == results.POINTS
    assert (curve["tokens"][0], curve["tokens"][-1]) == (10, 9990)
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
