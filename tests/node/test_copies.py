"""Copies, pickles and checkpoints of nodes, and pickles of their treedefs."""

import copy
import functools
import importlib
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import jax
import jax.numpy as jnp
import pytest

from tests.node.ways import COPIES, RUNS, WAYS, Law, Laws, Way, every_way, parts, same, structure
from treekit import field, node, register_node

ROOT = Path(__file__).parent.parent.parent
law = Laws()


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
    local = way.local()(1, 2, "n")
    assert type(COPIES["cloudpickle"](local)) is type(local), "by value, in the same process"
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
def treedefs_are_copied_and_pickled(way: Way) -> None:
    for name in ("n", ("a", float("nan")), 1, True, 1.0, None, jax.nn.relu, functools.partial(jnp.add, 1), Doubler()):
        x = way.make(1, None, name)
        treedef = structure([x])
        assert copy.deepcopy(treedef) == treedef == copy.copy(treedef)
        model, held = copy.deepcopy((x, treedef))
        assert structure([model]) == held
        if not callable(name):
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


@node
class Registry:
    name: str = field(static=True)
    known: ClassVar[dict[str, "Registry"]] = {}

    def __post_init__(self) -> None:
        self.known[self.name] = self

    def __reduce__(self) -> Any:
        return Registry.find, (self.name,)

    @classmethod
    def find(cls, name: str) -> "Registry":
        return cls.known[name]


def test_a_class_that_pickles_in_its_own_way_is_left_to_it() -> None:
    made = Registry("one")
    assert pickle.loads(pickle.dumps(made)) is made


@node
class WithoutLoss:
    w: Any
    loss: Any = field(static=True)

    def __getstate__(self) -> Any:
        state = self.__dict__.copy()
        del state["loss"]
        return state

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)


def test_own_getstate_sees_the_fields_alone() -> None:
    made = WithoutLoss(1, lambda: None)
    assert jax.tree.map(lambda x: x + 1, made).w == 2
    assert pickle.loads(pickle.dumps(made)).w == 1


class Labelled:
    def __init__(self, x: Any, f: Any) -> None:
        self.x, self.f = x, f


class WithGetstate(Labelled):
    def __getstate__(self) -> Any:
        return {"x": self.x, "f": self.f, "state": "its own"}


@register_node(data_fields=["x"], meta_fields=["f"])
class Registered(Labelled):
    pass


class Derived(Registered):
    pass


def test_deepcopy_of_registered_classes() -> None:
    f = functools.partial(jnp.add, 1)
    x: Any = Registered([1], f)
    x.cached = [x]
    y = copy.deepcopy(x)
    assert y.f is f and y.x == [1] and y.x is not x.x and y.cached[0] is y
    derived = copy.deepcopy(Derived([1], f))  # not a node: nothing of it is static
    assert type(derived) is Derived and derived.f is not f and derived.f(1) == 2
    register_node(WithGetstate, ["x"], ["f"])
    own: Any = copy.deepcopy(WithGetstate([1], f))
    assert own.state == "its own"


@every_way
@pytest.mark.parametrize("check", law)
def test_law(check: Law, way: Way) -> None:
    check(way)
