"""Sampling and evaluation of a trained network: against loops written by hand, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg

CLASSES, UNITS = 5, 6
CELL, READOUT = sg.LSTM(CLASSES, UNITS), sg.Readout(CLASSES, hidden=(7,))
PARAMS = sg.Params(CELL.init(jax.random.key(0), sparsity=0.5), READOUT.init(jax.random.key(1), UNITS))
PARAMS = jax.tree.map(lambda leaf: 3 * leaf + 0.1, PARAMS)  # far from uniform
PROMPT = np.array([1, 4, 0], np.uint8)


def test_at_temperature_zero_it_is_the_likeliest_symbol_step_by_step():
    s, said = CELL.initial_state(), []
    for x in [*PROMPT, *[None] * 9]:
        s = CELL.step(PARAMS.cell, s, jnp.int32(said[-1] if x is None else x))
        said.append(int(np.argmax(READOUT.logits(PARAMS.readout, CELL.output(s)))))
    found = sg.generate(CELL, READOUT, PARAMS, PROMPT, 10, temperature=0)
    assert found.dtype == np.int32
    assert found.tolist() == said[2:]
    assert len(set(said)) > 1
    # A key changes nothing, and a temperature that is nearly zero next to nothing.
    for temperature in (0, 1e-300):
        again = sg.generate(CELL, READOUT, PARAMS, PROMPT, 10, jax.random.key(0), temperature)
        np.testing.assert_array_equal(again, found)


def test_symbols_are_drawn_with_the_probabilities_of_the_temperature():
    nothing = jax.tree.map(jnp.zeros_like, PARAMS)
    logits = jnp.log(jnp.asarray([0.4, 0.3, 0.15, 0.1, 0.05]))
    nothing.readout[-1] = (nothing.readout[-1][0], logits)
    count, temperature = 4000, 0.5
    said = sg.generate(CELL, READOUT, nothing, PROMPT, count, jax.random.key(2), temperature)
    expected = np.asarray(jax.nn.softmax(logits / temperature))
    deviation = np.sqrt(expected * (1 - expected) / count)
    shares = np.bincount(said, minlength=CLASSES) / count
    assert (np.abs(shares - expected) < 5 * deviation).all()
    again = [sg.generate(CELL, READOUT, nothing, PROMPT, count, jax.random.key(key), temperature) for key in (2, 3)]
    np.testing.assert_array_equal(again[0], said)
    assert (again[1] != said).any()


def test_bytes_give_bytes():
    cell, readout = sg.Vanilla(256, 3), sg.Readout(256)
    params = sg.Params(cell.init(jax.random.key(0), dtype=jnp.float32), readout.init(jax.random.key(1), 3))
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    said = sg.generate(cell, readout, params, b"ab", 20, jax.random.key(2))
    assert isinstance(said, bytes)
    array = sg.generate(cell, readout, params, np.frombuffer(b"ab", np.uint8), 20, jax.random.key(2))
    assert said == bytes(array.tolist())


def call(cell=CELL, readout=READOUT, params=PARAMS, prompt=PROMPT, length=3, key=jax.random.key(0), temperature=1.0):  # noqa: B008
    return sg.generate(cell, readout, params, prompt, length, key, temperature)


WIDE = sg.LSTM(CLASSES + 1, UNITS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cell": sg.GRU}, "`cell` must be a snapgrad cell"),
        ({"readout": None}, "`readout` must be a sg.Readout, got NoneType"),
        ({"params": PARAMS.cell}, "`params` must be sg.Params"),
        ({"params": PARAMS._replace(readout=())}, "`params.readout` must be what .*init returns"),
        ({"readout": sg.Readout(CLASSES)}, r"`params.readout` must be what Readout\(classes=5, hidden=\(\)\).init"),
        ({"readout": sg.Readout(4, (7,))}, "`params.readout` must be what .*init returns"),
        (
            {"cell": WIDE, "params": PARAMS._replace(cell=WIDE.init(jax.random.key(0)))},
            "`readout` must have as many classes as the cell has inputs, 6, got",
        ),
        ({"prompt": b"a"}, "`prompt` must be an array of integers for a network of 5 classes, got bytes"),
        ({"prompt": "text"}, "`prompt` must be bytes or a vector of integers, got str"),
        ({"prompt": np.zeros(3)}, "`prompt` must be bytes or a vector of integers, got ndarray"),
        ({"prompt": PROMPT[None]}, "`prompt` must be bytes or a vector of integers"),
        ({"prompt": PROMPT[:0]}, "`prompt` must have at least one symbol, got none"),
        ({"prompt": np.array([1, 5])}, r"`prompt` must have symbols in \[0, 5\), got 1 to 5"),
        ({"prompt": np.array([-1])}, r"`prompt` must have symbols in \[0, 5\), got -1 to -1"),
        ({"length": 0}, "`length` must be an integer >= 1, got 0"),
        ({"temperature": -1}, "`temperature` must be a finite number >= 0, got -1"),
        ({"temperature": float("nan")}, "`temperature` must be a finite number >= 0, got nan"),
        ({"temperature": float("inf")}, "`temperature` must be a finite number >= 0, got inf"),
        ({"temperature": "1"}, "`temperature` must be a finite number >= 0, got '1'"),
        ({"key": None}, "`key` must be a PRNG key, or None at temperature 0, got None"),
        ({"key": 0}, "`key` must be one PRNG key, such as"),
    ],
)
def test_wrong_arguments_are_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(**given)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"\x01\x05", {}, r"`text` must have bytes below 5 \(`cell.inputs`\) and 5 \(`readout.classes`\), got 5"),
        (b"\x01", {}, "`text` must have at least 2 bytes, got 1"),
        ("text", {}, "`text` must be a 1-D array of uint8, got str"),
        (b"\x01\x02", {"length": 0}, "`length` must be an integer >= 1, got 0"),
        (b"\x01\x02", {"backend": "gpu"}, "`backend` must be"),
    ],
)
def test_texts_that_cannot_be_evaluated_are_refused(text, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sg.evaluate(CELL, READOUT, PARAMS, text, **options)


def test_evaluation_compiles_once_and_takes_bytes(monkeypatch):
    traced = []
    logits = sg.Readout.logits
    monkeypatch.setattr(sg.Readout, "logits", lambda *args: (traced.append(1), logits(*args))[1])
    text = np.arange(200, dtype=np.uint8) % CLASSES
    first = sg.evaluate(CELL, READOUT, PARAMS, text)
    once = len(traced)
    assert sg.evaluate(CELL, READOUT, PARAMS, text.tobytes()) == first
    assert len(traced) == once > 0


def test_what_would_not_fit_is_refused_or_never_made(monkeypatch):
    text = bytes(range(CLASSES)) * 2
    whole = sg.evaluate(CELL, READOUT, PARAMS, text, length=len(text) - 1)
    assert sg.evaluate(CELL, READOUT, PARAMS, text, length=10**9) == whole  # as long as the text is enough
    with pytest.raises(ValueError, match=r"`length` must leave the symbols and their keys within the memory"):
        sg.generate(CELL, READOUT, PARAMS, PROMPT, 10**12, jax.random.key(0))
    with pytest.raises(TypeError, match="`key` must be one PRNG key"):
        sg.generate(CELL, READOUT, PARAMS, PROMPT, 3, jnp.zeros(3))
    xs = jnp.zeros((2, CLASSES))
    with pytest.raises(ValueError, match=r"`params\.cell\.recurrent` must be a SparseMatrix of shape"):
        sg.analysis.true_influence(sg.GRU(CLASSES, UNITS), PARAMS.cell, xs)
    monkeypatch.setattr("snapgrad.machine.memory_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"`params` must leave the whole influence on LSTM.* within the memory"):
        sg.analysis.true_influence(CELL, PARAMS.cell, xs)
