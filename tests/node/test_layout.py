"""Flattening, rebuilding and `replace`: any leaves can be put in, and none of the class's code runs."""

import contextlib
import gc
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from tests.node.ways import COPIES, RUNS, WAYS, Made, Slotted, Way, arrays, every_way, parts, rebuilt, structure
from tests.releases import P, shard_map
from treekit import field, node, register_node, replace, tree_at
from treekit.testing import check_pytree


@every_way
def test_it_has_the_laws_of_a_pytree_and_is_distinguished_from_classes_of_the_same_fields(way: Way) -> None:
    classes = [way.cls, way.local(), way.local()]
    examples = [cls(jnp.ones(2), {"b": jnp.zeros(2), "a": [np.ones(2), "leaf"]}, 1) for cls in classes]
    runs = len(RUNS)
    check_pytree(examples)
    assert len(RUNS) == runs
    assert len(set(map(structure, examples))) == 3


@every_way
def test_key_paths_are_the_names_in_the_order_of_flatten(way: Way) -> None:
    x = way.cls(1.0, {"k": 3.0, "a": way.cls(2.0, 5.0, "inner")}, "n")
    with_path, treedef = jax.tree_util.tree_flatten_with_path(x)
    names = [(jax.tree_util.keystr(path), leaf) for path, leaf in with_path]
    assert names == [(".weight", 2.0), (".bias['a'].weight", 4.0), (".bias['a'].bias", 5.0), (".bias['k']", 3.0)]
    assert isinstance(with_path[0][0][0], jax.tree_util.GetAttrKey)
    assert jax.tree.leaves(x) == [leaf for _, leaf in with_path] and structure(x) == treedef


def more(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf + 1, x)


def loss(x: Any) -> Any:
    """Its gradient is `more`."""
    return jax.tree.reduce(lambda total, leaf: total + (leaf * leaf / 2 + leaf).sum(), x, 0.0)


@every_way
def test_transformations_return_instances_of_the_class_and_run_none_of_its_code(way: Way) -> None:
    n = 4 * jax.device_count()
    mesh: Any = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    x = way.cls(jnp.ones(n), jnp.ones(n), "n")
    runs = len(RUNS)
    axes: Any = jax.tree.unflatten(structure(x), (0, None))
    specs: Any = jax.tree.unflatten(structure(x), (P("d"), P()))
    results = {
        "jit": jax.jit(more)(x),
        "grad": jax.grad(loss)(x),
        "vmap": jax.vmap(more, in_axes=(axes,), out_axes=axes)(x),
        "scan": jax.lax.scan(lambda t, _: (more(t), None), x, length=1)[0],
        "cond": jax.lax.cond(x.bias[0] > 0, more, lambda t: t, x),
        "shard_map": shard_map(more, mesh=mesh, in_specs=(specs,), out_specs=specs)(x),
    }
    for how, out in results.items():
        assert type(out) is way.cls and out.name == "n", how
        assert out.weight.tolist() == (x.weight + 1).tolist() and out.bias.tolist() == [2] * n, how
    assert len(RUNS) == runs


@every_way
def test_replace_rebuilds_with_other_values_for_fields(way: Way) -> None:
    x = way.cls(1, 2, "n")
    runs = len(RUNS)
    assert parts(replace(x, bias=None, name="m")) == (2, None, "m")
    assert parts(replace(x, weight=5)) == (5, 2, "n")
    assert parts(replace(x)) == parts(x) == (2, 2, "n")
    assert len(RUNS) == runs


def test_copy_replace_of_python_3_13_is_replace_unless_the_class_has_its_own() -> None:
    x: Any = Made(1, 2, "a")
    assert parts(x.__replace__(bias=3)) == (2, 3, "a")

    @node
    class Own:
        def __replace__(self, **changes: Any) -> Any:
            return changes

    assert Own().__replace__(bias=3) == {"bias": 3}


@every_way
def test_changes_of_an_instance_count(way: Way) -> None:
    x = rebuilt(way.cls(1, 2, "n"))
    before = structure(x)
    for name, value in (("name", "m"), ("bias", 7)):
        # As a mutable class does it; nothing that is remembered of the instance may hide it.
        object.__setattr__(x, name, value)
    assert structure(x) != before
    assert parts(rebuilt(x)) == (2, 7, "m")


