"""check_pytree: silent about what is right, in this library and others, and telling what is wrong."""

import collections
import dataclasses
import functools
import importlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental import sparse

from tests.releases import keys
from tests.trees import Box, Twig
from treekit import register_node
from treekit.testing import check_pytree

register_dataclass: Any = jax.tree_util.register_dataclass
struct_field: Any = flax.struct.field
Partial: Any = jax.tree_util.Partial
static: dict[str, Any] = {"static": True}
ONES = jnp.ones(2)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Single:
    """There is one of it: it cannot be copied."""

    x: Any
    rate: Any = dataclasses.field(metadata=static, default=1.0)

    def __copy__(self) -> "Single":
        raise TypeError("there is one")


@flax.struct.dataclass
class AnyStatic:
    x: Any
    value: Any = struct_field(pytree_node=False, default=None)


class Plain:
    """Not registered; those below are, each by two functions."""

    def __init__(self, x: Any, y: Any = None, act: Any = jax.nn.relu, rate: Any = 0.5) -> None:
        self.x, self.y, self.act, self.rate = x, y, act, rate


class OneSlot:
    __slots__ = "weights"

    def __init__(self) -> None:
        self.weights = ONES


KEY: Any = jax.tree_util.GetAttrKey


def both(t: Any) -> Any:
    return (t.x, t.y), None


def keyed(*names: str) -> Callable[[Any], Any]:
    return lambda t: (tuple((KEY(name), getattr(t, name)) for name in names), None)


def by_hand(
    flatten: Callable[[Any], Any] = both,
    unflatten: Callable[[Any, Any, Any], Any] = lambda cls, _, xs: cls(*xs),
    keys: Any = None,
) -> Any:
    """An instance, with x an array and y a dict, of a class registered with these."""
    cls = type("Odd", (Plain,), {})
    register: Any = jax.tree_util.register_pytree_node
    register(cls, flatten, lambda aux, children: unflatten(cls, aux, children), keys)
    return cls(ONES, {"a": 1.0})


def made_anew() -> Any:
    """What it holds besides leaves is made each time."""

    def make(cls: Any, _: Any, xs: Any) -> Any:
        return cls(xs[0], None, lambda y: y, threading.Lock())

    return make(type(by_hand(lambda t: ((t.x,), {"a": 1}), make)), None, [ONES])


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else ONES


def cyclic() -> Any:
    tree: list[Any] = []
    tree.append(tree)
    return tree


@functools.partial(register_node, drop_fields=["seen", "cache"])
@dataclasses.dataclass
class Scratch:
    w: Any
    seen: Any = None
    cache: dict[str, Any] = dataclasses.field(default_factory=lambda: {"a": 1})

    def __post_init__(self) -> None:
        self.cache["b"] = 2


GOOD: dict[str, Callable[[], Any]] = {
    "containers": lambda: ({"w": ONES, "b": None, "f": jnp.sin}, [1, 2.0, True, "leaf", np.ones(2)], (), [[]]),
    "others": lambda: [collections.OrderedDict(b=1, a=2), collections.defaultdict(list, a=[jax.random.key(0)])],
    "Partial": lambda: Partial(jnp.add, ONES, out=1),
    "node": lambda: Twig([Twig(ONES, name=1), Twig(None, name=True)], name=("a", 1)),
    "eqx.Module": lambda: Box([Box(ONES)]),
    "eqx.nn.MLP": lambda: eqx.nn.MLP(2, 2, 8, depth=2, key=jax.random.key(0)),
    "flax.struct": lambda: AnyStatic(ONES, "n"),
    "by hand": lambda: by_hand(keys=keyed("x", "y")),
    "FrozenDict": lambda: importlib.import_module("flax.core").freeze({"a": {"b": ONES}}),
    "nnx graph": lambda: nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0))),
    "optimizer state": lambda: optax.adamw(1e-3).init({"w": ONES, "b": ONES}),
    "structs": lambda: jax.eval_shape(lambda: {"a": ONES, "m": Twig(ONES)}),
    "BCOO": lambda: sparse.BCOO.fromdense(jnp.eye(2)),
    "a function made anew": made_anew,
    "many levels": lambda: deep(250),
    "register_dataclass, no copy": lambda: Single(ONES),
    "drop_fields": lambda: Scratch(ONES, seen=ONES),
}


@pytest.mark.parametrize("kind", GOOD)
def test_silent_about_what_is_right(kind: str) -> None:
    check_pytree(GOOD[kind]())


# What is wrong, one thing a class.


def with_post_init(prepare: Callable[[Any], Any]) -> Any:
    """A dataclass `Prepares` whose `__post_init__` stores what this function makes of its only field."""

    def __post_init__(self: Any) -> None:
        self.x = prepare(self.x)

    return register_dataclass(dataclasses.make_dataclass("Prepares", ["x"], namespace={"__post_init__": __post_init__}))


RERUNS = with_post_init(lambda x: x)
VALIDATES = with_post_init(lambda x: x if x.ndim == 1 else None)
TWINS = [register_dataclass(dataclasses.make_dataclass(name, ["x"], frozen=True))(1) for name in ("TwinA", "TwinB")]
WANTS_MORE = register_dataclass(dataclasses.make_dataclass("WantsMore", ["x", ("more", dataclasses.InitVar[Any])]))
COUNTER = itertools.count(2)


