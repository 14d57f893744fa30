"""Patterns that change: which entries the rules choose, what is carried over, and that nothing is recompiled."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles import flat
from variants import case, relative_error

import snapgrad as sg
from snapgrad.algorithms.base import Rule, build
from snapgrad.plasticity import density
from snapgrad.readouts import Readout
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.moves import matrices
from snapgrad.tasks.copy import Copy
from snapgrad.tasks.streams import Streams
from snapgrad.train import Trainer

TEXT = np.random.default_rng(0).integers(97, 101, 300, np.uint8)
BATCH = 9  # more than a tile of lanes, so that the native step of the cell finds its plans in slots too


@pytest.fixture
def standard_promotion():
    """Optax's Adam mixes integers and floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


# ---- rules


def a_matrix(shape=(8, 6), gates=2, sparsity=0.7, seed=0):
    draw = np.random.default_rng(seed)
    mask = draw.random(shape) > sparsity
    mask[:: shape[0] // gates, 0] = True
    return SparseMatrix.from_dense(jnp.asarray(draw.normal(size=shape)), mask)


def positions(pattern):
    return list(zip(pattern.rows.tolist(), pattern.cols.tolist(), strict=True))


def by_position(matrix):
    return dict(zip(positions(matrix.pattern), np.asarray(matrix.values), strict=True))


def of_gate(entries, gate, rows):
    return {at: value for at, value in entries.items() if at[0] // rows == gate}


def test_set_drops_the_smallest_and_grows_where_nothing_was():
    matrix, rule = a_matrix(), sg.rewiring.SET(share=0.4)
    new = rule.rewire(matrix, 2, 1000, None, np.random.default_rng(1))
    assert new == rule.rewire(matrix, 2, 1000, None, np.random.default_rng(1))
    assert new != rule.rewire(matrix, 2, 1000, None, np.random.default_rng(2))
    before, after = by_position(matrix), set(positions(new))
    for gate in range(2):
        own = of_gate(before, gate, 4)
        count = round(0.4 * len(own))
        dropped = sorted(own, key=lambda at: abs(own[at]))[:count]
        now = {at for at in after if at[0] // 4 == gate}
        assert len(now) == len(own)
        assert now & own.keys() == own.keys() - set(dropped)
        assert len(now - own.keys()) == count > 0


def test_rigl_grows_where_the_dense_gradient_is_largest():
    matrix, draw = a_matrix(), np.random.default_rng(3)
    dense = draw.normal(size=matrix.shape) * np.where(matrix.pattern.mask(), 3, 1)
    new = sg.rewiring.RigL(share=0.5).rewire(matrix, 2, 1000, SparseMatrix.from_dense(jnp.asarray(dense)), draw)
    before, after = by_position(matrix), set(positions(new))
    came_back = 0
    for gate in range(2):
        own = of_gate(before, gate, 4)
        count = round(0.5 * len(own))
        dropped = sorted(own, key=lambda at: abs(own[at]))[:count]
        stays = own.keys() - set(dropped)
        free = {(r, c) for r in range(4 * gate, 4 * gate + 4) for c in range(6)} - stays
        grown = sorted(free, key=lambda at: -abs(dense[at]))[:count]
        assert {at for at in after if at[0] // 4 == gate} == stays | set(grown)
        came_back += len(set(grown) & set(dropped))
    assert came_back > 0  # what is dropped may come back


def test_probe_grows_the_candidates_with_the_largest_sums_and_keeps_every_fan_in():
    matrix, rule, draw = a_matrix(), sg.rewiring.Probe(share=0.5, pool=1), np.random.default_rng(4)
    candidates = rule.candidates(matrix.pattern, 2, draw)
    before, drawn = by_position(matrix), set(positions(candidates))
    assert not drawn & before.keys()
    scores = SparseMatrix(jnp.asarray(draw.normal(size=candidates.nnz)), candidates)
    after = set(positions(rule.rewire(matrix, 2, 1000, scores, draw)))
    at_random = 0
    for gate in range(2):
        own, scored = of_gate(before, gate, 4), of_gate(by_position(scores), gate, 4)
        assert len(scored) == math.ceil(0.5 * len(own))
        dropped = sorted(own, key=lambda at: abs(own[at]))[: round(0.5 * len(own))]
        for row in range(4 * gate, 4 * gate + 4):
            needed = sum(at[0] == row for at in dropped)
            best = sorted((at for at in scored if at[0] == row), key=lambda at: -abs(scored[at]))[:needed]
            grown = {at for at in after if at[0] == row} - (own.keys() - set(dropped))
            assert set(best) <= grown
            assert len(grown) == needed
            at_random += needed - len(best)
    assert at_random > 0  # in some row there were too few candidates


def test_the_share_falls_along_a_cosine():
    rule = sg.rewiring.RigL(every=10, share=0.4, end=100)
    assert [rule.is_due(update) for update in (0, 5, 10, 90, 100, 110)] == [False, False, True, True, False, False]
    assert rule.share_at(50) == pytest.approx(0.2)
    assert rule.share_at(25) == pytest.approx(0.2 * (1 + math.cos(math.pi / 4)))
    assert sg.rewiring.SET(share=0.4).share_at(10**6) == 0.4


def test_there_is_nothing_to_exchange_in_a_nearly_full_matrix():
    mask = np.ones((4, 6), bool)
    mask[1, 2] = False
    matrix = SparseMatrix.from_dense(jnp.arange(1.0, 25).reshape(4, 6), mask)
    new = sg.rewiring.SET(share=1.0).rewire(matrix, 1, 1000, None, np.random.default_rng(0))
    assert new.nnz == 23
    assert (1, 2) in set(positions(new))  # for the one that was the smallest
    assert (0, 0) not in set(positions(new))


def test_the_cubic_schedule():
    rule = sg.pruning.Magnitude(0.9, begin=1000, end=5000, every=1000)
    for update, expected in ((0, 0), (1000, 0), (2000, 0.9 * (1 - 0.75**3)), (4000, 0.9 * (1 - 0.25**3)), (5000, 0.9)):
        assert rule.sparsity_at(update) == pytest.approx(expected)
    due = [update for update in range(0, 8000, 500) if rule.is_due(update)]
    assert due == [2000, 3000, 4000, 5000]
    matrix = a_matrix((8, 6), 2, 0.0)
    active = np.ones(48, bool)
    for update in due:
        stays = rule.prune(matrix, active, 2, update)
        assert not (stays & ~active).any()
        values = np.abs(np.asarray(matrix.values)).reshape(2, 24)
        for gate, kept in enumerate(stays.reshape(2, 24)):
            assert kept.sum() == max(1, round((1 - rule.sparsity_at(update)) * 24))
            assert values[gate][kept].min() > values[gate][~kept].max()
        active = stays


# ---- the trainer


def trainer(make, rule, *, update_every=1, task=None, sparsity=0.6, cell=sg.GRU, optimiser=None):
    task = task or Copy()
    cell, readout = cell(task.inputs, 6), Readout(task.classes)
    params = sg.Params(cell.init(jax.random.key(0), sparsity=sparsity), readout.init(jax.random.key(1), 6))
    made = Trainer(make(cell, readout.loss), task, optimiser or optax.adam(1e-2), BATCH, update_every, rule)
    return made, made.start(params, jax.random.key(2))


def leaves(tree):
    return [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in jax.tree.leaves(tree)
    ]


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(left, right)


RUNS = {
    "snap, probe": (lambda *a: sg.snap(*a, order=2), sg.rewiring.Probe(every=4, share=0.4), 1),
    "snap episodic, set": (lambda *a: sg.snap(*a, order=2, episodic=True), sg.rewiring.SET(every=2, share=0.4), None),
    "rflo episodic, set": (lambda *a: sg.rflo(*a, episodic=True), sg.rewiring.SET(every=2, share=0.4), None),
    "uoro, set": (lambda *a: sg.uoro(*a), sg.rewiring.SET(every=4, share=0.4), 1),
    "kf_rtrl, set": (sg.kf_rtrl, sg.rewiring.SET(every=4, share=0.4), 1),
    "bptt, rigl": (sg.bptt, sg.rewiring.RigL(every=2, share=0.4), None),
}


@pytest.mark.parametrize("name", [case(name, quick=name == "snap, probe") for name in RUNS])
def test_one_program_serves_all_patterns(name, standard_promotion):
    """As programs compiled for each pattern do, without a trace after the first."""
    make, rule, update_every = RUNS[name]
    traced = []

    def counted(cell, loss):
        return make(cell, lambda *args: (traced.append(1), loss(*args))[1])

    made, carry = trainer(counted, rule, update_every=update_every)
    apart, other = trainer(
        lambda *a: make(*a)._replace(structures=lambda params: None), rule, update_every=update_every
    )
    updates, churn, patterns = 0, 0.0, []
    while updates < 2 * rule.every:  # up to the second change
        carry, progress = made.run(carry, 1)
        other, _ = apart.run(other, 1)
        updates, churn = updates + progress.updates, churn + progress.churn
        patterns.append(carry.params.cell.recurrent.pattern)
        if updates == rule.every:
            once = len(traced)
    assert churn > 0.3
    assert len(set(patterns)) == 2
    assert jax.tree.structure((carry.params, carry.opt_state)) == jax.tree.structure((other.params, other.opt_state))
    assert relative_error(flat(carry.params), flat(other.params)) < 1e-10
    if rule.scores != "dense":  # whose gradient is a program of its own
        assert len(traced) == once
    once = len(traced)
    made.run(carry, 3 * BATCH * rule.every)
    assert len(traced) == once


def test_trainers_may_share_an_algorithm(standard_promotion):
    """What one has traced, with fixed plans or in its slots, is not what another works by."""
    cell, readout, rule = sg.GRU(4, 6), Readout(2), sg.rewiring.SET(every=3, share=0.4)

    def run(algorithm, rewire):
        params = sg.Params(cell.init(jax.random.key(0), sparsity=0.6), readout.init(jax.random.key(1), 6))
        made = Trainer(algorithm, Copy(3), optax.adam(1e-2), BATCH, None, rewire)
        return made.run(made.start(params, jax.random.key(2)), 9 * 8 * BATCH)[0].params

    shared = sg.bptt(cell, readout.loss)
    alone = run(sg.bptt(cell, readout.loss), rule)
    run(shared, None)
    for _ in range(2):
        assert_same_bits(run(shared, rule), alone)


def test_a_run_that_outgrows_its_room_goes_on_with_the_same_bits(standard_promotion, monkeypatch):
    make, rule, update_every = RUNS["snap, probe"]
    made, carry = trainer(make, rule, update_every=update_every)
    carry, _ = made.run(carry, 20 * BATCH)
    for room in ("slots.ROOM", "native.ROOM", "native.GROWTH"):
        monkeypatch.setattr(f"snapgrad.kernels.{room}", 1.0)
    tight, other = trainer(make, rule, update_every=update_every)
    other, _ = tight.run(other, 20 * BATCH)
    assert other.state.memory.J.J.shape[1] < carry.state.memory.J.J.shape[1]
    assert_same_bits((carry.params, carry.opt_state), (other.params, other.opt_state))


def test_a_run_that_rewires_has_the_same_bits_however_it_is_cut(standard_promotion):
    make, rule, update_every = RUNS["snap, probe"]
    made, start = trainer(make, rule, update_every=update_every)
    copies = [jax.tree.map(jnp.copy, start) for _ in range(2)]
    whole, progress = made.run(copies[0], 60)
    cut, seen, churn = copies[1], 0, 0.0
    while seen < 60:
        cut, part = made.run(cut, min(7, 60 - seen))
        seen, churn = seen + part.tokens, churn + part.churn
    assert seen == progress.tokens
    assert churn == pytest.approx(progress.churn)
    assert_same_bits(whole, cut)


def test_a_fixed_network_sees_the_same_data(standard_promotion):
    make, rule, _ = RUNS["snap, probe"]
    bits = []
    for chosen in (rule, None):
        made, carry = trainer(make, chosen)
        bits.append(made.run(carry, rule.every * BATCH)[1].cost)
    assert bits[0] == bits[1]


def test_rigl_takes_the_gradient_of_the_dense_network_on_the_next_window(standard_promotion):
    made, carry = trainer(sg.bptt, sg.rewiring.RigL(every=2, share=0.4), task=Streams(TEXT), update_every=3)
    carry, _ = made.run(carry, 2 * 3 * BATCH)
    params, cell = carry.params, carry.state.origin.cell
    dense = cell.to_dense(params.cell)
    _, window = made.task.window(made.task.data, carry.task, 3)
    readout_loss = Readout(made.task.classes).loss

    def objective(weights):
        def lane(s, xs, targets):
            total = 0.0
            for t in range(3):
                s = cell.step(dense._replace(recurrent=weights), s, xs[t])
                total = total + readout_loss(params.readout, cell.output(s), targets[t])
            return total

        return jax.vmap(lane, in_axes=(0, 1, 1))(carry.state.cell, window.xs, window.targets).mean()

    expected = np.asarray(jax.jit(jax.grad(objective))(dense.recurrent))
    old = params.cell.recurrent
    chosen = made.rewire.rewire(old, 3, 2, SparseMatrix.from_dense(jnp.asarray(expected)), np.random.default_rng(0))
    after, progress = made.run(jax.tree.map(jnp.copy, carry), 1)
    assert after.params.cell.recurrent.pattern == chosen != old.pattern
    assert progress.churn > 0
    assert 0 < progress.rewiring_seconds <= progress.seconds


def test_pruning_equals_a_dense_network_with_masks(standard_promotion):
    """From a dense network: masked, packed when it is sparse enough, and packed for good at the end."""
    rule = sg.pruning.Magnitude(0.9, end=8, every=2)
    clipped = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))  # what is pruned must not count
    made, carry = trainer(sg.bptt, rule, task=Streams(TEXT), update_every=3, sparsity=0.0, optimiser=clipped)
    start = jax.tree.map(jnp.copy, carry)
    cell, stored, densities = carry.state.origin.cell, [], []
    dense = cell.to_dense(start.params.cell)
    weights, readout = {"recurrent": dense.recurrent, "input": dense.input, "bias": dense.bias}, start.params.readout
    masks = {name: np.ones(weights[name].shape, bool) for name in ("recurrent", "input")}
    task, s = start.task, start.state.cell
    readout_loss = Readout(made.task.classes).loss
    moments = clipped.init((weights, readout))

    def objective(both, s, window):
        weights, readout = both
        params = dense._replace(**weights)

        def lane(s, xs, targets):
            total = 0.0
            for t in range(3):
                s = cell.step(params, s, xs[t])
                total = total + readout_loss(readout, cell.output(s), targets[t])
            return total, s

        totals, s = jax.vmap(lane, in_axes=(0, 1, 1))(s, window.xs, window.targets)
        return totals.mean(), s

    def masked(tree):
        return {name: jnp.where(masks[name], leaf, 0) if name in masks else leaf for name, leaf in tree.items()}

    gradient = jax.jit(jax.grad(objective, has_aux=True))
    for update in range(1, 11):
        carry, _ = made.run(carry, 1)
        stored.append(carry.params.cell.recurrent.pattern.nnz)
        densities.append(density(carry.params, carry.wiring))

        task, window = made.task.window(made.task.data, task, 3)
        grads, s = gradient((weights, readout), s, window)
        grads = masked(grads[0]), grads[1]
        changes, moments = clipped.update(grads, moments)
        weights, readout = optax.apply_updates((weights, readout), changes)
        weights = masked(weights)
        now = cell.to_dense(carry.params.cell)
        for name, value in weights.items():
            assert relative_error(getattr(now, name), value) < 1e-10
        if update in (2, 4, 6, 8):
            for name, mask in masks.items():
                share = 0.9 * (1 - (1 - update / 8) ** 3)
                values, kept = np.abs(np.asarray(weights[name])).reshape(3, -1), mask.reshape(3, -1)
                for gate in range(3):
                    count = max(1, round((1 - share) * values.shape[1]))
                    best = np.argsort(-np.where(kept[gate], values[gate], -1), kind="stable")[:count]
                    kept[gate] = False
                    kept[gate][best] = True
                weights[name] = jnp.where(mask, weights[name], 0)
    assert densities == sorted(densities, reverse=True)
    assert densities[-1] == pytest.approx(0.1, abs=0.02)
    assert stored[0] == stored[3] == 108  # masked, then packed
    assert stored[-1] == 3 * round(0.1 * 36)
    assert len(set(stored)) > 2


def without_transfer(cell, loss):
    frozen = sg.frozen(cell, loss)
    rule = Rule(lambda *a: (), lambda *a: frozen, lambda *a: ())
    return build("mine", cell, loss, rule, "auto")


def test_probes_of_a_stack_regrow_in_every_layer(standard_promotion):
    rule = sg.rewiring.Probe(every=4, share=0.4)
    made, carry = trainer(
        lambda *a: sg.snap(*a, order=1), rule, cell=lambda inputs, units: sg.stack(sg.GRU(inputs, 5), sg.GRU(5, units))
    )
    first = [m.pattern for m in matrices(carry.params.cell).values()]
    carry, _ = made.run(carry, 4 * BATCH)
    scores = {path[1:]: by_position(m) for path, m in matrices((carry.wiring.probes.gradients,)).items()}
    carry, progress = made.run(carry, 1)
    assert progress.churn > 0.3
    after = matrices((carry.params.cell,))
    candidates = matrices((carry.wiring.probes.gradients,))
    for (path, matrix), old in zip(after.items(), first, strict=True):
        came = set(positions(matrix.pattern)) - set(positions(old))
        assert came
        assert came & scores[path[1:]].keys()
        assert not set(positions(matrix.pattern)) & set(positions(candidates[path].pattern))


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"`rewire` must be a rule of sg\.rewiring or sg\.pruning"):
        trainer(sg.bptt, "set")
    with pytest.raises(ValueError, match="`rewire` must be None for a cell without sparse matrices"):
        trainer(sg.bptt, sg.rewiring.SET(), sparsity=0.0)
    with pytest.raises(ValueError, match=r"`rewire` must be a rule without dense gradients .* got RigL with snap"):
        trainer(lambda *a: sg.snap(*a, order=1), sg.rewiring.RigL())
    with pytest.raises(ValueError, match="`rewire` must be None for an algorithm that does not say"):
        trainer(without_transfer, sg.rewiring.SET())
    made, carry = trainer(sg.bptt, sg.rewiring.SET())
    with pytest.raises(ValueError, match="`carry` must come from a trainer with the same `rewire`"):
        dataclasses.replace(made, rewire=None).run(carry, 1)
    pruned, pruned_carry = trainer(sg.bptt, sg.pruning.Magnitude(0.5, end=1000))
    for rule in (sg.rewiring.SET(), sg.rewiring.Probe()):
        with pytest.raises(ValueError, match="`carry` must come from a trainer with the same `rewire`"):
            dataclasses.replace(pruned, rewire=rule).run(pruned_carry, 1)
    with pytest.raises(ValueError, match="`carry` must come from a trainer with the same `rewire`"):
        dataclasses.replace(made, rewire=sg.rewiring.Probe()).run(carry, 1)
    with pytest.raises(ValueError, match="`optimiser` must keep its state in the structure of the parameters"):
        trainer(sg.bptt, sg.rewiring.SET(), optimiser=optax.flatten(optax.adam(1e-2)))
    with pytest.raises(ValueError, match="`rewire` must be another rule than Probe"):
        trainer(sg.bptt, sg.rewiring.Probe(), cell=lambda *a: sg.GRU(*a, variant="original"))
    for make, message in (
        (lambda: sg.rewiring.SET(every=0), "`every` must be an integer >= 1, got 0"),
        (lambda: sg.rewiring.SET(share=0), r"`share` must be a number in \(0, 1\], got 0"),
        (lambda: sg.rewiring.RigL(end=0), "`end` must be an integer >= 1, got 0"),
        (lambda: sg.rewiring.Probe(pool=0), "`pool` must be an integer >= 1, got 0"),
        (lambda: sg.pruning.Magnitude(1.0, end=10), r"`sparsity` must be a number in \[0, 1\), got 1.0"),
        (lambda: sg.pruning.Magnitude(0.5, end=1000, begin=1000), r"`begin` must be in \[0, end\), which is 1000"),
        (lambda: sg.pruning.Magnitude(0.5, end=1500), "`end` must be a multiple of `every`, 1000, updates after"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
