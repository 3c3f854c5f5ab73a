"""A model that grows: it reads digits, gets a layer and a class, and its optimizer keeps its state.

    make demo EXAMPLE=grow, or: python examples/grow.py

1. A small network learns to read the digits 0 to 8, and model and optimizer are saved with Orbax.
2. A new network has another layer, and is for ten digits. `treekit.graft` carries over what was saved: the
   plain dicts that Orbax restores go into the model and into the state of another optimizer.
3. The first layer is frozen by its path, so that the new layer settles first; then it is unfrozen, with a learning rate
   of its own, and the moments of all other layers are kept.
4. At the end the learning rates are lowered in the state, without a new optimizer.

For comparison, the grown network is also trained without the moments that were saved, and the larger network from
scratch: each as often, with the same batches in the same orders. A picture of all is written next to this file.
"""

import _program

# isort: split

import dataclasses
import functools
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from digits import Digits, load
from jax import Array
from matplotlib.figure import Figure
from tqdm import tqdm

import treekit
from treekit import optax, training

BATCH = 32
EPOCHS = 20  # on the digits 0 to 8
EPOCHS_FROZEN, EPOCHS_THAWED, EPOCHS_GROWN = 2, 3, 8  # on all digits, EPOCHS_GROWN together
ORDERS = 5  # of the batches of all digits
RATE = 1e-3
PICTURE = _program.picture_of(__file__)


def without_nine(digits: Digits) -> Digits:
    return Digits(digits.images[digits.labels < 9], digits.labels[digits.labels < 9])


def batches(digits: Digits, epoch: int) -> Iterator[tuple[Array, Array]]:
    order = np.random.default_rng(epoch).permutation(len(digits.labels))
    for i in range(0, len(order) - BATCH + 1, BATCH):
        yield digits.images[order[i : i + BATCH]], digits.labels[order[i : i + BATCH]]


# --- The model, and how it grows --------------------------------------------------------------------------------------


def create(depth: int, classes: int, seed: int) -> eqx.nn.MLP:
    return eqx.nn.MLP(64, classes, width_size=64, depth=depth, key=jax.random.key(seed))


def transparent(model: eqx.nn.MLP, layer: int) -> eqx.nn.MLP:
    """The model with a layer that returns its input unchanged: behind a ReLU, the identity."""
    width = model.layers[layer].weight.shape[0]
    return treekit.tree_at(
        lambda m: (m.layers[layer].weight, m.layers[layer].bias), model, (jnp.eye(width), jnp.zeros(width))
    )


def add_class(new: Array, old: Array) -> Array:
    """The old rows, and what `new` has for the others: random weights, or moments of zero."""
    return new.at[: old.shape[0]].set(old)


def grow(saved: Any) -> tuple[eqx.nn.MLP, optax.GradientTransformationExtraArgs, Any]:
    """A deeper network for ten digits and its optimizer, with what was saved of the old ones."""
    model = transparent(create(depth=2, classes=10, seed=1), layer=1)
    optimizer = create_optimizer("frozen")
    grown, report = treekit.graft(
        {"model": model, "state": optimizer.init(model)},
        saved,
        fresh="**.layers.1.**",  # the new layer, before the output layer
        rename={"**.layers.1.**": "**.layers.2.**", "state.**.layers.0.**": None},  # the first layer is frozen
        resize={"**.layers.2.*": add_class},
    )
    print("\nThe model and its optimizer, carried over from the checkpoint:")
    report.show()
    return grown["model"], optimizer, grown["state"]


# --- The optimizer, and how it changes --------------------------------------------------------------------------------


# Which arrays are in which group, at the three stages. The first pattern that matches decides.
LABELS = {
    "all": {"**": "trained"},
    "frozen": {"layers.0.**": "frozen", "**": "trained"},
    "thawed": {"layers.0.**": "body", "**": "trained"},
}


