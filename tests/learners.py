"""Learners that several files of tests start from, and what they are compared by."""

from __future__ import annotations

import jax
import numpy as np

import snapgrad as sg

INPUTS, UNITS, STEPS = 3, 5, 24
RNG = np.random.default_rng(0)
XS = RNG.normal(size=(STEPS, INPUTS))
YS = np.roll(XS[:, 0], 2)
SETTINGS = {"units": UNITS, "sparsity": 0.4, "order": 2, "learning_rate": 0.05, "seed": 3}


def leaves(learner):
    """What a learner, or a part of its carry, consists of."""
    carry = learner.__getstate__()["carry"] if isinstance(learner, sg.OnlineLearner) else learner
    return [np.asarray(leaf) for leaf in jax.tree.leaves(carry)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def learn_all(learner, xs=XS, ys=YS):
    return [learner.learn(x, y) for x, y in zip(xs, ys, strict=True)]
