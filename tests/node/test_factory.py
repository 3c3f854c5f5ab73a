"""node_factory: what a function makes is refused if rebuilding would break it."""

import inspect
import pickle
import typing
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.node.ways import Holder, hold
from treekit import node_factory


@jax.tree_util.register_pytree_node_class
class Rerun:
    """Registered by hand in the usual way, which runs `__init__` again: what it prepares is prepared twice."""

    def __init__(self, x: Any) -> None:
        self.x = self.prepare(x)

    def prepare(self, x: Any) -> Any:
        return x

    def tree_flatten(self) -> Any:
        return ((self.x,), None)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        return cls(*children)

    @classmethod
    @node_factory
    def make(cls, x: Any) -> "Rerun":
        return cls(x)

    @node_factory
    def bare(cls, x: Any) -> "Rerun":
        return typing.cast(type[Rerun], cls)(x)


def rerunning(name: str, prepare: Callable[[Any], Any]) -> Any:
    """A class like `Rerun` that prepares its leaf in another way."""
    cls = type(name, (Rerun,), {"prepare": lambda self, x: prepare(x)})
    return jax.tree_util.register_pytree_node_class(cls)


@jax.tree_util.register_pytree_node_class
class ForgetsStatic(Rerun):
    def tree_flatten(self) -> Any:
        return ((self.x,), getattr(self, "extra", "set anew"))

    def prepare(self, x: Any) -> Any:
        if isinstance(x, int):
            self.extra = "given"
        return x


class NoNode(Rerun): ...


Overwrites = rerunning("Overwrites", lambda x: 42)
FAULTS: list[tuple[Any, str]] = [
    (Overwrites, r"rebuilding Overwrites overwrote its leaf 0.*register_node"),
    (rerunning("Computes", lambda x: x + 1), "rebuilding Computes around other leaves raised TypeError: unsupported"),
    (rerunning("Restructures", lambda x: [x]), r"rebuilding Restructures overwrote its leaf 0\.0"),
    (ForgetsStatic, "rebuilding ForgetsStatic changed its static parts"),
    (NoNode, "returned an object of type NoNode, which is not a pytree node"),
    (lambda x: {"a": [Overwrites(x)], "b": None}, r"rebuilding Overwrites overwrote its leaf a\.0\.0"),
    (lambda x: None, "a node_factory returned an object of type NoneType, which is not a pytree node"),
]


@pytest.mark.parametrize("create, message", FAULTS)
def test_node_factory_refuses_what_tree_at_would_break(create: Any, message: str) -> None:
    methods = [getattr(create, name) for name in ("make", "bare") if hasattr(create, name)]
    for make in (*methods, node_factory(create)):
        with pytest.raises(TypeError, match=message):
            make(1)


def test_node_factory_makes_what_the_function_makes() -> None:
    made = Rerun.make(1)
    assert type(made) is Rerun and made.x == 1
    assert typing.cast(Any, Rerun).bare(2).x == typing.cast(Any, made).bare(2).x == made.make(2).x == 2
    calls = []

    @node_factory
    def table(sizes: list[int]) -> Holder:
        """Makes a table."""
        sizes.append(0)
        calls.append(sizes)
        return Holder([jnp.zeros(n) for n in sizes])

    given = [1, 2]
    out = table(given)
    assert given == [1, 2] and calls == [[1, 2, 0]] and len(out.x) == 3
    assert table.__doc__ == "Makes a table." and [*inspect.signature(table).parameters] == ["sizes"]
    for function in (hold, Rerun.make):
        assert pickle.loads(pickle.dumps(function)) == function
