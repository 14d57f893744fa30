"""Named features to vectors, and the command that learns from a stream: its answers, and that no kill loses any."""

from __future__ import annotations

import io
import json
import math
import signal
import subprocess
import sys
import time
from datetime import date

import numpy as np
import pytest
from programs import answer, command

from snapgrad.files import PART, read_arrays
from snapgrad.streams.features import Features
from snapgrad.streams.journal import Journal
from snapgrad.streams.models import Classification, Regression, Target
from snapgrad.streams.moments import FAR, Moments
from snapgrad.streams.rows import MISSING, Row, parse, read_rows
from snapgrad.streams.score import Score


def test_moments_are_those_of_all_values():
    values = np.random.default_rng(0).normal(3, 2, size=200)
    moments = Moments()
    for value in values:
        moments.take(value)
    assert (moments.count, moments.mean, moments.deviation) == pytest.approx((200, values.mean(), values.std()), 1e-12)
    assert moments.restored(moments.standardised(7.5)) == pytest.approx(7.5)
    assert Moments(*moments.state).standardised(1.5) == moments.standardised(1.5)


def test_one_value_of_1e12_does_not_make_all_others_vanish_and_a_new_level_is_followed():
    moments = Moments()
    for value in np.random.default_rng(0).normal(size=100):
        moments.take(value)
    assert moments.standardised(1e12) == FAR
    moments.take(1e12)
    assert moments.deviation < 2
    assert 0.4 < moments.standardised(1.0) < 1
    for _ in range(2000):
        moments.take(1000.0)
    assert moments.mean > 500


def test_before_anything_was_seen_a_number_is_zero_and_a_constant_stays_so():
    moments = Moments()
    assert moments.standardised(5.0) == 0
    moments.take(5.0)
    assert moments.standardised(5.0) == 0
    assert moments.standardised(6.0) == FAR
    assert moments.restored(3.0) == 5


def test_features_keep_their_slot_and_count_from_the_sample_after_their_first():
    features = Features(8, standardise=False)
    assert not features.learn({"b": 2.0, "a": 1.0}).any()
    assert features.encode({"b": 2.0, "a": 1.0}).tolist() == [1, 2, 0, 0, 0, 0, 0, 0]  # in the order of names
    assert features.learn({"b": 3, "c": "red", "d": True}).tolist() == [0, 3, 0, 0, 0, 0, 0, 0]
    vector = features.encode({"b": 3, "c": "red", "d": False})
    assert vector.tolist() == [0, 3, 1, -1, 0, 0, 0, 0]
    assert features.encode({"d": True})[3] == 1
    assert not features.encode({"c": "blue"}).any()  # another value of a string is another feature
    for nothing in ({}, {"a": None}, {"a": math.nan}, {"a": np.float64("nan")}):
        assert not features.encode(nothing).any()
    assert features.encode({"a": np.int64(3)})[0] == 3


def test_encoding_changes_nothing_and_learning_encodes_by_what_was_seen_before():
    features, rng = Features(8, standardise=True), np.random.default_rng(0)
    for _ in range(50):
        features.learn({"a": rng.normal(10, 3), "b": rng.normal(-1, 0.1)})
    sample = {"a": 13.0, "b": -1.2, "new": 5.0}
    before = json.dumps(features.state())
    encoded = features.encode(sample)
    assert json.dumps(features.state()) == before
    np.testing.assert_array_equal(features.learn(sample), encoded)
    assert json.dumps(features.state()) != before
    assert encoded[0] == pytest.approx(1, abs=0.3)
    assert encoded[1] == pytest.approx(-2, abs=0.5)
    other = Features(8, standardise=True)
    other.restore(json.loads(json.dumps(features.state())))
    np.testing.assert_array_equal(other.encode(sample), features.encode(sample))
    assert other.encode(sample)[2] == 0  # its only value so far is its mean


