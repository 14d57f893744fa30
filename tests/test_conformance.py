"""Every algorithm on every cell, sparse and dense, against oracles that share no code with it (float64, 1e-10)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import CELLS, INPUTS, SPARSE, SPARSITIES, UNITS, loss, network
from oracles import drifted, flat, influence_gradient, unrolled_gradient
from variants import (
    EACH_ALGORITHM,
    KINDS,
    RANDOM,
    VARIANTS,
    WINDOW,
    Compiled,
    case,
    compiled,
    is_quick,
    relative_error,
    run,
    runs_on,
)

import snapgrad as sg
from snapgrad.algorithms.registry import ALGORITHMS
from snapgrad.kernels.native import settled

EXACT = 1e-10
# The quick set has a cell of every kind.
every_cell = pytest.mark.parametrize("name", [case(name, quick=name in KINDS) for name in CELLS])
every_network = pytest.mark.parametrize(
    ("name", "sparsity"),
    [
        case(name, share, id=f"{name}-{label}", quick=name in KINDS and share > 0)
        for name in CELLS
        for label, share in SPARSITIES.items()
    ],
)


def variants_on(cells, variants=tuple(VARIANTS), quick=is_quick):
    return pytest.mark.parametrize(
        ("name", "variant"),
        [
            case(name, variant, quick=quick(variant, name), id=f"{name}-{variant}")
            for variant in variants
            for name in cells
            if runs_on(variant, name)
        ],
    )


def on_a_gru(variant, name):
    """What differs little from cell to cell: every variant on one, and all cells with one."""
    return name == "gru" or variant == "snap_2"


def test_every_registered_algorithm_is_covered():
    named = [[name for name in ALGORITHMS if variant.startswith(name)] for variant in VARIANTS]
    assert {max(names, key=len) for names in named} == set(ALGORITHMS)


@pytest.mark.parametrize(
    ("name", "sparsity", "variant"),
    [
        case(name, share, variant, id=f"{name}-{label}-{variant}", quick=is_quick(variant, name, share))
        for name in CELLS
        for label, share in SPARSITIES.items()
        for variant in VARIANTS
        # On a dense network the second order has every entry already (but for the third component of "odd").
        if not ("snap_3" in variant and share == 0 and name != "odd") and runs_on(variant, name, share)
    ],
)
def test_gradient_equals_its_oracle(name, sparsity, variant):
    net = network(name, sparsity)
    value, grads, _ = run(compiled(variant, name), net)
    n_cell = flat(net.params.cell).size
    # The loss and the readout's gradient are exact under every algorithm (an episodic one restarts between windows).
    if "episodic" not in variant:
        exact_loss, exact = unrolled_gradient(name, sparsity)
        assert relative_error(value, exact_loss) < EXACT
        assert relative_error(grads[n_cell:], flat(exact.readout)) < EXACT
    if VARIANTS[variant].oracle is not None:
        assert relative_error(grads[:n_cell], VARIANTS[variant].oracle(name, sparsity)) < EXACT


@variants_on(
    [*KINDS, "gru_original"],
    ["bptt", "rtrl", "snap_2", "snap_2_episodic", "snap_3_episodic", "snap_topk", "rflo"],
    quick=lambda variant, name: on_a_gru(variant, name) or variant == "snap_2_episodic",
)
def test_the_reference_backend_equals_the_same_oracle(name, variant):
    net = network(name)
    _, grads, _ = run(compiled(variant, name, "reference"), net)
    expected = VARIANTS[variant].oracle(name, SPARSE)
    assert relative_error(grads[: expected.size], expected) < EXACT


@every_network
def test_rtrl_over_any_split_equals_bptt_over_the_whole(name, sparsity):
    net = network(name, sparsity)
    expected = flat(unrolled_gradient(name, sparsity)[1])
    assert relative_error(run(compiled("rtrl", name), net, (1, 4, 1, 1, 1))[1], expected) < EXACT
    assert relative_error(run(compiled("bptt", name), net, (len(net.xs),))[1], expected) < EXACT


@every_cell
def test_exact_episodic_equals_bptt(name):
    net = network(name)
    algorithm = sg.snap(net.cell, loss, order=None, episodic=True)
    _, grads, _ = run(Compiled(algorithm, jax.jit(algorithm.grad)), net, (len(net.xs),))
    assert relative_error(grads, flat(unrolled_gradient(name, SPARSE)[1])) < EXACT


@every_cell
def test_the_approximations_differ_from_the_exact_gradient_on_sparse_networks(name):
    """Guards the suite itself: on these networks a wrong order would be noticed."""
    exact = influence_gradient(name, SPARSE, None).sum(0)
    errors = [relative_error(influence_gradient(name, SPARSE, order).sum(0), exact) for order in (1, 2)]
    assert errors[0] > 1e-3
    assert errors[1] < errors[0]
    kept, exact = (run(compiled(variant, name), network(name))[1] for variant in ("snap_2", "rtrl"))
    assert relative_error(kept, exact) > 1e-3


@variants_on(CELLS)
def test_a_reset_lane_is_a_fresh_one_and_the_others_do_not_notice(name, variant):
    net, (algorithm, grad) = network(name), compiled(variant, name)
    first, second = (net.xs[:WINDOW], net.targets[:WINDOW]), (net.xs[WINDOW:], net.targets[WINDOW:])
    start = algorithm.init(net.params, batch_size=3, key=jax.random.key(7))
    _, warm = grad(net.params, start, *first)
    one, all_ = algorithm.reset(warm, jnp.array([False, True, False])), algorithm.reset(warm, jnp.ones(3, bool))

    kept, kept_state = grad(net.params, warm, *second)
    mixed, mixed_state = grad(net.params, one, *second)
    fresh, fresh_state = grad(net.params, all_, *second)
    for lanes, losses, state in [([0, 2], kept, kept_state), ([1], fresh, fresh_state)]:
        np.testing.assert_array_equal(mixed.info.losses[:, lanes], losses.info.losses[:, lanes])
        for a, b in zip(lane_arrays(mixed_state), lane_arrays(state), strict=True):
            np.testing.assert_array_equal(a[np.array(lanes)], b[np.array(lanes)])
    for a, b in zip(lane_arrays(all_), lane_arrays(start), strict=True):
        np.testing.assert_array_equal(a, b)
    if "episodic" not in variant:  # which starts every window afresh anyway
        assert not np.array_equal(flat(warm.cell), flat(one.cell))


@pytest.mark.parametrize("variant", ["snap_2", "snap_2_episodic", "snap_topk", "bptt"])
def test_the_trajectory_of_a_window_comes_with_its_gradient(variant):
    net, (algorithm, grad) = network("gru"), compiled(variant, "gru")
    start = algorithm.init(net.params, batch_size=3)
    _, warm = grad(net.params, start, net.xs[:WINDOW], net.targets[:WINDOW])
    window = net.xs[WINDOW:], net.targets[WINDOW:]
    expected, _ = grad(net.params, warm, *window)
    gradient, _, trajectory = algorithm.grad_along(net.params, warm, *window)
    assert relative_error(flat(gradient.grads), flat(expected.grads)) < EXACT
    if variant == "bptt":  # which has no derivatives of single steps
        assert trajectory is None
        return
    s_0 = start.cell if "episodic" in variant else warm.cell
    h = np.concatenate([s_0[None, :, 0], expected.info.outputs])
    assert relative_error(np.moveaxis(trajectory.local.h, -1, 1), h[:-1]) < EXACT
    assert relative_error(np.moveaxis(trajectory.after, -1, 1)[:, :, 0], h[1:]) < EXACT


def test_the_smallest_network_and_one_that_nothing_influences():
    tiny, deaf = sg.LSTM(1, 1), sg.UnitCell(deaf_rule, 2, 3)
    params, deaf_params = (sg.Params(cell.init(jax.random.key(0)), ()) for cell in (tiny, deaf))
    for make in (sg.bptt, sg.rtrl, lambda *a: sg.snap(*a, order=1, episodic=True)):
        algorithm = make(tiny, lambda readout, h, target: jnp.sum((h - target) ** 2))
        state = algorithm.init(params, batch_size=1)
        gradient, _ = algorithm.grad(params, state, jnp.ones((1, 1, 1)), jnp.ones((1, 1, 1)))
        assert relative_error(flat(gradient.grads), flat(first_step_gradient(tiny, params))) < EXACT
        algorithm = make(deaf, lambda readout, h, target: jnp.sum(h))
        gradient, _ = algorithm.grad(deaf_params, algorithm.init(deaf_params, 2), jnp.ones((3, 2, 2)), jnp.ones((3, 2)))
        assert not flat(gradient.grads).any()


def deaf_rule(s, u, v):
    return (jnp.tanh(0.3 * s[0] + 0.1),)


def first_step_gradient(cell, params):
    def objective(params):
        return jnp.sum((cell.output(cell.step(params.cell, cell.initial_state(), jnp.ones(1))) - 1) ** 2)

    return jax.grad(objective)(params)


def lane_arrays(state):
    """All numbers of a state that belong to lanes; J is zero in a lane that starts anew."""
    return [leaf for leaf in jax.tree.leaves(settled(state)) if jnp.issubdtype(leaf.dtype, jnp.floating)]


STALE = {
    "snap_1": {"order": 1},
    "snap_2": {"order": 2},
    "rtrl": {"order": None},
    "snap_topk": {"order": None, "largest": 3},
    "rflo": {"order": 1, "decay": 1.0},
    "bptt": {"order": 1, "decay": 0.0},  # which has no influence to go stale, only a state
}


@variants_on(KINDS, STALE, quick=on_a_gru)
def test_influence_goes_stale_across_weight_updates(name, variant):
    net, (algorithm, grad) = network(name), compiled(variant, name)
    state = algorithm.init(net.params, batch_size=3)
    for t, expected in enumerate(influence_gradient(name, SPARSE, **STALE[variant], drift=0.05)):
        gradient, state = grad(drifted(net.params, 0.05 * t), state, net.xs[t : t + 1], net.targets[t : t + 1])
        assert relative_error(flat(gradient.grads.cell), expected) < EXACT


@pytest.mark.parametrize("name", ["gru", "two_layers"])
def test_bptt_with_windows_of_one_step_has_the_immediate_jacobian_only(name):
    net = network(name)
    _, grads, _ = run(compiled("bptt", name), net, (1,) * len(net.xs))
    expected = influence_gradient(name, SPARSE, 1, decay=0.0).sum(0)
    assert relative_error(grads[: expected.size], expected) < EXACT


@pytest.mark.parametrize("name", [case(name, quick=name == "gru") for name in KINDS])
def test_rflo_lets_influence_decay(name):
    net = network(name)
    algorithm = sg.rflo(net.cell, loss, decay=0.6)
    _, grads, _ = run(Compiled(algorithm, jax.jit(algorithm.grad)), net)
    expected = influence_gradient(name, SPARSE, 1, decay=0.6).sum(0)
    assert relative_error(grads[: expected.size], expected) < EXACT


@variants_on(KINDS, quick=lambda variant, name: name == "gru" and variant in EACH_ALGORITHM)
def test_float32_agrees_with_float64_and_stays_float32(name, variant, monkeypatch):
    # Signs depend on the dtype they are drawn for: fix them.
    monkeypatch.setattr(jax.random, "rademacher", lambda key, shape, dtype: jnp.ones(shape, dtype))
    make = VARIANTS[variant].make(network(name).cell, "native")
    pair = Compiled(make, jax.jit(make.grad)) if variant in RANDOM else compiled(variant, name)
    _, expected, _ = run(pair, network(name))
    _, grads, state = run(pair, network(name, dtype=np.float32))
    assert grads.dtype == np.float32
    assert {leaf.dtype for leaf in lane_arrays(state)} == {jnp.dtype("float32")}
    assert relative_error(grads, expected.astype(np.float32)) < 1e-4


@variants_on(KINDS, ["bptt", "snap_2", "snap_2_episodic", "uoro", "ok"], quick=on_a_gru)  # each reads them its own way
def test_integer_inputs_are_one_hots(name, variant):
    net = network(name)
    # One before and one past the range as well: both mean that there is no input.
    index = jnp.asarray(np.random.default_rng(4).integers(-1, net.cell.inputs + 1, net.xs.shape[:2]))
    one_hot = jax.nn.one_hot(index, net.cell.inputs, dtype=net.xs.dtype)
    _, expected, _ = run(compiled(variant, name), net._replace(xs=one_hot))
    _, grads, _ = run(compiled(variant, name), net._replace(xs=index))
    assert relative_error(grads, expected) < EXACT


def test_rflo_on_leaky_units_is_e_prop():
    """Bellec et al. 2020: dL/dW_ji = sum_t L_j e_ji, learning signal L_j = dL/dh_j times eligibility trace e_ji.

    e_t = alpha e_tm1 + dh_t/dW_t for the unit h_t = alpha h_tm1 + (1 - alpha) tanh(W [h_tm1, x_t, 1]): the leak alpha
    is all that remains of the past within a unit, and what comes back through recurrent weights is cut off.
    """
    net, alpha = network("leaky"), 0.7
    weights = net.cell.to_dense(net.params.cell)
    W = np.concatenate([weights.recurrent, weights.input, weights.bias[:, None]], axis=1)
    expected = 0.0
    for xs, targets in zip(net.xs.swapaxes(0, 1), net.targets.swapaxes(0, 1), strict=True):
        h, e = np.zeros(len(W)), np.zeros(W.shape)
        for x, target in zip(xs, targets, strict=True):
            presynaptic = np.concatenate([h, x, [1.0]])
            phi = np.tanh(W @ presynaptic)
            h = alpha * h + (1 - alpha) * phi
            e = alpha * e + (1 - alpha) * np.outer(1 - phi**2, presynaptic)
            learning_signal = jax.grad(loss, argnums=1)(net.params.readout, jnp.asarray(h), target)
            expected = expected + learning_signal[:, None] * e / net.xs.shape[1]

    algorithm = sg.rflo(net.cell, loss, decay=alpha)
    _, grads, _ = run(Compiled(algorithm, jax.jit(algorithm.grad)), net)
    existing = [matrix.pattern.mask() for matrix in (net.params.cell.recurrent, net.params.cell.input)]
    recurrent, input, bias = np.split(expected, [UNITS, UNITS + INPUTS], axis=1)
    expected = np.concatenate([recurrent[existing[0]], input[existing[1]], bias[:, 0]])
    assert relative_error(grads[: expected.size], expected) < EXACT
