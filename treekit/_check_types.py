"""`check_types`: check the fields of nodes against the annotations of their classes."""

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import jax
from jaxtyping import AnnotationError

from treekit._annotations import (
    Memo,
    UnresolvedAnnotationError,
    bind,
    describe_hint,
    describe_memo,
    fields_of,
    fresh_memo,
    has_fields,
    is_jaxtyping,
    pytree_parts,
)
from treekit._base.describe import describe, describe_error, refuse_class
from treekit._base.jax import jtu
from treekit._base.key_path import path_name
from treekit._base.table import ROWS, in_columns
from treekit._base.types import KeyPath


def check_types(tree: object) -> None:
    """Check the fields of every node in a tree against the annotations of its class.

    It checks treekit's nodes, Equinox modules, and all other dataclasses that are pytrees. A name in a shape, such as
    "n" in `Float[Array, "n"]`, is bound to one size in all fields of one node; `{self.n}` is an attribute of the node.
    An array of shape () satisfies `float`, `int` or `bool`, by its dtype. Annotations that cannot be checked at run
    time, such as the arguments of a `Callable`, pass.

    Check a model before you stack, filter or mask it: its arrays no longer match the annotations afterwards. Check an
    abstract one inside of the function that `jax.eval_shape` calls.

    Args:
        tree: any pytree.

    Raises:
        TypeError: fields do not match their annotations; the message names each key path. Or an annotation cannot be
            resolved; the message names class and field. Or `tree` is a class.

    >>> import jax.numpy as jnp
    >>> from jaxtyping import Array, Float
    >>> from treekit import node
    >>> @node
    ... class Linear:
    ...     weight: Float[Array, "dout din"]
    ...     bias: Float[Array, "dout"]
    >>> check_types([Linear(jnp.ones((5, 3)), jnp.ones(5))])
    >>> check_types([Linear(jnp.ones((5, 3)), jnp.ones(9))])
    Traceback (most recent call last):
    TypeError: 1 field is not what its class says:
    0.bias   float32[9]   is not Float[Array, 'dout']   (dout=5, din=3)
    Stacked, filtered, masked and abstract models fail by design: check before, or inside vmap or eval_shape.
    """
    refuse_class(tree, "check_types")
    if problem := _explain(_mismatches(_nodes(tree)), tree):
        raise TypeError(
            f"{problem}\n"
            "Stacked, filtered, masked and abstract models fail by design: check before, or inside vmap or eval_shape."
        )


def check_created(node: object) -> None:
    """Check the fields of a node that is being created, and of the nodes inside it."""
    if problem := _explain(_mismatches(_nodes(node)), node):
        raise TypeError(f"creating {type(node).__qualname__}: {problem}")


def explain_misfits(node: object, memo: Memo) -> tuple[str, Memo]:
    """Say which fields of a node, and of the nodes inside it, are wrong; and extend the memo by the sizes of its own.

    Nodes inside it have sizes of their own.
    """
    wrong, after = _check_fields(node, (*memo[:3], memo[3] | {"self": node}))
    wrong += _mismatches(inner for inner in _nodes(node) if inner is not node)
    return _explain(wrong, node), after


class _Mismatch(NamedTuple):
    """A field, or a part of it, that does not match its annotation, and the sizes that were bound before it."""

    node: object
    path: str
    value: object
    hint: str
    bound: str


def _mismatches(nodes: Iterable[object]) -> list[_Mismatch]:
    """Return the wrong fields of these nodes, each of which binds sizes of its own."""
    return [wrong for node in nodes for wrong in _check_fields(node, fresh_memo(node))[0]]


def _nodes(tree: object) -> list[object]:
    """Return every node in a tree that has annotated fields, once each."""
    nodes: dict[int, object] = {}

    def see(x: object) -> bool:
        if has_fields(x) and (x is tree or not jtu.all_leaves([x])):
            nodes[id(x)] = x
        return False

    jtu.tree_flatten(tree, is_leaf=see)
    return list(nodes.values())


