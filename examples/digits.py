"""Handwritten digits: one training run that needs five systems at once, on a raw Equinox model.

    make demo, or: python examples/digits.py

1. weight decay on some of the arrays, by a mask made from the model (which is callable, and so is the mask);
2. a learning rate held in the state of the optimizer, read back while training;
3. gradients accumulated over micro-batches, some of which are NaN;
4. a last polish with L-BFGS and its line search;
5. a layer that is a class of our own, whose `__init__` computes, edited in the middle of training.

The model goes to the optimizer as it is, activation function and all. Afterwards each system runs by itself, once with
plain Optax and once with treekit, and a table says what happened. A picture of the loss is written next to this file.
"""

import dataclasses
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax as plain_optax
from jax import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import treekit
from treekit import optax

EPOCHS = 40
MICRO_BATCH = 16
ACCUMULATE = 4  # micro-batches in a round, after which the optimizer takes a step
BROKEN = 100  # one micro-batch in so many has a NaN among its pixels
DECAY = 1e-3
POLISH = 60  # steps of L-BFGS
PICTURE = Path(__file__).with_name("digits.png")


# --- The data: 1,797 images of 8 by 8 pixels, a fifth of them held out ------------------------------------------------


@treekit.node
class Digits:
    images: Array  # [n, 64], from 0 to 1
    labels: Array  # [n]


def load() -> tuple[Digits, Digits]:
    """The images to train on, and those to test with."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images.astype(np.float32) / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, split)
    return Digits(train_images, train_labels), Digits(test_images, test_labels)


def micro_batches(train: Digits, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The training images in a random order; now and then a pixel is broken."""
    images, labels = np.asarray(train.images), np.asarray(train.labels)
    count = len(labels) // MICRO_BATCH
    order = np.random.default_rng(epoch).permutation(len(labels))[: count * MICRO_BATCH]
    for i, chosen in enumerate(order.reshape(count, MICRO_BATCH), start=epoch * count + 1):
        batch = images[chosen]
        if i % BROKEN == 0:
            batch[0, 0] = np.nan
        yield batch, labels[chosen]


# --- The model: an Equinox module that holds a layer of our own -------------------------------------------------------


@treekit.register_node(data_fields=["mean", "matrix"], meta_fields=[])  # all that this class needs to be a tree
class Whiten:
    """Keeps the strongest components of the images, and gives each of them unit variance.

    A class as one writes it without thinking of JAX: it is made from one thing, and holds another. It is not trained.
    """

    def __init__(self, mean: Any, covariance: Any, components: int = 8) -> None:
        variances, directions = jnp.linalg.eigh(covariance)  # in ascending order
        strongest = directions[:, -components:]
        self.mean: Array = mean
        self.matrix: Array = strongest / jnp.sqrt(variances[-components:]) @ strongest.T

    def __call__(self, image: Array) -> Array:
        return jax.lax.stop_gradient(self.matrix) @ (image - jax.lax.stop_gradient(self.mean))


class Network(eqx.Module):
    whiten: Whiten
    mlp: eqx.nn.MLP

    def __call__(self, image: Array) -> Array:
        return self.mlp(self.whiten(image))


def create_network(train: Digits, layer: type[Whiten] = Whiten) -> Network:
    mlp = eqx.nn.MLP(64, 10, width_size=64, depth=2, activation=jax.nn.gelu, key=jax.random.key(0))
    return Network(layer(*moments(train)), mlp)


def moments(train: Digits) -> tuple[Array, Array]:
    return jnp.mean(train.images, axis=0), jnp.cov(train.images.T)


def weights(model: Network) -> Network:
    """The mask: True at the weights of the perceptron, False at its biases and for the layer that is not trained.

    It is a tree of the model's class, so it can be called, as the model can. Nobody wants it called.
    """
    mask: Network = jax.tree.map(lambda leaf: leaf.ndim > 1, treekit.filter_arrays(model))
    return treekit.tree_at(lambda network: network.whiten, mask, False)


def loss(model: Network, images: Array, labels: Array) -> Array:
    """The cross-entropy, of shape ()."""
    losses: Array = optax.losses.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels)
    return jnp.mean(losses)


