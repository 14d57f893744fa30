"""What is timed: the fused step alone, a dense product in its place, whole training steps, windows of BPTT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import snapgrad as sg
from snapgrad.bench.timing import Repeated
from snapgrad.kernels import rounding
from snapgrad.kernels.base import Kernel, Products
from snapgrad.sparsity.reach import Blocks, influence_blocks

INPUTS = 4
Program = Callable[[int], None]


class Network(NamedTuple):
    """A sparse network to measure."""

    cell: Any
    params: sg.Params

    def blocks(self, order: int) -> Blocks:
        """The kept part of J under SnAp-`order`."""
        jacobians = self.cell.jacobians(self.params.cell)
        return influence_blocks(jacobians.groups, jacobians.dynamics, order)


def network(name: str, units: int, sparsity: float) -> Network:
    """A cell of that kind with a linear readout."""
    cell = getattr(sg, name)(INPUTS, units)
    return Network(cell, sg.Params(cell.init(jax.random.key(0), sparsity=sparsity), jnp.zeros((INPUTS, units))))


def loss(readout: jax.Array, h: jax.Array, target: jax.Array) -> jax.Array:
    """Squared error of a linear readout."""
    return jnp.sum((readout @ h - target) ** 2)


def loss_without_readout(readout: Any, h: jax.Array, target: jax.Array) -> jax.Array:
    """A linear loss: what is left is the recurrent part."""
    return jnp.vdot(h, target)


def work(blocks: Blocks, batch: int) -> tuple[float, float]:
    """Flops of one fused step (D J and the contraction) and bytes of J that it reads and writes, in float32."""
    return 2.0 * batch * (int(blocks.product_sizes() @ blocks.widths) + blocks.kept), 8.0 * batch * blocks.kept


def fused_step(kernel: Kernel, net: Network, order: int, batch: int, dtype: Any = jnp.float32) -> Program:
    """The influence step alone, on random values of D, of the factors of I and of dL/ds."""
    jacobians, blocks = net.cell.jacobians(net.params.cell), net.blocks(order)
    at = jacobians.sums(blocks.dynamics, by_column=False)[1]
    keys = jax.random.split(jax.random.key(1), 4)
    sizes = blocks.dynamics.nnz, at.left, at.right, blocks.states
    D, left, right, delta = (0.05 * jax.random.normal(key, (n, batch)) for key, n in zip(keys, sizes, strict=True))
    I = Products(left, right, at)
    noise = None if dtype != jnp.bfloat16 else rounding.noise(rounding.start(None), 1, batch)[0]

    def step(carry: Any) -> Any:
        J, total = carry
        J, g = kernel.influence_step(blocks, J, D, I, delta, noise)
        return J, total + g

    return Repeated(step, (kernel.zeros(blocks, batch, dtype), jnp.zeros(blocks.n_params)))


def dense_product(blocks: Blocks, batch: int) -> Program:
    """The same step as JAX would be asked for it: a dense D times all rows of the existing columns, then the mask."""
    shape = (batch, blocks.states, blocks.n_params)
    D = 0.05 * jax.random.normal(jax.random.key(1), (batch, blocks.states, blocks.states))
    I, kept = jnp.ones(shape[1:]), jnp.asarray(blocks.reach.mask()[blocks.groups.of_param].T, jnp.float32)
    delta = jax.random.normal(jax.random.key(2), (batch, blocks.states))

    def step(carry: Any) -> Any:
        J, total = carry
        J = kept * (I + D @ J)
        return J, total + jnp.einsum("bs,bsp->p", delta, J)

    return Repeated(step, (jnp.zeros(shape), jnp.zeros(blocks.n_params)))


def online(net: Network, algorithm: sg.Algorithm, batch: int) -> Program:
    """Whole training steps on a stream: forward, readout, influence, Adam."""
    adam = optax.adam(1e-3)
    xs = jax.random.normal(jax.random.key(3), (1, batch, INPUTS))

    def step(carry: Any) -> Any:
        params, opt_state, state = carry
        gradient, state = algorithm.grad(params, state, xs, xs)
        updates, opt_state = adam.update(gradient.grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, state

    # A copy, because the loop takes its carry's memory.
    start = net.params, adam.init(net.params), algorithm.init(net.params, batch)
    return Repeated(step, jax.tree.map(jnp.copy, start))


def windows(params: sg.Params, algorithm: sg.Algorithm, xs: jax.Array, targets: jax.Array) -> Program:
    """Gradients of windows, one after the other, each with parameters that depend on the one before."""

    def step(carry: Any) -> Any:
        params, state = carry
        gradient, state = algorithm.grad(params, state, xs, targets)
        return jax.tree.map(lambda p, g: p - 1e-9 * g, params, gradient.grads), state

    return Repeated(step, jax.tree.map(jnp.copy, (params, algorithm.init(params, xs.shape[1]))))