def test_what_was_encoded_is_learnt_as_if_it_had_not_been():
    """Encoding keeps what it read for `learn`, which may get other values, or equal ones that mean something else."""
    one, other = Features(8, standardise=True), Features(8, standardise=True)
    x = {"a": 1.0, "b": 2.0}
    for features in (one, other):
        features.learn(x)
        features.learn({"a": 2.0, "b": 5.0})
    for changed in (dict(x), {"a": 1.0, "b": 3.0}, {"a": True, "b": 2}, {"b": 2.0, "a": 1.0}, {"a": 1.0}, {}):
        one.encode(x)
        assert one.learn(changed).tolist() == other.learn(changed).tolist()
        assert one.state() == other.state()
    one.encode(x)
    x["a"] = 7.0
    assert one.learn(x).tolist() == other.learn(x).tolist()
    one.encode(x)
    one.learn(x), other.learn(x)
    assert one.learn(x).tolist() == other.learn(x).tolist()  # moments have moved on since it was encoded


def test_the_order_of_the_features_in_a_sample_does_not_matter():
    one, other = Features(16, True), Features(16, True)
    for number in range(5):
        sample = {"z": number, "a": -number, 3: 0.5 * number, "w": "x" * number}
        np.testing.assert_array_equal(one.learn(sample), other.learn(dict(reversed(sample.items()))))
    assert one.places == other.places


def test_when_slots_run_out_what_is_new_shares_the_last_quarter():
    features = Features(8, standardise=False)
    sample = {f"f{number}": float(number + 1) for number in range(30)}
    features.learn(sample)
    assert len(features.places) == 6
    first = dict(sorted(sample.items())[:6])
    np.testing.assert_array_equal(features.encode(first), [*first.values(), 0, 0])
    late = [features.encode({name: 1.0}) for name in sample if name not in first]
    assert all(not vector[:6].any() and abs(vector[6:]).sum() == 1 for vector in late)
    assert {(int(np.argmax(abs(vector))), float(vector.sum())) for vector in late} == {(6, 1), (6, -1), (7, 1), (7, -1)}
    assert len(features.moments) == 8
    assert Features(1, True).learn({"a": 1.0, "b": 2.0}).shape == (1,)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 10**400, 1e300], ids=["inf", "-inf", "int", "float"])
@pytest.mark.parametrize("standardise", [True, False])
def test_what_float32_cannot_hold_is_infinite_and_not_counted_in(value, standardise):
    features = Features(4, standardise)
    for number in range(9):
        features.learn({"a": float(number)})
    before = features.moments[0].state
    assert features.learn({"a": value})[0] == (math.inf if value > 0 else -math.inf)
    assert features.moments[0].state == before


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"when": [1]}, r"`x` must have a number, a boolean, a string or None as feature 'when', got list \[1\]"),
        ({"z": 1j}, "got complex 1j"),
        ([1.0], r"`x` must be a dict of features by name, got list \[1.0\]"),
    ],
)
def test_what_is_no_feature_is_refused_by_name(x, message):
    with pytest.raises(TypeError, match=message):
        Features(4, True).encode(x)


def test_dates_are_not_read():
    features = Features(4, True)
    for day in (1, 2, 3):
        found = features.learn({"day": date(2026, 1, day), "at": np.datetime64("2026-01-01"), "a": float(day)})
    np.testing.assert_array_equal(np.flatnonzero(found), [0])
    assert list(features.places) == ["a"]


def test_fields_and_rows():
    assert [parse(text) for text in ("", " ", "1.5", "-2e3", "True", "false", "red")] == [
        None,
        None,
        1.5,
        -2000.0,
        True,
        False,
        "red",
    ]
    table = 'a,b,y\n1,"x, y",2\n\n,true,\n'
    wanted = [Row({"a": 1.0, "b": "x, y"}, 2.0), Row({"a": None, "b": True}, None)]
    lines = '{"a": 1.0, "b": "x, y", "y": 2.0}\n{"a": null, "b": true}\n'
    for text, name in ((table, "-"), (table, "t.csv"), (lines, "-"), (lines, "t.jsonl")):
        assert list(read_rows(io.StringIO(text), name, "y")) == wanted
        assert list(read_rows(io.StringIO("\ufeff" + text), name, "y")) == wanted  # as spreadsheets write it
    assert list(read_rows(io.StringIO(""), "-", "y")) == []
    assert parse("1_000") == "1_000"
    assert [parse(text) for text in MISSING] == [None] * len(MISSING)


def test_a_row_without_a_label_is_not_judged():
    model, score = Classification(2, True, units=2, backend="reference"), Score()
    for y in ("red", math.nan, "red", None):
        answered = score.answer(Row({"a": 1.0}, y), model)
    assert (score.rows, score.judged) == (4, 2)
    assert answered["target"] is None


