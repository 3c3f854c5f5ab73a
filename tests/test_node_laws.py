"""The laws of a node: each law for each way to make one. The laws of creation are for `@node` and `node_factory`."""

import abc
import copy
import dataclasses
import functools
import gc
import importlib
import inspect
import operator
import pickle
import pydoc
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, assert_type

import beartype
import cloudpickle
import equinox as eqx
import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from tests.node.ways import (
    COPIES,
    RUNS,
    WAYS,
    Data,
    Holder,
    Law,
    Made,
    MadeByInit,
    Slotted,
    Way,
    arrays,
    created,
    every_way,
    parts,
    same,
    structure,
)
from tests.trees import FLOAT, Point
from treekit import field, node, register_node, replace, tree_at

ROOT = Path(__file__).parent.parent

FrozenDict: Any = flax.core.FrozenDict  # has no types
shard_map: Any = jax.shard_map
spec: Any = jax.sharding.PartitionSpec
abstract: Any = jax.ShapeDtypeStruct


LAWS: dict[str, Law] = {}


def law(check: Law) -> Law:
    LAWS[check.__name__] = check
    return check


# Rebuilding


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


@dataclasses.dataclass(frozen=True)
class Config:
    depth: Any
    comment: str = dataclasses.field(default="", compare=False)


@law
def static_parts_are_honoured(way: Way) -> None:
    for value in ("n", None, 3, (1, ("a",)), frozenset({1}), jnp.sin, len, int, Config(3), np.dtype("int8"), ...):
        x = way.make(1, 2, value)
        assert x.name is value and same(x).name is value
        assert jax.tree.leaves(x) == [2, 2]
    # What compares equal and is not the same is not exchanged for it, within one tree or between two.
    one, two = way.make(1, 2, Config(3, "one")), way.make(1, 2, Config(3, "two"))
    assert structure(one) == structure(two)
    assert [y.name.comment for y in (one, two, *same((one, two)))] == ["one", "two"] * 2


@node(eq=True)
class NodeConfig:
    depth: Any = field(static=True)


class Seconds(float):
    pass


class Tally(int):
    pass


# Hashable whatever its values are, as classes for configurations may be.
HashableDict: Any = type("HashableDict", (dict,), {"__hash__": lambda self: hash(tuple(self))})


def signature(**given: Any) -> inspect.Signature:
    return inspect.Signature([inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD, **given)])


DIFFERENT: list[tuple[Any, Any]] = [
    (1, 1.0),
    (1, True),
    (0, False),
    (1.0, True),
    (1, 1 + 0j),
    (0.0, -0.0),
    (0j, complex(0.0, -0.0)),
    (np.float32(1), np.float64(1)),
    (np.float64(1), 1.0),
    ("a", b"a"),
    ((1, 2), (2, 1)),
    (None, 0),
    (jnp.sin, jnp.cos),
    (float("nan"), 0.0),
    (Decimal("1.0"), Decimal("1.00")),
    (Decimal("NaN"), Decimal("-NaN")),
    (Decimal(1), 1),
    (Fraction(1), 1),
    (Seconds(1), 1.0),
    (Seconds(0.0), Seconds(-0.0)),
    (Tally(1), 1),
    (range(0, 3, 2), range(0, 4, 2)),
    (range(0), range(1, 1)),
    (signature(default=1), signature(default=True)),
    (signature(annotation=1), signature(annotation=True)),
    (FrozenDict(a=2), FrozenDict(a=2.0)),
    (FrozenDict({0: 2}), FrozenDict({False: 2})),
]
WRAPS: list[Callable[[Any], Any]] = [
    lambda v: v,
    lambda v: (v,),
    lambda v: ((v, "x"),),
    lambda v: frozenset({v}),
    lambda v: FrozenDict({"a": v, "b": 1}),
    lambda v: HashableDict({v: 1}),
    lambda v: signature(default=v),
    lambda v: Point(v, 2),
    Config,
    NodeConfig,
]


def twice(value: Any) -> Any:
    """An equal value that is not the same object where Python allows it."""
    return value if callable(value) else pickle.loads(pickle.dumps(value))


