"""What errors about a selection say: which classes a tree has, and which of their fields are not nodes."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax


def no_instance(cls: type[Any], nodes: Iterable[object]) -> str:
    """Say for an error that a tree, which has these nodes and leaves, has no instance of a class."""
    classes: dict[type[Any], str] = {
        type(x): "jax.Array" if isinstance(x, jax.Array) else type(x).__qualname__ for x in nodes if x is not None
    }
    instances = f"It has instances of {', '.join(sorted(set(classes.values())))}" if classes else "It is empty"
    if any((x.__module__, x.__qualname__) == (cls.__module__, cls.__qualname__) for x in classes):
        instances = (
            "It has instances of a class of that name, which has been defined again since, as by a cell of a notebook: "
            "create the tree again"
        )
    return f"the tree has no instance of {cls.__qualname__}. {instances}"


def field_names(x: object) -> list[str]:
    return [f.name for f in dataclasses.fields(x)] if dataclasses.is_dataclass(x) else []


def a_static_field(fields: Sequence[tuple[object, str]]) -> str:
    """Say for an error that something is one of these static fields of nodes, and how to change that."""
    node, name = fields[0]
    where = " or ".join(dict.fromkeys(f"{type(x).__qualname__}.{field}" for x, field in fields))
    return (
        f"the static field {where}, a part of the structure. To change it, write treekit.replace(node, {name}=...), or "
        f"create the {type(node).__qualname__} again"
    )