def objective(model: Network, images: Array, labels: Array) -> Array:
    """What the decayed weights minimize: the loss, and half the decay times the sum of the squares of the weights."""
    decayed = treekit.filter(treekit.filter_arrays(model), weights(model))
    squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(decayed)]
    return loss(model, images, labels) + DECAY / 2 * sum(squares)


@eqx.filter_jit
def evaluate(model: Network, data: Digits) -> tuple[Array, Array]:
    """The loss, and the share of images that the model reads correctly."""
    predicted = predict(model, data.images)
    return loss(model, data.images, data.labels), jnp.mean(predicted == data.labels)


def predict(model: Network, images: Array) -> Array:
    return jnp.argmax(jax.vmap(model)(images), axis=1)


# --- The training: Adam with three of the systems, an edit of the model on the way, and a polish ----------------------


def create_optimizer(model: Network, rounds: int) -> optax.MultiSteps:
    mask = weights(model)  # a tree, made from the raw model

    @optax.inject_hyperparams
    def adam(learning_rate: Any) -> optax.GradientTransformation:
        return optax.chain(
            optax.zero_nans(),
            optax.masked(optax.add_decayed_weights(DECAY), mask),
            optax.scale_by_adam(),
            optax.scale_by_learning_rate(learning_rate),
        )

    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, warmup_steps=rounds // 20, decay_steps=rounds)
    return optax.MultiSteps(adam(schedule), every_k_schedule=ACCUMULATE)


@dataclasses.dataclass
class History:
    """What the picture shows."""

    objective: list[float] = dataclasses.field(default_factory=list)  # each micro-batch, NaN where it has one
    learning_rate: list[float] = dataclasses.field(default_factory=list)  # each micro-batch
    test: list[float] = dataclasses.field(default_factory=list)  # each epoch, and before the first
    edited: int = 0  # the micro-batch before which the layer was edited
    polish: list[float] = dataclasses.field(default_factory=list)  # each step, and after the last
    polish_test: list[float] = dataclasses.field(default_factory=list)
    step_length: list[float] = dataclasses.field(default_factory=list)


def train_network(model: Network, train: Digits, test: Digits, history: History) -> Network:
    optimizer = create_optimizer(model, rounds=EPOCHS * (len(train.labels) // MICRO_BATCH) // ACCUMULATE)
    state = optimizer.init(model)

    @eqx.filter_jit
    def step(model: Network, state: Any, images: Any, labels: Any) -> tuple[Network, Any, Array]:
        grads = eqx.filter_grad(loss)(model, images, labels)
        updates, state = optimizer.update(grads, state, model)
        return optax.apply_updates(model, updates), state, objective(model, images, labels)

    history.test.append(float(evaluate(model, test)[0]))
    progress = tqdm(range(EPOCHS), desc="Adam", unit="epoch", disable=None)
    for epoch in progress:
        if epoch == EPOCHS // 2:
            model = sharpen(model, train)
            history.edited = len(history.objective)
        for images, labels in micro_batches(train, epoch):
            model, state, value = step(model, state, images, labels)
            history.objective.append(float(value))
            history.learning_rate.append(float(state.inner_opt_state.hyperparams["learning_rate"]))
        test_loss, accuracy = map(float, evaluate(model, test))
        history.test.append(test_loss)
        rate = history.learning_rate[-1]
        progress.set_postfix_str(f"test loss {test_loss:.3f}, accuracy {accuracy:.1%}, learning rate {rate:.5f}")
    return model


def sharpen(model: Network, train: Digits) -> Network:
    """Show the network 32 components of the images instead of 8: another matrix, in the same layer."""
    sharper = Whiten(*moments(train), components=32)
    return treekit.tree_at(lambda network: network.whiten.matrix, model, sharper.matrix)


def polish_network(model: Network, train: Digits, test: Digits, history: History) -> Network:
    optimizer = optax.lbfgs()
    state = optimizer.init(model)
    value_and_grad = optax.value_and_grad_from_state(objective)  # the line search has computed them already
    data = {"images": train.images, "labels": train.labels}

    @eqx.filter_jit
    def step(model: Network, state: Any) -> tuple[Network, Any, Array]:
        value, grad = value_and_grad(model, state=state, **data)
        updates, state = optimizer.update(grad, state, model, value=value, grad=grad, value_fn=objective, **data)
        return optax.apply_updates(model, updates), state, value

    progress = tqdm(range(POLISH), desc="L-BFGS", unit="step", disable=None)
    for _ in progress:
        history.polish_test.append(float(evaluate(model, test)[0]))
        model, state, value = step(model, state)
        history.polish.append(float(value))
        history.step_length.append(float(optax.tree.get(state, "learning_rate")))
        progress.set_postfix_str(f"objective {value:.4f}, test loss {history.polish_test[-1]:.3f}")
    history.polish.append(float(objective(model, **data)))
    history.polish_test.append(float(evaluate(model, test)[0]))
    return model


# --- The five systems, each by itself: the same lines with plain Optax and with treekit.optax -------------------------


class Wrong(Exception):
    """Nothing was raised, and the figure is wrong all the same."""


def decay_by_mask(library: Any, model: Any, grads: Any) -> str:
    mask = weights(model)
    optimizer = library.masked(library.add_decayed_weights(1.0), mask)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, grads), optimizer.init(model), model)
    decayed = [bool(jnp.any(leaf)) for leaf in jax.tree.leaves(updates)]
    return f"{sum(decayed)} of {len(decayed)} arrays decay"


