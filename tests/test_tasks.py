"""Tasks: what they ask, that it does not depend on how it is cut into windows, and texts of every kind."""

from __future__ import annotations

import hashlib
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.tasks import corpora
from snapgrad.tasks.base import PADDING
from snapgrad.tasks.characters import Crops
from snapgrad.tasks.copy import END, START, Copy
from snapgrad.tasks.streams import Streams
from snapgrad.tasks.unrolled import unrolled

BATCH = 3


def windows(task, steps, count, *, bits=1.0, state=None):
    """xs, targets, is_start of consecutive windows, as lists; every asked character costs `bits`."""
    state = task.start(jax.random.key(0), BATCH) if state is None else state

    @jax.jit
    def advance(data, state):
        state, window = task.window(data, state, steps)
        return task.learn(state, jnp.where(window.targets == PADDING, 0, jnp.float32(bits))), window

    seen, data = [], task.data
    for _ in range(count):
        state, window = advance(data, state)
        seen.append(jax.device_get(window))
    return seen, state


def sequences(seen, lane):
    """The (inputs, targets) of one lane, sequence by sequence, without what only fills up."""
    found = []
    for window in seen:
        if window.is_start[lane]:
            found.append(([], []))
        found[-1][0].extend(window.xs[:, lane].tolist())
        found[-1][1].extend(window.targets[:, lane].tolist())
    return [trim(*one) for one in found[:-1]]


def trim(xs, targets):
    end = max(i for i, (x, y) in enumerate(zip(xs, targets, strict=True)) if x != PADDING or y != PADDING) + 1
    return xs[:end], targets[:end]


@pytest.mark.parametrize("task", [Copy(), Copy(length=4)])
def test_copy_asks_for_what_was_shown_however_it_is_cut(task):
    seen, _ = windows(task, 1, 60)
    for lane in range(BATCH):
        one_by_one = sequences(seen, lane)
        assert len(one_by_one) >= 4
        for xs, targets in one_by_one:
            length = len([x for x in targets if x != PADDING])
            string = xs[1 : length + 1]
            assert set(string) <= {0, 1}
            rest = [END] + [PADDING] * length
            assert xs == [START, *string, *rest, *([END] if task.length else [])]
            assert targets == [PADDING] * (length + 2) + string + ([PADDING] if task.length else [])
        for steps in (3, 11):
            cut = sequences(windows(task, steps, 20)[0], lane)
            both = min(len(cut), len(one_by_one))
            assert both >= 4
            assert cut[:both] == one_by_one[:both]


def test_strings_are_random_and_not_the_same_in_every_lane():
    seen, _ = windows(Copy(length=64), 1, 1 + 64)
    bits = np.stack([window.xs[0] for window in seen[1:]])
    assert 0.3 < bits.mean() < 0.7
    assert not (bits[:, 0] == bits[:, 1]).all()


def test_the_fixed_length_has_35_steps():
    task = Copy(length=16)
    assert int(task.sequence_steps(task.start(jax.random.key(0), 1))) == 35
    (window, after), _ = windows(task, 35, 2)
    assert window.tokens == 35 * BATCH
    assert window.is_start.all()
    assert after.is_start.all()


