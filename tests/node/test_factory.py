"""node_factory: what a function makes is refused if rebuilding would break it."""

import inspect
import pickle
import typing
from typing import Any

import jax
import pytest

from tests.node.ways import hold
from treekit import node_factory


@jax.tree_util.register_pytree_node_class
class Rerun:
    """Registered by hand in the usual way, which runs `__init__` again: what it prepares is prepared twice."""

    def __init__(self, x: Any) -> None:
        self.x = self.prepare(x)

    def prepare(self, x: Any) -> Any:
        return x

    def static(self) -> Any:
        return None

    def tree_flatten(self) -> Any:
        return (self.x,), self.static()

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


def rerunning(**methods: Any) -> Any:
    return jax.tree_util.register_pytree_node_class(type("Faulty", (Rerun,), methods))


Overwrites = rerunning(prepare=lambda self, x: 42)
FAULTS: list[tuple[Any, str]] = [
    (rerunning(prepare=lambda self, x: x + 1), "raised TypeError"),
    (rerunning(prepare=lambda self, x: [x]), r"leaf 0\.0"),
    (rerunning(static=lambda self: type(self.x)), "static parts"),
    (lambda x: {"a": [Overwrites(x)], "b": None}, r"leaf a\.0\.0"),
]


@pytest.mark.parametrize("create, fact", FAULTS)
def test_node_factory_refuses_what_tree_at_would_break(create: Any, fact: str) -> None:
    with pytest.raises(TypeError, match=f"Faulty .*{fact}"):
        node_factory(create)(1)


def test_node_factory_makes_what_the_function_makes() -> None:
    made = Rerun.make(1)
    assert type(made) is Rerun and made.x == 1
    assert typing.cast(Any, Rerun).bare(2).x == typing.cast(Any, made).bare(2).x == made.make(2).x == 2
    for function in (hold, Rerun.make):
        assert pickle.loads(pickle.dumps(function)) == function
    assert hold.__doc__ == "Hold both." and [*inspect.signature(hold).parameters] == ["x", "y"]


@jax.tree_util.register_pytree_with_keys_class
class Twins:
    """Two children of one key."""

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b

    def tree_flatten_with_keys(self) -> Any:
        key = jax.tree_util.GetAttrKey("x")
        return ((key, self.a), (key, self.b)), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


def test_children_of_one_key_are_told_apart_by_their_order() -> None:
    assert node_factory(Twins)(1, 2).b == 2
