"""Errors write arrays by dtype and shape: an array's own `repr` would copy it from its device."""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.errors.mistake import unchecked
from tests.trees import Point, Twig, untyped
from treekit import optax as tko
from treekit import training
from treekit._text.describe import describe_bytes, describe_value, describe_values

X = jnp.ones((2, 3), jnp.float32)
PARAMS = {"w": X, "b": X[0]}
FrozenDict: Any = flax.core.FrozenDict
ADAM = optax.adam(0.1)
STATE = ADAM.init(PARAMS)


@dataclasses.dataclass
class Plain:
    x: Any
    n: int = 1


class Loud(NamedTuple):
    x: Any

    def __repr__(self) -> str:
        return f"loud {self.x}"


# A value, and what an error writes of it
WRITTEN: dict[str, tuple[object, str]] = {
    "array of JAX": (X, "f32[2,3]"),
    "array of NumPy": (np.ones((2, 3), np.int8), "i8[2,3](numpy)"),
    "array of objects": (np.array([X, None], object), "object[2](numpy)"),
    "number of NumPy": (np.float64(1.5), repr(np.float64(1.5))),
    "key": ([jax.random.key(0)], "[key<fry>[]]"),
    "containers": ({"a": [X, (X[0], 1)], "b": None}, "{'a': [f32[2,3], (f32[3], 1)], 'b': None}"),
    "named tuple": (Point(X, len), "Point(x=f32[2,3], y=<built-in function len>)"),
    "named tuple with a repr": ([Loud(X), Loud(1)], "[<Loud of 1 array>, loud 1]"),
    "state": (STATE, "(ScaleByAdamState(count=i32[], mu={'b': f32[3], 'w': f32[2,3]}, nu={'b': f32[3], "),
    "dataclass": (Plain(X), "Plain(x=f32[2,3], n=1)"),
    "node": (Twig(X), "Twig(left=f32[2,3], right=None, name='twig')"),
    "module": ([eqx.nn.Linear(3, 2, key=jax.random.key(0))], "[Linear( weight=f32[2,3], bias=f32[2], "),
    "partial": (functools.partial(max, X), "partial(<built-in function max>, f32[2,3])"),
    "Partial": (untyped.tree_util.Partial(max, X), "<Partial of 1 array>"),
    "ordered dict": (collections.OrderedDict(a=X, b=X, c=1), "<OrderedDict of 2 arrays>"),
    "ordered dict of numbers": (collections.Counter(a=2), "Counter({'a': 2})"),
    "dict of Flax": ({"p": FrozenDict({"w": X})}, "{'p': <FrozenDict of 1 array>}"),
    "variable of Flax": (nnx.Param(X), "<Param of 1 array>"),
}


@pytest.fixture(autouse=True)
def no_array_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of JAX that is asked for its `repr` or its values raises."""

    def refuse(self: object, *_: object, **__: object) -> Any:
        raise AssertionError("an array was copied")

    for name in ("__repr__", "__str__", "__format__", "__array__"):
        monkeypatch.setattr(type(X), name, refuse)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_value_is_written_without_its_arrays(name: str) -> None:
    value, text = WRITTEN[name]
    assert describe_value(value).startswith(text)
    assert len(describe_value(value)) <= 300


def test_of_two_values_only_arrays_that_are_all_that_differs_are_written() -> None:
    assert describe_values([X, 1], [X, 2]) == ("[f32[2,3], 1]", "[f32[2,3], 2]")
    assert describe_values([np.ones(1)], [np.zeros(1)]) == ("[array([1.])]", "[array([0.])]")


CALLS: dict[str, Callable[[], object]] = {
    "apply_updates": lambda: tko.apply_updates(PARAMS, STATE),
    "update": lambda: tko.adam(0.1).update(STATE, STATE, PARAMS),
    "map": lambda: tk.dtype_preserving_tree_map(max, PARAMS, STATE),
    "filter": lambda: tk.filter(PARAMS, {"w": {"v": True}, "b": True}),
    "filter by arrays": lambda: tk.filter({"w": True, "b": True}, PARAMS),
    "combine": lambda: tk.combine(PARAMS, STATE),
    "mask": lambda: tko.masked(ADAM, {"w": {"v": True}, "b": True}).init(PARAMS),
    "rate": lambda: training.scale_by_tree({"w": X[:, :2], "b": 0.1}).init(PARAMS),
    "average": lambda: tko.incremental_update(PARAMS, STATE, 0.1),
    "step": lambda: unchecked(tk.filter_scan)(lambda x, _: [x, x, x], X, length=2),
    "pattern": lambda: unchecked(tk.path_mask)(PARAMS),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_error_copies_an_array(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"dict|tuple|f32|ScaleBy"):
        CALLS[name]()


BYTES = {999: "999 bytes", 1_600: "1.6 KB", 9_960: "10 KB", 999_499: "999 KB", 999_950: "1.0 MB", 10**21: "1,000 EB"}


@pytest.mark.parametrize("number", BYTES)
def test_a_number_of_bytes_is_less_than_a_thousand_of_its_unit(number: int) -> None:
    assert describe_bytes(number) == BYTES[number]