@pytest.mark.parametrize("huge", [1e300, -1e300, math.inf])
def test_a_target_that_float32_cannot_hold_is_not_counted_in(huge):
    target = Target(standardise=True)
    for number in (1.0, 2.0, huge, 3.0):
        learnt = target.learn(number)
        assert math.isinf(learnt) == (number == huge)
    assert target.scale == (2.0, math.sqrt(2 / 3))
    assert json.loads(json.dumps(Score().answer(Row({}, huge), Regression(2, True, units=2)), allow_nan=False))


def test_a_second_process_changes_nothing_before_it_has_the_lock(tmp_path):
    first = Journal(tmp_path / "out.jsonl", {}, resume=False)
    part = first.folder / f".1.safetensors{PART}"
    part.touch()
    first._answers.write("half a li")
    first._answers.flush()
    Journal(tmp_path / "out.jsonl", {}, resume=True).close()
    assert part.exists()
    assert (tmp_path / "out.jsonl").read_text() == "half a li"
    first.close()


def write_table(path, rows=60):
    """The target is twice the `a` of the row before, now and then missing."""
    rng, before, lines = np.random.default_rng(0), 0.0, ["a,flag,word,y"]
    for number in range(rows):
        a = rng.normal()
        flag, word = ("true", "false", "")[number % 3], ("red", "green")[number % 2]
        lines.append(f"{a:.6f},{flag},{word},{'' if number % 20 == 19 else f'{2 * before:.6f}'}")
        before = a
    path.write_text("\n".join(lines) + "\n")
    return path


