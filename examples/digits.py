"""Read digits, with plain Optax and with treekit: one training run with each, on a raw Equinox model.

    make demo, or: python examples/digits.py

The run needs five things at once:

1. weight decay on some of the arrays, by a mask made from the model (which is callable, and so is the mask);
2. a learning rate held in the state of the optimizer, read back while training;
3. gradients accumulated over micro-batches, some of which are NaN;
4. a last polish with L-BFGS and its line search;
5. a layer that is a class of our own, whose `__init__` computes, edited in the middle of training.

Both runs have the same data, seed and arithmetic, and each is written as its library has it. The program prints the
lines in which they differ. Then single systems run by themselves: with plain Optax, with what it needs to work, and
with treekit. A picture of the loss is written next to this file.
"""

import _program

# isort: split

import dataclasses
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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
from treekit import optax, training

EPOCHS = 40
MICRO_BATCH = 16
ACCUMULATE = 4  # micro-batches in a round, after which the optimizer takes a step
BROKEN = 100  # one micro-batch in so many has a NaN among its pixels
DECAY = 1e-3
POLISH = 60  # steps of L-BFGS
PICTURE = _program.picture_of(__file__)


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


@treekit.register_node(data_fields=["mean", "matrix"], meta_fields=[])
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


def register_by_hand(cls: type[Whiten]) -> type[Whiten]:
    def flatten(layer: Whiten) -> tuple[tuple[Array, Array], None]:
        return (layer.mean, layer.matrix), None

    def rebuild(_: None, children: tuple[Array, Array]) -> Whiten:
        layer = object.__new__(cls)  # since `__init__` must not run again
        layer.mean, layer.matrix = children
        return layer

    jax.tree_util.register_pytree_node(cls, flatten, rebuild)
    return cls


@register_by_hand
class WhitenByHand(Whiten):
    """The same layer, registered with JAX alone."""


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
    mask: Network = jax.tree.map(lambda leaf: leaf.ndim > 1, eqx.filter(model, eqx.is_inexact_array))
    mask = eqx.tree_at(lambda network: network.whiten, mask, False)
    return mask


def loss(model: Network, images: Array, labels: Array) -> Array:
    """The cross-entropy, of shape ()."""
    losses: Array = optax.losses.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels)
    return jnp.mean(losses)


def objective(model: Network, images: Array, labels: Array) -> Array:
    """What the decayed weights minimize: the loss, and half the decay times the sum of the squares of the weights."""
    decayed = eqx.filter(eqx.filter(model, eqx.is_inexact_array), weights(model))
    squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(decayed)]
    return loss(model, images, labels) + DECAY / 2 * sum(squares)


@eqx.filter_jit
def evaluate(model: Network, data: Digits) -> tuple[Array, Array]:
    """The loss, and the share of images that the model reads correctly."""
    predicted = predict(model, data.images)
    return loss(model, data.images, data.labels), jnp.mean(predicted == data.labels)


def predict(model: Network, images: Array) -> Array:
    return jnp.argmax(jax.vmap(model)(images), axis=1)


# --- The steps, with treekit and with plain Optax ---------------------------------------------------------------------

# Takes a model, a state, images and labels, and returns the next model and state, and the objective before.
Step = Callable[[Network, Any, Any, Any], tuple[Network, Any, Array]]