@functools.cache
def create_optimizer(stage: str) -> optax.GradientTransformationExtraArgs:
    """One Adam for each group, whose rate can be read and set."""
    labels = LABELS[stage]
    adam = optax.inject_hyperparams(optax.adam)
    groups = {"frozen": optax.set_to_zero(), "trained": adam(RATE), "body": adam(RATE / 2)}
    return optax.partition({k: groups[k] for k in labels.values()}, treekit.path_labels(labels))


def unfreeze(model: eqx.nn.MLP, state: Any) -> tuple[Any, str]:
    """The state of another optimizer for the same model: the first layer is trained too, at a rate of its own."""
    state, report = treekit.graft(create_optimizer("thawed").init(model), state, fresh="inner_states.body.**")
    return state, f"{len(report.kept)} leaves of the state are kept, {len(report.fresh)} are new"


# --- The training -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """A model in training, and its accuracy on the test images before the first epoch and after each."""

    model: eqx.nn.MLP
    optimizer: optax.GradientTransformationExtraArgs
    state: Any
    progress: Any
    order: int = 0  # which of the orders of the batches it sees
    unfrozen: str = ""  # what became of its state then
    accuracy: list[float] = dataclasses.field(default_factory=list)

    def epochs(self, train: Digits, test: Digits, numbers: range) -> None:
        step = create_step(self.optimizer)
        for epoch in numbers:
            self.accuracy += [] if self.accuracy else [measure(self.model, test)]
            for images, labels in batches(train, 100 * self.order + epoch):
                self.model, self.state = step(self.model, self.state, images, labels)
            self.accuracy.append(measure(self.model, test))
            self.progress.update()
            self.progress.set_postfix_str(f"{self.accuracy[-1]:.1%}")


@functools.cache
def create_step(optimizer: optax.GradientTransformationExtraArgs) -> Callable[..., Any]:
    @eqx.filter_jit
    def step(model: eqx.nn.MLP, state: Any, images: Array, labels: Array) -> tuple[eqx.nn.MLP, Any]:
        grads = eqx.filter_grad(loss)(model, images, labels)
        updates, state = optimizer.update(grads, state, model)
        return optax.apply_updates(model, updates), state

    return step


def loss(model: eqx.nn.MLP, images: Array, labels: Array) -> Array:
    """The cross-entropy, of shape ()."""
    losses: Array = optax.losses.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels)
    return jnp.mean(losses)


@eqx.filter_jit
def share_read(model: eqx.nn.MLP, digits: Digits) -> Array:
    return jnp.mean(jnp.argmax(jax.vmap(model)(digits.images), axis=1) == digits.labels)


def measure(model: eqx.nn.MLP, digits: Digits) -> float:
    return float(share_read(model, digits))


def learn_nine_digits(train: Digits, test: Digits, progress: Any) -> Run:
    model, optimizer = create(depth=1, classes=9, seed=0), create_optimizer("all")
    run = Run(model, optimizer, optimizer.init(model), progress)
    run.epochs(without_nine(train), without_nine(test), range(EPOCHS))
    return run


def learn_all_digits(run: Run, train: Digits, test: Digits) -> Run:
    """The grown model: the first layer frozen, then unfrozen, then all of it at lower rates."""
    frozen, thawed = EPOCHS_FROZEN, EPOCHS_FROZEN + EPOCHS_THAWED
    run.epochs(train, test, range(frozen))
    run.optimizer = create_optimizer("thawed")
    run.state, run.unfrozen = unfreeze(run.model, run.state)
    run.epochs(train, test, range(frozen, thawed))
    rates = training.get_hyperparams(run.state)
    run.state = training.set_hyperparams(run.state, {k: v / 4 for k, v in rates.items() if "learning_rate" in k})
    run.epochs(train, test, range(thawed, EPOCHS_GROWN))
    return run


