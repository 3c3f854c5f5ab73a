"""Flattening and rebuilding: any leaves can be put in, and none of the class's code runs."""

import functools
import gc
import operator
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.node.ways import (
    COPIES,
    RUNS,
    Law,
    Laws,
    Made,
    MadeByInit,
    Slotted,
    Way,
    every_way,
    parts,
    same,
    structure,
)
from treekit import field, node, register_node, replace, tree_at

abstract: Any = jax.ShapeDtypeStruct
spec: Any = jax.sharding.PartitionSpec
law = Laws()


@law
def round_trip_keeps_leaves_their_identity_and_their_order(way: Way) -> None:
    x = way.make(jnp.ones(2), {"b": jnp.zeros(2), "a": [np.ones(2), "leaf"]}, "n")
    leaves, treedef = jax.tree.flatten(x)
    expected = [x.weight, *x.bias["a"], x.bias["b"]]
    assert [id(leaf) for leaf in leaves] == [id(leaf) for leaf in expected]
    rebuilt: Any = jax.tree.unflatten(treedef, leaves)
    assert type(rebuilt) is way.cls and rebuilt is not x
    again: Any = jax.tree.leaves(rebuilt)
    assert [id(leaf) for leaf in again] == [id(leaf) for leaf in leaves]
    assert structure(rebuilt) == treedef and hash(structure(rebuilt)) == hash(treedef)


def tracers() -> tuple[Any, Any]:
    found: list[Any] = []
    with jax.check_tracer_leaks(False):  # these are meant to leak
        jax.eval_shape(lambda *xs: found.extend(xs), 1.0, 2.0)
    return found[0], found[1]


PUT_IN: dict[str, Callable[[], tuple[Any, Any]]] = {
    "object": lambda: (object(), object()),
    "None": lambda: (None, None),
    "a tracer": tracers,
    "ShapeDtypeStruct": lambda: (abstract((), jnp.bfloat16), abstract((2,), jnp.int32)),
    "bool": lambda: (True, False),
    "a function": lambda: (jnp.sin, len),
    "a PRNG key": lambda: (jax.random.key(0), jax.random.key(1)),
    "PartitionSpec": lambda: (spec("a"), spec()),
    "a subtree": lambda: ({"a": [1, None]}, (way_out := Made(1, 2, "inner"), way_out)),
}


class Identical(tuple[Any, ...]):
    """Contains what is the same as one of its items, whatever these think of `==`."""

    def __contains__(self, x: object) -> bool:
        return any(x is item for item in self)


@law
def anything_can_be_put_in_and_none_of_the_classes_code_runs(way: Way) -> None:
    x = way.make(1, 2, "n")
    for what, new in PUT_IN.items():
        weight, bias = new()
        runs = len(RUNS)
        rebuilt: Any = jax.tree.unflatten(structure(x), (weight, bias))
        assert type(rebuilt) is way.cls, what
        assert rebuilt.weight is weight and rebuilt.bias is bias and rebuilt.name == "n", what
        found = jax.tree.leaves(rebuilt, is_leaf=functools.partial(operator.contains, Identical((weight, bias))))
        assert [id(leaf) for leaf in found] == [id(weight), id(bias)], what
        assert len(RUNS) == runs, what
    assert parts(x) == (2, 2, "n")


@law
def key_paths_are_the_names_in_the_order_of_flatten(way: Way) -> None:
    x = way.make(1.0, {"k": 3.0, "a": way.make(2.0, 5.0, "inner")}, "n")
    with_path, treedef = jax.tree_util.tree_flatten_with_path(x)
    names = [(jax.tree_util.keystr(path), leaf) for path, leaf in with_path]
    assert names == [(".weight", 2.0), (".bias['a'].weight", 4.0), (".bias['a'].bias", 5.0), (".bias['k']", 3.0)]
    assert isinstance(with_path[0][0][0], jax.tree_util.GetAttrKey)
    found: Any = jax.tree.flatten(x)
    assert found == ([leaf for _, leaf in with_path], treedef)


@law
def treedefs_of_another_class_with_the_same_fields_differ(way: Way) -> None:
    classes = [way.local() for _ in range(3)]
    treedefs = [structure(x) for x in (way.make(1, 2, "n"), *(cls(2, 2, "n") for cls in classes))]
    for i, x in enumerate(treedefs):
        for j, y in enumerate(treedefs):
            assert (x == y) == (i == j)
    assert len(set(treedefs)) == 4