def create_adam(library: Any, mask: Network, rounds: int) -> Any:
    """The same for both. `zero_nans` is outside of MultiSteps: inside, plain Optax would never lose the NaN."""

    def adam(learning_rate: Any) -> Any:
        return library.chain(
            library.masked(library.add_decayed_weights(DECAY), mask),
            library.scale_by_adam(),
            library.scale_by_learning_rate(learning_rate),
        )

    schedule = library.warmup_cosine_decay_schedule(0.0, 3e-3, warmup_steps=rounds // 20, decay_steps=rounds)
    steps = library.MultiSteps(library.inject_hyperparams(adam)(schedule), every_k_schedule=ACCUMULATE)
    return library.chain(library.zero_nans(), steps.gradient_transformation())


def adam_of_treekit(model: Network, rounds: int) -> tuple[Any, Step]:
    optimizer = create_adam(optax, weights(model), rounds)
    state = optimizer.init(model)

    def step(model: Network, state: Any, images: Any, labels: Any) -> tuple[Network, Any, Array]:
        value = objective(model, images, labels)
        grads = eqx.filter_grad(loss)(model, images, labels)
        model, state = training.apply_gradients(optimizer, grads, state, model)
        return model, state, value

    return state, eqx.filter_jit(step)


def adam_of_optax(model: Network, rounds: int) -> tuple[Any, Step]:
    optimizer = create_adam(plain_optax, weights(model), rounds)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def step(model: Network, state: Any, images: Any, labels: Any) -> tuple[Network, Any, Array]:
        value = objective(model, images, labels)
        grads = eqx.filter_grad(loss)(model, images, labels)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        model = eqx.apply_updates(model, updates)
        return model, state, value

    return state, eqx.filter_jit(step)


def polish_of_treekit(model: Network) -> tuple[Any, Step]:
    lbfgs = optax.lbfgs()
    state = lbfgs.init(model)
    # The line search has computed both already.
    value_and_grad = optax.value_and_grad_from_state(objective)

    def step(model: Network, state: Any, images: Any, labels: Any) -> tuple[Network, Any, Array]:
        data = {"images": images, "labels": labels}
        value, grad = value_and_grad(model, state=state, **data)
        more: Any = {"value": value, "grad": grad, "value_fn": objective, **data}
        model, state = training.apply_gradients(lbfgs, grad, state, model, **more)
        return model, state, value

    return state, eqx.filter_jit(step)


def polish_of_optax(model: Network) -> tuple[Any, Step]:
    lbfgs = plain_optax.lbfgs()
    params, static = eqx.partition(model, eqx.is_inexact_array)
    state = lbfgs.init(params)

    def of_params(params: Any, images: Array, labels: Array) -> Array:
        return objective(eqx.combine(params, static), images, labels)

    # The line search has computed both already.
    value_and_grad = plain_optax.value_and_grad_from_state(of_params)

    def step(model: Network, state: Any, images: Any, labels: Any) -> tuple[Network, Any, Array]:
        data = {"images": images, "labels": labels}
        params = eqx.filter(model, eqx.is_inexact_array)
        value, grad = value_and_grad(params, state=state, **data)
        more: Any = {"value": value, "grad": grad, "value_fn": of_params, **data}
        updates, state = lbfgs.update(grad, state, params, **more)
        model = eqx.apply_updates(model, updates)
        return model, state, value

    return state, eqx.filter_jit(step)


# --- The training -----------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """What differs between the two runs."""

    layer: type[Whiten]
    adam: Callable[[Network, int], tuple[Any, Step]]
    polish: Callable[[Network], tuple[Any, Step]]
    tree_at: Callable[..., Network]


WAYS = {
    "plain Optax": Way(WhitenByHand, adam_of_optax, polish_of_optax, eqx.tree_at),
    "treekit": Way(Whiten, adam_of_treekit, polish_of_treekit, treekit.tree_at),
}


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


def train_network(name: str, train: Digits, test: Digits, history: History) -> Network:
    """Adam, with an edit of the model on the way, and a polish with L-BFGS."""
    way = WAYS[name]
    model = create_network(train, way.layer)
    state, step = way.adam(model, EPOCHS * (len(train.labels) // MICRO_BATCH) // ACCUMULATE)
    history.test.append(float(evaluate(model, test)[0]))
    progress = tqdm(range(EPOCHS), desc=f"Adam, {name}", unit="epoch", ncols=80, disable=None)
    for epoch in progress:
        if epoch == EPOCHS // 2:
            model = sharpen(model, train, way.tree_at)
            history.edited = len(history.objective)
        for images, labels in micro_batches(train, epoch):
            model, state, value = step(model, state, images, labels)
            history.objective.append(float(value))
            history.learning_rate.append(float(state[1].inner_opt_state.hyperparams["learning_rate"]))
        test_loss, accuracy = map(float, evaluate(model, test))
        history.test.append(test_loss)
        progress.set_postfix_str(f"{accuracy:.1%}")

    state, step = way.polish(model)
    progress = tqdm(range(POLISH), desc=f"L-BFGS, {name}", unit="step", ncols=80, disable=None)
    for _ in progress:
        history.polish_test.append(float(evaluate(model, test)[0]))
        model, state, value = step(model, state, train.images, train.labels)
        history.polish.append(float(value))
        history.step_length.append(float(optax.tree.get(state, "learning_rate")))
        progress.set_postfix_str(f"{value:.4f}")
    history.polish.append(float(objective(model, train.images, train.labels)))
    history.polish_test.append(float(evaluate(model, test)[0]))
    return model


def sharpen(model: Network, train: Digits, tree_at: Callable[..., Network]) -> Network:
    """Show the network 32 components of the images instead of 8: another matrix, in the same layer."""
    sharper = Whiten(*moments(train), components=32)
    return tree_at(lambda network: network.whiten.matrix, model, sharper.matrix)


def show_lines() -> None:
    """Print the lines in which the two differ. For this, `plain_optax` is `optax`."""
    print("\nThe lines of this program that only one of the two needs:")
    optax_way, treekit_way = WAYS["plain Optax"], WAYS["treekit"]
    show_difference("A step of Adam", optax_way.adam, treekit_way.adam)
    show_difference("A step of L-BFGS", optax_way.polish, treekit_way.polish)
    show_difference("The layer, which is not an eqx.Module", register_by_hand, Whiten, library="JAX")


def show_difference(title: str, theirs: Any, ours: Any, library: str = "plain Optax") -> None:
    lines = [line for line in difflib.ndiff(source(theirs), source(ours)) if line[0] in "-+"]
    print(f"\n{title}")
    for mark, name in (("-", library), ("+", "treekit")):
        only = [line[2:] for line in lines if line[0] == mark]
        print(f"{name}: {len(only)} lines" if len(only) > 1 else f"{name}: 1 line")
        for line in only:
            deeper = " " * (len(line) - len(line.lstrip()) + 4)
            print(textwrap.fill(line, 80, subsequent_indent=deeper))


def source(function: Any) -> list[str]:
    """The lines of a function below its first, or the decorator of a class; without blank lines."""
    lines = inspect.getsource(function).replace("plain_optax", "optax").splitlines()
    if isinstance(function, type):
        return [f"  {lines[0]}"]
    return [f"  {line}" for line in textwrap.dedent("\n".join(lines[1:])).splitlines() if line]


# --- Single systems: with plain Optax, with what plain Optax needs, and with treekit ----------------------------------


class Wrong(Exception):
    """Nothing was raised, and the figure is wrong all the same."""


def count_steps(library: Any, model: Any, grads: Any) -> str:
    """How often a round of micro-batches runs the inner transformation."""
    ran: list[None] = []
    wait: Any = jax.effects_barrier  # has no types

    def count(updates: Any, params: Any) -> Any:
        jax.debug.callback(lambda: ran.append(None))
        return updates

    optimizer = library.MultiSteps(library.stateless(count), every_k_schedule=ACCUMULATE)
    state = optimizer.init(model)
    for _ in range(ACCUMULATE):
        _, state = optimizer.update(grads, state, model)
    wait()
    if len(ran) > 1:
        raise Wrong(f"it runs {len(ran)} times, and {len(ran) - 1} of the results are multiplied by zero")
    return "it runs once"


def count_steps_at_once(arrays: Any, static: Any, data: Digits) -> str:
    """The same, where all micro-batches are there at once: their mean gradient is that of the whole batch."""

    def gradient(images: Array, labels: Array) -> Any:
        return jax.grad(lambda arrays: loss(eqx.combine(arrays, static), images, labels))(arrays)

    microbatching: Any = plain_optax.microbatching
    size, mean = len(data.labels) // ACCUMULATE, microbatching.AccumulationType.MEAN
    grads = microbatching.microbatch(gradient, (0, 1), size, mean)(data.images, data.labels)
    whole = gradient(data.images, data.labels)
    off = max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(*map(jax.tree.leaves, (grads, whole)), strict=True))
    if off > 1e-5:
        raise Wrong(f"the gradient differs by {off:.0e}")
    return "the gradient of the whole batch, and one step"


def survive_nan(library: Any, model: Any, grads: Any, outside: bool = False) -> str:
    """One NaN gradient, then twenty good ones: how many parameters still move?"""
    inner = library.sgd(0.1) if outside else library.chain(library.zero_nans(), library.sgd(0.1))
    optimizer = library.MultiSteps(inner, every_k_schedule=2)
    if outside:
        optimizer = library.chain(library.zero_nans(), optimizer.gradient_transformation())
    state = optimizer.init(model)
    update = eqx.filter_jit(optimizer.update)
    _, state = update(jax.tree.map(lambda g: g * jnp.nan, grads), state, model)
    moved = jax.tree.map(jnp.zeros_like, grads)
    for _ in range(21):
        updates, state = update(grads, state, model)
        moved = jax.tree.map(lambda m, u: m + jnp.abs(u), moved, updates)
    due, moving = (sum(int(jnp.count_nonzero(x)) for x in jax.tree.leaves(tree)) for tree in (grads, moved))
    if moving < due:
        raise Wrong(f"no error, but {due - moving:,} of {due:,} parameters never move again")
    return f"all {moving:,} parameters move again"


def decay_injected(library: Any, model: Any, grads: Any, mask: Any, **static: Any) -> str:
    optimizer = library.inject_hyperparams(library.adamw, **static)(1e-2, weight_decay=1.0, mask=mask)
    return count_decayed(optimizer, model, grads)


def decay_masked(library: Any, model: Any, grads: Any, mask: Any) -> str:
    return count_decayed(library.masked(library.add_decayed_weights(1.0), mask), model, grads)


def count_decayed(optimizer: Any, model: Any, grads: Any) -> str:
    """How many arrays move for a gradient of zeros."""
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, grads), optimizer.init(model), model)
    leaves = jax.tree.leaves(updates)
    decayed = sum(bool(jnp.any(leaf)) for leaf in leaves)
    if not decayed:
        raise Wrong(f"no error, but none of {len(leaves)} arrays decays")
    return f"{decayed} of {len(leaves)} arrays decay"


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def polish(library: Any, model: Any, value_fn: Callable[[Any], Array]) -> str:
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
    return f"the loss falls from {before:.2f} to {float(value_fn(model)):.2f}"


