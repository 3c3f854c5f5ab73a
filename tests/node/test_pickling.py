"""Copies, pickles and checkpoints of nodes, and pickles of their treedefs."""

import copy
import dataclasses
import functools
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp

from tests.node.ways import COPIES, RUNS, WAYS, Way, every_way, parts, rebuilt, structure
from treekit import field, node, register_node

ROOT = Path(__file__).parent.parent.parent


@every_way
def test_copies_are_the_same_node(way: Way) -> None:
    x = way.cls(1, [2, 3], ("a", 1.5))
    for each in (x, rebuilt(x)):
        for how, duplicate in COPIES.items():
            y = duplicate(each)
            assert y is not each and type(y) is way.cls, how
            assert parts(y) == (2, [2, 3], ("a", 1.5)), how
            assert (y.bias is each.bias) == (how == "copy"), how
            assert structure(y) == structure(x) and hash(structure(y)) == hash(structure(x)), how
    local = way.local()(1, 2, "n")
    assert type(COPIES["cloudpickle"](local)) is type(local), "by value, in the same process"
    twins = copy.deepcopy([x, x])
    assert twins[0] is twins[1]


@every_way
def test_a_dataclass_that_is_sent_by_value_stays_the_same_static_value(way: Way) -> None:
    """cloudpickle gives the class another `__eq__`, and treedefs must stay equal."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        rate: float
        sizes: tuple[int, ...]

    x = way.cls(1, 2, Config(1.5, (2,)))
    assert structure(COPIES["cloudpickle"](x)) == structure(x)


@every_way
def test_a_deepcopy_shares_static_values_and_treedefs_are_copied_and_pickled(way: Way) -> None:
    partial = functools.partial(jnp.add, 1)  # a copy of it is another one
    for static in (partial, (partial, "a"), jax.nn.relu, ("a", float("nan"))):
        x = way.cls(1, [2.0], static)
        treedef = structure([x])
        y, held = copy.deepcopy((x, treedef))
        assert y.name is static and y.bias is not x.bias
        assert structure([y]) == held == treedef == copy.copy(treedef)
    treedef = structure(way.cls(1, None, ("a", float("nan"))))
    again = pickle.loads(pickle.dumps(treedef))
    assert again == treedef and hash(again) == hash(treedef)


RECEIVER = """if True:
    import pickle, sys, jax

    told = {}
    for way, (treedef, x) in pickle.load(sys.stdin.buffer).items():
        assert treedef == jax.tree.structure(x) and hash(treedef) == hash(jax.tree.structure(x)), way
        y = jax.tree.map(lambda leaf: leaf * 10, x)
        assert type(y) is type(x)
        made = type(x)(5, 6, "m")
        told[way] = y.weight, y.bias, y.name, jax.jit(lambda t: t.weight)(y).item(), made.bias
    sys.stdout.buffer.write(pickle.dumps(told))
"""


def test_a_fresh_process_reads_pickles_of_nodes_treedefs_and_classes() -> None:
    nodes = {name: way.cls(5, 2, ("n", 1.5)) for name, way in WAYS.items()}
    nodes |= {f"{name} by value": way.local()(10, 2, ("n", 1.5)) for name, way in WAYS.items()}
    given = cloudpickle.dumps({name: (structure(x), x) for name, x in nodes.items()})
    done = subprocess.run([sys.executable, "-c", RECEIVER], input=given, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert pickle.loads(done.stdout) == dict.fromkeys(nodes, (100, 20, ("n", 1.5), 100, 6))


def test_orbax_saves_and_restores(tmp_path: Path) -> None:
    nodes = {name: way.cls(jnp.arange(3.0), {"k": jnp.ones(2, jnp.bfloat16)}, "n") for name, way in WAYS.items()}
    runs = len(RUNS)
    ocp: Any = importlib.import_module("orbax.checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "nodes", nodes)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "nodes", jax.eval_shape(lambda: nodes))
    assert len(RUNS) == runs
    for name, x in restored.items():
        assert type(x) is WAYS[name].cls and x.name == "n"
        assert x.weight.tolist() == [0.0, 2.0, 4.0] and x.bias["k"].dtype == jnp.bfloat16
    assert restored.keys() == nodes.keys()


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


def test_a_class_that_pickles_in_its_own_way_is_left_to_it_and_sees_the_fields_alone() -> None:
    partly = WithoutLoss(1, lambda: None)
    assert rebuilt(partly).w == 1 and vars(pickle.loads(pickle.dumps(partly))) == {"w": 1}


class Labelled:
    def __init__(self, x: Any, f: Any) -> None:
        self.x, self.f = x, f


@register_node(data_fields=["x"], meta_fields=["f"])
class Registered(Labelled): ...


class Derived(Registered): ...


class WithGetstate(Labelled):
    def __getstate__(self) -> Any:
        return {"x": "its own"}


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
    assert own.x == "its own"