def reload(old: type[Any], new: type[Any], *instances: Any) -> None:
    """What IPython's %autoreload does after it has executed a module again: see its `update_class`."""
    for name, value in vars(new).items():
        before = vars(old).get(name)
        if isinstance(before, types.FunctionType) and isinstance(value, types.FunctionType):
            before.__code__, before.__defaults__ = value.__code__, value.__defaults__
            vars(before).update(vars(value))
        else:
            with contextlib.suppress(AttributeError, TypeError):
                setattr(old, name, value)
    for each in instances:
        object.__setattr__(each, "__class__", new)


def doubled(x: Any, y: Any) -> Any:
    return jax.tree.map(lambda a, b: a + b, x, y)


# Python does not set the `__class__` of an object with slots.
@pytest.mark.parametrize("way", [way for way in WAYS.values() if way.cls is not Slotted])
def test_nodes_go_on_working_after_their_class_has_been_reloaded(way: Way) -> None:
    old, new = way.local(), way.local()
    x, y = old(1, 2, "n"), rebuilt(old(1, 2, "n"))
    structure(x)
    reload(old, new, x, y)
    for each in (x, y, rebuilt(x), replace(x)):
        assert type(each) is new and parts(doubled(each, new(1, 2, "n"))) == (2, 4, "n")
        assert parts(doubled(new(1, 2, "n"), each)) == (2, 4, "n")
        assert structure(each) == structure(new(1, 2, "n")) != structure(new(1, 2, "m"))


def test_a_reloaded_class_may_have_other_fields_and_its_old_name_makes_new_nodes() -> None:
    hints = {"__annotations__": dict.fromkeys(("w", "name"), Any), "name": field(static=True)}
    more = {"__annotations__": dict.fromkeys(("w", "mode", "name", "b"), Any), "mode": field(static=True, default="m")}
    old: Any = node(type("Model", (), hints))
    x = old(1, "n")
    new: Any = node(type("Model", (), {**more, "name": field(static=True, default="d"), "b": 5}))
    reload(old, new, x)
    y = old(1, name="n")
    assert type(y) is type(rebuilt(x)) is new and structure(x) == structure(y) == structure(new(1, name="n"))
    again = doubled(x, y)
    assert (again.w, again.b, again.mode, again.name) == (2, 10, "m", "n")


@every_way
def test_equality_and_getattr_of_the_class_are_never_asked(way: Way) -> None:
    asked: list[str] = []

    def asking(name: str) -> Callable[..., Any]:
        def method(*args: Any) -> Any:
            asked.append(name)
            return jnp.zeros(3) == 1

        return method

    names = ("__eq__", "__hash__", "__bool__", "__getattr__")
    slots = {"__slots__": ()} if way.cls is Slotted else {}
    Odd: Any = type("Odd", (way.local(),), slots | {name: asking(name) for name in names})
    x = arrays(node(Odd) if way.cls is Made else register_node(Odd, ["weight", "bias"], ["name"]))
    asked.clear()
    assert structure(x) == structure(rebuilt(x))
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
    for y in (x, rebuilt(x), replace(x), *(duplicate(x) for duplicate in COPIES.values())):
        assert type(y) is Delegating and y.shape == (3,)


@pytest.mark.slow
@every_way
def test_no_growth_over_instances_of_ever_new_static_values(way: Way) -> None:
    def create(times: int) -> int:
        for i in range(times):
            rebuilt(rebuilt(way.cls(1, 2, (i, str(i)))))
            RUNS.clear()
        gc.collect()  # Python keeps freed tuples for a while
        return sys.getallocatedblocks()

    before = create(100)
    assert create(1_000) - before < 500


@pytest.mark.slow
def test_sixteen_threads_create_map_register_and_search_one_cache_of_jit() -> None:
    # JAX compares treedefs while it searches the cache: Python code there, interrupted, crashed the process.
    shared = jax.jit(lambda t: t.weight + t.name)
    start = threading.Barrier(16)

    def work(number: int) -> None:
        start.wait()
        mine = [way.local() for way in WAYS.values()]
        for turn in range(20):
            name = number + turn
            for way, cls in zip(WAYS.values(), mine, strict=True):
                for x in (way.cls(turn, 0, name), cls(2 * turn, 0, name)):
                    doubled = jax.tree.map(lambda leaf: leaf * 2, x)
                    assert parts(doubled) == (4 * turn, 0, name)
                    assert structure(doubled) == structure(x)
                    assert structure(replace(x, name=(turn, number))) != structure(x)
                assert shared(way.cls(turn, 0, name)) == 2 * turn + name

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))  # which raises what one of them raises
    finally:
        sys.setswitchinterval(interval)
