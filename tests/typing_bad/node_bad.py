"""What the checkers must refuse in the making and the use of nodes."""

import dataclasses
from typing import ClassVar

import jax

import treekit as tk


@tk.node
class Dense:
    weight: jax.Array
    bias: jax.Array
    name: str = tk.field(static=True, default="dense")
    steps: list[int] = tk.field(default_factory=list, init=False)


@tk.node(kw_only=True)
class Settings:
    depth: int
    width: int = tk.field(default="wide")  # E: assignment


@tk.node(frozen=True)  # E: call-overload
class Misspelt:
    x: int


@tk.node
class Sized:
    x: jax.Array

    def __init__(self, size: int) -> None:
        self.x = jax.numpy.ones(size)


@tk.node
class Seeded(Sized):
    seed: int = tk.field(static=True)
    scale: dataclasses.InitVar[int]
    derived: int = tk.field(init=False)
    _: dataclasses.KW_ONLY
    name: str = tk.field(converter=str)
    limit: ClassVar[int] = 3


class Old:
    def __init__(self, x: int) -> None:
        self.x = x

    @classmethod
    @tk.node_factory
    def make(cls, x: int) -> "Old":
        return cls(x)


@tk.node_factory
def dense(size: int) -> Dense:
    return Dense(jax.numpy.ones(size), jax.numpy.ones(size))


@tk.node(check="always")  # E: call-overload
class Checked:
    x: int


def scale(dense: tk.Typed[Dense], other: tk.Typed["Seeded"]) -> tk.Typed[Dense]:
    dense.wieght  # E: attr-defined
    return Settings(depth=other.derived)  # E: return-value


def members(dense: tk.Batched[Dense, "n"], other: tk.Batched["Seeded", "n m"]) -> tk.Batched[Dense, "n"]:
    dense.wieght  # E: attr-defined
    return Settings(depth=other.derived)  # E: return-value


def bad(array: jax.Array) -> None:
    model = Dense(array)  # E: call-arg
    Dense(array, "bias")  # E: arg-type
    scale(model, model)  # E: arg-type
    members(array, Seeded(array, 1, 2, name="name"))  # E: arg-type
    scale(array, Seeded(array, 1, 2, name="name"))  # E: arg-type
    tk.check_types()  # E: call-arg
    tk.check_types(model, Dense)  # E: call-arg
    Dense(array, array, "a", [1])  # E: call-arg
    Dense(array, array, nmae="a")  # E: call-arg
    Settings(3)  # E: call-arg
    model.wieght  # E: attr-defined
    other: Settings = tk.replace(model, bias=array)  # E: assignment
    tk.replace(model, array)  # E: call-arg
    tk.field(default=1, default_factory=int)  # E: call-overload
    tk.field(statics=True)  # E: call-overload
    tk.node(model)  # E: call-overload
    tk.register_node(Old, data_fields=3)  # E: call-overload
    registered: type[Dense] = tk.register_node(Old, ["x"], [])  # E: arg-type
    dense("3")  # E: arg-type
    Old.make(x="3")  # E: arg-type
    text: str = Old.make(3)  # E: assignment
    Sized(array)  # E: arg-type
    Sized(x=array)  # E: call-arg
    Seeded(array, 1, 2)  # E: call-arg
    Seeded(array, 1, 2, "name")  # E: call-arg
    Seeded(array, 1, "2", name="name")  # E: arg-type
    Seeded(array, 1, 2, derived=3, name="name")  # E: call-arg
    Seeded(array, 1, 2, limit=3, name="name")  # E: call-arg
    right: Dense = Seeded(array, 1, 2, name="name")  # E: assignment
