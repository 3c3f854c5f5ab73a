"""Handwritten digits on a mesh: the batch sharded over four groups of devices, the weights over two and four.

    make demo EXAMPLE=sharded, or: python examples/sharded.py

There are 8 virtual devices in this process. On a cluster, leave out the line that makes them, and call
`jax.distributed.initialize()` before anything else: the rest is the same.

The optimizer comes from `treekit.optax`: AdamW with MultiSteps around it. Nothing tells it of the mesh. Its state is
made in a jitted `init`, where each moment and each accumulator gets the sharding of its parameter.
"""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"  # before JAX

import sys
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from treekit import optax

P: Any = PartitionSpec
EPOCHS = 20
MICRO_BATCH = 32  # images, 8 for each group of devices
ACCUMULATE = 2  # micro-batches in a round
WIDTH = 128


def load() -> list[Any]:
    """Images to train on and to test with, [n, 64] from 0 to 1, and the labels of both."""
    images, labels = load_digits(return_X_y=True)
    return list(
        train_test_split(images.astype(np.float32) / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    )


def micro_batches(images: np.ndarray, labels: np.ndarray, sharding: NamedSharding) -> Iterator[tuple[Array, Array]]:
    """The training images in a random order, spread over the devices."""
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for start in range(0, len(labels) - MICRO_BATCH + 1, MICRO_BATCH):
            chosen = order[start : start + MICRO_BATCH]
            yield jax.device_put((images[chosen], labels[chosen]), sharding)


def shard(model: eqx.nn.MLP, mesh: jax.sharding.Mesh) -> eqx.nn.MLP:
    """The rows of a weight over the axis "model", its columns over "data"; what cannot be divided by them is whole."""

    def place(x: Any) -> Any:
        if not eqx.is_array(x):
            return x
        divisible = all(size % n == 0 for size, n in zip(x.shape, (2, 4), strict=False))
        return jax.device_put(x, NamedSharding(mesh, P(*("model", "data")[: x.ndim]) if divisible else P()))

    sharded: eqx.nn.MLP = jax.tree.map(place, model)
    return sharded


def loss(model: eqx.nn.MLP, images: Array, labels: Array) -> Array:
    """The cross-entropy, of shape ()."""
    losses: Array = optax.losses.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels)
    return jnp.mean(losses)


def show(title: str, tree: Any) -> None:
    print(f"\n{title}")
    for path, x in jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array)):
        part = "x".join(map(str, x.addressable_shards[0].data.shape)) or "scalar"
        whole = "x".join(map(str, x.shape)) or "scalar"
        print(f"  {jax.tree_util.keystr(path):48} {whole:>9}  {part:>9} on each device  {x.sharding.spec}")


def main() -> None:
    start = time.perf_counter()
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    train_images, test_images, train_labels, test_labels = load()
    model = shard(eqx.nn.MLP(64, 10, WIDTH, depth=2, activation=jax.nn.gelu, key=jax.random.key(0)), mesh)
    optimizer = optax.MultiSteps(optax.adamw(3e-3), every_k_schedule=ACCUMULATE)
    state = eqx.filter_jit(optimizer.init)(model)

    def step(batch: tuple[Array, Array], model: eqx.nn.MLP, state: Any) -> tuple[eqx.nn.MLP, Any]:
        grads = eqx.filter_grad(loss)(model, *batch)
        updates, state = optimizer.update(grads, state, model)
        return optax.apply_updates(model, updates), state

    jitted = eqx.filter_jit(step, donate="all-except-first")
    show("the model", model)
    show("the state of the optimizer", state)
    for batch in micro_batches(train_images, train_labels, NamedSharding(mesh, P("data"))):
        model, state = jitted(batch, model, state)
    accuracy = float(jnp.mean(jnp.argmax(jax.vmap(model)(test_images), axis=1) == test_labels))
    rounds = int(state.gradient_step)
    print(f"\ntest accuracy {accuracy:.1%} after {rounds} rounds, {time.perf_counter() - start:.0f} s")
    spread = [leaf.sharding.spec for leaf in jax.tree.leaves(state.acc_grads)]
    if accuracy < 0.95 or spread != [leaf.sharding.spec for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array))]:
        sys.exit("the test accuracy should be above 95 %, and the accumulators sharded as the model is")


if __name__ == "__main__":
    main()