def _check_fields(node: object, memo: Memo) -> tuple[list[_Mismatch], Memo]:
    """Return the wrong fields of one node, and the memo extended by the sizes that the others bind."""
    wrong: list[_Mismatch] = []
    waiting = deque(field for field in fields_of(node) if hasattr(node, field.name))  # not if field(init=False)
    tries = len(waiting)  # that are left until none of the waiting fields can bind a name that another one needs
    while waiting:
        field = waiting.popleft()
        value: object = getattr(node, field.name)
        try:
            after = fit(value, field.hint, memo)
        except Exception as error:
            if isinstance(error, AnnotationError) and tries > 0:
                tries -= 1
                waiting.append(field)  # its shape is like "n+1", and another field may bind n
                continue
            if wrong:
                continue  # a wrong field might have bound n
            hint = describe_hint(field.shown)
            raise UnresolvedAnnotationError(
                f"{type(node).__qualname__}.{field.name} cannot be checked against {hint}: {_reason(error, hint)}"
            ) from error
        tries = len(waiting)
        if after is None:
            path, part, shown, bound = first_misfit(value, field.hint, field.shown, memo)
            wrong.append(_Mismatch(node, f".{field.name}{path}", part, describe_hint(shown), describe_memo(bound)))
        else:
            memo = after
    return wrong, memo


def _reason(error: Exception, hint: str) -> str:
    if isinstance(error, AnnotationError):
        said = str(error).partition(" Have you applied")[0]  # the decorator, which check_types does not need
        return said.rstrip(".") + (". An attribute is written {self.n}" if "{" in hint else "")
    if isinstance(error, AttributeError) or "{" not in hint:
        return describe_error(error)
    return f"{describe_error(error)}. A size in braces must be a Python number: inside jit, make its field static"


def _explain(wrong: list[_Mismatch], tree: object) -> str:
    """Write a line for each wrong field, with its key path; "" if every field is right."""
    if not wrong:
        return ""
    paths = _paths(tree)
    rows: list[tuple[str, ...]] = []
    for x in wrong[:ROWS]:
        _, path = paths.get(id(x.node), (None, type(x.node).__qualname__))  # flattening may create a new node each time
        abstract = "(abstract)" if isinstance(x.value, jax.ShapeDtypeStruct) else ""
        rows.append(
            ((path + x.path).removeprefix("."), describe(x.value, short=False) + abstract, f"is not {x.hint}", x.bound)
        )
    several = f"{len(wrong)} fields are not what their classes say"
    title = several if len(wrong) > 1 else "1 field is not what its class says"
    more = [f"and {len(wrong) - ROWS} more"] if len(wrong) > ROWS else []
    return "\n".join([f"{title}:", *in_columns(rows, "   "), *more])


def _paths(tree: object) -> dict[int, tuple[object, str]]:
    """Map the id of everything in a tree to the object, which keeps the id in use, and its first key path."""
    paths: dict[int, tuple[object, str]] = {}

    def walk(x: object, path: KeyPath) -> None:
        paths.setdefault(id(x), (x, path_name(path)))
        for keys, child in jtu.tree_flatten_with_path(x, is_leaf=lambda child: child is not x)[0]:
            if child is not x:
                walk(child, (*path, *keys))

    walk(tree, ())
    return paths


def fit(x: Any, hint: Any, memo: Memo) -> Memo | None:
    """Return the memo extended by the sizes that `x` binds as an instance of `hint`; None if it is not an instance."""
    if hint is Any or hint is object:
        return memo
    if is_jaxtyping(hint):
        return bind(x, hint, memo)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next((after for each in args if (after := fit(x, each, memo)) is not None), None)
    if origin is tuple and not args:  # tuple[()]
        return memo if isinstance(x, tuple) and not x else None
    if origin is Literal:
        return memo if any(type(x) is type(value) and x == value for value in args) else None
    if origin is type:
        members = get_args(args[0]) if args and get_origin(args[0]) in (Union, UnionType) else args
        right = isinstance(x, type) and any(_is_subclass(x, get_origin(each) or each) for each in members or [object])
        return memo if right else None
    if isinstance(origin or hint, type):
        return _fit_items(x, hint, memo) if _is_instance(x, origin or hint) else None
    return fit(x, hint.__value__, memo) if hasattr(hint, "__value__") else memo