def inject_learning_rate(library: Any, model: Any, grads: Any) -> str:
    schedule = library.linear_schedule(1e-2, 0.0, 100)
    optimizer = library.inject_hyperparams(library.adamw)(schedule, mask=weights(model))
    state = optimizer.init(model)
    update = eqx.filter_jit(optimizer.update)
    rates: list[float] = []
    for _ in range(11):
        _, state = update(grads, state, model)
        rates.append(float(state.hyperparams["learning_rate"]))
    return f"learning rate {rates[0]:.4f} in the state, {rates[-1]:.4f} ten steps later"


def survive_nan(library: Any, model: Any, grads: Any) -> str:
    """One NaN gradient, then twenty good ones: how many parameters still move?"""
    optimizer = library.MultiSteps(library.chain(library.zero_nans(), library.sgd(0.1)), every_k_schedule=2)
    state = optimizer.init(model)
    update = eqx.filter_jit(optimizer.update)
    _, state = update(jax.tree.map(lambda g: g * jnp.nan, grads), state, model)
    moved = jax.tree.map(jnp.zeros_like, grads)
    for _ in range(21):
        updates, state = update(grads, state, model)
        moved = jax.tree.map(lambda m, u: m + jnp.abs(u), moved, updates)
    due, moving = (sum(int(jnp.count_nonzero(x)) for x in jax.tree.leaves(tree)) for tree in (grads, moved))
    if moving < due:
        raise Wrong(f"no error, but {due - moving:,} of {due:,} parameters never move again after one NaN")
    return f"all {moving:,} parameters move again after a NaN"


def polish_raw(library: Any, model: Any, data: Digits) -> str:
    def value_fn(model: Any) -> Array:
        return loss(model, data.images, data.labels)

    optimizer = library.lbfgs()
    state = optimizer.init(model)
    before = float(value_fn(model))

    @eqx.filter_jit
    def step(model: Any, state: Any) -> tuple[Any, Any]:
        value, grad = eqx.filter_value_and_grad(value_fn)(model)
        updates, state = optimizer.update(grad, state, model, value=value, grad=grad, value_fn=value_fn)
        return library.apply_updates(model, updates), state

    for _ in range(5):
        model, state = step(model, state)
    return f"loss {before:.2f} before, {float(value_fn(model)):.2f} after five steps"


class WhitenByHand(Whiten):
    """The same layer, registered as JAX's documentation shows it."""


jax.tree_util.register_pytree_node(
    WhitenByHand,
    lambda layer: ((layer.mean, layer.matrix), None),
    lambda _, children: WhitenByHand(*children),
)


