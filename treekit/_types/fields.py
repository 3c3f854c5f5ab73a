"""`check_types`: check the fields of nodes against the annotations of their classes."""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import jax
from jaxtyping import AnnotationError, Bool, Integer, Num, Real

from treekit._base.jax import jtu
from treekit._names.key_path import path_name, walk
from treekit._text.arguments import refuse_class
from treekit._text.columns import in_columns
from treekit._text.describe import describe, describe_error
from treekit._text.table import ROWS, left_out
from treekit._types.hints import Field, describe_hint, fields_of, has_fields
from treekit._types.quoted import UnresolvedAnnotationError
from treekit._types.sizes import Memo, bind, describe_memo, fresh_memo, is_jaxtyping, pytree_of, pytree_parts

# What type checkers accept for each kind of number, and the arrays of shape () that jit turns such numbers into.
_NUMBERS: dict[Any, tuple[Any, ...]] = {
    bool: (bool, Bool[Any, ""]),
    int: (int, Bool[Any, ""], Integer[Any, ""]),
    float: (int, float, Bool[Any, ""], Real[Any, ""]),
    complex: (int, float, complex, Bool[Any, ""], Num[Any, ""]),
}
_union: Any = Union  # of a tuple of types, which `|` does not take


def check_types(tree: object) -> None:
    """Check the fields of every node in a tree against the annotations of its class.

    It checks treekit's nodes, Equinox modules, and all other dataclasses that are pytrees. A tree without any of these
    passes, such as a dict of arrays or a module of Flax NNX. A name in a shape, such as
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


def explain_mismatches(node: object, memo: Memo) -> tuple[str, Memo]:
    """Say which fields of a node, and of the nodes inside it, are wrong; and extend the memo by the sizes of its own.

    Nodes inside it have sizes of their own.
    """
    own, after = _check_fields(node, (*memo[:3], memo[3] | {"self": node}))
    inner = _mismatches(x for x in _nodes(node) if x is not node)
    return _explain([*((node, wrong) for wrong in own), *inner], node), after


class Mismatch(NamedTuple):
    """A value, or a part of it, that is not an instance of its annotation.

    Attributes:
        path: the key path of the part, with a dot before it; "" for the value itself.
        part: the part.
        hint: its annotation.
        bound: the sizes that were bound before it.
    """

    path: str
    part: object
    hint: Any
    bound: Memo


def _mismatches(nodes: Iterable[object]) -> list[tuple[object, Mismatch]]:
    """Return the wrong fields of these nodes, each of which binds sizes of its own."""
    return [(node, wrong) for node in nodes for wrong in _check_fields(node, fresh_memo(node))[0]]


def _nodes(tree: object) -> list[object]:
    """Return every node in a tree that has annotated fields, once each."""
    nodes: dict[int, object] = {}

    def see(x: object) -> bool:
        if has_fields(x) and (x is tree or not jtu.all_leaves([x])):
            nodes[id(x)] = x
        return False

    jtu.tree_flatten(tree, is_leaf=see)
    return list(nodes.values())


def _check_fields(node: object, memo: Memo) -> tuple[list[Mismatch], Memo]:
    """Return the wrong fields of one node, and the memo extended by the sizes that the others bind.

    A field whose check fails, since its shape is like "n+1" and "n" is not bound yet, waits: all that failed are
    checked again, until none is left, or all fail.

    Raises:
        UnresolvedAnnotationError: all that are left fail, and no wrong field is to blame.
    """
    wrong: list[Mismatch] = []
    waiting = [field for field in fields_of(node) if hasattr(node, field.name)]  # not if field(init=False)
    while waiting:
        failed: list[tuple[Field, Exception]] = []
        for field in waiting:
            value: object = getattr(node, field.name)
            try:
                after = fit(value, field.hint, memo)
            except Exception as error:
                failed.append((field, error))
                continue
            if isinstance(after, Mismatch):
                wrong.append(after._replace(path=f"{field.name}{after.path}"))
            else:
                memo = after
        if len(failed) == len(waiting):
            if wrong:  # which might have bound what these need
                break
            field, cause = failed[0]
            hint = describe_hint(field.hint)
            raise UnresolvedAnnotationError(
                f"{type(node).__qualname__}.{field.name} cannot be checked against {hint}: {_reason(cause, hint)}"
            ) from cause
        waiting = [field for field, _ in failed]
    return wrong, memo


def _reason(error: Exception, hint: str) -> str:
    if isinstance(error, AnnotationError):
        said = str(error).partition(" Have you applied")[0]  # the decorator, which check_types does not need
        return said.rstrip(".") + (". An attribute is written {self.n}" if "{" in hint else "")
    if isinstance(error, AttributeError) or "{" not in hint:
        return describe_error(error)
    return f"{describe_error(error)}. A size in braces must be a Python number: inside jit, make its field static"


def _explain(wrong: list[tuple[object, Mismatch]], tree: object) -> str:
    """Write a line for each wrong field, with its key path; "" if every field is right."""
    if not wrong:
        return ""
    # The first name of each node; the nodes are kept, and with them their ids, since flattening may create new ones.
    names: dict[int, tuple[object, str]] = {}
    for name, x in walk(tree):
        names.setdefault(id(x), (x, name and f"{name}."))
    rows: list[tuple[str, ...]] = []
    for node, x in wrong[:ROWS]:
        _, name = names.get(id(node), (None, f"{type(node).__qualname__}."))
        part = describe(x.part, short=False) + "(abstract)" * isinstance(x.part, jax.ShapeDtypeStruct)
        is_not = f"is not {describe_hint(x.hint)}"
        rows.append((name + x.path, part, is_not, describe_memo(x.bound)))
    several = f"{len(wrong)} fields are not what their classes say"
    title = several if len(wrong) > 1 else "1 field is not what its class says"
    return "\n".join([f"{title}:", *in_columns(rows, "   "), *left_out(len(wrong) - ROWS)])


def fit(x: Any, hint: Any, memo: Memo) -> Memo | Mismatch:
    """Check a value against a simplified annotation, by the first of these rows.

    | an annotation | what a value must be |
    |---|---|
    | `Any`, `object` | anything |
    | of jaxtyping: `Float[Array, "n"]`, `PyTree[X]` | an array of this dtype and shape, or a tree of `X` |
    | a union | what one of its members says |
    | `bool`, `int`, `float`, `complex` | such a number, or an array of shape () with such a dtype |
    | `Literal[1, 2]`, `type[X]` | one of these values; a subclass of `X` |
    | a class, or a generic one such as `list[X]` | an instance of it, and its items what `X` says |
    | an alias by a `type` statement that contains itself | what it is a name for |
    | any other | anything |

    Returns:
        The memo, extended by the sizes that `x` binds; or the first part of `x` that does not match.
    """
    mismatch = Mismatch("", x, hint, memo)
    if hint is Any or hint is object:
        return memo
    if is_jaxtyping(hint):
        return _fit_arrays(x, hint, mismatch)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _fit_union(x, hint, mismatch)
    if isinstance(hint, type) and hint in _NUMBERS:
        return memo if isinstance(x, _NUMBERS[hint]) else mismatch
    if origin is Literal:
        return memo if any(type(x) is type(value) and x == value for value in get_args(hint)) else mismatch
    if origin is type:
        return memo if isinstance(x, type) and _is_type(x, get_args(hint)) else mismatch
    if isinstance(origin or hint, type):
        items = _items(x, hint) if _is_instance(x, origin or hint) else None
        return mismatch if items is None else _fit_parts(items, mismatch)
    if hasattr(hint, "__value__"):
        alias: Any = hint
        after = fit(x, alias.__value__, memo)
        return mismatch if isinstance(after, Mismatch) and not after.path else after  # an alias is shown by its name
    return memo


def _fit_arrays(x: Any, hint: Any, mismatch: Mismatch) -> Memo | Mismatch:
    """Do the same as `fit` for an annotation of jaxtyping: of an array, or of a tree of them."""
    leaf, structure = pytree_parts(hint) or (None, None)
    if leaf is not None and structure is None:  # a tree, of which each leaf is checked alone, so that it can be named
        is_leaf = functools.partial(_fits, hint=leaf, memo=mismatch.bound)
        leaves = jtu.tree_flatten_with_path(x, is_leaf=is_leaf)[0]
        return _fit_parts([(f".{path_name(path)}" if path else "", y, leaf) for path, y in leaves], mismatch)
    # jaxtyping checks an array, and a tree with a structure: the shape of its leaf may depend on its place.
    numbers = isinstance(leaf, type) and _NUMBERS.get(leaf)
    return bind(x, pytree_of(_union[numbers], structure) if numbers else hint, mismatch.bound) or mismatch


def _fits(x: Any, hint: Any, memo: Memo) -> bool:
    return not isinstance(fit(x, hint, memo), Mismatch)


def _fit_union(x: Any, hint: Any, mismatch: Mismatch) -> Memo | Mismatch:
    """Do the same as `fit` for a union; of a value in a container of one member, it names the part that is wrong."""
    inside: list[Mismatch] = []
    for each in get_args(hint):
        after = fit(x, each, mismatch.bound)
        if not isinstance(after, Mismatch):
            return after
        if get_args(each) and _is_instance(x, get_origin(each)):
            inside.append(after)
    return inside[0] if len(inside) == 1 else mismatch


def _fit_parts(parts: Iterable[tuple[str, Any, Any]], whole: Mismatch) -> Memo | Mismatch:
    """Do the same as `fit` for parts of a value, each with its key path and its annotation."""
    memo = whole.bound
    for path, part, hint in parts:
        after = fit(part, hint, memo)
        if isinstance(after, Mismatch):
            return after._replace(path=path + after.path) if path else whole
        memo = after
    return memo


def _is_type(x: type[Any], args: tuple[Any, ...]) -> bool:
    """Whether a class is one of those that `type[...]`, which has these arguments, says."""
    members = get_args(args[0]) if args and get_origin(args[0]) in (Union, UnionType) else args
    return any(_is_subclass(x, get_origin(each) or each) for each in members or [object])


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


def _items(x: Any, hint: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the items of a container, each with its key path and its hint; None for a tuple of another length."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and not args:  # tuple[()]
        return None if x else []
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
