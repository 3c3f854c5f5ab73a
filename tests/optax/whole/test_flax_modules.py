"""A module of Flax NNX as a model, with JAX's own transforms; and what the classes of its variables say."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.optax import cases
from tests.releases import needs, nnx_list
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same

pytestmark = needs("flax>=0.11.2")  # before, modules are no pytrees


class Own(nnx.Variable[Any]):
    """A user's own class of variables, which is trained."""


class Running(nnx.BatchStat[Any]):
    """A user's own class of statistics, which are not."""


class Trained(nnx.BatchStat[Any]):
    __treekit_trainable__ = True


class Frozen(nnx.Param[Any]):
    __treekit_trainable__ = False


class Slow(nnx.Param[Any]):
    pass


class Net(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.layers = nnx_list([nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)])
        self.norm, self.dropout = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.own, self.running, self.slow = Own(jnp.ones(3)), Running(jnp.ones(3)), Slow(jnp.ones(3))

    def __call__(self, x: Any) -> Any:
        x = self.layers[1](self.layers[0](x)) * self.own[...][None] + self.slow[...][None]
        return self.dropout(self.norm(x))


X = jax.random.normal(jax.random.key(0), (8, 2), jnp.float32)
NOT_TRAINED = {"norm.mean", "norm.var", "running", "dropout.rngs.count", "dropout.rngs.key"}


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


TREES: dict[str, Any] = {
    "module": lambda: make(),
    "in a dict": lambda: {"net": make(), "w": jnp.ones(2)},
    "state of all": lambda: nnx.state(make()),
    "pure": lambda: [make().norm, (make().dropout,)],
}


@pytest.mark.parametrize("name", TREES)
def test_what_flax_says_is_no_parameter_is_not_trained(name: str) -> None:
    """Whatever its gradient is: none, zeros, ones, or float0 for integers and keys."""
    tree = TREES[name]()
    optimizer = tko.adamw(0.1, weight_decay=0.5)
    state = optimizer.init(tree)
    trained = {each for each, x in tk.to_state_dict(tk.trainable(tree)).items() if x} or names_of_moments(state)
    assert names_of_moments(state) == trained
    assert not [each for each in trained if any(each.endswith(x) for x in NOT_TRAINED)]
    for grads in (
        jax.tree.map(lambda x: jnp.ones_like(x) if jnp.issubdtype(x.dtype, jnp.inexact) else None, tree),
        jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0) if x.dtype == jnp.uint32 else x, tree),
        tk.filter(tree, tk.trainable),
    ):
        if any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(grads)):
            grads = jax.tree.map(lambda x: None if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, grads)
        new, _ = training.apply_gradients(optimizer, grads, state, tree)
        assert type(new) is type(tree) and moved(tree, new) <= trained


def test_a_step_of_a_module_is_that_of_its_params() -> None:
    """And the statistics and the counts of the rngs are those of the module that came out of the gradient."""
    optimizer, model = tko.adamw(0.1, weight_decay=0.5), make()

    @jax.jit
    def step(model: Any, state: Any) -> Any:
        grads, model = gradients(model)
        return training.apply_gradients(optimizer, grads, state, model)

    new, state = step(model, optimizer.init(model))
    reference = make()
    trainer = nnx.Optimizer(reference, optimizer, wrt=nnx.Any(nnx.Param, Own))
    wrt = nnx.DiffState(0, nnx.Any(nnx.Param, Own))
    trainer.update(reference, nnx.grad(lambda model: loss_of(model)[0], argnums=wrt)(reference))
    assert type(new) is Net and isinstance(new.norm.mean, nnx.BatchStat)
    cases.assert_close(jax.tree.leaves(nnx.state(new, nnx.Param)), jax.tree.leaves(nnx.state(reference, nnx.Param)))
    cases.assert_close(new.norm.mean[...], reference.norm.mean[...])
    assert int(new.dropout.rngs.count[...]) == 1 and int(model.dropout.rngs.count[...]) == 0
    assert moved(model, new) >= {"norm.mean", "norm.var", "own", "slow"}


def test_new_variables_are_not_shared() -> None:
    model = make()
    optimizer = tko.sgd(0.1)
    grads, _ = gradients(model)
    new = tko.apply_updates(model, optimizer.update(grads, optimizer.init(model), model)[0])
    variables = [
        {id(x) for x in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, nnx.Variable))} for tree in (model, new)
    ]
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