def polish_head(library: Any, model: Any, value_fn: Callable[[Any], Array], fill: bool = False, **options: Any) -> str:
    """Polish the last layer only. With `fill`, the loss that the line search calls puts the other params back."""
    arrays = eqx.filter(model, eqx.is_inexact_array)
    head = eqx.tree_at(lambda m: m.mlp.layers[-1], jax.tree.map(lambda _: False, arrays), True)
    rest = jax.tree.map(lambda is_head: not is_head, head)
    lbfgs = library.masked(library.lbfgs(), head, **options)
    optimizer = library.chain(lbfgs, library.masked(library.set_to_zero(), rest))
    state = optimizer.init(model)

    @eqx.filter_jit
    def step(model: Any, state: Any) -> tuple[Any, Any]:
        def filled(params: Any) -> Array:
            return value_fn(jax.tree.map(lambda new, old: old if is_hole(new) else new, params, model, is_leaf=is_hole))

        value, grad = eqx.filter_value_and_grad(value_fn)(model)
        extra = {"value": value, "grad": grad, "value_fn": filled if fill else value_fn}
        updates, state = optimizer.update(grad, state, model, **extra)
        return library.apply_updates(model, updates), state

    before = float(value_fn(model))
    for _ in range(5):
        model, state = step(model, state)
    return f"the loss falls from {before:.2f} to {float(value_fn(model)):.2f}"


