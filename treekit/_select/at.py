"""`tree_at`: replace leaves and subtrees, selected as in `tree_find`."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from treekit._base.dtype import has_dtype
from treekit._base.flax import is_variable
from treekit._base.jax import has_ref, is_hijax_variable, is_ref, jtu, ref_like
from treekit._base.tree import one_level
from treekit._base.types import LeafPredicate, PyTree
from treekit._names.key_path import walk
from treekit._select.find import Options, Selector, find
from treekit._select.selection import Selection
from treekit._text.arguments import check_bool
from treekit._text.describe import count, describe_value, type_name
from treekit._text.lists import listed

T = TypeVar("T")


class _Missing:
    """The default of an argument that may be None."""

    def __repr__(self) -> str:
        return "<required>"


_MISSING = _Missing()


# Where `where` may be one of two kinds, pyright does not know the type of a lambda's argument.
@overload
def tree_at(where: Selector, tree: T, replace: object, **options: Unpack[Options]) -> T: ...
@overload
def tree_at(where: Selector, tree: T, *, replace_fn: Callable[[Any], Any], **options: Unpack[Options]) -> T: ...
@overload
def tree_at(where: Callable[[T], Any], tree: T, replace: object, **options: Unpack[Options]) -> T: ...
@overload
def tree_at(
    where: Callable[[T], Any], tree: T, *, replace_fn: Callable[[Any], Any], **options: Unpack[Options]
) -> T: ...
def tree_at(
    where: Callable[[T], Any] | Selector,
    tree: T,
    replace: Any = _MISSING,
    replace_fn: Any = _MISSING,
    is_leaf: LeafPredicate | None = None,
    *,
    strict: bool = True,
) -> T:
    """Return a copy of a tree with some of its leaves or subtrees replaced.

    The nodes are rebuilt as in `jax.tree.map`, and no other code of their classes runs. So a replacement can be
    anything: an array of another shape, None, a whole subtree.

    Args:
        where: what to replace:

            - a function that takes a tree like `tree` and returns a leaf or subtree of it, or a sequence of them. It
              must not depend on the values or types of leaves.
            - a pattern of a name, as in `path_mask`: "layers.0.weight", or "**.attention". Subtrees have names too.
            - a class, such as `equinox.nn.Linear`: each of its outermost instances.
            - a list of patterns and classes.
        tree: any pytree.
        replace: the replacement, or a sequence of them if `where` is a list or the function `where` returns one, in its
            order. Each pattern or class must match one node. Pass this or `replace_fn`.
        replace_fn: takes each node that is selected, and returns its replacement. An array that replaces a variable of
            Flax becomes its value, here and in `replace`.
        is_leaf: as in `jax.tree.flatten`; with `lambda x: x is None` you can replace each None.
        strict: False skips patterns and classes that match nothing, with their replacements, and accepts a function
            that returns an empty sequence. If nothing is left to replace, the result is a copy of `tree`.

    Returns:
        A tree with the classes and containers of `tree`. `tree` itself is not changed. Both share their arrays, but
            no variables of Flax, since training one would change both: a replacement that has one of `tree` is copied.
            Dicts and lists in a replacement are copied too.

    Raises:
        ValueError: a pattern or a class matches nothing, or a function returns an empty sequence, and `strict` is True
            and `replace` not `[]`; both a node and one inside it are selected; a pattern or a class matches several
            nodes, and you passed `replace`; a function returns something that is not a node of the tree, such as a
            static field, the same node twice, or one of several None; it depends on the leaves; `replace` has another
            length; or you passed both or neither of `replace` and `replace_fn`.
        TypeError: `where` is or returns a sequence, and `replace` is not one (an array or a string is not); `replace`
            is a function, and what is selected is an array; or `where` or `strict` is something else.

    Source: the contract of `equinox.tree_at`, for functions.

    >>> tree_at(lambda t: t["b"][0], {"a": 1, "b": (2, 3)}, 20)
    {'a': 1, 'b': (20, 3)}
    >>> tree_at(lambda t: (t["a"], t["b"]), {"a": 1, "b": (2, 3)}, replace_fn=str)
    {'a': '1', 'b': '(2, 3)'}
    >>> tree_at("**.bias", {"layers": [{"bias": 1}, {"bias": 2}]}, replace_fn=lambda bias: 10 * bias)
    {'layers': [{'bias': 10}, {'bias': 20}]}
    """
    check_bool("strict", strict)
    if (replace is _MISSING) == (replace_fn is _MISSING):
        raise ValueError("tree_at takes exactly one of replace and replace_fn")
    # With `replace=[]`, a function that returns an empty sequence is intended.
    is_empty = type(replace) in (list, tuple) and not replace
    selected = find(where, tree, is_leaf, strict=strict, strict_function=strict and not is_empty)
    if selected.nested:
        outer, inner = selected.nested
        raise ValueError(
            f"where matches {inner!r}, which is inside {outer or 'the root'!r}, and where matches that too, so one of "
            "the replacements would be lost. Match one of them, or call tree_at twice"
        )
    if replace_fn is _MISSING:
        values = _replacements(selected, replace)
        _refuse_functions(selected, values)
    else:
        values = _call_each(replace_fn, selected)
    values = [_in_variable(x, _with_own_containers(y)) for x, y in zip(selected.nodes, values, strict=True)]
    copy: T = _with_own_variables(selected.replaced(values), tree, values)
    return copy


def _in_variable(node: Any, value: Any) -> Any:
    """Return a variable of Flax with an array as its value, if one is replaced by an array; else the replacement.

    So the variable remains where a function returns it, as where its name selects its value.
    """
    if is_variable(node) and has_dtype(value):
        return one_level(node)[1].unflatten([value])
    return ref_like(node, value) if is_hijax_variable(node) and has_dtype(value) else value


def _with_own_containers(x: Any) -> Any:
    """Return a replacement that shares no dict or list with the caller's."""
    if type(x) not in _CONTAINERS:
        return x
    leaves, treedef = jtu.tree_flatten(x, is_leaf=lambda y: type(y) not in _CONTAINERS)
    return treedef.unflatten(leaves)