def edit_layer(tree_at: Callable[..., Any], model: Network, train: Digits) -> str:
    matrix = Whiten(*moments(train), components=32).matrix
    edited = tree_at(lambda network: network.whiten.matrix, model, matrix)
    if not np.array_equal(jax.jit(lambda model: model.whiten.matrix)(eqx.filter(edited, eqx.is_array)), matrix):
        raise Wrong("no error, but __init__ ran again and made another matrix of the edited one")
    return "edited, and the matrix is the one given"


def compare(train: Digits) -> list[tuple[str, str, str]]:
    """What each system did with plain Optax, and with treekit."""
    model = create_network(train)
    by_hand = create_network(train, WhitenByHand)
    some = Digits(train.images[:256], train.labels[:256])
    grads = eqx.filter_grad(loss)(model, some.images, some.labels)
    # On the raw model, plain Optax raises before it comes to what 2 and 3 are about; so it gets the arrays only.
    arrays = eqx.filter(model, eqx.is_inexact_array)
    return [
        (
            "1 weight decay, mask tree in masked",
            attempt(lambda: decay_by_mask(plain_optax, model, grads)),
            attempt(lambda: decay_by_mask(optax, model, grads)),
        ),
        (
            "2 learning rate injected, read back",
            attempt(lambda: inject_learning_rate(plain_optax, arrays, grads)),
            attempt(lambda: inject_learning_rate(optax, model, grads)),
        ),
        (
            "3 a NaN in MultiSteps, with zero_nans",
            attempt(lambda: survive_nan(plain_optax, arrays, grads)),
            attempt(lambda: survive_nan(optax, model, grads)),
        ),
        (
            "4 polish with lbfgs and its line search",
            attempt(lambda: polish_raw(plain_optax, model, some)),
            attempt(lambda: polish_raw(optax, model, some)),
        ),
        (
            "5 tree_at on a class that computes",
            attempt(lambda: edit_layer(eqx.tree_at, by_hand, train)),
            attempt(lambda: edit_layer(treekit.tree_at, model, train)),
        ),
    ]


def attempt(run: Callable[[], str]) -> str:
    try:
        return f"works: {run()}"
    except Wrong as wrong:
        return f"FAILS: {wrong}"
    except Exception as error:  # whatever it is, the table shows it
        first_line = re.sub(r" at 0x\w+", "", str(error).strip().splitlines()[0])
        return f"FAILS: {type(error).__name__}: {first_line}"