def learn_from_scratch(order: int, train: Digits, test: Digits, progress: Any) -> Run:
    model, optimizer = create(depth=2, classes=10, seed=1), create_optimizer("all")
    run = Run(model, optimizer, optimizer.init(model), progress, order)
    run.epochs(train, test, range(EPOCHS_GROWN))
    return run


def save_and_restore(run: Run) -> Any:
    """What Orbax makes of a model and its state if nobody tells it their structure: dicts, lists and arrays."""
    orbax: Any = importlib.import_module("orbax.checkpoint")  # has no types
    with tempfile.TemporaryDirectory() as folder, orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(folder) / "nine", {"model": treekit.filter_arrays(run.model), "state": run.state})
        checkpointer.wait_until_finished()
        return checkpointer.restore(Path(folder) / "nine")


# --- The picture ------------------------------------------------------------------------------------------------------

BLUE, PALE, ORANGE, GREY = "#2a5c8a", "#8fb4d6", "#d9822b", "#777777"


def draw(nine: Run, runs: dict[str, list[Run]]) -> None:
    figure = Figure(figsize=(10, 4.6), dpi=90, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1, 1.3])
    left.plot(nine.accuracy, color=GREY)
    left.set_title("nine digits, one hidden layer", loc="left")
    left.set_ylabel("share of the test images read correctly")
    for (name, each), color in zip(runs.items(), (BLUE, PALE, ORANGE), strict=True):
        accuracy = np.array([run.accuracy for run in each])
        right.plot(accuracy.mean(axis=0), "o-", color=color, label=name)
        right.fill_between(range(EPOCHS_GROWN + 1), *np.quantile(accuracy, [0, 1], axis=0), color=color, alpha=0.15)
    for epoch, text in ((EPOCHS_FROZEN, "unfrozen"), (EPOCHS_FROZEN + EPOCHS_THAWED, "lower rates")):
        right.axvline(epoch, color=GREY, linestyle="--", linewidth=1)
        right.text(epoch, 0.02, f" {text}", color=GREY, transform=right.get_xaxis_transform())
    right.set_title(f"ten digits, two hidden layers: mean and range of {ORDERS} runs", loc="left")
    right.legend(loc="center right", frameon=False)
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.spines[["top", "right"]].set_visible(False)
    _program.save(figure, PICTURE)


def main() -> None:
    _program.check_folder(PICTURE)
    train, test = load()
    total = EPOCHS + 3 * ORDERS * EPOCHS_GROWN
    with tqdm(total=total, desc="grow", unit="epoch", ncols=80, disable=None) as progress:
        nine = learn_nine_digits(train, test, progress)
        model, optimizer, state = grow(save_and_restore(nine))
        fresh = optimizer.init(model)
        runs: dict[str, list[Run]] = {"grown": [], "grown, without the old moments": [], "from scratch": []}
        for order in range(ORDERS):
            for name, start in (("grown", state), ("grown, without the old moments", fresh)):
                run = Run(model, optimizer, start, progress, order)
                runs[name].append(learn_all_digits(run, train, test))
            runs["from scratch"].append(learn_from_scratch(order, train, test, progress))

    print(f"Unfrozen: {runs['grown'][0].unfrozen}.")
    print(f"\nNine digits: {nine.accuracy[-1]:.1%} of the test images are read correctly.")
    titles = f"{'at first':>11}{'after 1 epoch':>15}{f'after {EPOCHS_GROWN}':>9}"
    print(f"{f'Ten digits, the mean of {ORDERS} runs':42}{titles}")
    mean = {name: np.mean([run.accuracy for run in each], axis=0) for name, each in runs.items()}
    for name, accuracy in mean.items():
        print(f"  {name:40}{accuracy[0]:11.1%}{accuracy[1]:15.1%}{accuracy[-1]:9.1%}")
    draw(nine, runs)
    print(f"\npicture: {PICTURE}")
    if not mean["from scratch"][-1] < mean["grown"][-1]:
        sys.exit("the grown model should read more of the digits than the one from scratch")


if __name__ == "__main__":
    main()
