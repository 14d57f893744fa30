"""`snapgrad generate`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import tyro

from snapgrad.generate import check_sampling, generate
from snapgrad.runs.build import seed_in_range
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.loading import load_run
from snapgrad.runs.options import CharsOptions


@dataclass(frozen=True)
class Generate:
    """Let the network of a character run, as its newest checkpoint has it, go on with a text."""

    run_directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """The directory of a run of `train chars`."""

    prompt: str = "\n"
    """The text that it goes on with."""

    length: int = 500
    """Bytes to generate."""

    temperature: float = 1.0
    """Below 1, likely bytes become likelier; at 0 the likeliest is taken."""

    seed: int = 0
    """Another seed draws another text."""

    json: bool = False
    """Print prompt and text as JSON."""

    def run(self) -> None:
        """Loads the network and prints the prompt with what it says."""
        prompt = self.prompt.encode(errors="surrogateescape")  # a command line may hold bytes that are not UTF-8
        if not prompt:
            raise ValueError("`prompt` must have at least one byte, got none")
        check_sampling(self.length, self.temperature)
        seed_in_range(self.seed)
        options = RunDirectory.open(self.run_directory).options()
        if not isinstance(options, CharsOptions):
            raise ValueError(f"`run` must be a run of `train chars`, got one of `train {options.task}`")
        cell, readout, params, *_ = load_run(self.run_directory)
        said = generate(cell, readout, params, prompt, self.length, jax.random.key(self.seed), self.temperature)
        assert isinstance(said, bytes)  # as the prompt is
        text = said.decode(errors="replace")
        if self.json:
            print(json.dumps({"prompt": prompt.decode(errors="replace"), "text": text}))
        else:
            print(prompt.decode(errors="replace") + text)