@dataclasses.dataclass(frozen=True)
class Held:
    """Hashable, whatever it holds, and equal to all of its kind."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held)

    def __hash__(self) -> int:
        return 0


jax.tree_util.register_dataclass(Held, ["value"], [])


def shared(cls: Any, held: Any, xs: Any) -> Any:
    return cls(*xs, held.value)


def losing(cls: Any, _: Any, xs: Any) -> Any:
    new = object.__new__(cls)
    new.x = xs[0]
    return new


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no node": (lambda: Plain(1), r"it is a pytree node\n.*a leaf of type Plain"),
    "counts": (lambda: RERUNS(ONES), r"does not run the code that creates it\n.*Prepares: __post_init__ ran"),
    "prepares": (lambda: with_post_init(lambda x: 2 * x)(ONES), r"rebuilt with its own leaves, and keeps them"),
    "wants more": (lambda: WANTS_MORE(ONES, 1), r"rebuilt with its own leaves\n.*WantsMore: TypeError.*'more'"),
    "inside": (lambda: {"a": [Twig(1), Twig({"b": VALIDATES(ONES)})]}, r"2 laws(.|\n)*Prepares at a\.1\.left\.b: Attr"),
    "list": (lambda: AnyStatic(ONES, [1]), r"static parts are hashable.*\n.*AnyStatic: value, of type list"),
    "hidden array": (lambda: AnyStatic(ONES, Held(ONES)), "value, of type Held: it contains an array"),
    "captured array": (lambda: AnyStatic(ONES, functools.partial(abs, ONES)), "value, of type partial: it contains"),
    "raises": (lambda: by_hand(lambda t: t.forgotten, keys=lambda t: ((), None)), "flattened"),
    "1 for 1.0": (lambda: AnyStatic(ONES, 1), r"are distinguished.*\n.*value=1 has the structure of value=1\.0"),
    "0.0": (lambda: AnyStatic(ONES, 0.0), r"are distinguished.*\n.*value=0\.0 has the structure of value="),
    "two classes": (lambda: TWINS, "TwinA and TwinB have equal structures"),
    "computed": (lambda: by_hand(lambda t: ((t.x + 1, t.y), None)), r"twice gives .*\n.*other objects the second time"),
    "grows": (lambda: by_hand(lambda t: ((t.x,) * next(COUNTER), None)), r"twice gives .*\n.*: \d leaves, then \d\n"),
    "reverses": (lambda: by_hand(unflatten=lambda cls, _, xs: cls(*reversed(xs))), "the same leaves in another order"),
    "forgets": (lambda: by_hand(unflatten=lambda cls, _, xs: cls(xs[0], None)), "rebuilt with 2 leaves, it has 1"),
    "changes": (lambda: by_hand(lambda t: ((t.x,), vars(t).setdefault("n", object()))), "and keeps its structure"),
    "nan": (lambda: by_hand(lambda t: ((t.x,), float("nan"))), "its static parts are equal to themselves"),
    "static array": (lambda: by_hand(lambda t: ((t.x,), np.zeros(2))), "its static parts are equal to themselves"),
    "keys": (lambda: by_hand(keys=keyed("y", "x")), r"the same leaves in the same order\n.*leaves are .*y.*x"),
    "one key": (lambda: by_hand(lambda t: ((t.x, t.x), None), keys=keyed("x", "x")), "a key path of its own"),
    "shares": (
        lambda: by_hand(lambda t: ((t.x,), Held(t.y)), shared),
        r"shares no container.*\n.*y is the same in both",
    ),
    "loses": (lambda: by_hand(lambda t: ((t.x,), None), losing), r"keeps its attributes\n.*act, rate, y are lost"),
    "resets": (lambda: by_hand(unflatten=lambda cls, _, xs: cls(*xs, act=None)), "act was relu and became None\n"),
    "resets a number": (lambda: by_hand(unflatten=lambda cls, _, xs: cls(*xs, rate=0)), "was 0.5 and became 0\n"),
    "resets an array": (
        lambda: by_hand(lambda t: ((t.y,), None), lambda cls, _, xs: cls(None, *xs)),
        "x was .* became None",
    ),
    "arrays in a leaf": (
        lambda: [{"m": Plain(ONES)}],
        r"a pytree node\n.*dict at 0: m is a leaf of type Plain, with arrays in x",
    ),
    "an array in the one slot of a leaf": (lambda: [OneSlot()], "of type OneSlot, with arrays in weights"),
    "itself inside": (cyclic, r"it can be flattened\n.*list: more than \d+ levels; does it contain itself\?"),
}


@pytest.mark.parametrize("fault", keys(BAD, {"two classes": "jax>=0.10"}))
def test_tells_what_is_wrong(fault: str) -> None:
    make, message = BAD[fault]
    with pytest.raises(AssertionError, match=message) as caught:
        check_pytree(make())
    told = str(caught.value)
    assert told.count("\n  effect: ") == told.count("\n  fix: ") == told.count("\n- ") >= 1


def test_tells_each_fault_of_a_class_once() -> None:
    layers = [AnyStatic([AnyStatic(ONES, [1]), AnyStatic(ONES, [2])]), RERUNS(1)]
    with pytest.raises(AssertionError, match=r"of class list breaks 2 laws:") as caught:
        check_pytree(layers)
    assert "AnyStatic at 0.x.0: value" in str(caught.value) and "Prepares at 1" in str(caught.value)
