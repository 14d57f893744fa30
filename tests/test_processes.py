"""Runs on a mesh, in one process and in two; one of them is killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from conftest import QUICK
from programs import answer, as_in_a_program, assert_same_run, command

from snapgrad.runs import processes
from snapgrad.runs.build import build
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.follower import Follower
from snapgrad.runs.options import CopyOptions
from snapgrad.runs.processes import Devices, ProcessLost, others_watched, parse_mesh
from snapgrad.runs.training import run_training

OPTIONS = ["--units", "6", "--batch", "2", "--tokens", "1200", "--log-every", "40", "--checkpoint-every", "0"]
WAIT = 60  # seconds in which the others must have noticed


class Program(NamedTuple):
    process: subprocess.Popen
    log: Path

    def end(self, timeout):
        """Its exit code and what it said."""
        return self.process.wait(timeout), self.log.read_text()


def begin(log, *args):
    """The command in a process with one device, or as many as its mesh asks for."""
    environment = os.environ | {"XLA_FLAGS": QUICK}
    with open(log, "w") as said:
        return Program(subprocess.Popen(command(*args), env=environment, stdout=said, stderr=said), log)


def begin_both(folder, *args):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    rest = ("--mesh", "batch=2", "--coordinator", place, "--processes", 2, "--process-id")
    return [begin(folder / f"{args[0]}-{number}.log", *args, *rest, number) for number in (0, 1)]


def records(path):
    return (path / "metrics.jsonl").read_bytes().count(b"\n") if (path / "metrics.jsonl").exists() else 0


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_one_of_two_processes_is_killed_and_the_run_resumed(tmp_path, killed):
    both = begin_both(tmp_path, "train", "copy", *OPTIONS, "--out", tmp_path / "killed")
    try:
        while records(tmp_path / "killed") < 5:
            assert all(program.process.poll() is None for program in both), [p.log.read_text() for p in both]
            time.sleep(0.01)
        both[killed].process.kill()
        code, said = both[1 - killed].end(WAIT)
    finally:
        for program in both:
            program.process.kill()
            program.process.wait()
    assert code == 75, said
    assert "another process of the run has ended or cannot be reached" in said
    assert f"go on with: snapgrad resume {tmp_path / 'killed'}" in said
    assert "Traceback" not in said
    run = RunDirectory.open(tmp_path / "killed")
    assert run.outcome() is None
    assert 0 < run.checkpoint().totals.tokens < 1200

    for program in begin_both(tmp_path, "resume", tmp_path / "killed"):
        code, said = program.end(280)
        assert code == 0, said
    whole = begin(
        tmp_path / "whole.log", "train", "copy", *OPTIONS, "--out", tmp_path / "whole", "--mesh", "batch=2"
    )  # two devices, one process
    code, said = whole.end(280)
    assert code == 0, said
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.exhaustive
@pytest.mark.parametrize("stopped", [0, 1])
def test_one_of_two_processes_falls_silent(tmp_path, stopped):
    """SIGSTOP: all its connections stay open, as those of a machine that hangs."""
    options = [*OPTIONS, "--tokens", 10**8, "--out", tmp_path / "run"]
    both = begin_both(tmp_path, "train", "copy", *options)
    try:
        while records(tmp_path / "run") < 5:
            assert all(program.process.poll() is None for program in both), [p.log.read_text() for p in both]
            time.sleep(0.01)
        both[stopped].process.send_signal(signal.SIGSTOP)
        code, said = both[1 - stopped].end(WAIT)
        both[stopped].process.send_signal(signal.SIGCONT)
        woken, woken_said = both[stopped].end(WAIT)
    finally:
        for program in both:
            program.process.kill()
            program.process.wait()
    assert code == 75, said
    assert f"process {stopped} has been silent for 30 s" in said
    assert f"go on with: snapgrad resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    # Of the two that notice the others' end, Gloo and JAX's own watch, either may be first; JAX's aborts.
    assert woken in (75, -signal.SIGABRT), woken_said
    assert RunDirectory.open(tmp_path / "run").checkpoint().totals.tokens > 0


@pytest.fixture
def as_one_of_two(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "heartbeat", lambda lost: nullcontext())
    monkeypatch.setattr(processes, "wait_for_all", lambda: None)


LOST = [
    "UNKNOWN: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:41",
    "FAILED_PRECONDITION: Buffer Definition Event: Gloo all-reduce failed: Read error: Connection reset by peer",
    "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused",
    "DEADLINE_EXCEEDED: Barrier timed out. Id: snapgrad 3",
    "INTERNAL: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/task:1",
]


@pytest.mark.parametrize("message", LOST)
@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_errors_that_come_from_another_process(as_one_of_two, kind, message):
    sentence = "another process of the run has ended or cannot be reached"
    with pytest.raises(ProcessLost, match=sentence) as caught, others_watched("snapgrad resume here"):
        raise kind(message)
    assert message[:40] in str(caught.value)
    assert str(caught.value).endswith("go on with: snapgrad resume here")


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 68719476736 bytes."),
        ValueError("`corpus` must be the text that the run was begun with, got another one"),
        OSError("No space left on device"),
    ],
)
def test_errors_of_this_process_stay_what_they_are(as_one_of_two, error):
    with pytest.raises(type(error)) as caught, others_watched("snapgrad resume here"):
        raise error
    assert caught.value is error


def test_alone_no_error_comes_from_another_process():
    with pytest.raises(ValueError, match=r"^gloo$"), others_watched("snapgrad resume here"):
        raise ValueError("gloo")


def test_a_follower_takes_the_name_of_the_run_from_the_first(as_one_of_two, monkeypatch):
    def broadcast(own):
        assert len(own) == 4096
        return np.frombuffer("runs/über uns-2".encode().ljust(4096, b"\0"), np.uint8)

    monkeypatch.setattr(processes.multihost_utils, "broadcast_one_to_all", broadcast)
    assert processes.of_the_first(Path("runs/über uns")) == Path("runs/über uns-2")


RUN = CopyOptions(units=4, batch=2, algorithm="bptt", order=None, tokens=80, log_every=40, tensorboard=True)


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_first_writes_and_the_others_wait_for_it(tmp_path, monkeypatch, is_first):
    waited = []
    monkeypatch.setattr(processes, "is_first", lambda: is_first)
    with as_in_a_program():
        experiment = build(RUN)
        if is_first:
            run = RunDirectory.create(tmp_path / "run", RUN, experiment.data)
        else:
            run = Follower(tmp_path / "run", (RUN, experiment.data))

        def wait():
            saved = sorted(path.name for path in run.path.glob("checkpoints/*"))
            waited.append((saved, (run.path / "outcome.json").exists()))

        monkeypatch.setattr(processes, "await_the_first", wait)
        outcome = run_training(run, lambda record: None, experiment)
    assert outcome["status"] == "finished"
    if is_first:
        assert waited == [(["0.safetensors", "80.safetensors"], False)]  # the checkpoint is there by then
        assert list((run.path / "tensorboard").iterdir())
    else:
        assert waited == [([], False)]
        assert not run.path.exists()


def test_the_wait_is_an_exchange_with_all_processes(as_one_of_two, monkeypatch):
    sent = []

    def gather(own):
        sent.append(own.tolist())
        return np.stack([own, own])

    monkeypatch.setattr(processes.multihost_utils, "process_allgather", gather)
    processes.await_the_first()
    assert sent == [[0, 0]]


@pytest.mark.exhaustive  # tests/test_resharding.py has it without the command line
def test_a_run_goes_on_with_another_mesh(tmp_path):
    options = [
        "--units",
        "6",
        "--batch",
        "8",
        "--tokens",
        "400",
        "--log-every",
        "40",
        "--readout",
        "mlp",
        "--seed",
        "3",
    ]
    path = tmp_path / "moved"
    assert answer("train", "copy", *options, "--out", tmp_path / "plain").code == 0
    assert answer("train", "copy", *options, "--out", path, "--mesh", "batch=2,params=4").code == 0
    for where in (("--mesh", "params=8"), ()):
        for run in (tmp_path / "plain", path):
            config = (run / "config.toml").read_text()
            tokens = int(re.search(r"^tokens = (\d+)", config, re.M)[1])
            (run / "config.toml").write_text(config.replace(f"tokens = {tokens}", f"tokens = {tokens + 400}"))
            assert answer("resume", run, *(where if run == path else ())).code == 0
    plain, moved = (RunDirectory.open(run).checkpoint() for run in (tmp_path / "plain", path))
    assert plain.totals[:2] == moved.totals[:2]
    assert plain.layout == moved.layout
    for name, leaf in plain.leaves.items():
        np.testing.assert_allclose(np.float64(moved.leaves[name]), np.float64(leaf), rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("--mesh", "batch=2,model=4"),
            "`mesh` must be such as batch=2,params=4, with numbers >= 1, got 'batch=2,model=4'",
        ),
        (("--mesh", "batch=0"), "`mesh` must be such as batch=2,params=4, with numbers >= 1, got 'batch=0'"),
        (("--mesh", "batch=2,batch=4"), "`mesh` must be such as"),
        (("--mesh", "batch=2"), "`mesh` must have as many devices as there are, 8, got batch=2 with 2"),
        (("--mesh", "params=16"), "`mesh` must have as many devices as there are, 8, got params=16 with 16"),
        (("--mesh", "batch=8"), "`batch` must be a multiple of the 8 devices along `batch` of the mesh, got 12"),
        (("--mesh", "params=8", "--rewire", "set"), "`rewire` must be None for an algorithm on a mesh, got SET"),
        (("--processes", "2"), "`coordinator` must be given with `processes`, got nothing"),
        (
            ("--coordinator", "here:1", "--processes", "2", "--process-id", "0"),
            "`mesh` must be given with `coordinator`, such as batch=2, got nothing",
        ),
        (
            ("--mesh", "batch=8", "--coordinator", "here", "--processes", "2", "--process-id", "0"),
            "`coordinator` must be HOST:PORT, got 'here'",
        ),
        (
            ("--mesh", "batch=8", "--coordinator", "here:1", "--processes", "3", "--process-id", "0"),
            "`processes` must be a number >= 1 that divides the 8 devices of `mesh`, got 3",
        ),
        (
            ("--mesh", "batch=8", "--coordinator", "here:1", "--processes", "2", "--process-id", "2"),
            "`process_id` must be in [0, 2), got 2",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_in_one_sentence(tmp_path, given, said):
    refused = answer("train", "copy", "--units", "6", "--batch", "12", "--out", tmp_path / "run", *given)
    assert refused.code == 2
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_without_a_mesh_nothing_is_connected():
    assert Devices().connect() is None
    assert parse_mesh("params=4, batch=2") == {"params": 4, "batch": 2}