SMALL = "--units", "3", "--features", "6", "--backend", "reference"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A table, and what comes out where nobody disturbs it."""
    folder = tmp_path_factory.mktemp("stream")
    table = write_table(folder / "table.csv")
    done = answer("stream", table, "--target", "y", *SMALL, "--out", folder / "out.jsonl")
    assert done.code == 0, done.err
    assert done.out == ""
    assert done.err.startswith("60 rows, error ")
    return folder


def final(folder):
    """Predictions, and the bits of the last checkpoint."""
    state = folder / "out.jsonl.state"
    arrays, metadata = read_arrays(state / "60.safetensors")
    kept = {name: array.tobytes() for name, array in arrays.items()}
    return (folder / "out.jsonl").read_bytes(), kept, metadata, (state / "60.json").read_bytes()


def test_every_row_is_answered_before_it_is_learnt(whole):
    answers = [json.loads(line) for line in (whole / "out.jsonl").read_text().splitlines()]
    assert [one["row"] for one in answers] == list(range(1, 61))
    assert answers[0]["prediction"] == 0
    assert [number for number, one in enumerate(answers) if one["target"] is None] == [19, 39, 59]
    judged = [abs(one["prediction"] - one["target"]) for one in answers if one["target"] is not None]
    assert answers[-1]["error"] == pytest.approx(np.mean(judged), rel=1e-12)
    # The same without --out, and from standard input.
    with open(whole / "table.csv") as file:
        done = subprocess.run(
            command("stream", "-", "--target", "y", *SMALL), stdin=file, capture_output=True, text=True, timeout=300
        )
    assert done.stdout == (whole / "out.jsonl").read_text()


def test_labels_are_told(tmp_path, monkeypatch):
    lines = [json.dumps({"a": number % 3 - 1, "kind": "abc"[number % 3]}) for number in range(150)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    done = answer("stream", "-", "--target", "kind", "--labels", *SMALL, "--learning-rate", "0.05")
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [one["prediction"] for one in answers[:2]] == [None, "a"]
    assert all(one["prediction"] == one["target"] for one in answers[-20:])
    assert "150 rows, error 0." in done.err


def test_killed_at_any_row_it_goes_on_to_the_same_bits(whole, tmp_path):
    args = "stream", "-", "--target", "y", *SMALL, "--out", tmp_path / "out.jsonl"
    header, *rows = (whole / "table.csv").read_text().splitlines(keepends=True)
    out = tmp_path / "out.jsonl"
    # Checkpoints at every row in the first life, none but the first in the second.
    for life, (every, acknowledged) in enumerate((("0", 7), ("1000", 33))):
        more = () if life == 0 else ("--resume",)
        process = subprocess.Popen(command(*args, "--checkpoint-every", every, *more), stdin=subprocess.PIPE, text=True)
        begun = out.read_text().count("\n") if life else 0
        process.stdin.write("".join([header, *rows[begun:acknowledged]]))
        process.stdin.flush()
        while not out.exists() or out.read_text().count("\n") < acknowledged:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stdin.close()
    with open(out, "a") as file:
        file.write('{"row": 34, "predi')  # a line that was torn
    done = answer("stream", whole / "table.csv", *args[2:], "--resume")
    assert done.code == 0, done.err
    assert final(tmp_path) == final(whole)
    again = answer("stream", whole / "table.csv", *args[2:], "--resume")
    assert again.code == 0
    assert final(tmp_path) == final(whole)


def test_interrupted_it_says_how_to_go_on_and_does(whole, tmp_path):
    args = "--target", "y", *SMALL, "--out", tmp_path / "out.jsonl"
    header, *rows = (whole / "table.csv").read_text().splitlines(keepends=True)
    process = subprocess.Popen(command("stream", "-", *args), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdin.write("".join([header, *rows[:5]]))
    process.stdin.flush()
    out = tmp_path / "out.jsonl"
    while not out.exists() or out.read_text().count("\n") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)  # while it waits for a row
    error = process.communicate()[1]
    assert process.returncode == 130
    assert "stopped after 5 rows; go on with the same command with --out " in error
    assert answer("stream", whole / "table.csv", *args, "--resume").code == 0
    assert final(tmp_path) == final(whole)


def test_what_a_stream_refuses(whole, tmp_path):
    table, out = whole / "table.csv", whole / "out.jsonl"
    bad = {
        "numbers.csv": "a,y\n1,2\n3,cat\n",
        "wide.csv": "a,y\n1,2,3\n",
        "twice.csv": "a,a,y\n1,2,3\n",
        "lines.jsonl": '{"a": 1, "y": 2}\n[1]\n',
        "nested.jsonl": '{"a": [1], "y": 2}\n',
        "broken.jsonl": '{"a": 1\n',
        "other.csv": table.read_text().replace("green", "red", 1),
        "latin.csv": "a,y\n1,2\ncafé,3\n",
        "semicolons.csv": "a;y\n1;2\n",
    }
    for name, text in bad.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
    cases = [
        ((tmp_path / "missing.csv",), "missing.csv', which does not exist"),
        ((tmp_path,), "`file` must be a CSV file, JSON lines, or - for standard input, got '"),
        ((tmp_path / "latin.csv",), "latin.csv, with the byte 0xe9 in it, which is none"),
        ((tmp_path / "semicolons.csv",), "a;y, got 'y'; columns must be separated by commas"),
        ((table, "--target", "z"), "`target` must be a column of "),
        (
            (tmp_path / "numbers.csv",),
            "row 2: `target` must be a number, or nothing (a label, if `labels` is set), got 'cat'",
        ),
        ((tmp_path / "wide.csv",), "wide.csv must have 2 values, got 3"),
        ((tmp_path / "twice.csv",), "twice.csv must have columns of different names, got a, a, y"),
        ((tmp_path / "lines.jsonl",), "lines.jsonl must be a JSON object, got list"),
        ((tmp_path / "nested.jsonl",), "row 1: `x` must have a number, a boolean, a string or None as feature 'a'"),
        ((tmp_path / "broken.jsonl",), "row 1 of "),
        ((table, "--units", "0"), "`units` must be an integer >= 1, got 0"),
        ((table, "--features", "0"), "`features` must be an integer >= 1, got 0"),
        ((table, "--checkpoint-every", "nan"), "`checkpoint_every` must be a number >= 0, got nan"),
        ((table, "--resume"), "`out` must be given with `resume`, got none"),
        ((table, "--resume", "--out", tmp_path / "x"), "`out` must be what a stream was begun with to resume"),
        ((table, "--out", out), "got '" + str(out) + "'; go on with it: --resume"),
        ((table, "--out", tmp_path / "no" / "x"), "`out` must be in a folder that exists, got '"),
        ((tmp_path / "other.csv", "--out", out, "--resume"), "other.csv with others"),
        ((table, "--out", out, "--resume", "--seed", "3"), "`seed` must be the one that the stream was begun with, 0"),
    ]
    for (file, *args), message in cases:
        done = answer("stream", file, "--target", "y", *SMALL, *args)
        assert done.code == 2, (args, done.err)
        assert message in done.err
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
