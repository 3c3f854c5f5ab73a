"""A module of Flax NNX as a model, with JAX's own transforms; and what the classes of its variables say."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.optax import cases
from tests.releases import needs, nnx_list
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same, check_transformation

pytestmark = needs("flax>=0.11.2")  # before, modules are not pytrees


class Own(nnx.Variable[Any]):
    """A user's own class of variables."""


class Trained(nnx.BatchStat[Any]):
    __treekit_trainable__ = True


class Running(nnx.BatchStat[Any]):
    pass


class Frozen(nnx.Param[Any]):
    __treekit_trainable__ = False


class Slow(nnx.Param[Any]):
    pass


# Whether a variable is trained in a module, where Flax's `nnx.grad` says it, and in a state, which a user has filtered.
CLASSES: dict[Any, tuple[bool, bool]] = {
    nnx.Param: (True, True),
    nnx.LoRAParam: (True, True),
    Slow: (True, True),
    Own: (False, True),
    Trained: (True, True),
    Frozen: (False, False),
    Running: (False, False),
    **dict.fromkeys(
        [
            nnx.Variable,
            nnx.BatchStat,
            nnx.Cache,
            nnx.Intermediate,
            nnx.Perturbation,
            nnx.RngState,
            nnx.metrics.MetricState,
            nnx.OptState,
        ],
        (False, False),
    ),
}


class Net(nnx.Module):
    """Modules in lists and in modules, rngs, variables of every kind, and an array without a variable."""

    Own: Any
    Slow: Any

    def __init__(self, rngs: Any) -> None:
        self.layers = nnx_list([nnx.Linear(2, 3, rngs=rngs), nnx.Sequential(nnx.Linear(3, 3, rngs=rngs))])
        self.norm, self.dropout = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.bare, self.activation = jnp.ones(3), jax.nn.relu
        for cls in CLASSES:
            setattr(self, cls.__name__, cls(jnp.ones(3)))

    def __call__(self, x: Any) -> Any:
        x = self.layers[1](self.activation(self.layers[0](x)))
        return self.dropout(self.norm(x * (self.Own[...] * self.bare)[None] + self.Slow[...][None]))


X = jax.random.normal(jax.random.key(0), (8, 2), jnp.float32)
LAYERS = {f"layers.{layer}.{name}" for layer in ("0", "1.layers.0") for name in ("kernel", "bias")}
PARAMS = LAYERS | {"norm.scale", "norm.bias"} | {cls.__name__ for cls, (trained, _) in CLASSES.items() if trained}
IN_STATE = PARAMS | {"Own", "bare"}


def make() -> Any:
    return Net(nnx.Rngs(0))


def loss_of(model: Any) -> Any:
    return jnp.sum(model(X) ** 2), model


def gradients(model: Any) -> Any:
    """The gradients, and the module that the forward pass has written into."""
    return jax.grad(loss_of, has_aux=True, allow_int=True)(model)


def moved(before: Any, after: Any) -> set[str]:
    names = tk.to_state_dict(before)
    return {name for name, x in tk.to_state_dict(after).items() if (x != names[name]).any()}


def names_of_moments(state: Any) -> set[str]:
    return {name.partition(".mu.")[2] for name in tk.to_state_dict(state) if ".mu." in name}


# ------------------------------------------------------------------------------------------------------ what is trained


class Model(eqx.Module):
    net: Any
    scale: jax.Array
    activation: Any = jax.nn.relu


# Trees with the names of what is trained in them.
TREES: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "module": (make, PARAMS),
    "in a dict": (lambda: {"net": make(), "w": jnp.ones(2)}, {f"net.{name}" for name in PARAMS} | {"w"}),
    "in a list": (lambda: [make(), (nnx.LoRAParam(jnp.ones(2)),)], {f"0.{x}" for x in PARAMS} | {"1.0"}),
    "in Equinox": (lambda: Model(make(), jnp.ones(2)), {f"net.{name}" for name in PARAMS} | {"scale"}),
    "state": (lambda: nnx.state(make()), IN_STATE),
    "filtered state": (lambda: nnx.state(make(), nnx.Any(nnx.Param, Own)), IN_STATE - {"Trained", "bare"}),
    "dict of variables": (
        lambda: {cls.__name__: cls(jnp.ones(2)) for cls in CLASSES},
        {cls.__name__ for cls, (_, is_trained) in CLASSES.items() if is_trained},
    ),
}


