"""The code in the README runs as it stands there, in a fresh process with JAX's own defaults."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from snapgrad.reproduction import markdown
from snapgrad.sweep import experiment

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_code_blocks_run_and_the_network_learns():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    first, last = (float(number) for number in re.findall(r"\d+\.\d+", done.stdout))
    assert first > 0.5
    assert last < 0.1


def test_the_results_that_are_shown_are_those_in_the_files(tmp_path):
    """After a change of results/: `snapgrad reproduce all --draw`."""
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    experiments = [experiment.load(name) for name in experiment.names()]
    written = markdown.write(experiments, "small", ROOT / "results", tmp_path / "docs")
    assert tmp_path / "README.md" in written
    for name in ("README.md", "docs/results.md"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8")
    drawn = {path.name for path in written if path.suffix == ".svg"}
    assert drawn == {path.name for path in (ROOT / "docs" / "results").iterdir()}


def test_the_cells_in_the_docs_run_and_their_jacobians_are_as_dense_as_is_said():
    text = (ROOT / "docs" / "cells.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    done = subprocess.run([sys.executable, "-c", blocks], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (?:cudnn|original).*\|$", done.stdout, re.MULTILINE)
    assert len(rows) == 4
    assert rows == re.findall(r"^\| (?:cudnn|original).*\|$", text, re.MULTILINE)


def test_the_examples_of_the_trainer_run_and_learn():
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    done = subprocess.run([sys.executable, "-c", blocks], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    levels = [int(level) for level in re.findall(r"L = (\d+), \d\.\d\d bits", done.stdout)]
    assert levels[0] >= 3
    assert levels == sorted(levels)
    assert float(re.findall(r"(\d\.\d\d) bits", done.stdout)[-1]) < 0.1