@pytest.mark.parametrize(("bits", "grows"), [(0.14, True), (0.16, False)])
@pytest.mark.parametrize("steps", [1, 8])
def test_the_level_grows_when_a_minibatch_costs_less_than_the_threshold(bits, grows, steps):
    task = Copy()
    _, state = windows(task, steps, 200 // steps, bits=bits)
    assert (int(task.level(state)) > 1) == grows
    assert task.sequence_steps(state) == 2 * task.level(state) + 2


def test_lengths_lie_in_the_range_of_the_level():
    task = Copy()
    state = task.start(jax.random.key(0), BATCH)._replace(level=jnp.int32(9))
    seen, _ = windows(task, 20, 60, state=state)
    lengths = [(window.targets != PADDING).sum(axis=0) for window in seen]
    assert set(np.ravel(lengths)) == {4, 5, 6, 7, 8, 9}
    assert sum(int(window.tokens) for window in seen) == int(np.sum(2 * np.array(lengths) + 2))


TEXT = np.random.default_rng(0).integers(0, 256, 500, np.uint8)


@pytest.mark.parametrize("steps", [1, 4, 7, 10])
def test_crops_are_pieces_of_the_text(steps):
    task = Crops(TEXT, length=10)
    seen, _ = windows(task, steps, 60)
    starts = set()
    for xs, targets in sequences(seen, 0):
        assert len(xs) == 10
        assert xs[1:] == targets[:-1]
        places = [i for i in range(len(TEXT) - 10) if TEXT[i : i + 10].tolist() == xs]
        assert any(TEXT[i + 10] == targets[-1] for i in places)
        starts.update(places)
    assert len(starts) > 4
    assert sum(int(window.tokens) for window in seen) == sum((w.targets != PADDING).sum() for w in seen)


def test_the_first_and_the_last_crop_can_be_drawn():
    text = np.arange(12, dtype=np.uint8)
    seen, _ = windows(Crops(text, length=10), 10, 20)
    assert {int(window.targets[-1, 0]) for window in seen} == {10, 11}


def test_streams_go_on_for_ever():
    seen, _ = windows(Streams(TEXT), 7, 100)
    assert not any(window.is_start.any() for window in seen)
    lane = np.concatenate([window.xs[:, 1] for window in seen])
    asked = np.concatenate([window.targets[:, 1] for window in seen])
    assert (lane[1:] == asked[:-1]).all()
    (start,) = np.flatnonzero([np.array_equal(np.roll(TEXT, -i)[:50], lane[:50]) for i in range(len(TEXT))])
    assert np.array_equal(lane, np.roll(np.tile(TEXT, 3), -start)[: len(lane)])


def test_texts_that_are_too_short_or_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="`text` must have at least 11 bytes, got 10"):
        Crops(TEXT[:10], length=10)
    with pytest.raises(TypeError, match="`text` must be a 1-D array of uint8, got str"):
        Streams("text")


def test_corpora_from_files_and_folders(tmp_path):
    (tmp_path / "book.txt").write_bytes(bytes(range(200)))
    book = corpora.corpus(str(tmp_path / "book.txt"))
    assert book.train.tolist() + book.valid.tolist() == list(range(200))
    assert len(book.valid) == 10
    assert len(corpora.corpus(str(tmp_path)).train) == 190
    (tmp_path / "my.train.txt").write_bytes(b"abc")
    with pytest.raises(ValueError, match="must have a file with 'valid' in its name"):
        corpora.corpus(str(tmp_path))
    (tmp_path / "my.valid.txt").write_bytes(b"de")
    assert [part.tobytes() for part in corpora.corpus(str(tmp_path))] == [b"abc", b"de"]
    with pytest.raises(ValueError, match=r"`corpus` must be \"stdlib\".* got 'nowhere'"):
        corpora.corpus("nowhere")
    with pytest.raises(ValueError, match="`corpus` must have at least 40 bytes, got 3"):
        corpora.split(b"abc")


def test_the_standard_library_is_a_corpus():
    text = corpora.corpus("stdlib")
    assert len(text.train) > 1_000_000
    assert b"def " in text.valid.tobytes()


def test_wikitext_is_found_or_fetched_and_checked(tmp_path, monkeypatch):
    source = tmp_path / "published.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("wikitext-2/wiki.train.tokens", "train")
        archive.writestr("wikitext-2/wiki.valid.tokens", "valid")
    digest = hashlib.md5(source.read_bytes(), usedforsecurity=False).hexdigest()
    good = corpora.Archive(source.as_uri(), digest)
    monkeypatch.setitem(corpora.ARCHIVES, "wikitext2", good._replace(md5="0"))
    with pytest.raises(ValueError, match=f"damaged: its MD5 sum must be 0, got {digest}"):
        corpora.corpus("wikitext2", tmp_path / "data")
    monkeypatch.setitem(corpora.ARCHIVES, "wikitext2", good)
    assert corpora.corpus("wikitext2", tmp_path / "data").valid.tobytes() == b"valid"
    source.unlink()
    monkeypatch.setenv(corpora.DATA_DIR, str(tmp_path / "data"))
    assert corpora.corpus("wikitext2").train.tobytes() == b"train"
    with pytest.raises(ValueError, match="where it cannot be downloaded"):
        corpora.corpus("wikitext2", tmp_path / "elsewhere")


