"""check_transformation: it finds each seeded fault by the law that it breaks, and nothing where there is none."""

import inspect
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.core import Tracer

from tests.trees import INT, Twig, untyped
from treekit import optax as tko
from treekit.testing import check_transformation
from treekit.testing._transformation import transformation_laws
from treekit.testing._transformation_laws import LAWS
from treekit.testing._violations import LawsBroken


@pytest.fixture(autouse=True)
def as_optax_has_it(strict_promotion: None) -> Iterator[None]:
    """Optax's own arithmetic mixes dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


SGD = optax.sgd(1e-2)
F32 = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "b": jnp.ones(2)}
BF16 = jax.tree.map(lambda x: x.astype(jnp.bfloat16), F32)


class State(NamedTuple):
    count: Any
    other: Any = None


def of(init: Callable[[Any], Any], update: Callable[[Any, Any, Any], Any]) -> Any:
    make: Any = optax.GradientTransformation
    return make(init, update)


def counting(first: Callable[[], Any], following: Callable[[Any], Any]) -> Any:
    """It does nothing but keep one value."""
    return of(lambda _: State(first()), lambda updates, state, params: (updates, State(following(state.count))))


def scaling(f: Callable[[Any], Any]) -> Any:
    """It does something to each update, and has no state."""
    return of(lambda _: (), lambda updates, state, params: (jax.tree.map(f, updates), state))


def rng_of_its_own() -> Any:
    """Randomness from outside of the state: drawn once while tracing, so another each time."""
    counter = itertools.count(1)

    def update(updates: Any, state: Any, params: Any) -> Any:
        rate = next(counter)
        return jax.tree.map(lambda g: g * rate, updates), state

    return of(lambda _: (), update)


def memory_of_its_own() -> Any:
    """The last gradient is kept in a variable: a tracer, that leaks."""
    last: list[Any] = []

    def update(updates: Any, state: Any, params: Any) -> Any:
        out = jax.tree.map(lambda a, b: a + b, updates, last[-1]) if last else updates
        last.append(updates)
        return out, state

    def init(params: Any) -> tuple[()]:
        if not any(isinstance(x, Tracer) for x in jax.tree.leaves(params)):
            last.clear()  # another test may have used it
        return ()

    return of(init, update)


def zeros_like(params: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, params)


def decay_in_bf16(updates: Any, state: Any, params: Any) -> Any:
    if any(x.dtype != jnp.bfloat16 for x in jax.tree.leaves(state)):
        raise TypeError("bf16 alone")
    return updates, jax.tree.map(lambda m, g: (m + g) / 2, state, updates)


def accumulate_past_nan() -> Any:
    """What accumulates below something that hides NaN."""

    def update(updates: Any, state: Any, params: Any) -> Any:
        total = jax.tree.map(lambda a, g: 0.5 * a + g, state, updates)
        return jax.tree.map(lambda a: jnp.where(jnp.isnan(a), jnp.zeros_like(a), a), total), total

    return of(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def on_the_host() -> Any:
    """It asks Python, which does not know how to ask for many."""

    def halve(x: Any) -> Any:
        return np.asarray(x) / 2

    return scaling(lambda g: jax.pure_callback(halve, untyped.ShapeDtypeStruct(g.shape, g.dtype), g))


def over_the_batch(f: Callable[[Any], Any]) -> Any:
    """It looks at the members of a batch all at once."""

    @jax.custom_batching.custom_vmap
    def centre(x: Any) -> Any:
        return x

    @centre.def_vmap
    def rule(size: int, batched: Any, x: Any) -> Any:
        return f(x), True

    return scaling(centre)


def local_state() -> Any:
    class Local(NamedTuple):
        count: Any

    return of(
        lambda _: Local(jnp.zeros([], jnp.int32)), lambda updates, state, params: (updates, Local(state.count + 1))
    )


@jax.tree_util.register_pytree_node_class
class Locked:
    """A state that holds a lock."""

    def __init__(self, count: Any) -> None:
        self.count, self.lock = count, threading.Lock()

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.count,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> "Locked":
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class Doubles:
    """Params that compute when they are rebuilt."""

    def __init__(self, value: Any) -> None:
        self.value = value * 2

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> "Doubles":
        return cls(*children)


def int_count() -> Any:
    return jnp.zeros([], jnp.int32)


# transformation, params, grads, and words of the law that it breaks
SEEDED: dict[str, tuple[Any, Any, Any, str]] = {
    "init wants arrays alone": (optax.adam(1e-3), {"w": jnp.ones(2), "f": jax.nn.relu}, None, "init takes the params"),
    "params that reject None": (optax.adam(1e-3), Doubles(1.0), None, "the params can be rebuilt as gradients"),
    "init changes the params": (
        of(lambda p: p.update(x=1) or (), lambda u, state, _: (u, state)),
        {"w": jnp.ones(2)},
        None,
        "init does not change the params",
    ),
    "update raises": (scaling(lambda g: g.nothing), F32, None, "update takes the gradients"),
    "branches on a value": (scaling(lambda g: g if g.sum() > 0 else -g), F32, None, "update takes the gradients"),
    "state that grows": (
        counting(lambda: jnp.zeros(1), lambda x: jnp.append(x, 1.0)),
        F32,
        None,
        "keeps the structure",
    ),
    "dtype of the state drifts": (
        optax.trace(0.9),
        BF16,
        F32,
        "keeps the dtypes",
    ),
    "a weak count": (counting(lambda: jnp.asarray(0.0), lambda x: x + jnp.ones([])), F32, None, "keeps the weak types"),
    "a Python number": (counting(lambda: 0, lambda x: x + jnp.zeros([], INT)), F32, None, "keeps the weak types"),
    "updates are widened": (scaling(lambda g: g.astype(jnp.float32)), BF16, None, "updates have the structure"),
    "updates of another shape": (scaling(jnp.sum), F32, None, "updates have the structure"),
    "traced twice": (counting(lambda: jnp.asarray(0.0), lambda x: x + jnp.ones([])), F32, None, "traced once"),
    "divides by zero": (scaling(lambda g: g / (g - g)), F32, jax.tree.map(jnp.zeros_like, F32), "give no NaN"),
    "b2 is 1 in bf16": (optax.inject_hyperparams(optax.adamw)(1e-3), BF16, None, "give no NaN"),
    "init looks at values": (
        of(lambda p: State(jnp.float32(float(p["b"].sum()))), lambda u, state, _: (u, state)),
        F32,
        None,
        "init can be jitted",
    ),
    "init by a concrete value": (
        of(lambda p: State(jnp.zeros(2 if isinstance(p["b"], Tracer) else 3)), lambda u, s, _: (u, s)),
        F32,
        None,
        "init can be jitted",
    ),
    "a tracer leaks": (memory_of_its_own(), F32, None, "update runs in scan"),
    "NaN under a cover": (accumulate_past_nan(), F32, None, "leaves no NaN in the state"),
    "Optax's MultiSteps over zero_nans": (
        optax.MultiSteps(optax.chain(optax.zero_nans(), SGD), 3).gradient_transformation(),
        F32,
        None,
        "leaves no NaN in the state",
    ),
    "another factor each time": (rng_of_its_own(), F32, None, "under vmap each member"),
    "on the host": (on_the_host(), F32, None, "under vmap each member"),
    "over the batch": (over_the_batch(lambda x: x - x.mean(0)), F32, None, "under vmap each member"),
    "keeps the params": (of(lambda p: p, lambda u, state, _: (u, state)), F32, None, "shares no buffer"),
    "contrib.prodigy": (optax.contrib.prodigy(), F32, None, "shares no buffer"),
    "a class without a name": (local_state(), F32, None, "can be pickled"),
    "a lock in the state": (
        of(lambda _: Locked(int_count()), lambda u, state, _: (u, Locked(state.count + 1))),
        F32,
        None,
        "can be pickled",
    ),
    "a moment in bf16": (optax.adam(1e-3), BF16, None, "falls when the gradients do"),
    "a moment rounded to nearest": (
        tko.dtype_preserving(optax.radam(1e-3)),
        BF16,
        F32,
        "falls when the gradients do",
    ),
}

# words of the laws that the faults break -> name of the law in LAWS
WORDS = {
    "keeps the structure": "structure",
    "keeps the dtypes": "dtype",
    "keeps the weak types": "weak type",
    "updates have the structure": "updates",
    "traced once": "traces",
    "give no NaN": "finite",
    "init can be jitted": "jitted init",
    "update runs in scan": "scan",
    "leaves no NaN in the state": "NaN",
    "under vmap each member": "vmap",
    "shares no buffer": "donation",
    "can be pickled": "checkpoint",
    "falls when the gradients do": "moment",
}


def laws_of(tx: Any, params: Any, grads: Any = None, **extra: Any) -> list[str]:
    return [violation.law for violation in transformation_laws(tx, params, grads, extra)]


@pytest.mark.usefixtures("nans", "leaks")
@pytest.mark.parametrize("name", SEEDED)
def test_seeded_faults_are_found(name: str) -> None:
    tx, params, grads, law = SEEDED[name]
    with pytest.raises(LawsBroken, match=law) as error:
        check_transformation(tx, params, grads)
    assert all(each.effect and each.fix and each.found for each in error.value.violations)
    assert str(error.value).count("\n  fix: ") == len(error.value.violations)
    again = pickle.loads(pickle.dumps(error.value))  # as a pool of processes does
    assert str(again) == str(error.value) and again.violations == error.value.violations


@pytest.mark.usefixtures("nans", "leaks")
@pytest.mark.parametrize("words, law", WORDS.items())
def test_a_law_alone_finds_its_fault(words: str, law: str) -> None:
    """The first fault of each law; the test above has the others, and all laws, but most of its cells are slow."""
    tx, params, grads, _ = next(fault for fault in SEEDED.values() if fault[-1] == words)
    (broken,) = transformation_laws(tx, params, grads, {}, laws=[law])
    assert words in broken.law and broken.effect and broken.fix and broken.found


def test_every_law_has_its_fault() -> None:
    """A law that no fault breaks would prove nothing. The tests above have found each by these words."""
    without_a_name = {
        "the params can be rebuilt as gradients",
        "init takes the params",
        "init does not change the params",
        "update takes the gradients",
    }
    assert {words for *_, words in SEEDED.values()} == WORDS.keys() | without_a_name
    assert set(WORDS.values()) == LAWS.keys()


SOUND: dict[str, tuple[Any, Any, Any]] = {
    "adam": (optax.adam(1e-3), F32, None),
    "adafactor": (optax.adafactor(1e-3), F32, None),
    "noise": (optax.chain(optax.add_noise(0.01, 0.5, 0), SGD), F32, None),
    "apply_if_finite": (optax.apply_if_finite(optax.adam(1e-3), 2), F32, None),
    "a raw model": (tko.adam(1e-3), eqx.nn.MLP(2, 1, 3, depth=1, key=jax.random.key(0)), None),
    "momentum in bf16, which decays": (optax.sgd(1e-2, momentum=0.9), BF16, None),
    "moments in f32": (tko.dtype_preserving(optax.adam(1e-3), state_dtype=jnp.float32), BF16, None),
    "moments rounded stochastically": (tko.dtype_preserving(optax.adam(1e-3), rounding="stochastic"), BF16, None),
    "f32 gradients": (tko.dtype_preserving(optax.radam(1e-3), state_dtype=jnp.float32), BF16, F32),
    "a sum that never falls": (optax.adagrad(1e-3), BF16, None),
    "NumPy": (optax.adam(1e-3), {"w": np.ones(2, np.float32)}, {"w": np.ones(2, np.float32)}),
    "no leaves": (SGD, {}, None),
    "a moment that only bf16 can have": (of(zeros_like, decay_in_bf16), BF16, None),
    "a weak count": (counting(lambda: jnp.asarray(0), lambda count: count + 1), F32, None),
    "Python numbers": (tko.adam(1e-3), {"w": 1.0, "b": jnp.ones(2)}, {"w": 1.0, "b": jnp.ones(2)}),
    "None for the leaves that a filter leaves out": (tko.filtered(tko.adam(1e-3), {"w": True, "b": False}), F32, None),
    "None for all leaves": (tko.filtered(tko.adam(1e-3), False), F32, None),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", SOUND)
def test_sound_ones_pass(name: str) -> None:
    tx, params, grads = SOUND[name]
    check_transformation(tx, params, grads)


def test_params_that_are_nan_already_are_not_a_fault_of_the_optimizer() -> None:
    nan = {"w": np.full(2, np.nan, np.float32)}
    assert not list(transformation_laws(optax.adamw(1e-3), nan, None, {}, laws=["finite"]))
    finite = {"w": np.ones(2, np.float32)}
    assert not list(transformation_laws(optax.adamw(1e-3), finite, nan, {}, laws=["finite"]))


def test_params_that_stand_for_arrays() -> None:
    """Their updates have the wider dtype of gradient and param, as those of arrays."""
    params = {"duck": HasArray(BF16["w"]), "ref": untyped.new_ref(F32["b"])}
    grads = {"duck": F32["w"], "ref": BF16["b"]}
    assert not list(transformation_laws(tko.sgd(0.1), params, grads, {}, laws=["updates"]))
    (broken,) = transformation_laws(scaling(lambda g: g.astype(jnp.bfloat16)), params, grads, {}, laws=["updates"])
    assert "duck  dtype" in broken.found and "ref   dtype" in broken.found and "f32[2,3]" in broken.found


def test_params_that_cannot_be_pickled_are_not_a_fault_of_the_optimizer() -> None:
    """A static value of the params is in every state that is like them."""
    unnamed, named = (Twig(jnp.ones(2), name=name) for name in (lambda: None, "can be pickled"))
    for tx, params, is_at_fault in ((tko.trace(0.9), unnamed, False), (local_state(), named, True)):
        assert bool(list(transformation_laws(tx, params, None, {}, laws=["checkpoint"]))) is is_at_fault


class HasArray:
    """A leaf that stands for an array, as Flax's variables do."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value

    def __jax_array__(self) -> jax.Array:
        return self.value


def test_extra_arguments_are_handed_on() -> None:
    def value_fn(params: Any) -> Any:
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(params))

    tx = optax.chain(SGD, optax.scale_by_backtracking_linesearch(5))
    grads = jax.grad(value_fn)(F32)
    assert any("extra arguments" in law for law in laws_of(tx, F32, grads))
    told = laws_of(tx, F32, grads, value=value_fn(F32), grad=grads, value_fn=value_fn)
    assert not any("update takes" in law or "extra" in law for law in told)


@pytest.mark.parametrize("tx", [optax.adam, tko.adam, tko.MultiSteps, F32], ids=["adam", "ours", "a class", "params"])
def test_what_is_not_a_transformation_is_named(tx: Any) -> None:
    unchecked: Any = inspect.unwrap(check_transformation)  # beartype has an error of its own
    call = r": call it, check_transformation\((adam|MultiSteps)\(\.\.\.\), params\)$"
    with pytest.raises(TypeError, match=r"takes a gradient transformation, found .*" + (call if callable(tx) else "")):
        unchecked(tx, F32)
