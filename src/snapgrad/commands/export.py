"""`snapgrad export`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from snapgrad.cells.unit import UnitCell
from snapgrad.files import write_arrays
from snapgrad.persistence import save
from snapgrad.pytorch import to_torch
from snapgrad.runs.loading import load_run


@dataclass(frozen=True)
class Export:
    """Write the weights of a run, as its newest checkpoint has them, to a safetensors file for `sg.load` or PyTorch."""

    run_directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """The run's directory."""

    out: Path | None = None
    """The file to write; by default params.safetensors (with --torch, torch.safetensors) in the run's directory."""

    torch: bool = False
    """Dense weights in PyTorch's names and layout, for torch.nn.RNN, GRU or LSTM; sparsity patterns are left out."""

    json: bool = False
    """Print the file's name as JSON."""

    def run(self) -> None:
        """Reads the checkpoint and writes the file."""
        out = self.out or self.run_directory / ("torch.safetensors" if self.torch else "params.safetensors")
        if out.suffix != ".safetensors":
            raise ValueError(f"`out` must end in .safetensors, got {str(out)!r}")
        loaded = load_run(self.run_directory)
        if self.torch:
            if not isinstance(loaded.cell, UnitCell):
                raise ValueError("`torch` must be left out for a run of several layers, got --torch")
            write_arrays(out, to_torch(loaded.cell, loaded.params), {})
        else:
            save(out, loaded.params)
        if self.json:
            print(json.dumps({"file": str(out.resolve()), "tokens": loaded.tokens}))
        else:
            print(f"weights after {loaded.tokens:,} tokens: {out.resolve()}")