def show_table(rows: list[tuple[str, str, str]]) -> None:
    half = (min(shutil.get_terminal_size((120, 24)).columns, 140) - 28) // 2
    widths = (22, half, half)
    for row in [("system", "plain Optax", "treekit"), *rows]:
        cells = [textwrap.wrap(text, w, max_lines=3, placeholder=" ...") for text, w in zip(row, widths, strict=True)]
        for i in range(max(map(len, cells))):
            line = [cell[i] if i < len(cell) else "" for cell in cells]
            print(" | ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip())
        print("-+-".join("-" * w for w in widths))


# --- The picture ------------------------------------------------------------------------------------------------------

BLUE, PALE, ORANGE, RED, GREY = "#2a5c8a", "#b9cfe4", "#d9822b", "#c0392b", "#777777"


def draw(history: History, model: Network, test: Digits) -> None:
    figure = Figure(figsize=(12, 7.6), dpi=110, layout="constrained")
    (curves,), (strip,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[5, 1.2])
    grid = curves.add_gridspec(2, 2, width_ratios=[2.6, 1], height_ratios=[4, 1])
    adam = curves.add_subplot(grid[0, 0])
    polish = curves.add_subplot(grid[0, 1], sharey=adam)
    draw_adam(adam, curves.add_subplot(grid[1, 0], sharex=adam), history)
    draw_polish(polish, curves.add_subplot(grid[1, 1], sharex=polish), history)
    for axes in curves.axes:
        axes.spines[["top", "right"]].set_visible(False)
    draw_digits(strip, model, test)
    figure.savefig(PICTURE)


def draw_adam(loss_axes: Axes, rate_axes: Axes, history: History) -> None:
    values = np.array(history.objective).reshape(EPOCHS, -1)
    epoch = values.shape[1]
    steps = np.arange(values.size)
    loss_axes.semilogy(steps, values.ravel(), ".", markersize=2, color=PALE, label="objective, of a micro-batch")
    loss_axes.semilogy(
        (np.arange(EPOCHS) + 0.5) * epoch, np.nanmean(values, axis=1), color=BLUE, label="objective, mean of an epoch"
    )
    loss_axes.semilogy(np.arange(EPOCHS + 1) * epoch, history.test, color=ORANGE, label="loss on the test images")
    along_x = loss_axes.get_xaxis_transform()  # y goes from 0 to 1
    broken = steps[np.isnan(values.ravel())]
    loss_axes.plot(
        broken, np.full(broken.shape, 0.98), "v", markersize=5, color=RED, transform=along_x, label="a NaN gradient"
    )
    for axes in (loss_axes, rate_axes):
        axes.axvline(history.edited, color=GREY, linestyle="--", linewidth=1)
    loss_axes.text(history.edited, 0.9, "  tree_at: 8 components become 32", color=GREY, transform=along_x)
    loss_axes.set_title(f"Adam, {ACCUMULATE} micro-batches of {MICRO_BATCH} for each step", loc="left")
    loss_axes.set_ylabel("loss")
    loss_axes.legend(loc="lower left", frameon=False, markerscale=1.5)
    rate_axes.plot(steps, history.learning_rate, color=BLUE)
    rate_axes.set_title("learning rate, read from the state", loc="left", fontsize=9)
    rate_axes.set_xlabel("micro-batch")


def draw_polish(loss_axes: Axes, length_axes: Axes, history: History) -> None:
    loss_axes.semilogy(history.polish, color=BLUE)
    loss_axes.semilogy(history.polish_test, color=ORANGE)
    loss_axes.set_title("L-BFGS, all training images at once", loc="left")
    loss_axes.tick_params(axis="y", which="both", labelleft=False)
    length_axes.plot(np.arange(1, POLISH + 1), history.step_length, ".", color=BLUE)
    length_axes.set_ylim(bottom=0)
    length_axes.set_title("step length, found by the line search", loc="left", fontsize=9)
    length_axes.set_xlabel("step")


def draw_digits(strip: SubFigure, model: Network, test: Digits) -> None:
    predicted, labels = np.asarray(predict(model, test.images)), np.asarray(test.labels)
    wrong = predicted != labels
    strip.suptitle(f"{np.sum(wrong)} of {len(labels)} test images are misread", x=0.01, ha="left")
    mistakes_first = np.argsort(~wrong, kind="stable")
    for axes, i in zip(strip.subplots(1, 16), mistakes_first, strict=False):
        axes.imshow(test.images[i].reshape(8, 8), cmap="gray_r", interpolation="nearest")
        text, color = (f"{labels[i]}, not {predicted[i]}", RED) if wrong[i] else (f"{labels[i]}", "black")
        axes.set_title(text, color=color, fontsize=9)
        axes.set_axis_off()


def main() -> None:
    start = time.perf_counter()
    train, test = load()
    history = History()
    model = train_network(create_network(train), train, test, history)
    model = polish_network(model, train, test, history)
    accuracy = float(evaluate(model, test)[1])
    print(f"\ntest accuracy {accuracy:.1%}, after {time.perf_counter() - start:.0f} s\n")
    rows = compare(train)
    show_table(rows)
    print("In 2 and 3 plain Optax was given the arrays of the model only, filtered out by hand.")
    draw(history, model, test)
    print(f"\npicture: {PICTURE}")
    if accuracy < 0.95:
        sys.exit(f"the test accuracy is {accuracy:.1%}, and should be above 95 %")
    if failed := [name for name, _, ours in rows if not ours.startswith("works")]:
        sys.exit(f"with treekit these systems should work: {', '.join(failed)}")


if __name__ == "__main__":
    main()