def is_hole(x: object) -> bool:
    return isinstance(x, plain_optax.MaskedNode)


def edit_layer(tree_at: Callable[..., Any], model: Network, train: Digits) -> str:
    matrix = Whiten(*moments(train), components=32).matrix
    edited = tree_at(lambda network: network.whiten.matrix, model, matrix)
    if not np.array_equal(jax.jit(lambda model: model.whiten.matrix)(eqx.filter(edited, eqx.is_array)), matrix):
        raise Wrong("no error, but __init__ ran again, and made another matrix of the edited one")
    return "edited, and the matrix is the one given"


class WhitenFromChildren(Whiten):
    """The same layer, registered so that it is rebuilt by its class."""


jax.tree_util.register_pytree_node(
    WhitenFromChildren,
    lambda layer: ((layer.mean, layer.matrix), None),
    lambda _, children: WhitenFromChildren(*children),
)


class System(NamedTuple):
    """What is asked, and what becomes of it."""

    title: str
    plain: Callable[[], str]
    needs: str  # what plain Optax or Equinox needs to work
    helped: Callable[[], str]
    treekit: Callable[[], str]
    library: str = "plain Optax"


def systems(train: Digits) -> list[System]:
    """First what raises no error, then what raises."""
    model = create_network(train)
    some = Digits(train.images[:256], train.labels[:256])
    grads = eqx.filter_grad(loss)(model, some.images, some.labels)
    # On a raw model, plain Optax raises before it comes to what most of these are about. So it gets the arrays only.
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    mask = weights(model)

    def value(model: Any) -> Array:
        return loss(model, some.images, some.labels)

    def value_of_arrays(arrays: Any) -> Array:
        return value(eqx.combine(arrays, static))

    return [
        System(
            f"MultiSteps: the inner step, in a round of {ACCUMULATE} micro-batches",
            lambda: count_steps(plain_optax, arrays, grads),
            "if they arrive one by one, nothing in Optax; if all are there at once, a scan or optax.microbatching",
            lambda: count_steps_at_once(arrays, static, some),
            lambda: count_steps(optax, model, grads),
        ),
        System(
            "MultiSteps(chain(zero_nans(), sgd(0.1)), 2), after one NaN gradient",
            lambda: survive_nan(plain_optax, arrays, grads),
            "chain(zero_nans(), MultiSteps(...)), or should_skip_update_fn=skip_not_finite",
            lambda: survive_nan(plain_optax, arrays, grads, outside=True),
            lambda: survive_nan(optax, model, grads),
        ),
        System(
            "inject_hyperparams(adamw), with a function as the mask",
            lambda: decay_injected(plain_optax, arrays, grads, matrices),
            'static_args="mask"',
            lambda: decay_injected(plain_optax, arrays, grads, matrices, static_args="mask"),
            lambda: decay_injected(optax, model, grads, matrices),
        ),
        System(
            "masked(lbfgs()), with its line search",
            lambda: polish_head(plain_optax, arrays, value_of_arrays),
            "mask_compatible_extra_args=True, and a loss that puts back what is masked",
            lambda: polish_head(plain_optax, arrays, value_of_arrays, fill=True, mask_compatible_extra_args=True),
            lambda: polish_head(optax, model, value),
        ),
        System(
            "inject_hyperparams(adamw), with a mask of the model's class",
            lambda: decay_injected(plain_optax, arrays, grads, mask),
            'static_args="mask"',
            lambda: decay_injected(plain_optax, arrays, grads, mask, static_args="mask"),
            lambda: decay_injected(optax, model, grads, mask),
        ),
        System(
            "masked, on the raw model",
            lambda: decay_masked(plain_optax, model, grads, mask),
            "eqx.filter(model, eqx.is_inexact_array), in init and in update",
            lambda: decay_masked(plain_optax, arrays, grads, mask),
            lambda: decay_masked(optax, model, grads, mask),
        ),
        System(
            "lbfgs, on the raw model",
            lambda: polish(plain_optax, model, value),
            "eqx.partition before, and eqx.combine in the loss",
            lambda: polish(plain_optax, arrays, value_of_arrays),
            lambda: polish(optax, model, value),
        ),
        System(
            "tree_at on a class whose __init__ computes, registered with JAX",
            lambda: edit_layer(eqx.tree_at, create_network(train, WhitenFromChildren), train),
            "an eqx.Module, or a registration that rebuilds with object.__new__",
            lambda: edit_layer(eqx.tree_at, create_network(train, WhitenByHand), train),
            lambda: edit_layer(treekit.tree_at, model, train),
            library="JAX, Equinox",
        ),
    ]