@law
def treedefs_are_equal_for_equal_static_values_and_for_no_others(way: Way) -> None:
    for wrap in WRAPS:
        for a, b in DIFFERENT:
            x, y, again = (structure(way.make(1, 2, wrap(v))) for v in (a, b, twice(a)))
            assert x != y and not x == y, (a, b)
            assert x == again and not x != again and hash(x) == hash(again), a


@law
def copies_have_an_equal_treedef(way: Way) -> None:
    for value in (wrap(a) for wrap in WRAPS for a, _ in DIFFERENT if not callable(a)):
        x = way.make(1, 2, value)
        for how, duplicate in COPIES.items():
            assert structure(duplicate(x)) == structure(x), (how, value)


@law
def treedefs_of_another_class_with_the_same_fields_differ(way: Way) -> None:
    classes = [way.local() for _ in range(3)]
    treedefs = [structure(x) for x in (way.make(1, 2, "n"), *(cls(2, 2, "n") for cls in classes))]
    for i, x in enumerate(treedefs):
        for j, y in enumerate(treedefs):
            assert (x == y) == (i == j)
    assert len(set(treedefs)) == 4


@law
def cond_scan_and_while_reject_another_class(way: Way) -> None:
    other = way.local()(jnp.ones(()), jnp.ones(()), "n")
    x = way.make(jnp.ones(()), jnp.ones(()), "n")
    with pytest.raises(TypeError, match=r"(?s)cond.*Local"):
        jax.lax.cond(True, lambda: x, lambda: other)
    with pytest.raises(TypeError, match=r"(?s)scan.*Local"):
        jax.lax.scan(lambda carry, _: (other, None), x, length=2)
    with pytest.raises(TypeError, match=r"(?s)(while|body_fun).*Local"):
        jax.lax.while_loop(lambda carry: False, lambda carry: other, x)