@pytest.mark.parametrize(
    "cls, is_trained", [(Own, True), (nnx.Variable, False), (Running, False), (Trained, True), (Frozen, False)]
)
def test_a_class_of_variables_of_the_user(cls: Any, is_trained: bool) -> None:
    variable = cls(jnp.ones(2))
    for tree in ({"w": jnp.ones(2), "v": variable}, nnx.State({"w": nnx.Param(jnp.ones(2)), "v": variable})):
        assert ("v" in names_of_moments(tko.adam(0.1).init(tree))) == is_trained


@pytest.mark.parametrize(
    "twice", [lambda: [x := make(), x], lambda: nnx.Sequential(x := nnx.Linear(2, 2, rngs=nnx.Rngs(0)), x)]
)
def test_a_variable_that_is_shared_is_refused(twice: Any) -> None:
    """JAX makes two of it, which would train apart, silently."""
    with pytest.raises(TypeError, match=r"occurs 2 times, at .*, .*"):
        tko.adam(0.1).init(twice())


def test_a_module_in_another_mode_is_told_so() -> None:
    model, optimizer = make(), tko.adam(0.1)
    model.eval()
    state = optimizer.init(model)
    model.train()
    with pytest.raises(training.StateError, match=r"call model\.train\(\) before init"):
        optimizer.update(gradients(model)[0], state, model)


def test_gradients_of_nnx_grad_for_a_module_are_told_what_to_use() -> None:
    model, optimizer = make(), tko.sgd(0.1)
    grads = nnx.grad(lambda model: loss_of(model)[0])(model)
    with pytest.raises(ValueError, match=r"jax\.grad\(loss, allow_int=True\)"):
        optimizer.update(grads, optimizer.init(model), model)


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
        grads = jax.tree.map(lambda x: jnp.ones_like(x) if jnp.issubdtype(x.dtype, jnp.inexact) else None, tree)
        changed = (
            moved(tree, training.apply_gradients(optimizer, grads, optimizer.init(tree), tree)[0])
            if (mask != "function" or tree is model)
            else {"own"}
        )
        assert "slow" not in changed and "own" in changed
    with pytest.raises(ValueError, match=r"values|update"):
        train_one_step(model, optimizer)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_the_error_says_to_write_works_in_nnx_optimizer(name: str, mask: str) -> None:
    model = make()
    state = nnx.state(model, nnx.Param)
    optimizer = OPTIMIZERS[name](MASKS[mask](state))
    before = jax.tree.map(jnp.copy, state)
    train_one_step(model, optimizer)
    changed = moved(before, nnx.state(model, nnx.Param))
    assert "layers.0.kernel" in changed and ("slow" in changed) == (name == "a factory of Optax")


def test_weight_decay_by_a_class_of_variables_raises_in_nnx_optimizer() -> None:
    for mask in MASKS.values():
        with pytest.raises(ValueError, match=r"values|update"):
            train_one_step(make(), OPTIMIZERS["a factory of Optax"](mask))


def train_one_step(model: Any, optimizer: Any) -> None:
    trainer = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
    trainer.update(model, nnx.grad(lambda model: loss_of(model)[0])(model))


def test_a_mask_by_a_class_of_modules() -> None:
    model, optimizer = make(), tko.adamw(0.1, weight_decay=0.5)
    frozen = tko.transforms.selective_transform(optimizer, freeze_mask=tk.path_mask(nnx.BatchNorm))
    rows = {row.path: row for row in training.summary(frozen, model).rows}
    assert rows["norm.scale"].note == "frozen" and rows["norm.mean"].note == "trainable=False"
    assert rows["layers.0.kernel"].step and rows["own"].step


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
    with pytest.raises(TypeError, match="params is None"):
        training.in_nnx(optimizer).update(params, state)


def test_in_nnx_gives_zeros_for_no_update() -> None:
    optimizer = training.in_nnx(tko.sgd(0.1))
    params = {"w": jnp.ones(2), "v": jnp.ones(2, jnp.bfloat16)}
    updates, _ = optimizer.update({"w": None, "v": None}, optimizer.init(params), params)
    assert_trees_same(optax.apply_updates(params, updates), params)