@law
def tree_at_on_every_field_from_none_to_array_and_back(way: Way) -> None:
    x = way.make(jnp.ones(2), None, "n")
    runs = len(RUNS)
    for edit in (tree_at, eqx.tree_at):
        for new in ("anything", jnp.zeros(3), None, object(), {"a": 1}):
            assert edit(lambda t: t.weight, x, new).weight is new or isinstance(new, dict)
        y = edit(lambda t: t.weight, x, replace_fn=lambda leaf: leaf + 1)
        assert (y.weight == 3).all() and y.bias is None and y.name == "n" and type(y) is way.cls
        z = edit(lambda t: t.bias, x, jnp.ones(2), is_leaf=lambda leaf: leaf is None)
        assert z.weight is x.weight and (z.bias == 1).all()
        back = edit(lambda t: t.bias, z, None)
        assert back.bias is None and structure(back) == structure(x)
        both = edit(lambda t: (t.weight, t.bias), z, (1, 2))
        assert parts(both) == (1, 2, "n")
    # What creation made of the weight is kept, and not made again.
    assert (x.weight == 2).all() and (same(same(x)).weight == 2).all()
    assert len(RUNS) == runs


@law
def changes_of_an_instance_count(way: Way) -> None:
    x = same(way.make(1, 2, "n"))
    before = structure(x)
    for name, value in (("name", "m"), ("bias", 7)):
        # As a mutable class does it; nothing that is remembered of the instance may hide it.
        object.__setattr__(x, name, value)
    assert structure(x) != before
    assert parts(same(x)) == (2, 7, "m")


@law.slow
def no_growth_over_a_hundred_thousand_rebuilds(way: Way) -> None:
    treedef = structure(way.make(1, 2, ("n", 1)))

    def rebuild(times: int) -> None:
        for i in range(times):
            x: Any = jax.tree.unflatten(treedef, (i, i))
            structure(x)

    rebuild(100)
    gc.collect()
    before = sys.getallocatedblocks()
    rebuild(100_000)
    gc.collect()  # Python keeps freed tuples for a while
    assert sys.getallocatedblocks() - before < 1_000  # a hundredth of a block for each rebuilt one


@law
def subclasses_add_fields(way: Way) -> None:
    if way.cls in (Made, MadeByInit):
        fields = {"name": field(static=True, default="n"), "extra": field(default=0)}
        sub: Any = node(type("Sub", (way.cls,), {"__annotations__": dict.fromkeys(fields, Any), **fields}))
    else:
        slots = {"__slots__": ("extra",)} if way.cls is Slotted else {}
        sub = register_node(type("Sub", (way.cls,), slots), ["weight", "bias", "extra"], ["name"])
    x, base = object.__new__(sub), way.make(1, 2, "n")
    for name, value in {"weight": 1, "bias": 2, "name": "n", "extra": 3}.items():
        object.__setattr__(x, name, value)
    y = same(x)
    assert type(y) is sub and (*parts(y), y.extra) == (1, 2, "n", 3)
    assert sorted(jax.tree.leaves(x)) == [1, 2, 3] and jax.tree.leaves(base) == [2, 2]
    assert structure(x) != structure(base)


@law
def equality_and_getattr_of_the_class_are_never_asked(way: Way) -> None:
    asked: list[str] = []

    def asking(name: str, answer: Callable[[], Any]) -> Callable[..., Any]:
        def method(*args: Any) -> Any:
            asked.append(name)
            return answer()

        return method

    methods: dict[str, Any] = {
        "__eq__": asking("eq", lambda: jnp.zeros(3) == 1),
        "__hash__": asking("hash", lambda: [][0]),
        "__bool__": asking("bool", lambda: [][0]),
        "__getattr__": asking("getattr", lambda: 3),
    }
    slots = {"__slots__": ()} if way.cls is Slotted else {}
    Odd: Any = type("Odd", (way.local(),), methods | slots)
    register: Any = node if way.cls in (Made, MadeByInit) else lambda c: register_node(c, ["weight", "bias"], ["name"])
    register(Odd)
    x = Odd(jnp.ones(3), jnp.ones(3), "n")
    asked.clear()
    assert structure(x) == structure(same(x))
    assert type(jax.jit(lambda t: t)(x)) is Odd
    carry, _ = jax.lax.scan(lambda t, _: (t, None), x, length=2)
    assert type(carry) is Odd and type(tree_at(lambda t: t.weight, x, 3)) is Odd
    assert asked == []


@node
class Delegating:
    inner: Any
    label: Any = field(static=True, default="outer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_classes_with_getattr() -> None:
    x = Delegating(jnp.ones(3))
    for y in (x, same(x), replace(x), *(duplicate(x) for duplicate in COPIES.values())):
        assert type(y) is Delegating and y.shape == (3,)
    nested = Delegating(Delegating(Made(1, 2, "n"), "inner"))
    assert nested.label == "outer" and nested.name == "n"
    assert [y.label for y in (same(nested), same(nested).inner)] == ["outer", "inner"]
    assert structure(nested) != structure(nested.inner)


@every_way
@pytest.mark.parametrize("check", law)
def test_law(check: Law, way: Way) -> None:
    check(way)
