"""`replace`: copy a node with other values for some of its fields."""

from typing import TypeVar

from treekit._base.layouts import layout_of
from treekit._node.captured import check_captured
from treekit._node.copy_arguments import copy_arguments

T = TypeVar("T")


def replace(node: T, /, **fields: object) -> T:
    """Return a copy of a node with some fields replaced, without running code of the class.

    `dataclasses.replace`, in contrast, runs `__init__` and `__post_init__` again.

    Args:
        node: an instance of a class made by `node` or `register_node`.
        **fields: new values; those of static fields are checked. Containers among them are copied, as at creation,
            unless the field says `copy=False`.

    Returns:
        An instance of the same class, which shares the values of all other fields with `node`.

    Raises:
        TypeError: the class is not a node of treekit, has no such field, a static value is not hashable or contains an
            array, or a function captures a node with arrays.

    >>> from treekit import node
    >>> @node
    ... class Half:
    ...     x: float
    ...     def __post_init__(self):
    ...         self.x = self.x / 2
    >>> replace(Half(3.0), x=7.0)
    Half(x=7.0)
    """
    layout = layout_of(type(node))
    if layout is None:
        raise TypeError(
            "replace takes an instance of a class made by treekit.node or register_node, not of "
            f"{type(node).__qualname__}. To replace parts of any tree, use treekit.tree_at; for the items of a dict, "
            "write {**tree, **items}"
        )
    if unknown := sorted(fields.keys() - set(layout.names)):
        raise TypeError(
            f"{layout.cls.__qualname__} has no field {', '.join(unknown)}; it has {', '.join(layout.names)}"
        )
    _, fields = copy_arguments((), fields, layout.creation.uncopied if layout.creation else frozenset())
    old, static = layout.flatten(node)
    children = [fields.get(name, child) for name, child in zip(layout.data, old, strict=True)]
    if not fields.keys().isdisjoint(layout.meta):
        static = layout.intern(tuple(fields.get(n, v) for n, v in zip(layout.meta, static.values, strict=True)))
    out: T = layout.rebuild(static, children)
    if layout.creation:
        check_captured(out, lambda _: False)
    return out