def ones(x: Any) -> Any:
    return None if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jnp.ones_like(x)


def arrays_of(tree: Any) -> Any:
    return tk.filter(tree, tk.is_array)


# Gradients as programs have them, with values for some of what is not trained, or for all of it.
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "jax.grad": lambda tree: jax.grad(cases.loss, allow_int=True)(arrays_of(tree)),
    "ones for all": lambda tree: jax.tree.map(ones, arrays_of(tree)),
    "ones for floats": lambda tree: jax.tree.map(jnp.ones_like, tk.filter(tree, tk.is_inexact_array)),
    "only of what is trained": lambda tree: jax.tree.map(jnp.ones_like, tk.filter(tree, tk.trainable)),
}


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("name", TREES)
def test_what_is_trained(name: str, gradient: str) -> None:
    """In a module, what `nnx.grad` differentiates; in a state, what the user's filter has left, but for Flax's own.

    Nothing else has a state, an update, or decays, whatever its gradient is: none, float0, or values, which are dropped
    in a module. For an integer in a state, they raise, as for any other.
    """
    (make_tree, trained), optimizer = TREES[name], tko.adamw(0.1, weight_decay=0.5)
    tree = make_tree()
    state, grads = optimizer.init(tree), GRADIENTS[gradient](tree)
    assert names_of_moments(state) == trained
    assert set(tk.to_state_dict(tk.filter(tree, tk.trainable))) == trained
    updates, _ = optimizer.update(grads, state, tree)
    assert set(tk.to_state_dict(updates)) == trained
    new, _ = training.apply_gradients(optimizer, grads, state, tree)
    assert type(new) is type(tree) and moved(tree, new) == trained


@pytest.mark.parametrize("cls", CLASSES)
def test_where_a_class_of_variables_is_trained(cls: Any) -> None:
    """A variable is trained in a module or not, also if it holds a tree; and in a state or not."""

    class Holder(nnx.Module):
        def __init__(self, value: Any) -> None:
            self.w, self.v = nnx.Param(jnp.ones(2)), cls(value)

    in_module, in_state = CLASSES[cls]
    for value in (jnp.ones(2), {"a": jnp.ones(2), "b": [jnp.ones(2)]}):
        module = Holder(value)
        for tree, is_trained in ((module, in_module), ({"m": module}, in_module), (nnx.state(module), in_state)):
            moments = names_of_moments(tko.adam(0.1).init(tree))
            assert {"v" in name.split(".") for name in moments} == {False, is_trained}


# What else asks which leaves are trained, or takes trees, takes a module.
def obeys_the_laws(tx: Any, net: Any) -> bool:
    """Whether a transformation obeys the laws; if not, it raises."""
    check_transformation(tx, net)
    return True


ASKING: dict[str, Callable[[Any], Any]] = {
    "filter": lambda net: set(tk.to_state_dict(tk.filter(net, tk.trainable))) == PARAMS,
    "partition and combine": lambda net: tk.tree_diff(tk.combine(*tk.partition(net, tk.trainable)), net) == (),
    "mask": lambda net: {x for x, y in tk.tree_find(tk.trainable(net), "**").items() if y is True} == PARAMS,
    "mask by a class of modules": lambda net: set(tk.to_state_dict(tk.filter(net, tk.path_mask(nnx.Linear)))) == LAYERS,
    "mask by a class of variables": lambda net: set(tk.to_state_dict(tk.filter(net, tk.path_mask(Slow)))) == {"Slow"},
    "labels": lambda net: set(jax.tree.leaves(tk.path_labels({nnx.Linear: 1}, default=2)(net).layers)) == {1},
    "tree_find modules": lambda net: list(tk.tree_find(net, nnx.Linear)) == ["layers.0", "layers.1.layers.0"],
    "tree_find children": lambda net: set(tk.tree_find(net, "layers.0.*")) == {"layers.0.kernel", "layers.0.bias"},
    "tree_find variables": lambda net: set(tk.tree_find(net, nnx.Param)) == PARAMS - {"Trained"} | {"Frozen"},
    "tree_at": lambda net: moved(net, tk.tree_at("layers.0.bias", net, replace_fn=jnp.ones_like)) == {"layers.0.bias"},
    "graft": lambda net: tk.tree_diff(tk.graft(Net(nnx.Rngs(1)), net)[0], net) == (),
    "summary": lambda net: {x.path for x in training.summary(tko.sgd(0.1), net).rows if x.step} == PARAMS,
    "check_transformation": lambda net: obeys_the_laws(tko.adamw(0.1, weight_decay=0.5), net),
}


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_which_leaves_are_trained(name: str) -> None:
    assert ASKING[name](make())