def test_a_minibatch_may_be_what_one_update_sees():
    """Two of three lanes are enough; one alone is not, however sure of itself."""
    task = Copy(minibatch="window")
    state = task.start(jax.random.key(0), BATCH)._replace(length=jnp.array([2, 2, 2]), level=jnp.int32(2))

    def level(steps, *bits):  # the steps that have been made, and what their last one has cost
        after = task.learn(state._replace(step=jnp.array(steps)), jnp.array([bits], jnp.float32))
        return int(after.level)

    assert level([5, 5, 2], 0.1, 0.1, 0.0) == 3
    assert level([5, 5, 2], 0.1, 0.3, 0.0) == 2  # 0.2 on average
    assert level([5, 3, 2], 0.1, 0.0, 0.0) == 2  # one lane
    assert level([4, 4, 4], 0.0, 0.0, 0.0) == 2  # the end flag was read, nothing was asked
    assert level([7, 7, 7], 0.0, 0.0, 0.0) == 2  # past the end
    with pytest.raises(ValueError, match='`minibatch` must be "sequences" or "window", got 3'):
        Copy(minibatch=3)


def test_adding_asks_for_the_sum_of_the_marked_numbers():
    task, batch = sg.tasks.Adding(9), 4
    state, windows = task.start(jax.random.key(0), batch), []
    for _ in range(6):  # two sequences, in windows of four steps: the last has three steps too many
        state, window = task.window((), state, 4)
        windows.append(window)
    marks = []
    for sequence in (windows[:3], windows[3:]):
        xs = np.concatenate([window.xs for window in sequence])
        asked = np.concatenate([window.targets.asked for window in sequence])
        said = np.concatenate([window.targets.value for window in sequence])[..., 0]
        np.testing.assert_array_equal(asked, np.arange(12)[:, None] == np.full(batch, 8))
        np.testing.assert_allclose(said[8], (xs[..., 0] * xs[..., 1]).sum(axis=0), rtol=1e-12)
        assert not xs[9:].any()
        first, second = np.nonzero(xs[..., 1].T)[1].reshape(batch, 2).T
        assert (first < 4).all()
        assert ((second >= 4) & (second < 9)).all()
        marks.append(xs)
        assert [bool(window.is_start.all()) for window in sequence] == [True, False, False]
        assert [int(window.tokens) for window in sequence] == [16, 16, 4]
    assert not np.array_equal(*marks)


def test_mackey_glass_is_what_euler_makes_of_the_equation():
    task, batch = sg.tasks.MackeyGlass(delay=3, horizon=2), 2
    begun = task.start(jax.random.key(0), batch)
    state, first = task.window((), begun, 4)
    _, second = task.window((), state, 3)
    read = np.concatenate([first.xs, second.xs])[..., 0]
    told = np.concatenate([first.targets.value, second.targets.value])[..., 0]
    np.testing.assert_array_equal(told[:-2], read[2:])
    for lane in range(batch):
        x = list(np.asarray(begun.past)[:, lane])
        for _ in range(70):
            x.append(x[-1] + 0.1 * (0.2 * x[-31] / (1 + x[-31] ** 10) - 0.1 * x[-1]))
        np.testing.assert_allclose(told[:, lane], (np.array(x[31:][9::10]) - 0.93) / 0.23, rtol=1e-10)
    assert read[0, 0] != read[0, 1]


@pytest.mark.parametrize("draw", [
    lambda key: jax.random.bits(key, (3, 5)),
    lambda key: jax.random.bits(key, (4,), np.uint8),
    lambda key: jax.random.normal(key, (7,), np.float64),
    lambda key: jax.random.randint(key, (6,), 0, 1000, np.int32),
    lambda key: jax.random.bits(jax.random.fold_in(key, 123_456)),
    lambda key: jax.vmap(jax.random.bits)(jax.random.split(key, (2, 3)).reshape(-1)),
    lambda key: jax.vmap(lambda n: jax.random.uniform(jax.random.fold_in(key, n)))(jnp.arange(4)),
])  # fmt: skip
def test_keys_without_loops_draw_the_same_bits(draw):
    key = jax.random.key(7)
    np.testing.assert_array_equal(draw(unrolled(key)), draw(key))
    assert "while" not in jax.jit(lambda key: draw(unrolled(key))).lower(key).as_text()


def test_keys_of_another_kind_stay_what_they_are():
    for key in (jax.random.PRNGKey(0), jax.random.key(0, impl="rbg")):
        assert unrolled(key) is key
