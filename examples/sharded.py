"""Shard on 8 devices: handwritten digits, the batch sharded over four groups of devices, the weights over two and four.

    make demo EXAMPLE=sharded, or: python examples/sharded.py

There are 8 virtual devices in this process. On a cluster, leave out the line that makes them, and call
`jax.distributed.initialize()` before anything else: the rest is the same.

The optimizer is AdamW with MultiSteps around it. Nothing tells it of the mesh. Its state is made in a jitted `init`:
with `treekit.optax`, each moment and each accumulator gets the sharding of its parameter. With plain Optax, all of them
are on one device, or, under `jax.set_mesh`, on every device, unless you pass `jax.jit` their shardings. A picture shows
how much is where; it is written next to this file.
"""

import _program

# isort: split

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"  # before JAX

import sys
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax as plain_optax
from jax import Array
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from treekit import optax

P: Any = PartitionSpec
EPOCHS = 20
MICRO_BATCH = 32  # images, 8 for each group of devices
ACCUMULATE = 2  # micro-batches in a round
WIDTH = 128
PICTURE = _program.picture_of(__file__)


# --- The data, and the model on the mesh ------------------------------------------------------------------------------


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


# --- What is on each device -------------------------------------------------------------------------------------------


def arrays_of(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    return [(jax.tree_util.keystr(path, simple=True, separator="."), x) for path, x in leaves]


def show(title: str, tree: Any) -> None:
    print(f"\n{title:39}{'whole':>8}{'a device':>10}  over the axes")
    for name, x in arrays_of(tree):
        whole, part = ("x".join(map(str, s)) or "scalar" for s in (x.shape, x.addressable_shards[0].data.shape))
        print(f"  {name:37}{whole:>8}{part:>10}  {', '.join(x.sharding.spec) or 'none: all of it'}")


def bytes_on(tree: Any) -> list[int]:
    """The bytes of a tree on each device."""
    found = dict.fromkeys(jax.devices(), 0)
    for _, x in arrays_of(tree):
        for part in x.addressable_shards:
            found[part.device] += part.data.nbytes
    return list(found.values())


def draw(states: dict[str, list[int]]) -> None:
    figure = Figure(figsize=(8, 3.4), dpi=90, layout="constrained")
    axes = figure.subplots()
    for i, (name, each) in enumerate(states.items()):
        places = np.arange(len(each)) + 0.27 * (i - 1)
        axes.bar(places, np.array(each) / 1000, width=0.25, label=name, color=("#d9822b", "#f0c48f", "#2a5c8a")[i])
    axes.set_title("the state of the optimizer after a jitted init, in KB", loc="left")
    axes.set_xlabel("device")
    axes.margins(y=0.25)
    axes.legend(frameon=False, ncols=3, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    _program.save(figure, PICTURE)


# --- The training -----------------------------------------------------------------------------------------------------


def create_optimizer(library: Any) -> Any:
    return library.MultiSteps(library.adamw(3e-3), every_k_schedule=ACCUMULATE)


def main() -> None:
    _program.check_folder(PICTURE)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    train_images, test_images, train_labels, test_labels = load()
    model = shard(eqx.nn.MLP(64, 10, WIDTH, depth=2, activation=jax.nn.gelu, key=jax.random.key(0)), mesh)
    optimizer = create_optimizer(optax)
    state = eqx.filter_jit(optimizer.init)(model)
    init, arrays = create_optimizer(plain_optax).init, eqx.filter(model, eqx.is_array)
    of_optax = jax.jit(init)(arrays)
    with jax.set_mesh(mesh):
        of_optax_under_mesh = jax.jit(init)(arrays)

    def step(batch: tuple[Array, Array], model: eqx.nn.MLP, state: Any) -> tuple[eqx.nn.MLP, Any]:
        grads = eqx.filter_grad(loss)(model, *batch)
        updates, state = optimizer.update(grads, state, model)
        return optax.apply_updates(model, updates), state

    jitted = eqx.filter_jit(step, donate="all-except-first")
    show("The model", model)
    show("The state, of treekit", state)
    states = {
        "plain Optax": bytes_on(of_optax),
        "plain Optax, under jax.set_mesh": bytes_on(of_optax_under_mesh),
        "treekit": bytes_on(state),
    }
    print(f"\n{'Bytes of the state after a jitted init':42}{'all devices':>12}{'the fullest':>14}")
    for name, each in states.items():
        print(f"  {name:40}{sum(each):>12,}{max(each):>14,}")
    for batch in micro_batches(train_images, train_labels, NamedSharding(mesh, P("data"))):
        model, state = jitted(batch, model, state)
    accuracy = float(jnp.mean(jnp.argmax(jax.vmap(model)(test_images), axis=1) == test_labels))
    rounds = int(state.gradient_step)
    print(f"\ntest accuracy {accuracy:.1%} after {rounds} rounds")
    draw(states)
    print(f"picture: {PICTURE}")
    spread = [leaf.sharding.spec for leaf in jax.tree.leaves(state.acc_grads)]
    if accuracy < 0.95 or spread != [leaf.sharding.spec for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array))]:
        sys.exit("the test accuracy should be above 95 %, and the accumulators sharded as the model is")


if __name__ == "__main__":
    main()
