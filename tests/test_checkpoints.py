"""Checkpoints that were damaged, of other options, on a full disk, or of a run that was killed again and again."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import answer, arrays_of, as_in_a_program, assert_same_run
from safetensors.numpy import save_file
from variants import case

from snapgrad.runs import checkpoint, options, toml
from snapgrad.runs.build import build
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.training import run_training
from snapgrad.train import Carry

OPTIONS = options.CopyOptions(
    units=4, batch=2, algorithm="bptt", order=None, tokens=300, log_every=40, checkpoint_every=0.0, backend="reference"
)


def quiet(record):
    pass


@pytest.fixture(scope="module")
def experiment():
    with as_in_a_program():
        return build(OPTIONS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, experiment):
    """A run that nobody disturbed; its last checkpoints are at 280 and 300 tokens."""
    run = RunDirectory.create(tmp_path_factory.mktemp("finished") / "run", OPTIONS, experiment.data)
    with as_in_a_program():
        run_training(run, quiet, experiment)
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == [
        "280.safetensors",
        "300.safetensors",
    ]
    return run


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    return RunDirectory.open(tmp_path / "run")


def restored(run, experiment):
    """What a resumed run would go on from, and what it would warn of."""
    with as_in_a_program(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = run.checkpoint()
        carry = found.carry(experiment.start())
    return arrays_of(carry), found.totals, [str(warning.message) for warning in said]


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def at(pattern):
    """The place of a text in the file's header."""
    return lambda data: re.search(pattern, data).start()


def header(data):
    return 8 + int.from_bytes(data[:8], "little")


FLIPPED = {
    "length of the header": lambda data: 0,
    "high byte of the length": lambda data: 7,
    "beginning of the header": lambda data: 8,
    "name of a leaf": at(b"params.cell.recurrent.values"),
    "dtype": at(b"F32"),
    "shape": lambda data: at(rb'shape":\[\d')(data) + 8,
    "offsets": lambda data: at(rb'data_offsets":\[\d')(data) + 15,
    "format": lambda data: at(rb'version\\": \d')(data) + 11,
    "digest": lambda data: at(rb'digest\\": ')(data) + 12,
    "tokens in the totals": lambda data: at(rb'tokens\\": 300, \\"updates')(data) + 10,
    "updates in the totals": lambda data: at(rb'updates\\": ')(data) + 11,
    "name of a total": at(rb"updates\\"),
    "an option": lambda data: at(rb'seed\\": 0')(data) + 8,
    "a pattern": lambda data: at(rb'recurrent.pattern\\": \\"')(data) + 24,
    "first byte of the data": header,
    "middle of the data": lambda data: (header(data) + len(data)) // 2,
    "last byte of the data": lambda data: len(data) - 1,
}
REPLACED = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "length only": lambda data: data[:8],
    "half of the header": lambda data: data[: header(data) // 2],
    "header only": lambda data: data[: header(data)],
    "half of the data": lambda data: data[: (header(data) + len(data)) // 2],
    "without its last byte": lambda data: data[:-1],
    "one byte too many": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "zeros at the end": lambda data: data[:-20] + bytes(20),
    "another checkpoint under its name": None,
}


@pytest.mark.parametrize("place", [*FLIPPED, *REPLACED])
def test_a_damaged_checkpoint_is_skipped_with_a_sentence(place, copied, finished, experiment):
    newest, older = (copied.path / "checkpoints" / f"{tokens}.safetensors" for tokens in (300, 280))
    data = newest.read_bytes()
    if place in FLIPPED:
        changed = bytearray(data)
        changed[FLIPPED[place](data)] ^= 1
    else:
        changed = older.read_bytes() if REPLACED[place] is None else REPLACED[place](data)
    newest.write_bytes(changed)
    carry, totals, said = restored(copied, experiment)
    assert totals.tokens == 280
    assert len(said) == 1
    assert said[0].startswith("300.safetensors (")
    assert said[0].endswith(f"): skipped in {newest.parent}, going on from 280.safetensors")
    newest.unlink()
    assert_same(carry, restored(copied, experiment)[0])
    older.write_bytes(older.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"a checkpoint in .* must be whole, got 280.safetensors \("):
        copied.checkpoint()


def test_no_byte_of_a_checkpoint_can_change_without_being_seen(copied, experiment):
    path = copied.path / "checkpoints" / "300.safetensors"
    data, whole = path.read_bytes(), checkpoint.read(path)
    whole = whole._replace(leaves={name: np.array(leaf) for name, leaf in whole.leaves.items()})  # out of the file
    seen = 0
    for place in range(0, len(data), 5):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            found = checkpoint.read(path)
        except checkpoint.NotWhole:
            seen += 1
            continue
        # Spaces and the order of keys in the header carry nothing.
        assert found._replace(leaves={}) == whole._replace(leaves={})
        assert found.leaves.keys() == whole.leaves.keys()
        assert_same(found.leaves.values(), [whole.leaves[name] for name in found.leaves])
    assert seen > 0.98 * len(data) / 5


def test_a_run_whose_newest_checkpoint_is_damaged_ends_with_the_same_bits(copied, finished, experiment):
    (copied.path / "checkpoints" / "300.safetensors").write_bytes(b"")
    copied.reopen()
    with as_in_a_program(), pytest.warns(UserWarning, match=r"300.safetensors \(.*going on from 280.safetensors"):
        run_training(copied, quiet, experiment)
    assert_same_run(copied.path, finished.path)


def test_checkpoints_that_are_not_there_or_of_another_format(copied):
    folder = copied.path / "checkpoints"
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="a run with records must have a checkpoint, got none in"):
        copied.checkpoint()
    save_file({"a": np.ones(3)}, folder / "300.safetensors")
    with pytest.raises(ValueError, match="must be a file that snapgrad wrote"):
        copied.checkpoint()
    (folder / "300.safetensors").unlink()
    (folder / "300").mkdir()
    with pytest.raises(ValueError, match="got folders: an older version of snapgrad wrote them"):
        copied.checkpoint()
    (folder / "300").rename(folder / "300.safetensors")
    with pytest.raises(ValueError, match="it is a folder"):
        copied.checkpoint()


