"""check_transformation: it finds each seeded fault by the law that it breaks, and nothing where there is none."""

import dataclasses
import pickle
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.core import Tracer

from tests.optax import cases
from tests.releases import keys, needs, new_ref
from tests.trees import Twig
from treekit import optax as tko
from treekit import training
from treekit.testing import check_transformation
from treekit.testing._transformation import transformation_laws
from treekit.testing._transformation_laws import LAWS
from treekit.testing._violations import LawsBroken

SGD = optax.sgd(1e-2)
F32 = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "b": jnp.ones(2)}
BF16 = jax.tree.map(lambda x: x.astype(jnp.bfloat16), F32)


class State(NamedTuple):
    count: Any


def of(init: Callable[[Any], Any], update: Callable[[Any, Any, Any], Any]) -> Any:
    make: Any = optax.GradientTransformation
    return make(init, update)


def keep(updates: Any, state: Any, params: Any) -> Any:
    return updates, state


def counting(first: Callable[[], Any], following: Callable[[Any], Any]) -> Any:
    """It does nothing but keep one value."""
    return of(lambda _: State(first()), lambda updates, state, params: (updates, State(following(state.count))))


def scaling(f: Callable[[Any], Any]) -> Any:
    """It does something to each update, and has no state."""
    return of(lambda _: (), lambda updates, state, params: (jax.tree.map(f, updates), state))


def memory_of_its_own() -> Any:
    """The first gradient is kept in a variable: a tracer, that leaks."""
    seen: list[Any] = []

    def update(updates: Any, state: Any, params: Any) -> Any:
        seen.append(updates)
        return jax.tree.map(jnp.add, updates, seen[0]), state

    return of(lambda _: (), update)


def decay_in_bf16(updates: Any, state: Any, params: Any) -> Any:
    if any(x.dtype != jnp.bfloat16 for x in jax.tree.leaves(state)):
        raise TypeError("bf16 alone")
    return updates, jax.tree.map(lambda m, g: (m + g) / 2, state, updates)


@jax.custom_batching.custom_vmap
def centre(x: Any) -> Any:
    return x


@centre.def_vmap
def centre_all(size: int, batched: Any, x: Any) -> Any:
    """It looks at the members of a batch all at once."""
    return x - x.mean(0), True


def is_batch(x: Any) -> bool:
    return type(x).__name__ == "BatchTracer"


def local_state() -> Any:
    class Local(NamedTuple):
        count: Any

    return of(lambda _: Local(jnp.zeros([])), keep)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Doubles:
    """Params that compute when they are rebuilt."""

    value: Any

    def __post_init__(self) -> None:
        self.value = self.value * 2


class Fault(NamedTuple):
    """What breaks a law: its key in LAWS, or what a law without a key demands."""

    law: str
    tx: Any
    params: Any = F32
    grads: Any = None


WEAK = counting(lambda: jnp.asarray(0.0), lambda x: x + jnp.ones([]))
SEARCH = tko.chain(SGD, tko.scale_by_backtracking_linesearch(5))
OF_OPTAX = optax.MultiSteps(optax.chain(optax.zero_nans(), SGD), 3).gradient_transformation()

SEEDED = {
    "init wants arrays alone": Fault("init takes the params", optax.adam(1e-3), {"w": jnp.ones(2), "f": jax.nn.relu}),
    "params that reject None": Fault("the params can be rebuilt as gradients", optax.adam(1e-3), Doubles(1)),
    "init changes the params": Fault(
        "init does not change the params", of(lambda p: p.update(x=1) or (), keep), dict(F32)
    ),
    "extra arguments that are not passed": Fault("update runs with the extra arguments", SEARCH),
    "branches on a value": Fault("update takes the gradients", scaling(lambda g: g if g.sum() > 0 else -g)),
    "state that grows": Fault("structure", counting(lambda: jnp.zeros(1), lambda x: jnp.append(x, 1.0))),
    "dtype of the state drifts": Fault("dtype", optax.trace(0.9), BF16, F32),
    "a weak count": Fault("weak type", WEAK),
    "updates are integers": Fault("updates", scaling(lambda g: g.astype(jnp.int32)), BF16),
    "updates are complex": Fault("updates", scaling(lambda g: g.astype(jnp.complex64)), F32),
    "traced twice": Fault("traces", WEAK),
    "divides by zero": Fault("finite", scaling(lambda g: g / (g - g)), F32, optax.tree.zeros_like(F32)),
    "init by a concrete value": Fault(
        "jitted init", of(lambda p: State(jnp.zeros(2 if isinstance(p["b"], Tracer) else 3)), keep)
    ),
    "a tracer leaks": Fault("scan", memory_of_its_own()),
    "Optax's MultiSteps over zero_nans": Fault("NaN", OF_OPTAX),
    "over the batch": Fault("vmap", scaling(centre)),
    "a batch is widened": Fault("vmap", scaling(lambda g: g * jnp.ones((), jnp.float32) if is_batch(g) else g), BF16),
    "contrib.prodigy": Fault("donation", optax.contrib.prodigy()),
    "a class without a name": Fault("checkpoint", local_state()),
    "a moment in bf16": Fault("moment", optax.adam(1e-3), BF16),
}