def test_an_average_of_the_params_is_a_module_with_the_statistics_of_the_one_that_was_passed() -> None:
    net = make()
    optimizer = tko.chain(tko.sgd(0.1), training.params_ema(0.5))
    grads, after = gradients(net)
    after, state = training.apply_gradients(optimizer, grads, optimizer.init(net), after)
    average = training.get_params_ema(state, after)
    assert type(average) is Net and moved(after, average) <= PARAMS
    untyped_average: Any = average
    untyped_average.eval()
    assert average.norm.use_running_average and not after.norm.use_running_average


def test_a_step_of_a_module_is_that_of_its_params() -> None:
    """And the statistics and the counts of the rngs are those of the module that came out of the gradient."""
    optimizer, model = tko.adamw(0.1, weight_decay=0.5), make()

    @jax.jit
    def step(model: Any, state: Any) -> Any:
        grads, model = gradients(model)
        return training.apply_gradients(optimizer, grads, state, model)

    new, _ = step(model, optimizer.init(model))
    reference = make()
    train_one_step(reference, optimizer)
    counts = [int(net.dropout.rngs.count[...]) for net in (model, new)]
    assert type(new) is Net and isinstance(new.norm.mean, nnx.BatchStat)
    of_nnx = tk.to_state_dict(nnx.state(reference))
    for name, x in tk.to_state_dict(nnx.state(new)).items():
        if name not in ("Trained", "dropout.rngs.key"):
            cases.assert_close(x, of_nnx[name])
    assert counts == [0, 1]
    assert moved(model, new) == PARAMS | {"norm.mean", "norm.var", "dropout.rngs.count"}


def test_new_variables_are_not_shared() -> None:
    model = make()
    optimizer = tko.sgd(0.1)
    grads, _ = gradients(model)
    new = tko.apply_updates(model, optimizer.update(grads, optimizer.init(model), model)[0])

    def is_variable(x: object) -> bool:
        return isinstance(x, nnx.Variable)

    variables = [{id(x) for x in jax.tree.leaves(tree, is_leaf=is_variable) if is_variable(x)} for tree in (model, new)]
    assert not variables[0] & variables[1] and len(variables[1]) == len(variables[0])


@needs("flax.nnx.RoPE")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flax itself
def test_tables_of_rotary_embeddings_are_not_trained() -> None:
    """They are plain variables, and `jax.grad` has gradients for them."""
    rope: Any = nnx
    model = nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), rope.RoPE(embedding_size=4, max_seq_len=8))
    optimizer = tko.adamw(0.1, weight_decay=0.5)
    grads = jax.grad(lambda model: jnp.sum(model(jnp.ones((8, 4))) ** 2))(model)
    new, _ = training.apply_gradients(optimizer, grads, optimizer.init(model), model)
    assert moved(model, new) == {"layers.0.kernel", "layers.0.bias"}


class Tied(nnx.Module):
    def __init__(self, cls: Any) -> None:
        self.w, self.a = nnx.Param(jnp.ones(2)), cls(jnp.ones(2))
        self.b = self.a