@law
def one_trace_for_equal_statics_and_for_rebuilt_instances(way: Way) -> None:
    traced: list[Any] = []

    @jax.jit
    def f(x: Any) -> Any:
        traced.append(x.name)
        return x.weight * (10 if isinstance(x.name, bool) else 20 if isinstance(x.name, int) else 30)

    for name, expected in ((1, 40), (True, 20), (1.0, 60), ("a", 60), (("a", 1.5), 60)) * 2:
        x = way.make(1, 2, twice(name))
        for each in (x, same(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
            assert f(each) == expected
    assert len(traced) == 5


def test_one_jitted_function_over_hundreds_of_classes_is_always_right() -> None:
    @jax.jit
    def f(x: Any) -> Any:
        return jnp.full((), x.factor)

    kinds = [way.local() for _ in range(43) for way in WAYS.values()]
    for i, cls in enumerate(kinds):
        cls.factor = i
    instances = [cls(1, 2, "n") for cls in kinds]
    assert len(instances) > 300
    for _ in range(2):
        assert [int(f(x)) for x in instances] == list(range(len(instances)))
    assert [int(f(x)) for x in reversed(same(instances))] == list(reversed(range(len(instances))))


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


@every_way
def test_replace_rebuilds(way: Way) -> None:
    x = way.make(1, 2, "n")
    runs = len(RUNS)
    assert parts(replace(x, bias=None, name="m")) == (2, None, "m")
    assert parts(replace(x, weight=5)) == (5, 2, "n")
    assert parts(replace(x)) == parts(x) == (2, 2, "n")
    assert len(RUNS) == runs
    with pytest.raises(TypeError, match=rf"{way.cls.__name__}\.name is static, .* list, is not hashable"):
        replace(x, name=[1])


@law
def changes_of_an_instance_count(way: Way) -> None:
    x = same(way.make(1, 2, "n"))
    before = structure(x)
    for name, value in (("name", "m"), ("bias", 7)):
        # As a mutable class does it; nothing that is remembered of the instance may hide it.
        object.__setattr__(x, name, value)
    assert structure(x) != before
    assert parts(same(x)) == (2, 7, "m")


# Transformations


def total(x: Any) -> jax.Array:
    out: jax.Array = (x.weight * x.bias).sum()
    return out


@law
def jit_grad_and_eval_shape(way: Way) -> None:
    x = arrays(way)
    runs = len(RUNS)
    assert jax.jit(total)(x) == 6
    out = jax.jit(lambda t: jax.tree.map(lambda leaf: leaf + 1, t))(x)
    assert type(out) is way.cls and (out.bias == 2).all() and out.name == "n"
    value, grad = jax.value_and_grad(total)(x)
    assert type(grad) is way.cls and (grad.bias == x.weight).all() and grad.name == "n" and value == 6
    shapes = jax.eval_shape(lambda t: t, x)
    assert type(shapes) is way.cls and isinstance(shapes.bias, jax.ShapeDtypeStruct)
    assert len(RUNS) == runs


@law
def vmap_with_a_node_of_in_axes(way: Way) -> None:
    x = arrays(way)
    runs = len(RUNS)
    in_axes = jax.tree.unflatten(structure(x), (0, None))
    batched = replace(x, weight=jnp.ones((4, 3)))
    assert jax.vmap(total, in_axes=(in_axes,))(batched).shape == (4,)
    out = jax.vmap(lambda t: t, in_axes=(in_axes,), out_axes=in_axes)(batched)
    assert type(out) is way.cls and out.weight.shape == (4, 3) and out.bias.shape == (3,)
    assert len(RUNS) == runs


@law
def scan_while_and_cond(way: Way) -> None:
    x = arrays(way)
    runs = len(RUNS)

    def more(t: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + 1, t)

    carry, rows = jax.lax.scan(lambda t, _: (more(t), t), x, length=3)
    assert type(carry) is way.cls and (carry.bias == 4).all() and rows.weight.shape == (3, 3)
    looped = jax.lax.while_loop(lambda t: t.bias[0] < 4, more, x)
    assert type(looped) is way.cls and (looped.bias == 4).all() and looped.name == "n"
    chosen = jax.lax.cond(x.bias[0] > 0, more, lambda t: t, x)
    assert type(chosen) is way.cls and (chosen.bias == 2).all()
    assert len(RUNS) == runs


@law
def custom_vjp_and_checkpoint(way: Way) -> None:
    @jax.custom_vjp
    def f(t: Any) -> Any:
        return total(t)

    f.defvjp(lambda t: (total(t), t), lambda t, g: (jax.tree.map(lambda leaf: 10 * g * leaf, t),))
    x = arrays(way)
    runs = len(RUNS)
    grad = jax.grad(f)(x)
    assert type(grad) is way.cls and (grad.weight == 10 * x.weight).all()
    grad = jax.grad(jax.checkpoint(total))(x)
    assert type(grad) is way.cls and (grad.bias == x.weight).all()
    assert len(RUNS) == runs


@law
def shard_map_device_put_and_shardings_with_a_node_of_specs(way: Way) -> None:
    count = jax.device_count()
    mesh: Any = jax.make_mesh((count,), ("d",), axis_types=(AxisType.Auto,))
    x = way.make(jnp.ones((4 * count, 2)), jnp.ones(2), "n")
    runs = len(RUNS)
    specs: Any = jax.tree.unflatten(structure(x), (spec("d"), spec()))

    out = shard_map(lambda t: t, mesh=mesh, in_specs=(specs,), out_specs=specs)(x)
    assert type(out) is way.cls and out.weight.shape == (4 * count, 2)

    shardings = jax.tree.map(lambda each: NamedSharding(mesh, each), specs)
    placed = jax.device_put(x, shardings)
    assert type(placed) is way.cls and placed.weight.sharding.is_equivalent_to(shardings.weight, 2)
    jitted = jax.jit(lambda t: t, in_shardings=(shardings,), out_shardings=shardings)(placed)
    assert type(jitted) is way.cls and jitted.weight.sharding.is_equivalent_to(shardings.weight, 2)
    assert len(RUNS) == runs


@law
def donation(way: Way) -> None:
    x = arrays(way)
    with jax.debug_nans(False):  # with it JAX donates nothing
        out = jax.jit(lambda t: jax.tree.map(lambda leaf: leaf + 1, t), donate_argnums=0)(x)
    assert x.weight.is_deleted() and x.bias.is_deleted()
    assert type(out) is way.cls and (out.bias == 2).all()


# Copies


@law
def copies_are_the_same_node(way: Way) -> None:
    x = way.make(1, [2, 3], ("a", 1.5))
    for each in (x, same(x)):
        for how, duplicate in COPIES.items():
            y = duplicate(each)
            assert y is not each and type(y) is way.cls, how
            assert parts(y) == (2, [2, 3], ("a", 1.5)), how
            assert (y.bias is each.bias) == (how == "copy"), how
            assert structure(y) == structure(x) and hash(structure(y)) == hash(structure(x)), how
            assert [type(leaf) for leaf in jax.tree.leaves(same(y))] == [int] * 3, how
    assert copy.deepcopy([x, x])[0].bias is not x.bias
    twins = copy.deepcopy([x, x])
    assert twins[0] is twins[1]


class Doubler:
    """A callable object: a copy of it is another one."""

    def __call__(self, x: Any) -> Any:
        return 2 * x


@law
def static_values_are_shared_with_a_deepcopy(way: Way) -> None:
    doubler = Doubler()
    runs: list[None] = []

    @jax.jit
    def call(x: Any) -> Any:
        runs.append(None)
        f = x.name[0] if isinstance(x.name, tuple) else x.name
        return f(x.weight)

    for count, static in enumerate((doubler, (doubler, "a"), jax.nn.relu, functools.partial(jnp.add, 1)), start=1):
        x = way.make(1.0, [2.0], static)
        y = copy.deepcopy(x)
        assert y.name is static and y.bias is not x.bias and structure(y) == structure(x)
        assert jax.tree.map(lambda a, b: a + b, x, y).weight == 4.0
        assert call(x) == call(y) and len(runs) == count


@law
def treedefs_are_pickled(way: Way) -> None:
    for name in ("n", ("a", float("nan")), 1, True, 1.0, None):
        treedef = structure([way.make(1, None, name)])
        again = pickle.loads(pickle.dumps(treedef))
        assert again == treedef and hash(again) == hash(treedef)


RECEIVER = """if True:
    import dataclasses, pickle, sys, jax

    by_reference, by_value, classes = pickle.loads(sys.stdin.buffer.read())
    told = {}
    for way, (treedef, x) in (pickle.loads(by_reference) | pickle.loads(by_value)).items():
        assert treedef == jax.tree.structure(x) and hash(treedef) == hash(jax.tree.structure(x)), way
        y = jax.tree.map(lambda leaf: leaf * 10, x)
        assert type(y) is type(x)
        told[way] = y.weight, y.bias, y.name, jax.jit(lambda t: t.weight)(y).item()
    from tests.node import ways

    told["runs"] = ways.RUNS

    treedef, Local, *nodes = pickle.loads(classes)
    out = jax.tree.map(lambda v: v * 10, (*nodes, Local(5, name="q")))
    told["classes"] = [(t.x, t.name) for t in out], out[0].y, treedef == jax.tree.structure(tuple(nodes))
    try:
        out[0].x = 1
    except dataclasses.FrozenInstanceError as error:
        told["frozen"] = str(error)
    sys.stdout.buffer.write(pickle.dumps(told))
"""


def classes_and_instances() -> tuple[Any, ...]:
    @node
    class Local:
        x: int = field(converter=lambda v: v + 1)
        name: str = field(static=True, default="n")
        y: int = 5

    @register_node(data_fields=["x"], meta_fields=["name"])
    class LocalSlots:
        __slots__ = ("name", "x")

        def __init__(self, x: int, name: str) -> None:
            self.x, self.name = x, name

    nodes = Local(1), LocalSlots(2, "m")
    return structure(nodes), Local, *nodes


@functools.cache
def told_by_a_fresh_process() -> dict[str, Any]:
    """What a process that knows nothing of these classes finds in pickles of all of them; started once."""
    treedefs = {key: (structure(x := way.make(1, 2, ("n", 1.5))), x) for key, way in WAYS.items()}
    local = {f"{key} by value": (structure(x := way.local()(1, 2, "n")), x) for key, way in WAYS.items()}
    given = pickle.dumps((pickle.dumps(treedefs), cloudpickle.dumps(local), cloudpickle.dumps(classes_and_instances())))
    command = [sys.executable, "-c", RECEIVER]
    done = subprocess.run(command, input=given, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    out: dict[str, Any] = pickle.loads(done.stdout)
    return out


@law
def a_fresh_process_reads_pickles_of_nodes_and_treedefs(way: Way) -> None:
    told = told_by_a_fresh_process()
    for key, each in WAYS.items():
        if each is way:
            assert told[key] == (20, 20, ("n", 1.5), 20)
            assert told[f"{key} by value"] == (10, 20, "n", 10)
    assert told["runs"] == []


def test_a_class_pickled_by_value_is_a_node_in_a_fresh_process() -> None:
    told = told_by_a_fresh_process()
    assert told["classes"] == ([(20, "n"), (20, "m"), (60, "q")], 50, True)
    assert "x was set" in told["frozen"]


@functools.cache
def restored_by_orbax() -> dict[str, Any]:
    nodes = {key: way.make(jnp.arange(3.0), {"k": jnp.ones(2, jnp.bfloat16)}, "n") for key, way in WAYS.items()}
    runs = len(RUNS)
    ocp: Any = importlib.import_module("orbax.checkpoint")
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        path = Path(folder) / "nodes"
        checkpointer.save(path, nodes)
        checkpointer.wait_until_finished()
        out: dict[str, Any] = checkpointer.restore(path, jax.eval_shape(lambda: nodes))
    assert len(RUNS) == runs
    return out


@law
def orbax_saves_and_restores(way: Way) -> None:
    for key, each in WAYS.items():
        if each is way:
            x = restored_by_orbax()[key]
            assert type(x) is way.cls and x.name == "n"
            assert x.weight.tolist() == [0.0, 2.0, 4.0] and x.bias["k"].dtype == jnp.bfloat16


@law
def weakly_referable_and_freed_by_reference_count(way: Way) -> None:
    gc.disable()
    try:
        x = way.make(1, 2, Config(object()))
        y, z = same(x), pickle.loads(pickle.dumps(way.make(1, 2, "n")))
        held = weakref.ref(x), weakref.ref(y), weakref.ref(z), weakref.ref(x.name)
        structure((x, z))
        del x, y, z
        assert [r() for r in held] == [None] * 4
    finally:
        gc.enable()


@law
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
def no_growth_over_instances_of_ever_new_static_values(way: Way) -> None:
    def make(start: int) -> None:
        for i in range(start, start + 1_000):
            same(way.make(1, 2, (i, str(i))))

    make(0)
    RUNS.clear()
    gc.collect()
    before = sys.getallocatedblocks()
    make(1_000)
    RUNS.clear()
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


# What classes may be like


@every_way
def test_any_name_may_be_a_field(way: Way) -> None:
    data = ("self", "cls", "data", "keys", "children", "new", "set_dict", "attributes", "leaves", "fields")
    meta = ("aux", "static", "meta", "names")
    cls: Any = with_fields(way, data, meta)
    given = {name: name for name in (*data, *meta)}
    if cls.__init__ is not object.__init__:
        x = cls(**given)
    else:
        x = cls()
        for name, value in given.items():
            setattr(x, name, value)
    for y in (same(x), copy.copy(x), pickle.loads(cloudpickle.dumps(x))):
        assert [getattr(y, name) for name in given] == [*given]
    upper = replace(jax.tree.map(str.upper, x), self=1, aux=2)
    assert [getattr(upper, name) for name in given] == [1, *map(str.upper, data[1:]), 2, *meta[1:]]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    assert paths == [f".{name}" for name in data]


def with_fields(way: Way, data: tuple[str, ...], meta: tuple[str, ...]) -> type[Any]:
    """A class of these fields, made in this way."""
    names = [*data, *meta]
    if way.cls is Made:
        static: dict[str, Any] = {name: field(static=True) for name in meta}
        return node(kw_only=True)(type("Odd", (), {"__annotations__": dict.fromkeys(names, Any), **static}))
    if way.cls is Slotted:
        return register_node(type("Odd", (), {"__slots__": names}), data, meta)
    if way.cls is Data:
        return register_node(dataclasses.make_dataclass("Odd", names), data, meta)
    return register_node(type("Odd", (), {}), data, meta)


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

    methods = {
        "__slots__": (),
        "__eq__": asking("eq", lambda: jnp.zeros(3) == 1),
        "__hash__": asking("hash", lambda: [][0]),
        "__bool__": asking("bool", lambda: [][0]),
        "__getattr__": asking("getattr", lambda: 3),
    }
    if way.cls is not Slotted:
        del methods["__slots__"]
    Odd: Any = type("Odd", (way.local(),), methods)
    register: Any = node if way.cls in (Made, MadeByInit) else lambda c: register_node(c, ["weight", "bias"], ["name"])
    register(Odd)
    x = Odd(jnp.ones(3), jnp.ones(3), "n")
    asked.clear()
    assert structure(x) == structure(same(x))
    assert type(jax.jit(lambda t: t)(x)) is Odd
    carry, _ = jax.lax.scan(lambda t, _: (t, None), x, length=2)
    assert type(carry) is Odd and type(tree_at(lambda t: t.weight, x, 3)) is Odd
    assert asked == []


# Creation


@created
def test_code_runs_once_at_creation(way: Way) -> None:
    runs = len(RUNS)
    x = way.make(1, 2, "n")
    assert RUNS[runs:] == [way.cls.__name__]
    assert parts(x) == (2, 2, "n")


@created
def test_frozen_after_creation_and_after_rebuilding(way: Way) -> None:
    x = way.make(1, 2, "n")
    for y in (x, same(x), replace(x, bias=1), *(duplicate(x) for duplicate in COPIES.values())):
        for name in ("weight", "name", "other"):
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"{name} was set"):
                setattr(y, name, 3)
        with pytest.raises(dataclasses.FrozenInstanceError, match="weight was deleted"):
            del y.weight
    for transform in (jax.jit, jax.vmap, jax.grad, jax.checkpoint):
        with pytest.raises(dataclasses.FrozenInstanceError, match="weight was set"):
            transform(lambda t: setattr(t, "weight", 0))(arrays(way))


@created
def test_equality_and_hash_never_raise_on_arrays(way: Way) -> None:
    x, y = arrays(way), arrays(way)
    assert x != y and x == x and x in [y, x] and len({x, y, x, same(x)}) == 3
    assert isinstance(hash(x), int)


@created
def test_repr_is_that_of_its_fields(way: Way) -> None:
    x = arrays(way)
    short = FLOAT.replace("loat", "")
    assert repr(x) == f"{way.cls.__name__}(weight={short}[3], bias={short}[3], name='n')"
    nested = repr(replace(x, weight=x, bias=[x, x]))
    assert len(nested.split("\n")) > 2 and max(map(len, nested.split("\n"))) <= 100
    assert "".join(nested.split()) == "".join(f"{way.cls.__name__}(weight={x!r},bias=[{x!r},{x!r}],name='n')".split())


STATIC_MISTAKES: dict[str, tuple[Any, str]] = {
    "list": ([1], "list, is not hashable.* tuple for a list"),
    "dict": ({"a": 1}, "dict, is not hashable"),
    "set": ({1}, "set, is not hashable"),
    "list in a tuple": (("a", [1]), "tuple, is not hashable"),
    "array": (jnp.ones(2), "ArrayImpl, is not hashable"),
    "array of numpy": (np.ones(2), "ndarray, is not hashable"),
    "array in a partial": (functools.partial(abs, jnp.ones(2)), "partial, holds an array"),
    "array in a node": (Holder(jnp.ones(2)), "Holder, holds an array"),
    "array in a node in a tuple": ((Holder(np.ones(2)),), "tuple, holds an array"),
}


@pytest.mark.parametrize("value, message", STATIC_MISTAKES.values(), ids=STATIC_MISTAKES)
@created
def test_static_values_are_checked(way: Way, value: Any, message: str) -> None:
    where = rf"{way.cls.__name__}\.name is static"
    with pytest.raises(TypeError, match=f"{where}, .* {message}"):
        way.make(1, 2, value)
    with pytest.raises(TypeError, match=f"{where}, .* {message}"):
        replace(way.make(1, 2, "a"), name=value)


@created
def test_static_values_can_be_neither_tracers_nor_methods_of_nodes_with_arrays(way: Way) -> None:
    where = rf"{way.cls.__name__}\.name is static"
    for transform in (jax.jit, jax.vmap):
        with pytest.raises(TypeError, match=where):
            transform(lambda leaf: way.make(1, 2, leaf).weight)(jnp.ones(2))
    with pytest.raises(TypeError, match=rf"{where}, .* method, holds an array"):
        replace(way.make(1, 2, "a"), name=Holder(jnp.ones(2)).method)


T = TypeVar("T")


@node
class Rich(Generic[T]):
    """Documented by its user."""

    data: T
    keys: Any = field(default=1, converter=float)
    derived: Any = field(init=False)
    items: list[Any] = field(default_factory=lambda: [7])
    seed: dataclasses.InitVar[int] = 3
    _: dataclasses.KW_ONLY
    aux: Any = field(static=True, default=())
    late: Any = field(default=0, kw_only=True)
    later: int = field(init=False, default=4)
    count: ClassVar[int] = 0
    log: ClassVar[list[str]] = []

    def __post_init__(self, seed: int) -> None:
        self.log.append("post_init")
        if seed < 0:
            raise ValueError("seed is negative")
        self.derived = [self.data, seed]

    def __check_init__(self) -> None:
        self.log.append("check_init")

    @functools.cached_property
    def doubled(self) -> Any:
        return 2 * self.keys


@node
class New(Rich[T]):
    def __new__(cls, *args: Any, **kwargs: Any) -> "New[T]":
        cls.log.append("new")
        return super().__new__(cls)


def test_all_code_of_a_class_runs_once_at_creation_and_never_on_rebuilding() -> None:
    Rich.log.clear()
    x = New(5, seed=4)
    assert Rich.log == ["new", "post_init", "check_init"]
    for y in (same(x), replace(x, data=6), tree_at(lambda t: t.keys, x, "s"), jax.jit(lambda t: t)(x)):
        assert type(y) is New
    for duplicate in COPIES.values():
        assert duplicate(x).derived == [5, 4]
    assert tree_at(lambda t: t.keys, x, 3).keys == 3  # a converter would have made it a float
    assert Rich.log == ["new", "post_init", "check_init"]
    with pytest.raises(ValueError, match="seed is negative"):
        Rich(5, seed=-1)


def test_dataclass_features() -> None:
    x = Rich[int](5, seed=4, late=6)
    assert (x.data, x.keys, x.derived, x.items, x.aux, x.late, x.later) == (5, 1.0, [5, 4], [7], (), 6, 4)
    assert jax.tree.leaves(x) == [5, 1.0, 5, 4, 7, 6, 4]
    assert same(x).derived == [5, 4] and not hasattr(same(x), "_") and x.items is not Rich(5).items
    assert [f.name for f in dataclasses.fields(x)] == ["data", "keys", "derived", "items", "aux", "late", "later"]
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    assert names == [".data", ".keys", ".derived[0]", ".derived[1]", ".items[0]", ".late", ".later"]
    anything: Any = Rich
    with pytest.raises(TypeError, match="positional"):
        anything(5, 1, [], 3, 6)
    with pytest.raises(TypeError, match="unexpected keyword argument 'later'"):
        anything(5, later=2)
    # dataclasses.replace is creation
    assert dataclasses.replace(x, data=6, seed=1).derived == [6, 1]
    assert_type(x.data, int)
    assert_type(replace(x, late=2).data, int)


def test_help_shows_the_docstring_and_the_signature() -> None:
    assert inspect.getdoc(Rich) == "Documented by its user."
    assert list(inspect.signature(Rich).parameters) == ["data", "keys", "items", "seed", "aux", "late"]
    assert str(inspect.signature(MadeByInit)).startswith("(w: Any, b: Any, n: Any)")
    for cls, signature in (
        (Made, "Made(weight: Any, bias: Any, name: Any)"),
        (MadeByInit, "MadeByInit(w: Any, b: Any"),
    ):
        assert signature in pydoc.render_doc(cls)


def test_cached_properties_are_right_after_rebuilding_and_no_part_of_the_treedef() -> None:
    x = Rich(5, 2)
    before = structure(x)
    assert x.doubled == 4 and structure(x) == before and hash(structure(x)) == hash(before)
    for y in (jax.tree.map(lambda leaf: leaf + 1, x), replace(x, keys=3.0), tree_at(lambda t: t.keys, x, 3)):
        assert y.doubled == 6
    assert pickle.loads(pickle.dumps(structure(x))) == before
    assert "doubled" not in vars(copy.copy(x))

    @node
    class Early:
        x: int

        def __post_init__(self) -> None:
            _ = self.double

        @functools.cached_property
        def double(self) -> int:
            return 2 * self.x

    assert Early(2).double == 4
    assert jax.tree.map(lambda v: 5, Early(2)).double == 10


def test_validation_and_jaxtyped_checks_run_at_creation_only() -> None:
    @jaxtyped(typechecker=beartype.beartype)
    @node
    class Checked:
        x: Float[Array, " n"]
        y: Float[Array, " n"]

        def __check_init__(self) -> None:
            if self.x.shape[0] > 5:
                raise ValueError("x is too long")

    made = Checked(jnp.ones(2), jnp.ones(2))
    assert same(made).x is made.x
    assert jax.tree.map(lambda leaf: "anything", made).y == "anything"
    assert jax.vmap(lambda t: t)(jax.tree.map(lambda leaf: leaf[:, None], made)).x.shape == (2, 1)
    with pytest.raises(TypeCheckError, match="Checked"):
        Checked(jnp.ones(2), jnp.ones(3))
    with pytest.raises(ValueError, match="x is too long"):
        Checked(jnp.ones(6), jnp.ones(6))


def test_inheritance() -> None:
    seen: list[str] = []

    class Mixin:
        def describe(self) -> str:
            return f"<{type(self).__name__}>"

        def __init_subclass__(cls) -> None:
            seen.append(cls.__name__)

    @node
    class Base(Mixin, abc.ABC):
        x: Any

        @abc.abstractmethod
        def f(self) -> Any: ...

        def g(self) -> Any:
            return self.x

    @node
    class Other:
        y: Any

    @node
    class Both(Base, Other):
        z: Any = 20

        def f(self) -> Any:
            return super().g() + 100

    @node
    class WithInit(Both):
        w: Any = None

        def __init__(self, w: Any) -> None:
            super().__init__(y=w, x=w + 1)
            self.w = w

        def f(self) -> Any:
            return super().f() + self.w

    assert seen == ["Base", "Both", "WithInit"]
    abstract: Any = Base
    with pytest.raises(TypeError, match="abstract"):
        abstract(1)
    made = Both(y=3, x=2)
    assert (made.x, made.y, made.z) == (2, 3, 20) and made.f() == 102 and made.describe() == "<Both>"
    deep = WithInit(5)
    assert (deep.x, deep.y, deep.z, deep.w) == (6, 5, 20, 5) and deep.f() == 111
    assert jax.tree.map(lambda leaf: leaf + 1, deep).f() == 113
    assert isinstance(same(deep), Other) and [cls.__name__ for cls in Base.__subclasses__()] == ["Both"]


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


def test_sixteen_threads_create_map_register_and_jit() -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(16)
    shared = jax.jit(lambda t: t.weight + (1 if isinstance(t.name, bool) else 2))

    def work(number: int) -> None:
        try:
            start.wait()
            mine = [way.local() for way in WAYS.values()]
            for turn in range(20):
                for way, cls in zip(WAYS.values(), mine, strict=True):
                    for x in (way.make(turn, 0, turn % 7), cls(2 * turn, 0, turn % 7)):
                        doubled = jax.tree.map(lambda leaf: leaf * 2, x)
                        assert parts(doubled) == (4 * turn, 0, turn % 7)
                        assert structure(doubled) == structure(x)
                        assert structure(replace(x, name=(turn, number))) != structure(x)
                    x = way.make(turn, 0, turn % 2 == 0)
                    assert shared(x) == 2 * turn + 1 and shared(replace(x, name=turn % 2)) == 2 * turn + 2
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_sixteen_threads_search_one_cache_of_jit() -> None:
    # JAX compares treedefs while it searches the cache: Python code there, interrupted, crashed the process.
    shared = jax.jit(lambda t: t.weight + 1)
    make = next(iter(WAYS.values())).make
    start = threading.Barrier(16)
    results: list[bool] = []

    def work(number: int) -> None:
        start.wait()
        for turn in range(100):
            results.append(bool(shared(make(turn, 0, (number + turn) % 60)) == 2 * turn + 1))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert results == [True] * 1600


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LAWS)
def test_law(name: str, way: str) -> None:
    LAWS[name](WAYS[way])