def test_each_law_has_a_fault() -> None:
    assert LAWS.keys() <= {fault.law for fault in SEEDED.values()}


@pytest.mark.usefixtures("nans", "leaks")
@pytest.mark.parametrize("name", SEEDED)
def test_seeded_faults_are_found(name: str) -> None:
    law, *arguments = SEEDED[name]
    with pytest.raises(LawsBroken, match=re.escape(LAWS[law].law) if law in LAWS else law) as error:
        check_transformation(*arguments)
    assert all(each.effect and each.fix and each.found for each in error.value.violations)
    assert str(error.value).count("\n  fix: ") == len(error.value.violations)
    names = {each.name for each in error.value.violations}
    assert names == {""} or law in names
    if names != {""} and name != "a tracer leaks":  # what init and update raise cannot be left out
        check_transformation(*arguments, without=names)
    again = pickle.loads(pickle.dumps(error.value))  # as a pool of processes does
    assert str(again) == str(error.value) and again.violations == error.value.violations


SOUND: dict[str, tuple[Any, Any, Any]] = {
    "noise": (optax.chain(optax.add_noise(0.01, 0.5, 0), SGD), F32, None),
    "updates that are wider than the params": (scaling(lambda g: g.astype(jnp.float32)), BF16, None),
    "a raw model": (tko.adam(1e-3), eqx.nn.MLP(2, 1, 3, depth=1, key=jax.random.key(0)), None),
    "momentum in bf16, which decays": (optax.sgd(1e-2, momentum=0.9), BF16, None),
    "moments rounded stochastically": (training.store_state(optax.adam(1e-3), rounding="stochastic"), BF16, None),
    "a sum that never falls": (optax.adagrad(1e-3), BF16, None),
    "NumPy": (optax.adam(1e-3), {"w": np.ones(2, np.float32)}, {"w": np.ones(2, np.float32)}),
    "a module with running statistics": (tko.adam(1e-3), nnx.BatchNorm(2, rngs=nnx.Rngs(0)), None),
    "no leaves": (SGD, {}, None),
    "a moment that only bf16 can have": (of(optax.tree.zeros_like, decay_in_bf16), BF16, None),
    "a weak count": (counting(lambda: jnp.asarray(0), lambda count: count + 1), F32, None),
    "Python numbers": (tko.adam(1e-3), {"w": 1.0, "b": 0.5}, {"w": 1.0, "b": 2.0}),
    "zeros for the leaves that are frozen": (
        tko.transforms.selective_transform(tko.adam(1e-3), freeze_mask={"w": False, "b": True}),
        F32,
        None,
    ),
    "one array, and updates of another dtype": (optax.stateless(lambda g, _: g.astype(jnp.float32)), BF16["w"], None),
    "None for all leaves": (optax.stateless(lambda updates, _: jax.tree.map(lambda x: None, updates)), F32, None),
}


@pytest.mark.table
@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", keys(SOUND, {"noise": "jax>=0.9"}))  # JAX 0.8 cannot pickle a key
def test_sound_ones_pass(name: str) -> None:
    tx, params, grads = SOUND[name]
    check_transformation(tx, params, grads)


NAN = {"w": np.full(2, np.nan, np.float32)}
# A law, and what breaks it without a fault of the transformation.
OF_THE_PARAMS = {
    "params that are NaN": Fault("finite", optax.adamw(1e-3), NAN),
    "gradients that are NaN": Fault("finite", optax.adamw(1e-3), {"w": np.ones(2, np.float32)}, NAN),
    "params that cannot be pickled": Fault("checkpoint", tko.trace(0.9), Twig(jnp.ones(2), name=lambda: None)),
}


@pytest.mark.parametrize("name", OF_THE_PARAMS)
def test_a_fault_of_the_params_is_not_one_of_the_transformation(name: str) -> None:
    law, tx, params, grads = OF_THE_PARAMS[name]
    assert not list(transformation_laws(tx, params, grads, {}, laws=[law]))


@needs("jax.new_ref")
def test_params_that_are_references_to_arrays() -> None:
    """Their updates are like the gradients, as those of arrays."""
    params = {"other": new_ref(BF16["w"]), "ref": new_ref(F32["b"])}
    grads = {"other": F32["w"], "ref": BF16["b"]}
    assert not list(transformation_laws(tko.sgd(0.1), params, grads, {}, laws=["updates"]))
    (broken,) = transformation_laws(scaling(lambda g: g.astype(jnp.int8)), params, grads, {}, laws=["updates"])
    assert "other  dtype" in broken.found and "ref    dtype" in broken.found and "f32[2,3]" in broken.found


def test_extra_arguments_are_handed_on() -> None:
    grads = cases.gradient(F32)
    check_transformation(SEARCH, F32, grads, **cases.extra_for(F32, grads))
