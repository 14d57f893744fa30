"""Runs on a mesh, in one process and in two; one of them is killed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from conftest import QUICK
from programs import answer, assert_same_run, command

from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.processes import Devices, parse_mesh

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
