"""What the library is compared with, written without it: whole Jacobians, dense masks, loops over time and lanes.

Of the library only `cell.step`, `cell.output` and `cell.initial_state` are used, which are compared with PyTorch on
their own; patterns, blocks, kernels and algorithms are not.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from networks import loss, network


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


@cache
def unrolled_gradient(name, sparsity, cut=None):
    """jax.value_and_grad of the whole unrolled objective; `cut` stops it at every multiple of so many steps."""
    net = network(name, sparsity)
    steps = np.arange(len(net.xs))
    return _unrolled(name, sparsity)(net.params, steps % cut == 0 if cut else steps < 0)


@cache
def _unrolled(name, sparsity):
    net = network(name, sparsity)

    def one_lane(params, cuts, xs, targets):
        def step(s, at):
            cut, x, target = at
            s = jax.tree.map(lambda leaf: jnp.where(cut, jax.lax.stop_gradient(leaf), leaf), s)
            s = net.cell.step(params.cell, s, x)
            return s, loss(params.readout, net.cell.output(s), target)

        return jax.lax.scan(step, net.cell.initial_state(), (cuts, xs, targets))[1].sum()

    def objective(params, cuts):
        return jax.vmap(one_lane, in_axes=(None, None, 1, 1))(params, cuts, net.xs, net.targets).mean()

    return jax.jit(jax.value_and_grad(objective))


def step_jacobians(net):
    """(flat params, flat s, x) -> next flat s, D and I: whole, dense, by forward-mode autodiff of the step."""
    unravel_params = ravel_pytree(net.params.cell)[1]
    unravel_state = ravel_pytree(net.cell.initial_state())[1]

    def step(p, s, x):
        return ravel_pytree(net.cell.step(unravel_params(p), unravel_state(s), x))[0]

    def everything(p, s, x):
        return step(p, s, x), jax.jacfwd(step, argnums=1)(p, s, x), jax.jacfwd(step, argnums=0)(p, s, x)

    return jax.jit(jax.vmap(everything, in_axes=(None, 0, 0)))


@cache
def jacobians_of(name, sparsity):
    """`step_jacobians` of a network, compiled once."""
    return step_jacobians(network(name, sparsity))


@cache
def structure(name, sparsity):
    """Patterns of D and I: what is nonzero at *some* of several random points, none of them special."""
    net, draw = network(name, sparsity), np.random.default_rng(5)
    p, states, batch = draw.normal(size=flat(net.params.cell).size), flat(net.cell.initial_state()).size, len(net.xs[0])
    D_mask, I_mask = False, False
    for _ in range(2):  # as many points at once as in a step of the batch, which is the same program
        points = draw.normal(size=(batch, states)), draw.normal(size=(batch, net.cell.inputs))
        _, D, I = jacobians_of(name, sparsity)(p, *points)
        D_mask, I_mask = D_mask | (np.asarray(D) != 0).any(0), I_mask | (np.asarray(I) != 0).any(0)
    return D_mask, I_mask


def kept_entries(D_mask, I_mask, order):
    """Brute force: follow every edge, step by step, from every entry of I."""
    kept = I_mask.copy()
    for _ in range(order - 1 if order is not None else len(D_mask) + 1):
        spread = kept.copy()
        for i, j in zip(*np.nonzero(D_mask), strict=True):
            spread[i] |= kept[j]
        kept = spread
    return kept


@cache
def _deltas(name, sparsity):
    cell = network(name, sparsity).cell
    unravel = ravel_pytree(cell.initial_state())[1]

    def delta(readout, s, target):
        return jax.grad(lambda s: loss(readout, cell.output(unravel(s)), target))(s)

    return jax.jit(jax.vmap(delta, in_axes=(None, 0, 0)))


@cache
def trajectory(name, sparsity, restart=None, drift=0.0):
    """D_t, I_t and dL_t/ds_t of every step and lane of the network's own data.

    `restart`: start from the initial state at every multiple of so many steps. `drift`: weights change at every step.
    """
    net, jacobians, deltas, steps = network(name, sparsity), jacobians_of(name, sparsity), _deltas(name, sparsity), []
    for t in range(len(net.xs)):
        if t == 0 or (restart is not None and t % restart == 0):
            s = np.tile(flat(net.cell.initial_state()), (net.xs.shape[1], 1))
        params = drifted(net.params, t * drift)
        s, D, I = jacobians(flat(params.cell), s, net.xs[t])
        steps.append((np.asarray(D), np.asarray(I), np.asarray(deltas(params.readout, s, net.targets[t]))))
    return steps


def drifted(params, amount):
    """The parameters moved by `amount` along a fixed direction."""
    return jax.tree.map(lambda leaf: leaf + amount * np.cos(np.arange(leaf.size)).reshape(leaf.shape), params)


def influence_gradient(name, sparsity, order, *, restart=None, drift=0.0, decay=None, largest=None):
    """dL_t/ds_t . J_t of every step, with J = mask * (I + D J) dense; `decay` replaces D J by decay J (RFLO).

    `largest`: of every column of J so many entries are kept, those of the largest magnitude.
    """
    kept = kept_entries(*structure(name, sparsity), order)
    gradients, J = [], 0.0
    for t, (D, I, delta) in enumerate(trajectory(name, sparsity, restart, drift)):
        if t == 0 or (restart is not None and t % restart == 0):
            J = np.zeros(I.shape)
        J = kept * (I + (D @ J if decay is None else decay * J))
        if largest is not None:
            smaller = np.argsort(np.abs(J), axis=1)[:, :-largest]
            np.put_along_axis(J, smaller, 0.0, axis=1)
        gradients.append(np.einsum("bs,bsp->p", delta, J) / len(delta))
    return np.array(gradients)