def attempt(run: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, run()
    except Wrong as wrong:
        return False, str(wrong)
    except Exception as error:  # whatever it is, the table shows it
        first_line = re.sub(r" at 0x\w+", "", (str(error).strip() or "(without a message)").splitlines()[0])
        return False, f"raises {type(error).__name__}: {first_line}"


def show_systems(systems: list[System]) -> list[str]:
    """Print what each does, and return what should work and does not."""
    failed: list[str] = []
    for number, system in enumerate(systems, start=1):
        _, plainly = attempt(system.plain)
        is_helped, helped = attempt(system.helped)
        is_ours, ours = attempt(system.treekit)
        print(f"\n{number}. {system.title}")
        needs = f"{system.needs}: {helped}"
        for name, text in ((system.library, plainly), ("what it needs", needs), ("treekit", ours)):
            head = f"   {name:15}"
            lines = textwrap.wrap(text, 80, initial_indent=head, subsequent_indent=" " * len(head), max_lines=3)
            print("\n".join(lines))
        failed += [system.title] if not (is_helped and is_ours) else []
    return failed


# --- The picture ------------------------------------------------------------------------------------------------------

BLUE, PALE, ORANGE, WIDE, RED, GREY = "#2a5c8a", "#b9cfe4", "#d9822b", "#f3d3b0", "#c0392b", "#777777"


def draw(histories: dict[str, History], model: Network, test: Digits) -> None:
    figure = Figure(figsize=(12, 7.6), dpi=90, layout="constrained")
    (curves,), (strip,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[5, 1.2])
    grid = curves.add_gridspec(2, 2, width_ratios=[2.6, 1], height_ratios=[4, 1])
    adam = curves.add_subplot(grid[0, 0])
    polish = curves.add_subplot(grid[0, 1], sharey=adam)
    plain, history = histories["plain Optax"], histories["treekit"]
    each = np.arange(EPOCHS + 1) * len(plain.objective) // EPOCHS
    adam.semilogy(each, plain.test, color=WIDE, linewidth=6, label="the same with plain Optax")
    polish.semilogy(plain.polish_test, color=WIDE, linewidth=6)
    draw_adam(adam, curves.add_subplot(grid[1, 0], sharex=adam), history)
    draw_polish(polish, curves.add_subplot(grid[1, 1], sharex=polish), history)
    for axes in curves.axes:
        axes.spines[["top", "right"]].set_visible(False)
    draw_digits(strip, model, test)
    _program.save(figure, PICTURE)


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
    _program.check_folder(PICTURE)
    train, test = load()
    histories = {name: History() for name in WAYS}
    models = {name: train_network(name, train, test, history) for name, history in histories.items()}
    accuracies = {name: float(evaluate(model, test)[1]) for name, model in models.items()}
    for name, history in histories.items():
        print(f"{name:11}  test accuracy {accuracies[name]:.1%}, objective {history.polish[-1]:.4f}")
    plain, ours = histories.values()
    off = max(abs(a - b) for a, b in zip(plain.test, ours.test, strict=True))
    print(f"\nWhile Adam trains, the two test losses differ by at most {off:.0e}.")
    images = round(abs(accuracies["plain Optax"] - accuracies["treekit"]) * len(test.labels))
    print("After that, the line search of L-BFGS magnifies differences of rounding. In the")
    print(f"end, the counts of correct test images differ by {images} of {len(test.labels)}, which is noise.")
    show_lines()
    print("\nSingle systems. Plain Optax gets only arrays (in 6 and 7, the whole model).")
    failed = show_systems(systems(train))
    draw(histories, models["treekit"], test)
    print(f"\npicture: {PICTURE}")
    if min(accuracies.values()) < 0.95:
        sys.exit("the test accuracy of both should be above 95 %")
    if off > 0.01:
        sys.exit("both runs of Adam should give the same network")
    if failed:
        sys.exit(f"what should work does not: {', '.join(failed)}")


if __name__ == "__main__":
    main()
