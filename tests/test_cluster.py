"""A folder of configs, on this machine and on a Ray cluster of two workers: one of them killed, the sweep stopped."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from programs import answer
from test_sweep import program

from snapgrad.runs.directory import RunDirectory
from snapgrad.sweep import cluster, folder, local, process
from snapgrad.sweep.local import LocalExecutor
from snapgrad.sweep.runner import Sweep, carry_out
from snapgrad.sweep.view import View

# Nothing to choose, and one program for all seeds: nearly all of the time is Python starting.
TINY = 'task = "copy"\ncell = "vanilla"\nunits = 8\nsparsity = 0\nalgorithm = "frozen"\nbatch = 4\nlog_every = 1000\n'
LONG = 60_000  # tokens of the run whose worker is killed
FEW = 3


def write_configs(tmp_path, runs):
    (tmp_path / "configs").mkdir()
    for seed in range(runs):
        tokens = LONG if seed == 0 else 2000
        text = f"{TINY}tokens = {tokens}\nseed = {seed}\ncheckpoint_every = {0 if seed == 0 else 30}\n"
        (tmp_path / f"configs/run-{seed}.toml").write_text(text)
    return tmp_path / "configs"


@pytest.fixture
def configs(tmp_path):
    return write_configs(tmp_path, FEW)


def on_ray(configs):
    return program(configs.parent, "sweep", "configs", "--ray", "--jobs", "2", RAY_worker_niceness="0")


def is_in_the_middle(run):
    return any(int(path.stem) > 0 for path in run.glob("checkpoints/*.safetensors"))


def await_middle(sweep, run):
    while not is_in_the_middle(run):
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.05)


def processes():
    """The parent and the command of every process."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdecimal():
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                found[int(path.name)] = int(parent), (path / "cmdline").read_text().replace("\0", " ")
        except OSError:
            pass  # it has ended
    return found


def worker_of(sweep, run):
    """The worker of Ray that trains this run, below the process that the test has started."""
    found = processes()
    (training,) = (pid for pid, (_, words) in found.items() if "snapgrad.sweep.worker" in words and str(run) in words)
    worker = found[training][0]
    assert found[worker][1].startswith("ray::train")
    at = worker
    while at != sweep.pid:
        at = found[at][0]
    return worker