@pytest.mark.parametrize("cls", CLASSES)
def test_a_trained_variable_in_two_places_is_refused(cls: Any) -> None:
    """JAX makes two of it, which would train apart, silently. What is not trained may be shared, as streams are."""
    in_module, in_state = CLASSES[cls]
    variable = cls(jnp.ones(2))
    for tree, is_trained in ((Tied(cls), in_module), ({"a": variable, "b": [variable]}, in_state)):
        if is_trained:
            with pytest.raises(TypeError, match=rf"{cls.__name__} that is in 2 places, a, b"):
                tko.adam(0.1).init(tree)
        else:
            tko.adam(0.1).init({"tree": tree, "w": jnp.ones(2)})
    assert names_of_moments(tko.adam(0.1).init(nnx.state(Tied(nnx.Param)))) == {"a", "w"}


@pytest.mark.parametrize("twice", [lambda x: [x, x], lambda x: nnx.Sequential(x, x), lambda x: Model(x, x)])
def test_a_module_in_two_places_is_refused(twice: Any) -> None:
    with pytest.raises(TypeError, match=r"Param that is in 2 places"):
        tko.adam(0.1).init(twice(nnx.Linear(2, 2, rngs=nnx.Rngs(0))))


class Sharing(nnx.Module):
    """Two parts that are one object, or that are made with one `rngs`."""

    def __init__(self, make_part: Callable[[Any], Any]) -> None:
        rngs: Any = nnx.Rngs(0)
        self.linear, self.a = nnx.Linear(2, 3, rngs=rngs), make_part(rngs)
        self.b = self.a if isinstance(self.a, nnx.BatchNorm) else make_part(rngs)

    def __call__(self, x: Any) -> Any:
        return self.b(self.a(self.linear(x)) * 2)


class Noise(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.rngs = rngs

    def __call__(self, x: Any) -> Any:
        return x + jax.random.normal(self.rngs(), x.shape)


# A part, and whether what it has without training it is shared.
PARTS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "one rngs": (Noise, True),
    "a fork of it": (lambda rngs: Noise(rngs.fork()), False),
    "Dropout": (lambda rngs: nnx.Dropout(0.5, rngs=rngs), False),
    "one BatchNorm": (lambda rngs: nnx.BatchNorm(3, use_scale=False, use_bias=False, rngs=rngs), True),
}


@needs("flax>=0.12")
@pytest.mark.parametrize("part", PARTS)
def test_what_is_shared_and_not_trained_becomes_two_in_a_step(part: str) -> None:
    """As the guide warns; and what it says to write, a step with a state, keeps it one."""
    make_part, is_shared = PARTS[part]
    model, optimizer = Sharing(make_part), tko.sgd(0.1)

    def places(model: Any) -> int:
        parts = jax.tree.leaves((model.a, model.b), is_leaf=lambda x: isinstance(x, nnx.Variable))
        return len(set(map(id, parts)))

    grads, after = gradients(model)
    after, _ = training.apply_gradients(optimizer, grads, optimizer.init(model), after)
    assert places(after) == places(model) * (1 + is_shared)

    graph, *states = nnx.split(model, nnx.Param, ...)
    params, rest = states

    def loss(params: Any) -> Any:
        merged = nnx.merge(graph, params, rest, copy=True)
        return jnp.sum(merged(X) ** 2), nnx.state(merged, nnx.Not(nnx.Param))

    grads, rest = jax.grad(loss, has_aux=True)(params)
    params, _ = training.apply_gradients(optimizer, grads, optimizer.init(params), params)
    assert places(nnx.merge(graph, params, rest)) == places(model)


def test_a_module_in_another_mode_is_told_so() -> None:
    model, optimizer = make(), tko.adam(0.1)
    model.eval()
    state = optimizer.init(model)
    model.train()
    with pytest.raises(training.StateError, match=r"call model\.train\(\) before init"):
        optimizer.update(gradients(model)[0], state, model)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"net": x}])
def test_gradients_of_nnx_grad_for_a_module_are_told_what_to_use(wrap: Any) -> None:
    model, optimizer = make(), tko.sgd(0.1)
    grads = nnx.grad(lambda model: loss_of(model)[0])(model)
    with pytest.raises(ValueError, match=r"jax\.grad\(loss, allow_int=True\)"):
        optimizer.update(wrap(grads), optimizer.init(wrap(model)), wrap(model))


class NoTree(nnx.Module, pytree=False):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones(2))


