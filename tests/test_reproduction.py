"""Verdicts, tables and the page: what results say, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest
from studies import result, tiny

from snapgrad.commands import reproduce
from snapgrad.commands.reproduce import Reproduce
from snapgrad.report import mean
from snapgrad.report.tables import Table
from snapgrad.reproduction import claims, costs, figures, growth, influence, markdown, measurements, readme, tables
from snapgrad.reproduction.measured import Measured, measure
from snapgrad.runs.training import Interrupted
from snapgrad.sweep import results
from snapgrad.sweep.experiment import Claim, Experiment
from snapgrad.sweep.results import Result


@pytest.mark.parametrize(
    ("ours", "theirs", "or_equal", "verdict"),
    [
        ([9, 10, 11], [5, 6, 7], False, "reproduced"),
        ([9, 10, 11], [9, 9, 10], False, "not reproduced"),  # ahead, but not beyond the spread
        ([9, 10, 11], [10, 10, 11], True, "reproduced"),
        ([9, 9, 9], [10, 10, 10], True, "not reproduced"),
    ],
)
def test_verdicts(ours, theirs, or_equal, verdict):
    one, found = tiny(learning_rate=[1e-3]), {}
    for choice, ends in zip(one.choices("smoke"), (theirs, ours), strict=True):
        for run, level in zip(choice.series[0].runs, ends, strict=True):
            found[run.identity] = result(run, level)
    claim = Claim("It is said.", ("SnAp-1",), ("BPTT",), or_equal=or_equal)
    planned = [("one", "BPTT"), ("one", "SnAp-1")]
    measured = measure(one, "smoke", found)
    assert claims.judge(claim, measured, planned, "level").verdict == verdict
    planned += [("two", "BPTT"), ("two", "SnAp-1")]
    finding = claims.judge(claim, measured, planned, "level")
    assert finding.verdict == f"{verdict}, so far"
    assert finding.evidence == f"{int(verdict == 'reproduced')} of 1 comparisons hold, 3 seeds, 1 still to be made"
    assert claims.judge(claim, [], planned, "level").verdict == "not yet measured"
    asked = dataclasses.replace(claim, question=True)
    answer = {"reproduced": "yes", "not reproduced": "no"}[verdict]
    assert claims.judge(asked, measured, planned[:2], "level").verdict == answer


PLANNED = [("one", "A"), ("one", "B")]


def test_fewer_bits_are_better_and_what_diverged_is_worst():
    def measured(method, *bits):
        runs = tuple(
            Result("chars", {"tokens": 9}, "finished" if b else "diverged", {"valid_bits": b} if b else {}, {}, {})
            for b in bits
        )
        return Measured("one", method, {}, runs, len(runs), True)

    claim = Claim("It is said.", ("A",), ("B",))
    both = [measured("A", 1.0, 1.1), measured("B", 2.0, 2.1)]
    assert claims.judge(claim, both, PLANNED, "valid_bits").verdict == "reproduced"
    assert claims.judge(claim, [both[0], measured("B", 2.0, None)], PLANNED, "valid_bits").verdict == "reproduced"
    assert claims.judge(claim, [measured("A", None, 1.0), both[1]], PLANNED, "valid_bits").verdict == "not reproduced"
    by_plan = claims.judge(claim, [both[0], measured("B", 2.0)], PLANNED, "valid_bits")
    assert (by_plan.verdict, by_plan.evidence) == ("reproduced", "1 of 1 comparisons hold, 1 to 2 seeds")
    begun = [dataclasses.replace(one, wanted=3, complete=False) for one in (measured("A", 1.0), measured("B", 2.0))]
    finding = claims.judge(claim, begun, PLANNED, "valid_bits")
    assert (finding.verdict, finding.evidence) == ("reproduced, so far", "1 of 1 comparisons hold, 1 seed")


def timed(method, seconds, levels, **axes):
    curve = {"tokens": [3, 6, 9], "seconds": seconds, "level": levels}
    final = {"tokens": 9, "updates": 3, "seconds": seconds[-1], "level": levels[-1]}
    return Measured("one", method, axes, (Result("copy", {"tokens": 9}, "finished", final, curve, {}),), 1, True)


def test_methods_are_compared_after_the_same_seconds():
    quick, slow = timed("A", [1.0, 2.0, 3.0], [2, 3, 4]), timed("B", [2.0, 4.0, 6.0], [3, 5, 7])
    claim = Claim("It is said.", ("A",), ("B",))
    assert not claims.judge(claim, [quick, slow], PLANNED, "level").comparisons[0].holds  # 4 against 7
    finding = claims.judge(dataclasses.replace(claim, after="seconds"), [quick, slow], PLANNED, "level")
    assert finding.comparisons[0].holds  # after 3 seconds: 4 against 3
    shown = tables.comparisons(finding, "level")
    assert shown.columns == ("network", "after seconds", "", "", "holds")
    assert shown.rows == [("one", "3.0", "A: 4", "B: 3", "yes")]
    unseen = timed("B", [4.0, 8.0, 12.0], [3, 5, 7])  # nothing is known of it after 3 seconds but how it began
    finding = claims.judge(dataclasses.replace(claim, after="seconds"), [quick, unseen], PLANNED, "level")
    assert tables.comparisons(finding, "level").rows == [("one", "3.0", "A: 4", "B: 1", "yes")]


def test_tables_of_ends_by_axis_and_by_the_clock():
    by_clock = tables.results(
        Experiment("wide", {"task": "copy", "figure": "seconds"}),
        [timed("BPTT", [2.0, 4.0, 6.0], [3, 5, 7]), timed("SnAp-1", [1.0, 2.0, 3.0], [2, 3, 5])],
    )[1]
    assert by_clock.rows == [("one: BPTT", "6", "1.00", "5", "4.0"), ("one: SnAp-1", "3", "0.50", "5", "3.0")]
    bptt, snap = (timed(method, [2.0, 4.0, 6.0], [3, 5, 7]) for method in ("BPTT", "SnAp-1"))
    gone = dataclasses.replace(snap.runs[0], status="diverged", final={"seconds": 1.0, "updates": 1})
    by_clock = tables.results(
        Experiment("wide", {"task": "copy", "figure": "seconds"}), [bptt, dataclasses.replace(snap, runs=(gone,))]
    )[1]
    assert by_clock.rows == [("one: SnAp-1", "diverged", "", "", ""), ("one: BPTT", "6", "1.00", "7", "6.0")]
    measured = [timed("A", [1.0, 2.0, 3.0], [2, 3, end], every=n, rate=0.1) for n, end in ((1, 5), ("sequence", 4))]
    measured.append(dataclasses.replace(timed("B", [1.0, 2.0, 3.0], [2, 3, 6], every=1, rate=0.1), complete=False))
    content = {"task": "copy", "figure": "ends", "axes": ["every", "rate"]}
    (by_axis,) = tables.results(Experiment("staleness", content), measured)
    assert by_axis.columns == ("L reached by", "rate", "every 1", "every sequence")
    assert by_axis.rows == [("A", "10^-1", "5", "4"), ("B", "10^-1", "6 †", "")]


def test_runs_of_different_length_are_compared_where_both_have_been():
    def measured(method, tokens, *bits):
        curve = {"tokens": [3, 6, 9][: len(bits)], "seconds": [1.0] * len(bits), "valid_bits": list(bits)}
        run = Result("chars", {"tokens": tokens}, "finished", {"valid_bits": bits[-1]}, curve, {})
        return Measured("one", method, {}, (run,), 1, True)

    short, long = measured("A", 6, 3.0, 2.0), measured("B", 9, 4.0, 2.5, 1.0)
    finding = claims.judge(Claim("It is said.", ("A",), ("B",)), [short, long], PLANNED, "valid_bits")
    (comparison,) = finding.comparisons
    assert comparison.holds  # at 6 tokens: 2.0 against 2.5
    assert comparison.amount == 6
    shown = tables.comparisons(finding, "valid_bits")
    assert shown.columns == ("network", "after tokens", "", "", "holds")
    assert shown.rows == [("one", "6", "A: 2.000", "B: 2.500", "yes")]


def test_a_verdict_is_open_while_something_is_untried():
    """Three seeds with one learning rate are not all there is to see where two are to be tried."""
    one, found = tiny(learning_rate=[1e-3, 1e-2]), {}
    for choice in one.choices("smoke"):
        for run in choice.series[0].runs:
            found[run.identity] = result(run, 9 if run.method == "SnAp-1" else 5)
    claim = Claim("It is said.", ("SnAp-1",), ("BPTT",))
    planned = [("one", "BPTT"), ("one", "SnAp-1")]
    measured = measure(one, "smoke", found)
    assert claims.judge(claim, measured, planned, "level").verdict == "reproduced, so far"
    assert tables.end(measured[0], "level").endswith(tables.MORE_TO_COME)
    for choice in one.choices("smoke"):
        found[choice.series[1].runs[0].identity] = result(choice.series[1].runs[0], 1)
    measured = measure(one, "smoke", found)
    assert claims.judge(claim, measured, planned, "level").verdict == "reproduced"
    assert tables.end(measured[0], "level") == "5.0 ± 0.0"


def test_slightly_better_is_not_far_better():
    both = [timed("A", [1.0, 2.0, 3.0], [1, 2, 5]), timed("B", [1.0, 2.0, 3.0], [1, 2, 3])]
    for at_most, holds in ((2, True), (1, False)):
        claim = Claim("It is said.", ("A",), ("B",), at_most=at_most)
        assert claims.judge(claim, both, PLANNED, "level").comparisons[0].holds == holds


def test_runs_that_diverged_are_told_and_drawn(tmp_path):
    """Also one that has not been measured once."""
    one, found = tiny(learning_rate=[1e-3]), []
    for choice in one.choices("smoke"):
        ends = [result(run, 5) for run in choice.series[0].runs]
        if choice.series[0].method == "BPTT":
            empty = {"tokens": [], "seconds": []}
            ends[1] = dataclasses.replace(ends[1], status="diverged", curve=empty, final={"updates": 1, "seconds": 1.0})
        found += ends
    results.write(results.path_of(tmp_path, "x-smoke"), found)
    markdown.write([one], "smoke", tmp_path, tmp_path / "docs")
    page = (tmp_path / "docs/results.md").read_text()
    assert "| one: BPTT | 10^-3 | 5.0 ± 0.0, 1 of 3 diverged |" in page
    assert "| one: SnAp-1 | 10^-3 | 5.0 ± 0.0 |" in page


def test_a_mean_curve_is_of_the_seeds_that_did_not_diverge():
    whole, early = timed("A", [1.0, 2.0, 3.0], [2, 3, 4]), timed("A", [1.0], [9])
    (diverged,) = (
        dataclasses.replace(run, status="diverged", curve={**run.curve, "tokens": [3]}) for run in early.runs
    )
    curve = dataclasses.replace(whole, runs=(*whole.runs, diverged)).curve("level")
    assert (curve.x[-1], curve.mean[-1]) == (9, 4)
    assert len(dataclasses.replace(whole, runs=(diverged,)).curve("level").x) == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "or_equal", "verdict"),
    [
        ([10, 10, None], [12, 12, 12], True, "not reproduced"),
        ([10, 10, 10], [9, 9, None], False, "reproduced"),
        ([None, None, None], [None, None, None], True, "not reproduced"),
        ([10, 10, None], [9, 9, None], False, "not reproduced"),
    ],
)
def test_a_seed_that_diverged_is_no_spread(ours, theirs, or_equal, verdict):
    def measured(method, ends):
        runs = tuple(
            Result("copy", {"tokens": 9}, "finished" if end else "diverged", {"level": end} if end else {}, {}, {})
            for end in ends
        )
        return Measured("one", method, {}, runs, 3, True)

    claim = Claim("It is said.", ("A",), ("B",), or_equal=or_equal)
    both = [measured("A", ours), measured("B", theirs)]
    assert claims.judge(claim, both, PLANNED, "level").verdict == verdict


def test_each_seed_counts_where_it_was_after_the_same_seconds():
    """One of three took longer: after the seconds of the others it had not ended."""
    quick, late = timed("A", [1.0, 2.0, 3.0], [2, 3, 9]), timed("A", [2.0, 4.0, 6.0], [2, 3, 9])
    ours = dataclasses.replace(quick, runs=(*quick.runs, *late.runs), wanted=2)
    claim = Claim("It is said.", ("A",), ("B",), after="seconds")
    finding = claims.judge(claim, [ours, timed("B", [5.0, 10.0, 15.0], [4, 5, 6])], PLANNED, "level")
    assert finding.comparisons[0].amount == 3
    assert list(ours.after("level", 3, "seconds")) == [9, 2]


def test_claims_say_which_networks_and_which_pairs():
    def measured(network, method, level):
        runs = (Result("copy", {"tokens": 9}, "finished", {"level": level}, {}, {}),)
        return Measured(network, method, {}, runs, 1, True)

    found = [
        measured(network, method, level)
        for network, levels in (("one", (1, 2, 3, 4)), ("two", (4, 3, 2, 1)))
        for method, level in zip("ABCD", levels, strict=True)
    ]
    planned = [(one.network, one.method) for one in found]
    each = Claim("It is said.", ("B", "D"), ("A", "C"))
    assert claims.judge(each, found, planned, "level").evidence == "4 of 8 comparisons hold, 1 seed"
    pairs = dataclasses.replace(each, pairwise=True)
    assert claims.judge(pairs, found, planned, "level").evidence == "2 of 4 comparisons hold, 1 seed"
    on_one = dataclasses.replace(pairs, networks=("one",))
    assert claims.judge(on_one, found, planned, "level").verdict == "reproduced"
    close = Claim("It is said.", ("A",), ("B",), or_equal=True, networks=("one",))
    assert claims.judge(close, found, planned, "level").verdict == "not reproduced"
    assert claims.judge(dataclasses.replace(close, within=1), found, planned, "level").verdict == "reproduced"


def test_costs_are_judged_by_their_counts():
    def counts(sparsity, ratio):
        one = {"sparsity": sparsity, "vs BPTT": ratio}
        return {"printed": [80.0, 40.0, 0, 0, 0], "exact from order": 3, "snap-1": one, "snap-2": one, "snap-3": one}

    experiment = Experiment("costs", {"words": dict.fromkeys(costs.SOURCES, "It is said.")})
    growth = [
        {"axis": "units", "value": k, "method": "BPTT", "flops": k**2, "counted": k**1.6, "seconds": k, "bytes": k}
        for k in (20, 40, 80)
    ]
    found = {
        "networks": {"x": counts(79, 1.0), "y": counts(90, 1.2)},
        "gradients": {"z": [0.5, 1e-4]},
        "growth": growth,
        "asked": {"settings": {"at": {"units": 1, "density": 1e-3}, "window": 100}},
    }
    said = dict(zip(costs.SOURCES, costs.said(experiment, found), strict=True))
    assert {name: one.verdict for name, one in said.items()} == {
        "growth": "partly reproduced",  # of T k + d k^2 with so small a d: 1.6 is not within 0.5 of 1
        "counts": "not reproduced",  # of 20 and 60: 21 is near one, 10 near none
        "cheap": "partly reproduced",
        "exact": "not reproduced",
    }
    assert said["counts"].evidence.startswith("1 of 4 densities")
    found["gradients"]["z"] = [0.5, 1e-7]
    assert costs.said(experiment, found)[3].verdict == "reproduced"


def test_exponents_are_those_of_the_formulas_at_the_sizes_that_were_measured():
    def points(axis, values):
        same = dict.fromkeys(("flops", "counted", "seconds", "bytes"), 1.0)
        return [{"axis": axis, "value": value, "method": "BPTT", **same} for value in values]

    def exponents(steps):
        settings = {"at": {"units": 100, "density": 0.1}, "window": steps}
        growth_points = points("units", (100, 200)) + points("density", (0.1, 0.2)) + points("steps", (10, 20))
        return [row.memory for row in growth.exponents({"asked": {"settings": settings}, "growth": growth_points})]

    assert exponents(1e-9) == pytest.approx([2, 1, np.log2(3 / 2)], abs=1e-6)  # T k is 1000 and 2000, d k^2 1000
    assert exponents(1e9)[:2] == pytest.approx([1, 0], abs=1e-6)


def test_a_curve_leaves_out_who_was_stopped_early():
    ends, early = (np.array([5.0, 9.0]), np.array([1.0, 3.0])), (np.array([1.0, 2.0]), np.array([7.0, 7.0]))
    both = mean.mean([(np.array([5.0]), np.array([1.0])), (np.array([5.0]), np.array([3.0]))], "bits")
    assert (both.mean[0], both.low[0], both.high[0]) == (2, 1, 3)
    assert list(mean.mean([ends, early], "bits").mean) == [1, 3]
    long = np.arange(1.0, 21.0), np.arange(1.0, 21.0)
    for place in (1.0, 20.0):  # touches it, but was measured once
        assert mean.mean([long, (np.array([place]), np.array([5.0]))], "bits").mean[-1] == 20


def test_a_level_is_kept_where_it_changes_and_drawn_as_steps():
    places = np.arange(10.0)
    curve = mean.mean([(places, 1.0 + (places >= 3)), (places[1:], 1.0 + (places[1:] >= 7))], "level")
    assert (curve.x.tolist(), curve.mean.tolist()) == ([1, 3, 7, 9], [1, 1.5, 2, 2])
    assert (curve.low.tolist(), curve.high.tolist()) == ([1, 1, 2, 2], [1, 2, 2, 2])
    figure = figures.panels([timed("BPTT", [1.0, 2.0, 3.0], [2, 3, 4])], "level")
    assert figure.axes[0].lines[0].get_drawstyle() == "steps-post"


def test_a_folder_with_other_results_leaves_the_readme_alone(tmp_path):
    one = tiny(learning_rate=[1e-3])
    content = {**one.content, "small": one.content["smoke"]}
    found = [result(run, 5) for choice in one.choices("smoke") for run in choice.series[0].runs]
    results.write(results.path_of(tmp_path / "results", "x-small"), found)
    (tmp_path / "README.md").write_text(said := f"above\n{readme.START}\nthe best of it\n{readme.END}\nbelow")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/results.md").touch()  # as a full disk may have left it
    written = markdown.write([Experiment("x", content)], "small", tmp_path / "results", tmp_path / "docs")
    assert tmp_path / "README.md" not in written
    assert (tmp_path / "README.md").read_text() == said


class Broken(Exception):
    """The process was killed."""


def test_a_measurement_goes_on_and_is_refused_with_other_settings(tmp_path):
    content = {"smoke": {"seeds": 3, "scaled": "small"}, "options": {"units": 8}}
    one, made = Experiment("x", content), []

    def killed(experiment, size, found):
        seeds = found.get("seeds", [])
        for seed in range(len(seeds), experiment.content[size]["seeds"]):
            if len(made) == 2:
                made.append("again")
                raise Broken
            made.append(seed)
            yield {"seeds": (seeds := [*seeds, seed])}

    with pytest.raises(Broken):
        measurements.carry_out(one, "smoke", tmp_path, killed)
    assert measurements.read(tmp_path, one, "smoke") is None
    measurements.carry_out(one, "smoke", tmp_path, killed)
    assert made == [0, 1, "again", 2]
    assert measurements.read(tmp_path, one, "smoke")["seeds"] == [0, 1, 2]
    measurements.carry_out(one, "smoke", tmp_path, killed)  # it is there
    assert made == [0, 1, "again", 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x-smoke.lock", "x-smoke.json"]
    said = {**content, "smoke": {"seeds": 3, "scaled": "in other words"}}
    assert measurements.read(tmp_path, Experiment("x", said), "smoke") is not None
    for other in ({**content, "smoke": {"seeds": 4, "scaled": "small"}}, {**content, "options": {"units": 9}}):
        with pytest.raises(ValueError, match=r"x-smoke\.json must be measured with the settings of x\.toml, got other"):
            measurements.read(tmp_path, Experiment("x", other), "smoke")
    for damaged in ("{", "{}", "[]"):
        (tmp_path / "x-smoke.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"x-smoke\.json must hold what `snapgrad reproduce x` measured"):
            measurements.read(tmp_path, one, "smoke")


@pytest.mark.parametrize(("later", "verdict"), [(0.5, "reproduced"), (0.89, "not reproduced")])
def test_what_snap_keeps_falls_beyond_the_spread_or_not(later, verdict):
    def look(share):
        return {"step": 1, "orders": [{"magnitude": share, "kept_mean": 4.0, "dropped_mean": at} for at in (0.5, 2.0)]}

    seeds = [{"snapshots": [look(0.9 + off), look(later + off), look(later)]} for off in (-0.05, 0.0, 0.05)]
    one = Experiment("influence", {"words": {"early": "It is small.", "later": "It falls."}, "source": "figure 6"})
    small, falls = influence.said(one, {"seeds": seeds})
    assert small == claims.Said(
        "It is small.", "figure 6", "partly reproduced", "by SnAp-1 and 2: 12 and 50 % of that of those kept, 3 seeds"
    )
    assert falls.verdict == verdict
    assert falls.evidence.startswith(f"{2 * (verdict == 'reproduced')} of 2 orders keep a smaller share")
    assert [one.verdict for one in influence.said(one, None)] == [claims.NOT_MEASURED] * 2


def test_what_is_compared_by_seconds_is_trained_alone(monkeypatch, tmp_path):
    started = []

    def train(studies, jobs, ray, results_in, runs_in):
        started.append(([study.name for study in studies], jobs, ray))
        return []

    monkeypatch.setattr(reproduce, "train", train)
    experiments = [dataclasses.replace(tiny(), name=name) for name in "abcd"]
    for one in experiments[2:]:
        one.content["smoke"]["alone"] = True
    Reproduce("all", size="smoke", jobs=7, ray=("HOST:1",), results=tmp_path).train(experiments)
    assert started == [(["a-smoke", "b-smoke"], 7, ("HOST:1",)), (["c-smoke"], 1, None), (["d-smoke"], 1, None)]


def test_a_text_that_is_missing_is_said_once(monkeypatch, tmp_path):
    def unreachable(*_):
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlretrieve", unreachable)
    monkeypatch.setenv("SNAPGRAD_DATA", str(tmp_path / "texts"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"`corpus` must be unpacked from https.* to .*texts.*SNAPGRAD_DATA"):
        Reproduce("lm-dense").run()
    assert not (tmp_path / "runs").exists()


def test_an_out_that_cannot_be_written_is_refused_before_training(monkeypatch, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/results.md").write_text("my own")
    monkeypatch.setattr(Reproduce, "train", lambda *_: pytest.fail("it trains"))
    with pytest.raises(ValueError, match=r"`out` must be a folder without a results\.md of another kind"):
        Reproduce("copy", size="smoke", out=tmp_path / "notes").run()


def test_redrawing_knows_a_damaged_measurement_by_its_file(tmp_path):
    for damaged in ({"seeds": []}, {"asked": {}}):
        (tmp_path / "influence-smoke.json").write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match=r"influence-smoke\.json must hold what"):
            Reproduce("copy", size="smoke", draw=True, results=tmp_path, out=tmp_path / "docs").run()


@pytest.mark.parametrize(
    ("held", "said"),
    [([True] * 3, "reproduced"), ([True, False, False], "partly reproduced"), ([True] + [False] * 3, "not reproduced")],
)
def test_a_third_of_the_comparisons_is_part(held, said):
    assert claims.verdict(held) == said


def test_what_is_not_all_there_is_marked_where_it_is_compared():
    one, other = timed("A", [1.0, 2.0, 3.0], [2, 3, 4]), timed("B", [1.0, 2.0, 3.0], [2, 3, 4])
    finding = claims.judge(
        Claim("It is said.", ("A",), ("B",)), [dataclasses.replace(one, complete=False), other], PLANNED, "level"
    )
    assert tables.comparisons(finding, "level").rows == [("one", "A: 4 †", "B: 4", "no")]


@pytest.mark.parametrize(("value", "shown"), [(1e-3, "10^-3"), (10**-2.5, "10^-2.5"), (0.05, "0.05"), (1.0, "10^0")])
def test_powers_of_ten(value, shown):
    assert tables.power(value) == shown


def test_columns_of_numbers_are_to_the_right():
    rows = [("x", "1.0 ± 0.1", "yes", "2 of 2 hold"), ("y", "", "-2", "3")]
    shown = markdown.table(Table("", "", ("a", "b", "c", "d"), rows))
    assert shown.splitlines()[1] == "| --- | ---: | --- | --- |"


def test_a_curve_has_the_end_of_every_seed():
    """Though sequences that have begun are ended: one saw 10 tokens where 9 were asked for, and grew with the last."""
    one = timed("A", [1.0, 2.0, 3.0], [2, 3, 4])
    late = dataclasses.replace(one.runs[0], curve={**one.runs[0].curve, "tokens": [3, 6, 10], "level": [2, 3, 6]})
    curve = dataclasses.replace(one, runs=(*one.runs, late)).curve("level")
    assert (curve.x[-1], curve.mean[-1], curve.high[-1]) == (9, 5, 6)


def test_what_has_no_result_yet_is_named(tmp_path):
    one = tiny(learning_rate=[1e-3])
    (first, *_) = one.choices("smoke")
    results.write(results.path_of(tmp_path, "x-smoke"), [result(run, 5) for run in first.series[0].runs])
    markdown.write([one], "smoke", tmp_path, tmp_path / "docs")
    assert "Without any result yet: one: SnAp-1." in (tmp_path / "docs/results.md").read_text()


def test_claims_that_nobody_has_measured_are_counted():
    said = [claims.Said("a", "b", verdict, "") for verdict in ("reproduced", claims.NOT_MEASURED)]
    assert "Of 2 claims of the paper 1 are reproduced, 0 in part and 0 not, and 1 not yet measured" in readme.text(
        "", said
    )


def test_a_measurement_that_is_interrupted_says_so_and_keeps_what_there_is(tmp_path):
    one = Experiment("x", {"kind": "costs", "smoke": {}})

    def measure(experiment, size, found):
        assert found == {}
        yield {"networks": 1}
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="to go on, start it again in the same way"):
        measurements.carry_out(one, "smoke", tmp_path, measure)
    seen = []
    measurements.carry_out(one, "smoke", tmp_path, lambda experiment, size, found: seen.append(found) or iter(()))
    assert seen[0]["networks"] == 1


def test_what_was_never_measured_is_as_bad_as_can_be():
    one = timed("A", [1.0, 2.0, 3.0], [2, 3, 4])
    assert one.after("valid_bits", 3).tolist() == [np.inf]
    assert one.after("level", 3).tolist() == [2]
