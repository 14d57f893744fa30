"""The examples run, at a small size, and write their tables and figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(("name", "tables"), [("recall", 1), ("forecasting", 2), ("text", 1)])
def test_an_example_runs(name, tables, tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--small", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{name}.svg").read_text().count("<svg") == 1
    found = list(tmp_path.glob(f"{name}*.md"))
    assert len(found) >= tables
    for table in found:
        header, rule, *rows = table.read_text().splitlines()
        assert rule.count("---:") == header.count("|") - 2
        assert len(rows) >= 3
        assert "nan" not in table.read_text()