def test_only_the_last_two_stay_and_what_a_kill_left_is_removed(copied, experiment):
    left = copied.path / "checkpoints" / ".300.safetensors.12345678.part", copied.path / ".outcome.json.123.part"
    for path in left:
        path.write_bytes(b"half")
    with as_in_a_program():
        found = copied.checkpoint()
        carry = found.carry(experiment.start())
        with copied.locked():
            for tokens in (320, 340, 330):  # the last as after a resume from the one before
                copied.save(carry, found.totals._replace(tokens=tokens), OPTIONS)
    assert not any(path.exists() for path in left)
    assert sorted(path.name for path in (copied.path / "checkpoints").iterdir()) == [
        "320.safetensors",
        "330.safetensors",
    ]


CHANGED = {
    "cell": "lstm", "units": 5, "sparsity": 0.5, "sparse_inputs": True, "readout": "mlp", "algorithm": "frozen",
    "order": 3, "decay": 0.5, "rank": 2, "influence_dtype": "bfloat16", "update_every": 2, "optimiser": "sgd",
    "learning_rate": 0.5, "schedule": "linear", "warmup": 3, "schedule_updates": 9000, "clip": 1.0, "weight_decay": 0.1,
    "batch": 3, "seed": 1, "backend": "auto", "length": 5, "rewire": "set", "rewire_every": 5, "rewire_share": 0.5,
    "rewire_end": 7, "prune": 0.9, "prune_every": 5, "prune_end": 50, "layers": 2, "initial_scale": 0.5,
    "skip_idle": True, "minibatch": "window",
}  # fmt: skip
MAY = {"tokens": 400, "log_every": 50, "checkpoint_every": 1.0, "tensorboard": True}


def test_options_that_weights_depend_on_must_be_those_of_the_checkpoint(copied):
    assert CHANGED.keys() | MAY.keys() == toml.plain(OPTIONS).keys() - {"task"} | {
        "order", "decay", "rank", "influence_dtype", "schedule_updates", "clip", "weight_decay", "length",
        "rewire", "rewire_every", "rewire_share", "rewire_end", "prune", "prune_every", "prune_end",
    }  # fmt: skip
    begun = toml.plain(OPTIONS)
    for name, value in CHANGED.items():
        (copied.path / "config.toml").write_text(toml.text(replace(OPTIONS, **{name: value})))
        was = re.escape(str(begun.get(name, "nothing")))
        with pytest.raises(
            ValueError, match=f"`{name}` must be the one that the run was begun with, {was}, got {value}"
        ):
            copied.checkpoint()
    for name, value in MAY.items():
        (copied.path / "config.toml").write_text(toml.text(replace(OPTIONS, **{name: value})))
        assert copied.checkpoint().totals.tokens == 300


def test_tokens_must_not_change_where_the_schedule_ends_with_them(tmp_path):
    given = replace(OPTIONS, schedule="cosine")
    run = RunDirectory.create(tmp_path / "run", given, data="")
    with as_in_a_program():
        carry = build(given).start()
    run.save(carry, checkpoint.Totals(0, 0, 0.0), given)
    assert run.checkpoint() is not None
    (run.path / "config.toml").write_text(toml.text(replace(given, tokens=400)))
    with pytest.raises(ValueError, match="`tokens` must be the one that the run was begun with, 300, got 400"):
        run.checkpoint()


