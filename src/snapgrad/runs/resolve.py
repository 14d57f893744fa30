"""Options as a run keeps them: nothing in them depends on defaults or on where the program was started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from snapgrad.algorithms.registry import default, takes
from snapgrad.optimisers import parse
from snapgrad.runs import wiring
from snapgrad.runs.build import CROP
from snapgrad.runs.options import CharsOptions, Options
from snapgrad.tasks.corpora import NAMED


def resolved(options: Options) -> Options:
    """With the algorithm's own defaults written out, and paths that mean the same wherever the run is resumed."""
    own = {
        name: default(options.algorithm, name)
        for name in ("decay", "rank")
        if takes(options.algorithm, name) and getattr(options, name) is None
    }
    if takes(options.algorithm, "order"):
        own["order"] = options.snap_order
    own |= wiring.resolved(options)
    options = replace(options, optimiser=str(parse(options.optimiser)), **own)
    if not isinstance(options, CharsOptions):
        return options
    corpus, data_dir = Path(options.corpus).expanduser(), options.data_dir
    return replace(
        options,
        corpus=str(corpus.resolve()) if corpus.exists() and options.corpus not in NAMED else options.corpus,
        data_dir=None if data_dir is None else data_dir.expanduser().resolve(),
        length=CROP if options.length is None and not options.continuous else options.length,
    )