@pytest.mark.parametrize("tree", [NoTree(), {"w": jnp.ones(2), "net": [NoTree()]}])
def test_a_module_that_is_not_a_pytree_is_told_what_to_use(tree: Any) -> None:
    with pytest.raises(TypeError, match=r"nnx\.state\(model, nnx\.Param\)"):
        tko.sgd(0.1).init(tree)


# ------------------------------------------------------------------------------------------------ which way loses what

# The rows of the table in the guide: a statement in a step, and what becomes of what the forward pass writes.
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "from_flax.md"
WAYS = re.findall(r"^\| `(.+)` \| (lost|kept) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@needs("flax>=0.12")
@pytest.mark.parametrize("code, becomes", WAYS)
def test_which_way_loses_statistics_and_counts(code: str, becomes: str) -> None:
    """And the gradients of all ways make the same step."""

    class Small(nnx.Module):
        def __init__(self) -> None:
            rngs: Any = nnx.Rngs(0)
            self.linear, self.norm = nnx.Linear(2, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any = X) -> Any:
            return self.dropout(self.norm(self.linear(x)))

    def loss(net: Any) -> Any:
        return jnp.sum(net(X) ** 2)

    names = {"jax": jax, "jnp": jnp, "nnx": nnx, "tk": tk, "eqx": eqx, "x": X}
    names |= {"loss": loss, "loss_and_net": lambda net: (loss(net), net)}

    @jax.jit
    def step(net: Any) -> Any:
        done = {**names, "net": net}
        exec(code, done)
        return done["net"], done.get("grads", jnp.zeros(()))

    net = Small()
    after, grads = step(net)
    assert (int(after.dropout.rngs.count[...]), bool((after.norm.mean[...] != 0).all())) == (
        (1, True) if becomes == "kept" else (0, False)
    )
    if "grads" in code:
        expected, _ = jax.grad(lambda net: (loss(net), net), has_aux=True, allow_int=True)(net)
        params = nnx.state(net, nnx.Param) if "nnx.grad" in code else net
        new = tko.apply_updates(params, tko.sgd(0.1).update(grads, tko.sgd(0.1).init(params), params)[0])
        of_net, _ = training.apply_gradients(tko.sgd(0.1), expected, tko.sgd(0.1).init(net), net)
        cases.assert_close(new, nnx.state(of_net, nnx.Param) if "nnx.grad" in code else of_net)


def test_the_guide_has_ways_that_lose_and_ways_that_keep() -> None:
    assert {becomes for _, becomes in WAYS} == {"lost", "kept"} and len(WAYS) > 10


# ------------------------------------------------------------------------------------ masks by classes, in all places


def by_class(params: Any) -> Any:
    return jax.tree.map(lambda x: isinstance(x, Slow), params, is_leaf=lambda x: isinstance(x, nnx.Variable))


MASKS: dict[str, Any] = {
    "path_mask": tk.path_mask(Slow),
    "path_mask, not strict": tk.path_mask(Slow, strict=False),
    "function": by_class,
}
OPTIMIZERS: dict[str, Any] = {
    "selective_transform": lambda mask: tko.transforms.selective_transform(tko.sgd(1.0), freeze_mask=mask),
    "partition": lambda mask: tko.partition({True: tko.set_to_zero(), False: tko.sgd(1.0)}, mask),
    "freeze": lambda mask: tko.chain(tko.sgd(1.0), tko.transforms.freeze(mask)),
    "a factory of Optax": lambda mask: tko.adamw(0.1, weight_decay=1.0, mask=mask),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", list(OPTIMIZERS)[:3])
def test_a_mask_by_a_class_of_variables(name: str, mask: str) -> None:
    """It selects in a module and in a state; in `nnx.Optimizer`, whose `update` gets values, it raises in a step."""
    make_optimizer, model = OPTIMIZERS[name], make()
    optimizer = make_optimizer(MASKS[mask])
    for tree in (model, nnx.state(model)):
        if mask == "function" and tree is not model:
            with pytest.raises(ValueError, match="values"):
                optimizer.init(tree)
        else:
            grads = jax.tree.map(ones, tree)
            new, _ = training.apply_gradients(optimizer, grads, optimizer.init(tree), tree)
            assert "Slow" not in moved(tree, new) and moved(tree, new) >= LAYERS
    with pytest.raises(ValueError, match=r"values|update"):
        train_one_step(model, optimizer)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_the_error_says_to_write_works_in_nnx_optimizer(name: str, mask: str) -> None:
    model = make()
    state = nnx.state(model, WRT)
    optimizer = OPTIMIZERS[name](MASKS[mask](state))
    before = jax.tree.map(jnp.copy, state)
    train_one_step(model, optimizer)
    changed = moved(before, nnx.state(model, WRT))
    assert changed >= LAYERS and ("Slow" in changed) == (name == "a factory of Optax")


def test_weight_decay_by_a_class_of_variables_raises_in_nnx_optimizer() -> None:
    for mask in MASKS.values():
        with pytest.raises(ValueError, match=r"values|update"):
            train_one_step(make(), OPTIMIZERS["a factory of Optax"](mask))


# The `update` of `nnx.Optimizer` sees no classes, and so not what they declare.
WRT = nnx.All(nnx.Param, nnx.Not(Frozen))


def train_one_step(model: Any, optimizer: Any) -> None:
    trainer = nnx.Optimizer(model, optimizer, wrt=WRT)
    trainer.update(model, nnx.grad(lambda model: loss_of(model)[0], argnums=nnx.DiffState(0, WRT))(model))


def test_a_mask_by_a_class_of_modules() -> None:
    model, optimizer = make(), tko.adamw(0.1, weight_decay=0.5)
    frozen = tko.transforms.selective_transform(optimizer, freeze_mask=tk.path_mask(nnx.BatchNorm))
    rows = {row.path: row for row in training.summary(frozen, model).rows}
    assert rows["norm.scale"].note == "frozen" and rows["norm.mean"].note == "trainable=False"
    assert rows["layers.0.kernel"].step and rows["Slow"].step and rows["Own"].note == "trainable=False"


# ----------------------------------------------------------------------------------------------------------- in_nnx


@pytest.mark.parametrize("wrap", [lambda tx: tx, lambda tx: tko.MultiSteps(tx, 2)])
def test_in_nnx_takes_the_step_of_apply_gradients(wrap: Any) -> None:
    """Bit for bit, with the `apply_updates` of Optax; params in f32 have the very updates of the optimizer."""
    adamw = tko.transforms.selective_transform(tko.adamw(1e-4), freeze_mask=tk.path_mask("bias"))
    optimizer, key = wrap(training.store_state(adamw, jnp.bfloat16, rounding="stochastic")), jax.random.key(0)
    params = {
        "kernel": jnp.linspace(-1, 1, 128, dtype=jnp.bfloat16),
        "bias": jnp.ones(2, jnp.bfloat16),
        "wide": jnp.linspace(-3, 3, 77, dtype=jnp.float32),
    }
    state = optimizer.init(params)
    for i in range(2):
        key = jax.random.key(i)
        updates, after = training.in_nnx(optimizer).update(params, state, params, key=key)
        whole = training.apply_gradients(optimizer, params, state, params, key=key)
        assert cases.same_bits((optax.apply_updates(params, updates), after), whole)
        params, state = whole


@pytest.mark.parametrize("weight", [{}, {"weight": 1.0}])
def test_multi_steps_reads_its_state_in_nnx_optimizer(weight: Any) -> None:
    optimizer: Any = tko.MultiSteps(tko.adam(0.1), 2, weighted=bool(weight))
    model = make()
    trainer: Any = nnx.Optimizer(model, optimizer, wrt=WRT)
    ended = []
    for _ in range(3):
        grads = nnx.grad(lambda model: loss_of(model)[0], argnums=nnx.DiffState(0, WRT))(model)
        trainer.update(model, grads, **weight)
        ended.append(bool(optimizer.has_updated(trainer.opt_state)))
    assert ended == [False, True, False]


def test_in_nnx_gives_zeros_for_no_update() -> None:
    optimizer = training.in_nnx(tko.sgd(0.1))
    params = {"w": jnp.ones(2), "v": jnp.ones(2, jnp.bfloat16)}
    updates, _ = optimizer.update({"w": None, "v": None}, optimizer.init(params), params)
    assert_trees_same(optax.apply_updates(params, updates), params)