@pytest.mark.parametrize("kind", [{}, {"update_every": "sequence", "learning_rate": 0.1}], ids=["online", "sequences"])
def test_a_run_resumed_with_more_tokens_and_other_slices_has_the_bits_of_one_begun_so(kind, tmp_path):
    long = replace(OPTIONS, tokens=2000, log_every=333, **kind)
    short = replace(long, tokens=900, log_every=70)
    with as_in_a_program():
        shared = build(long)
        whole, extended = (
            RunDirectory.create(tmp_path / name, given, shared.data)
            for name, given in (("whole", long), ("extended", short))
        )
        run_training(whole, quiet, shared)
        assert run_training(extended, quiet, shared)["tokens"] < 1000
        (extended.path / "config.toml").write_text(toml.text(long))
        assert run_training(extended, quiet, shared)["tokens"] >= 2000
        left, right = (run.checkpoint() for run in (whole, extended))
        assert left.totals[:2] == right.totals[:2]
        assert_same(*(arrays_of(found.carry(shared.start())) for found in (left, right)))
    if kind:  # the curriculum has grown, so windows did
        assert whole.metrics()[-1]["level"] > 1


def test_every_kind_of_leaf_comes_back_as_it_was(tmp_path, experiment):
    given = replace(OPTIONS, algorithm="snap", order=1, influence_dtype="bfloat16")
    with as_in_a_program():
        like = build(given).start()
        carry = jax.tree.map(
            lambda leaf: jax.random.split(leaf)[0] if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf + 1,
            like,
        )
        checkpoint.write(tmp_path / "7.safetensors", carry, checkpoint.Totals(7, 3, 0.5), toml.plain(given))
        found = checkpoint.read(tmp_path / "7.safetensors")
        back = found.carry(like)
        assert {"bfloat16", "float32", "int32", "key<fry>"} <= {str(leaf.dtype) for leaf in jax.tree.leaves(back)}
        assert jax.tree.structure(back) == jax.tree.structure(carry)
        assert [leaf.dtype for leaf in jax.tree.leaves(back)] == [leaf.dtype for leaf in jax.tree.leaves(carry)]
        assert_same(arrays_of(back), arrays_of(carry))
        assert found.totals == checkpoint.Totals(7, 3, 0.5)
        assert "params.cell.recurrent.values" in found.leaves
        with pytest.raises(ValueError, match=r"`params\.cell\.bias` must be as in the checkpoint, float32"):
            found.carry(build(replace(given, units=5)).start())
        other = build(replace(given, seed=1)).start()
        with pytest.raises(
            ValueError, match=r"\.pattern` must be as in the checkpoint, [0-9a-f]{32}, got [0-9a-f]{32}"
        ):
            found.carry(other)


def test_a_checkpoint_that_goes_while_it_is_looked_for_is_no_damage(tmp_path, monkeypatch):
    """As when another process has written newer ones in the meantime."""
    given = OPTIONS
    run = RunDirectory.create(tmp_path / "run", given, data="")
    carry = Carry(params={"weight": jnp.ones(2)}, opt_state=(), state=(), task=())
    for tokens in (10, 20):
        run.save(carry, checkpoint.Totals(tokens, 1, 0.0), given)
    read = checkpoint.read

    def while_another_trains(path):
        monkeypatch.setattr(checkpoint, "read", read)
        for tokens in (30, 40):
            run.save(carry, checkpoint.Totals(tokens, 1, 0.0), given)
        return read(path)

    monkeypatch.setattr(checkpoint, "read", while_another_trains)
    assert run.checkpoint().totals.tokens == 40


def test_a_full_disk_is_one_sentence_and_harms_no_checkpoint(tmp_path, experiment, finished, monkeypatch):
    sync, calls = os.fsync, []

    def full_at(number):
        def fsync(descriptor):
            calls.append(descriptor)
            if len(calls) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        return fsync

    for number in (1, 2, 3, 5, 8, 13):
        run = RunDirectory.create(tmp_path / str(number), OPTIONS, experiment.data)
        calls.clear()
        with as_in_a_program(), monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full_at(number))
            with pytest.raises(OSError, match=r"(?i)no space left on device") as caught:
                run_training(run, quiet, experiment)
        advice = f"the last checkpoint is unharmed, go on with: snapgrad resume {run.path}"
        assert str(caught.value).endswith(advice)
        assert str(run.path) in str(caught.value).removesuffix(advice)
        assert not list(run.path.rglob("*.part"))
        with as_in_a_program():
            run_training(run, quiet, experiment)
        assert_same_run(run.path, finished.path)


def test_resume_says_what_it_skipped_and_refuses_with_2(copied):
    folder = copied.path / "checkpoints"
    copied.reopen()
    (folder / "300.safetensors").write_bytes(b"")
    done = answer("resume", copied.path)
    assert done.code == 0
    assert "warning: 300.safetensors (" in done.err
    assert "going on from 280.safetensors\n" in done.err
    copied.reopen()
    for path in folder.iterdir():
        path.write_bytes(b"")
    refused = answer("resume", copied.path)
    assert refused.code == 2
    assert refused.err.startswith(f"error: a checkpoint in {folder} must be whole, got ")
    assert refused.err.count("\n") == 1


@pytest.mark.parametrize("kills", [case(2), case(10, quick=False)])
def test_killed_at_random_moments_it_ends_with_the_same_bits(kills):
    script = Path(__file__).parent / "kills.py"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, script, "--kills", str(kills)], capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"{kills} kills in \d+ runs: all ended with the same bits\n", done.stdout)
