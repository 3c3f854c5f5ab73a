"""`check_pytree`: check the laws of a pytree for each node in it."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from treekit._base.jax import jtu
from treekit._base.predicates import is_array
from treekit._base.types import KeyPath, PyTree
from treekit._names.key_path import path_text
from treekit._text.arguments import refuse_class
from treekit._text.describe import describe, describe_error
from treekit.testing._node_laws import NODE_LAWS, same_treedef
from treekit.testing._violations import REGISTER, Violation, raise_violations


def check_pytree(example: PyTree) -> None:
    """Check that a pytree can be flattened, and rebuilt with anything that JAX uses as leaves.

    Every node inside is checked too. Flattening must give the same leaves each time, in order and with key paths.
    Rebuilding must preserve the new leaves and everything else, and must not run the code that creates an instance.
    Static parts must be hashable, must not contain arrays, and must distinguish 1, 1.0 and True. An object inside that
    has arrays must be a node too.

    Args:
        example: an instance of any pytree class of any library. Only this instance is checked.

    Raises:
        AssertionError: lists each broken law, what goes wrong because of it, and how to fix it.
        TypeError: `example` is a class or an array.

    >>> import jax.numpy as jnp
    >>> check_pytree({"w": jnp.ones(2), "b": None})
    """
    refuse_class(example, "check_pytree")
    if is_array(example):
        raise TypeError(
            f"check_pytree takes a pytree that is a node, found {describe(example)}: an array is a leaf. Pass an "
            "instance of a class, or a container of arrays"
        )
    raise_violations(f"a pytree of class {type(example).__qualname__}", tree_laws(example))


def tree_laws(example: PyTree) -> Iterator[Violation]:
    """Yield the violations of the laws of a pytree, each law once for each class."""
    if _is_leaf(example):
        yield Violation(
            "it is a pytree node",
            found=f"a leaf of type {type(example).__qualname__}",
            effect="jit, grad and vmap cannot see the arrays inside it",
            fix=REGISTER,
        )
        return
    checked: list[_Checked] = []
    try:
        _check_below((), example, checked)
    except RecursionError:
        found = f"more than {sys.getrecursionlimit()} levels; does it contain itself?"
        checked = [_Checked(example, (), [_cannot_be_flattened(found)])]
    reported: set[tuple[str, str]] = set()
    for x, path, violations in checked:
        cls = type(x).__qualname__
        where = f"{cls} at {path_text(path)}" if path else cls
        for violation in violations:
            if (cls, violation.law) not in reported:  # a class may have a hundred layers
                reported.add((cls, violation.law))
                yield violation._replace(found=f"{where}: {violation.found}")
    yield from _distinguishes_classes([node.x for node in checked if not node.violations])


class _Checked(NamedTuple):
    """A node that was checked, its key path, and which laws of a node it breaks."""

    x: Any
    path: KeyPath
    violations: list[Violation]


def _check_below(path: KeyPath, x: object, checked: list[_Checked]) -> bool:
    """Check the nodes in a node and then itself, and return whether all are sound; `checked` gets what was found.

    A node that contains an unsound node is not checked, since it would have the same faults.
    """
    try:
        children = _children(x)
    except RecursionError:
        raise
    except Exception as error:  # the user's code may raise anything
        checked.append(_Checked(x, path, [_cannot_be_flattened(describe_error(error))]))
        return False
    are_sound = True
    for key, child in children:
        if not _is_leaf(child):
            are_sound &= _check_below((*path, *key), child, checked)
    if not are_sound:
        return False
    violations = [violation for law in NODE_LAWS for violation in law(x)]
    checked.append(_Checked(x, path, violations))
    return not violations


def _cannot_be_flattened(found: str) -> Violation:
    return Violation(
        "it can be flattened",
        found=found,
        effect="no function of JAX accepts it",
        fix="set every field when you create it, and give dicts keys that can be sorted; " + REGISTER,
    )


def _children(x: object) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the children of a node, one level down, each with its key.

    It raises any error of flattening, with or without key paths.
    """

    def all_but_first() -> Callable[[Any], bool]:
        """Return an `is_leaf` for one level: JAX first asks it about `x`, and then about the children."""
        answers = iter([False])
        return lambda _: next(answers, True)

    # Not `y is not x`, with which JAX would never return from a list that contains itself.
    jtu.tree_leaves(x, is_leaf=all_but_first())
    return jtu.tree_flatten_with_path(x, is_leaf=all_but_first())[0]


def _distinguishes_classes(nodes: list[Any]) -> Iterator[Violation]:
    """Law: the structures of instances of two classes differ."""
    seen: dict[type[Any], Any] = {}
    for x in nodes:
        cls, treedef = x.__class__, jtu.tree_structure(x)
        if cls not in seen:
            for other in [other for other, its_treedef in seen.items() if same_treedef(its_treedef, treedef)]:
                yield Violation(
                    "instances of two classes have different structures",
                    found=f"{other.__qualname__} and {cls.__qualname__} have equal structures",
                    effect="jit uses a function compiled for one class for the other, and cond returns the wrong class",
                    fix=REGISTER,
                )
            seen[cls] = treedef


def _is_leaf(x: object) -> bool:
    return jtu.all_leaves([x])