_CONTAINERS = frozenset({dict, list, tuple, OrderedDict, defaultdict})


def _with_own_variables(new: PyTree, old: PyTree, values: list[Any]) -> Any:
    """Return a tree with a copy of each variable of Flax that it shares with the old one: training would change both.

    JAX has rebuilt most variables with the new tree. Two kinds it has not: those in the replacements, `values`; and
    references, which are leaves, as are variables of Flax's other kind.
    """
    if not has_ref(jtu.tree_leaves(new)) and not any(is_variable(x) for _, x in walk(values)):
        return new
    variables = [x for _, x in walk(old) if is_variable(x) or is_hijax_variable(x)]
    shared = {id(y) for x in variables for y in (x, *filter(is_ref, jtu.tree_leaves(x)))}

    def own(x: Any) -> Any:
        if id(x) not in shared:
            return x
        if is_variable(x):  # in a replacement
            return jtu.tree_map(own, x)
        return ref_like(x)

    return jtu.tree_map(own, new, is_leaf=lambda x: id(x) in shared)


def _call_each(replace_fn: Callable[[Any], Any], selected: Selection) -> list[Any]:
    """Return what a function returns for each node; an error that it raises gets a note that names the node."""
    values: list[Any] = []
    for node in selected.nodes:
        try:
            values.append(replace_fn(node))
        except Exception as error:
            name = dict(selected.names())[len(values)] or "the root"
            error.add_note(f"the function `replace_fn` of tree_at raised this for {name}")
            raise
    return values


def _replacements(selected: Selection, replace: Any) -> list[Any]:
    """Return the replacement of each node, given one, or one for each item of `where`, each of which selects a node.

    With strict=False, the replacement of an item that selects nothing is skipped.
    """
    items = selected.nodes_of_item
    for nodes in items:
        if len(nodes) > 1:
            names = [name for i, name in selected.names() if i in nodes]
            raise ValueError(
                f"where matches {count(len(nodes), 'node')}: {listed(names)}. Pass replace_fn, which takes each of "
                "them, or select one"
            )
    used = [i for nodes in items for i in nodes]
    if len(set(used)) < len(used):
        names = [name for _, name in selected.names()]
        raise ValueError(f"where selects the same node twice; it selects {listed(names)}")
    if selected.is_one:
        return [replace] * len(used)
    if not items:
        return []
    wanted = f"replace must be a sequence of {count(len(items), 'value')}, one for each item that where has or returns"
    if not isinstance(replace, Sequence) or isinstance(replace, (str, bytes)):  # which would be taken apart, as arrays
        raise TypeError(f"{wanted}; found {describe_value(replace)}")
    values: list[Any] = [*replace]
    if len(values) != len(items):
        raise ValueError(f"{wanted}; found {count(len(values), 'value')}")
    by_node = {i: value for nodes, value in zip(items, values, strict=True) for i in nodes}
    return [by_node[i] for i in range(len(selected.nodes))]


def _refuse_functions(selected: Selection, values: list[Any]) -> None:
    """Raise a TypeError if the replacement of an array is a function, which was probably meant as `replace_fn`."""
    for i, (node, value) in enumerate(zip(selected.nodes, values, strict=True)):
        is_array = has_dtype(node) or is_variable(node) or is_hijax_variable(node)
        if is_array and callable(value) and jtu.all_leaves([value]):
            raise TypeError(
                f"replace is {describe_value(value)} for {dict(selected.names())[i] or 'the root'}, which is "
                f"{type_name(node)}: did you mean replace_fn, which is called with it? To put a function there, write "
                "replace_fn=lambda _: f"
            )