def _is_subclass(x: type[Any], hint: Any) -> bool:
    try:
        return not isinstance(hint, type) or hint is Any or issubclass(x, hint)
    except TypeError:  # as in _is_instance
        return True


def _is_instance(x: object, cls: Any) -> bool:
    try:
        return isinstance(x, cls)
    except TypeError:  # isinstance does not work with a TypedDict, or a protocol that is not runtime_checkable
        return True


def _fit_items(x: object, hint: object, memo: Memo) -> Memo | None:
    """Do the same as `fit` for the items of a built-in container."""
    items = _items(x, hint)
    after = None if items is None else memo
    for _, item, item_hint in items or ():
        after = after and fit(item, item_hint, after)
    return after


def _items(x: Any, hint: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the items of a container, each with its key path and its hint; None for a tuple of another length."""
    origin, args = get_origin(hint), get_args(hint)
    if not args or origin.__module__ not in ("builtins", "collections", "collections.abc"):
        return []
    if origin is tuple:
        hints = args[:1] * len(x) if args[1:] == (...,) else args
        if len(x) != len(hints):
            return None
        return [(f".{i}", *pair) for i, pair in enumerate(zip(x, hints, strict=True))]
    if issubclass(origin, Mapping) and len(args) == 2:
        pairs = [[(f", key {key!r}", key, args[0]), (f".{key}", value, args[1])] for key, value in x.items()]
        return list(itertools.chain.from_iterable(pairs))
    if issubclass(origin, Iterable) and hasattr(x, "__len__"):  # not an iterator, which would be consumed
        is_indexed = issubclass(type(x), Sequence)  # a set is not
        return [(f".{i}" if is_indexed else ", an item", item, args[0]) for i, item in enumerate(x)]
    return []


def first_misfit(x: object, hint: object, shown: object, memo: Memo) -> tuple[str, object, object, Memo]:
    """Find the first part of a container that does not fit.

    Args:
        x: a value that does not fit `hint`.
        hint: its annotation.
        shown: its annotation, for messages.
        memo: the sizes bound before it.

    Returns:
        The key path of the part in `x`, the part, its annotation for messages, and the sizes bound before it.
    """
    hint, shown = _container(x, hint), _container(x, shown)
    bound = memo
    for (path, part, part_hint), (_, _, part_shown) in zip(_parts(x, hint, memo), _parts(x, shown, memo), strict=False):
        after = fit(part, part_hint, bound)
        if after is None:
            below, innermost, innermost_shown, bound = first_misfit(part, part_hint, part_shown, bound)
            return path + below, innermost, innermost_shown, bound
        bound = after
    return "", x, shown, memo


def _container(x: object, hint: object) -> Any:
    """Return the one container in a union that `x` is an instance of; `hint` itself if there is not exactly one."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    fitting = [each for each in members if get_args(each) and _is_instance(x, get_origin(each))]
    return fitting[0] if len(fitting) == 1 else hint


def _parts(x: object, hint: object, memo: Memo) -> list[tuple[str, Any, Any]]:
    """Return the items of a container, or the leaves of a `PyTree[...]`, each with its key path and its hint."""
    if get_args(hint):
        return (_is_instance(x, get_origin(hint)) and _items(x, hint)) or []
    leaf_type, structure = pytree_parts(hint) or (None, None)
    if leaf_type is None or structure is not None:  # with a structure, the shape of a leaf may depend on its place
        return []
    leaves = jtu.tree_flatten_with_path(x, is_leaf=lambda part: fit(part, leaf_type, memo) is not None)[0]
    return [(f".{path_name(path)}", leaf, leaf_type) for path, leaf in leaves if path]
