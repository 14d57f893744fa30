"""Runs whose patterns change: stopped and resumed to the same bits, reported, and what their options refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from programs import as_in_a_program

from snapgrad.report import collect, page
from snapgrad.runs import toml, wiring
from snapgrad.runs.build import build
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.label import directory_name, label
from snapgrad.runs.options import CopyOptions
from snapgrad.runs.resolve import resolved
from snapgrad.runs.training import run_training

OPTIONS = CopyOptions(units=6, batch=2, tokens=400, log_every=70, checkpoint_every=0.0)
KINDS = {
    "probe": replace(OPTIONS, rewire="probe", rewire_every=20),
    "pruned": replace(OPTIONS, sparsity=0.0, algorithm="bptt", update_every=3, prune=0.9, prune_every=10, prune_end=40),
}


class Killed(Exception):
    pass


def kill(record):
    if record["tokens"] > 200:
        raise Killed


def without_times(records):
    return [{name: v for name, v in r.items() if name not in ("seconds", "tokens_per_second")} for r in records]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_from_its_patterns(kind, tmp_path):
    options = resolved(KINDS[kind])
    with as_in_a_program():
        shared = build(options)
        whole, killed = (RunDirectory.create(tmp_path / name, options, shared.data) for name in ("whole", "killed"))
        run_training(whole, lambda record: None, shared)
        with pytest.raises(Killed):
            run_training(killed, kill, shared)
        run_training(killed, lambda record: None)  # built anew, as in another process
    assert without_times(whole.metrics()) == without_times(killed.metrics())
    left, right = whole.checkpoint(), killed.checkpoint()
    assert left.layout == right.layout
    assert left.leaves.keys() == right.leaves.keys()
    for name, leaf in left.leaves.items():
        np.testing.assert_array_equal(leaf, right.leaves[name])

    records = whole.metrics()
    assert sum(record["churn"] for record in records) > 0.5
    if kind == "pruned":
        assert records[-1]["density"] == pytest.approx((3 * round(0.1 * 36) + 6 * 3 * 4) / (3 * 36 + 6 * 3 * 4))
        assert records[-1]["churn"] == 0.0
    else:
        assert len({record["density"] for record in records}) == 1
    changed = left.carry(shared.start()).params.cell.recurrent.pattern
    assert changed != shared.params.cell.recurrent.pattern

    page.write(collect.collect([tmp_path]), tmp_path / "report")
    assert (tmp_path / "report" / "density.svg").is_file()
    assert (tmp_path / "report" / "churn.svg").is_file()


def test_options_are_resolved_and_named():
    given = resolved(replace(OPTIONS, rewire="set"))
    assert (given.rewire_every, given.rewire_share, given.rewire_end) == (1000, 0.3, None)
    assert toml.plain(given)["rewire"] == "set"
    assert label(given) == "SnAp-2, every step, SET"
    assert directory_name(given) == "copy-gru6-snap-2-1-set-seed0"
    given = resolved(KINDS["pruned"])
    assert label(given) == "Truncated BPTT, T = 3, pruned to 90 %"
    assert directory_name(given) == "copy-gru6-bptt-3-pruned-seed0"
    assert resolved(OPTIONS).rewire_every is None
    assert label(OPTIONS) == "SnAp-2, every step"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewire_every": 5}, "`rewire_every` must not be given without `rewire`, got 5"),
        ({"prune_end": 5}, "`prune_end` must not be given without `prune`, got 5"),
        ({"rewire": "set", "prune": 0.9}, "`prune` must not be given with `rewire`, got 0.9 and 'set'"),
        ({"prune": 0.9}, "`prune_end` must be given with `prune`, got nothing"),
        ({"prune": 0.5, "prune_end": 1000}, "`prune` must be larger than `sparsity`, 0.75, which the run begins with"),
        ({"prune": 1.5, "prune_end": 1000}, r"`prune` must be a number in \[0, 1\), got 1.5"),
        ({"prune": 0.9, "prune_end": 1500}, "`prune_end` must be a multiple of `prune_every`, 1000 updates"),
        ({"rewire": "set", "rewire_share": 0.0}, r"`rewire_share` must be a number in \(0, 1\], got 0.0"),
        ({"prune": 0.9, "prune_end": 1000, "prune_every": 0}, "`prune_every` must be an integer >= 1, got 0"),
        ({"rewire": "set", "rewire_every": 0}, "`rewire_every` must be an integer >= 1, got 0"),
    ],
)
def test_what_the_options_refuse(changes, message):
    with pytest.raises(ValueError, match=message):
        wiring.rule(replace(OPTIONS, **changes))
