"""Which leaves does a class around them declare not to be trained?

| a class | what it declares |
|---|---|
| with a field of `field(trainable=False)`, or `metadata={"trainable": False}` | nothing in that field is trained |
| with `__treekit_trainable__ = False` | nothing in its instances is trained |
| a module of Flax NNX | only its `Param`s are trained, and variables of classes with `__treekit_trainable__ = True` |
| a variable of Flax for statistics, a cache, sown values or a random stream | it is not trained |

So the answer depends on where a leaf is:

| a leaf | is it trained? |
|---|---|
| in a module of NNX and in none of its variables, as `in_module` says below | no; of variables, only those above are |
| in the value of a variable that is trained | the other rows of the first table decide again |
| in no module | they decide |
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any, Literal

from treekit._base.flax import holds_no_parameter, is_nnx_module, is_param, is_variable_class, variable_class
from treekit._base.jax import jtu
from treekit._base.layouts import TRAINABLE
from treekit._base.tree import or_leaf
from treekit._base.types import IsLeaf, PyTree
from treekit._names.key_path import keyed_children

_WHOLE_CLASS = "__treekit_trainable__"


def declares(cls: Any) -> bool:
    """Whether a class decides which leaves in its instances are trained."""
    return _decision(cls, in_module=False) != ""


def _decision(cls: Any, in_module: bool) -> Literal["frozen", "variable", "module", "fields", ""]:
    """Return what a class decides about its instances: the first of these.

    - "frozen": nothing in them is trained
    - "variable": this variable of a module is trained
    - "module": only variables are trained
    - "fields": what is in some fields is not trained
    - "": nothing
    """
    if hasattr(cls, _WHOLE_CLASS):
        is_frozen = getattr(cls, _WHOLE_CLASS) is False
    else:
        is_frozen = is_variable_class(cls) and not is_param(cls) if in_module else holds_no_parameter(cls)
    if is_frozen:
        return "frozen"
    if in_module and is_variable_class(cls):
        return "variable"
    if not in_module and is_nnx_module(cls):
        return "module"
    return "fields" if _excluded_fields(cls) else ""


@functools.lru_cache(1_000)  # asked of every class in a tree; classes that are not used any more are forgotten
def _excluded_fields(cls: Any) -> frozenset[str]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return frozenset(f.name for f in fields if not f.metadata.get(TRAINABLE, True))


def declared_frozen(tree: PyTree, is_leaf: IsLeaf) -> list[bool]:
    """Return whether the class around each leaf declares that it is not trained.

    Args:
        tree: any pytree.
        is_leaf: what counts as a leaf besides the leaves.

    Returns:
        One bool for each of `jax.tree.leaves(tree, is_leaf=is_leaf)`.

    Raises:
        TypeError: which of the children of a dataclass is such a field is not known.
    """
    is_whole = or_leaf(is_leaf, lambda x: jtu.all_leaves([x]))

    def answers(part: PyTree, in_module: bool) -> Iterator[bool]:
        """Yield the answer for each leaf of a part of the tree."""
        decides = or_leaf(is_leaf, lambda x: _decision(variable_class(x), in_module) != "")
        for x in jtu.tree_leaves(part, is_leaf=decides):
            cls = variable_class(x)
            decision = _decision(cls, in_module)
            if decision == "frozen":
                yield from all_frozen(x)
            elif is_whole(x):
                yield in_module and decision != "variable"
            else:
                child_in_module = decision == "module" or (in_module and decision != "variable")
                for child, is_excluded in _children(x, _excluded_fields(cls)):
                    yield from all_frozen(child) if is_excluded else answers(child, child_in_module)

    def all_frozen(part: PyTree) -> Iterator[bool]:
        return itertools.repeat(True, len(jtu.tree_leaves(part, is_leaf=is_leaf)))

    return list(answers(tree, in_module=False))


def _children(x: PyTree, excluded: frozenset[str]) -> list[tuple[PyTree, bool]]:
    """Return the children of a node, each with whether it is in an excluded field."""
    keyed = keyed_children(x)
    if excluded:
        _check_keys(type(x), excluded, [text for text, _ in keyed])
    return [(child, text in excluded) for text, child in keyed]


def _check_keys(cls: Any, excluded: frozenset[str], keys: list[str | None]) -> None:
    """Raise a TypeError if a field that is not trained may be a child whose key is not the name of a field."""
    unknown = [key for key in keys if key not in {f.name for f in dataclasses.fields(cls)}]
    if unknown and (missing := sorted(excluded.difference(filter(None, keys)))):
        raise TypeError(
            f'{cls.__qualname__}.{missing[0]} is declared with {{"trainable": False}}, but the class is registered so '
            f"that its children have the keys {', '.join(map(str, keys))}, and which of them is this field is not "
            "known. Register it with treekit.register_node or jax.tree_util.register_dataclass"
        )