def finished(configs):
    lines = (configs.parent / "runs/configs.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert {one["status"] for one in found} == {"finished"}
    return sorted(one["options"]["seed"] for one in found)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
@pytest.mark.parametrize("runs", [FEW, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_a_sweep_on_ray_ends_complete_though_a_worker_is_killed(tmp_path, runs):
    configs = write_configs(tmp_path, runs)
    run = configs.parent / "runs/configs/run-0"
    sweep = on_ray(configs)
    await_middle(sweep, run)
    begun = (run / "config.toml").stat().st_ino
    os.kill(worker_of(sweep, run), signal.SIGKILL)
    out, err = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, err
    assert f"{runs} runs, {runs} can start now, on 1 node(s) of Ray with 2 cores" in err
    assert err.count("configs: run-0: the process that trained it was killed; it is started again") == 1
    assert f"{runs}/{runs}" in err
    assert out.splitlines()[-1] == "runs/configs.jsonl"  # Ray itself may say something of the worker
    assert finished(configs) == list(range(runs))
    assert (run / "config.toml").stat().st_ino == begun  # it was gone on with, and not begun anew
    assert [record["tokens"] for record in RunDirectory.open(run).metrics()] == list(range(1000, LONG + 1, 1000))
    assert all(path.is_dir() for path in run.parent.iterdir())  # nothing is left beside the runs


@pytest.mark.exhaustive
def test_ctrl_c_ends_a_sweep_on_ray_and_nothing_is_lost(configs):
    run = configs.parent / "runs/configs/run-0"
    stopped = on_ray(configs)
    await_middle(stopped, run)
    below = {pid for pid, (_, words) in processes().items() if str(configs.parent) in words}
    os.killpg(stopped.pid, signal.SIGINT)
    _, err = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, err
    assert err.splitlines()[-1] == "stopped; to go on, start it again in the same way"
    assert "failed" not in err
    assert not below & processes().keys()
    assert RunDirectory.open(run).checkpoint().totals.tokens == RunDirectory.open(run).metrics()[-1]["tokens"] < LONG
    again = on_ray(configs)
    _, err = again.communicate(timeout=600)
    assert again.returncode == 0, err
    assert finished(configs) == list(range(FEW))


class Quick:
    """A process that ends as the test says."""

    def __init__(self, codes=(), records=()):
        self.codes, self.records, self.terminated = [*codes], [*records], 0

    def code(self):
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    def record(self):
        return self.records.pop(0) if len(self.records) > 1 else self.records[0]

    def message(self):
        return "a word"

    def result(self):
        return "a result"

    def terminate(self):
        self.terminated += 1

    def wait(self): ...


def test_a_task_tells_every_record_once_and_then_how_it_ended(tmp_path, monkeypatch):
    one, two = {"tokens": 1}, {"tokens": 2}
    process = Quick([None, None, None, None, 0], [None, one, one, two])
    monkeypatch.setattr(cluster, "RunProcess", lambda *args, **threads: process)
    monkeypatch.setattr(cluster, "LOOK_EVERY", 0)
    assert [*cluster.train(tmp_path, None)] == [one, two, cluster.Ending(0, "a word", "a result")]
    process = Quick([-9], [None])
    assert [*cluster.train(tmp_path, None)] == [cluster.Ending(-9, "a word", None)]


def test_a_cancelled_task_stops_its_process(tmp_path, monkeypatch):
    process = Quick([None], [{"tokens": 1}])
    monkeypatch.setattr(cluster, "RunProcess", lambda *args, **threads: process)
    task = cluster.train(tmp_path, None)
    next(task)
    with pytest.raises(KeyboardInterrupt):
        task.throw(KeyboardInterrupt())
    assert process.terminated == 1


def test_a_folder_is_refused_by_the_file_that_is_wrong(configs):
    def refusal():
        done = answer("sweep", configs)
        assert done.code == 2
        return done.err.strip()

    path = configs / "run-1.toml"
    right, once = path.read_text(), "`folder` must name every run once"
    for text, words in {
        right.replace("units", "unit"): f"'unit' in {path} is not an option of `train copy`; did you mean 'units'?",
        right.replace('"copy"', "3"): f"`task` must be one of copy, chars, adding, mackey-glass in {path}, got 3",
        right.replace("units = 8", "units = 0"): f"{path}: `units` must be an integer >= 1, got 0",
        right.replace("seed = 1", "seed = 2"): f"{once}, got the same one in run-1.toml and run-2.toml",
    }.items():
        path.write_text(text)
        assert refusal() == f"error: {words}"
    for path in configs.iterdir():
        path.unlink()
    assert refusal().startswith("error: `folder` must have a TOML file for every run, got ")


@pytest.mark.parametrize("given", [["ray://10.0.0.1:10001"], ["a:1", "b:2"]])
def test_an_address_is_one_of_a_cluster(configs, given):
    done = answer("sweep", configs, "--ray", *given)
    assert done.code == 2
    words = "`ray` must be one address, HOST:PORT, or none for a new cluster here, got "
    assert done.err.strip() == f"error: {words}{' '.join(given)!r}"


def test_without_ray_the_extra_is_named(configs, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(configs.parent)
    done = answer("sweep", configs, "--ray")
    assert done.code == 2
    assert done.err.strip().startswith("error: this command needs the extra `ray` of snapgrad (")


@pytest.mark.parametrize("given", ["127.0.0.1:1", "127.0.0.1:99999", "nowhere"])
def test_a_cluster_must_be_there(given):
    with pytest.raises(ValueError, match=f"`ray` must be HOST:PORT of a cluster .*, got '{given}' "):
        cluster.RayExecutor(given)


def test_a_run_that_was_begun_with_other_options_is_not_resumed(configs, tmp_path):
    run = folder.study(configs).planned[1]
    directory = tmp_path / "runs/one"
    RunDirectory.create(directory, run.options, "")
    other = folder.study(configs).planned[2].options
    with pytest.raises(ValueError, match="must have the options that are asked for, got others in its config"):
        LocalExecutor(1).start(directory, other)
    (ending,) = cluster.train(directory, other)
    assert ending.code == 2
    assert "must have the options that are asked for" in ending.message


def test_a_config_beside_its_run_is_left_alone(tmp_path, monkeypatch):
    """As with `snapgrad sweep runs/configs`, where the runs go to that folder too."""
    configs = write_configs(tmp_path, 1)
    before = (configs / "run-0.toml").read_bytes()
    started = []
    monkeypatch.setattr(process.subprocess, "Popen", lambda words, **given: started.append(words) or Quick([0]))
    monkeypatch.setattr(Quick, "poll", Quick.code, raising=False)
    one = process.RunProcess(configs / "run-0", folder.study(configs).planned[0].options, [0])
    given = Path(started[0][started[0].index("--config") + 1])
    assert given.read_text().startswith("task")
    assert one.code() == 0
    assert (configs / "run-0.toml").read_bytes() == before
    assert not given.exists()


def test_a_process_that_ends_before_its_run_begins_fails_alone(tmp_path, monkeypatch):
    class Broken(Quick):
        def __init__(self, directory, *rest, **threads):
            super().__init__([1], [None])
            self.directory, self.cores = directory, (0,)

        def result(self):
            raise ValueError("must have ended")

    monkeypatch.setattr(local, "RunProcess", Broken)
    study = folder.study(write_configs(tmp_path, 2))
    with View(2, 0) as view:
        failed = carry_out(Sweep([study], tmp_path / "results", tmp_path / "runs"), LocalExecutor(1), view)
    assert failed == ["configs, run-0: a word", "configs, run-1: a word"]
