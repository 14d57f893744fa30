"""The analysis of what SnAp leaves out, against dense recursions and brute-force reachability."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from networks import SPARSE, loss, network
from oracles import flat, influence_gradient, kept_entries, structure, trajectory, unrolled_gradient

import snapgrad as sg
from snapgrad.report.hinton import FULL, KINDS, WIDTH, hinton

NAMES = ["gru", "two_layers"]


def last_influences(name):
    """J of every lane after the last step, by the recursion."""
    J = 0.0
    for t, (D, I, _) in enumerate(trajectory(name, SPARSE)):
        J = I if t == 0 else I + D @ J
    return J


@pytest.mark.parametrize("name", NAMES)
def test_true_influence_is_the_last_of_the_recursion(name):
    net, expected = network(name), last_influences(name)
    found = sg.analysis.true_influence(net.cell, net.params.cell, net.xs[:, 1])
    np.testing.assert_allclose(found.J, expected[1], rtol=0, atol=1e-10 * np.abs(expected).max())
    for order in (1, 2, 3, None):
        kept = (found.first_order > 0) & (found.first_order <= (order or 1000))
        np.testing.assert_array_equal(kept, kept_entries(*structure(name, SPARSE), order))


@pytest.mark.parametrize("name", NAMES)
def test_each_order_against_sums_by_hand(name):
    net = network(name)
    size = np.abs(last_influences(name)).mean(0)
    exact = flat(unrolled_gradient(name, SPARSE)[1].cell)
    reached = kept_entries(*structure(name, SPARSE), None)
    rows = sg.analysis.analyse(net.cell, loss, net.params, net.xs, net.targets, orders=(1, 2, 20))
    for row in rows:
        kept = kept_entries(*structure(name, SPARSE), row.order)
        gradient = influence_gradient(name, SPARSE, row.order).sum(0)
        cosine = gradient @ exact / np.linalg.norm(gradient) / np.linalg.norm(exact)
        expected = kept.sum() / reached.sum(), size[kept].sum() / size.sum(), size[kept].mean(), cosine
        assert (row.entries, row.magnitude, row.kept_mean, row.cosine) == pytest.approx(expected, rel=1e-10)
        if row.order < 20:
            assert row.dropped_mean == pytest.approx(size[reached & ~kept].mean(), rel=1e-10)
    assert [row.order for row in rows] == [1, 2, 20]
    assert np.isnan(rows[-1].dropped_mean)
    assert rows[0].cosine < rows[-1].cosine == pytest.approx(1)


def test_a_diagram_has_a_square_an_entry_with_its_size_and_colour():
    draw = np.random.default_rng(0)
    J, first = draw.normal(size=(5, WIDTH + 7)), draw.integers(1, 5, (5, WIDTH + 7))
    J[2, 3] = 0.0
    figure = hinton({"early": sg.analysis.Influence(0.1 * J, first), "late": sg.analysis.Influence(J, first)}, [
        ("weights", WIDTH), ("bias", 7)
    ])  # fmt: skip
    panels = figure.axes
    assert [axes.get_title() for axes in panels] == ["early", "", "late", ""]
    assert [[label.get_text() for label in axes.get_xticklabels()] for axes in panels[:2]] == [
        ["weights"],
        ["weights", "bias"],
    ]
    full = np.quantile(np.abs(np.concatenate([0.1 * J[J != 0], J[J != 0]])), FULL)
    squares = {}
    for axes in panels[2:]:
        (collection,) = axes.collections
        for path, colour in zip(collection.get_paths(), collection.get_facecolor(), strict=True):
            low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
            column, row = np.round((low + high) / 2).astype(int)
            squares[row, column] = (high - low).prod(), to_hex(colour)
    assert squares.keys() == set(zip(*np.nonzero(J), strict=True))
    for (row, column), (area, colour) in squares.items():
        assert area == pytest.approx(0.81 * min(abs(J[row, column]) / full, 1))
        assert colour == KINDS[min(first[row, column], 3) - 1][1]


def test_the_cells_own_parameters_are_asked_for():
    net = network("gru")
    with pytest.raises(TypeError, match="`params` must be the parameters of the cell alone"):
        sg.analysis.true_influence(net.cell, net.params, net.xs[:, 0])
    with pytest.raises(ValueError, match="`orders` must be an integer >= 1, got 0"):
        sg.analysis.analyse(net.cell, loss, net.params, net.xs, net.targets, orders=(0,))
