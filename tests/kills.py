"""Kills a run with SIGKILL again and again, at random moments, and resumes it: it must end with the same bits.

    python tests/kills.py --kills 100

Every process is a fork of this one, which has everything imported but has not begun to use JAX, so that a life costs
little more than its training. Checkpoints come after every slice: most kills meet one being written.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import jax

from snapgrad import cli
from snapgrad.files import read_arrays
from snapgrad.runs.directory import RunDirectory

OPTIONS = shlex.split(
    "--units 4 --order 1 --batch 2 --tokens 1500 --log-every 10 --checkpoint-every 0 --backend reference"
)


def begin(*args: str | Path) -> int:
    """Runs the command in a process of its own; returns its id."""
    process = os.fork()
    if process == 0:
        code = 70
        try:
            sys.argv = ["snapgrad", *map(str, args)]
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  until the process ends
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 70
        finally:
            os._exit(code)
    return process


def records(path: Path) -> int:
    """Lines of metrics so far."""
    try:
        return (path / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def kill_at_random(process: int, path: Path, chance: random.Random) -> bool:
    """Kills a process a random moment after its first record (a tenth: before it); False if it ended by itself."""
    early, before = chance.random() < 0.1, records(path)
    while not early and records(path) <= before:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            assert status == 0, f"a process ended with status {status}"
            return False
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.2))
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert status in (0, signal.SIGKILL), f"a process ended with status {status}"
    return status == signal.SIGKILL


def result(path: Path) -> tuple[object, ...]:
    """What a run has come to: the content of its last checkpoint, and its records without times."""
    assert RunDirectory.open(path).outcome() is not None
    newest = max((path / "checkpoints").glob("*.safetensors"), key=lambda file: int(file.stem))
    arrays, metadata = read_arrays(newest)
    times = {"seconds", "tokens_per_second"}
    kept = [
        {name: v for name, v in record.items() if name not in times} for record in RunDirectory.open(path).metrics()
    ]
    del metadata["totals"]["seconds"]
    return {name: array.tobytes() for name, array in arrays.items()}, metadata, kept


def main() -> None:
    """Kills, resumes, compares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="snapgrad-kills-"))  # left behind if something is wrong
    jax.config.update("jax_compilation_cache_dir", str(out / "compiled"))  # only the first process compiles
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    chance, kills, runs, whole, path = random.Random(given.seed), 0, 0, out / "whole", out / "killed"
    _, status = os.waitpid(begin("train", "copy", *OPTIONS, "--out", whole), 0)
    assert status == 0, f"the run that nobody disturbs ended with status {status} in {whole}"
    while kills < given.kills:
        args: tuple[str | Path, ...] = ("train", "copy", *OPTIONS, "--out", path)
        while kills < given.kills and kill_at_random(begin(*args), path, chance):
            kills += 1
            if path.exists():
                args = "resume", path
        _, status = os.waitpid(begin(*args), 0)
        assert status == 0, f"the last resume ended with status {status} in {path}"
        assert result(path) == result(whole), f"the runs in {out} differ"
        runs += 1
        shutil.rmtree(path)
    shutil.rmtree(out)
    print(f"{kills} kills in {runs} runs: all ended with the same bits")


if __name__ == "__main__":
    main()
