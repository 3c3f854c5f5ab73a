"""`check_types` and `Typed`: check the fields of nodes against the annotations of their classes."""

import re
from collections import deque
from collections.abc import Callable, Iterable
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, Union, get_origin

import jax
from jaxtyping import AnnotationError

from treekit._base.describe import describe, describe_error, refuse_class
from treekit._base.jax import jtu
from treekit._base.key_path import path_name
from treekit._base.table import ROWS, in_columns
from treekit._base.types import KeyPath
from treekit._check_types.fit import first_misfit, fit
from treekit._check_types.jaxtyping_internals import Memo, describe_memo, extend, fresh_memo, get_memo
from treekit._check_types.read_annotations import UnresolvedAnnotationError, describe_hint, fields_of, has_fields

T = TypeVar("T")


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


_CLASS_NAME = re.compile(r"(?!([\w.]+\.)?(Optional|Union)\[)[\w.]+(\[.*\])?")  # a generic class in quotes has brackets


class _TypedClass(type):
    """The class of `Typed[Linear]`, which answers `isinstance`."""

    cls: type[Any] | str = object  # of Typed itself, without a class in brackets

    def __getitem__(cls, node: object) -> "_TypedClass":
        origin = get_origin(node) or node
        if not isinstance(origin, (type, str)) or origin in (Union, UnionType, Annotated):
            raise TypeError(
                f"Typed takes one class, or its name in quotes, found {node!r}. Write Typed[A] | Typed[B] for a union, "
                "and the bound of a type variable"
            )
        if isinstance(origin, str) and not _CLASS_NAME.fullmatch(origin):
            raise TypeError(f"Typed takes the name of one class in quotes, found {origin!r}: write Typed[...] | None")
        # The full name, since beartype treats two types of one name as the same.
        name = repr(origin) if isinstance(origin, str) else f"{origin.__module__}.{origin.__qualname__}"
        of = origin.partition("[")[0] if isinstance(origin, str) else origin
        return _TypedClass(f"Typed[{name}]", (), {"cls": of, "__module__": "treekit"})

    # Lambdas: jaxtyping's import hook, if used on treekit, would bind sizes in a new scope inside functions.
    __instancecheck_str__: Callable[[Any, Any], str] = lambda cls, x: _mismatch(x, cls.cls, get_memo())  # for beartype
    _fits: Callable[[Any, Any], bool] = lambda cls, x: not _mismatch(x, cls.cls, get_memo())
    __instancecheck__: Any = _fits


def _mismatch(x: object, cls: type[Any] | str, memo: Memo) -> str:
    """Say why `x` is not an instance of `cls` with right fields; else return "" and extend the memo."""
    name = cls if isinstance(cls, str) else cls.__qualname__
    if not (any(_is_called(base, cls) for base in type(x).__mro__) if isinstance(cls, str) else isinstance(x, cls)):
        return f"a {type(x).__qualname__} is not a {name}"
    if not has_fields(x):
        return f"{type(x).__qualname__} is not a node or dataclass, so it has no fields that Typed could check"
    wrong, after = _check_fields(x, (*memo[:3], memo[3] | {"self": x}))
    wrong += _mismatches(node for node in _nodes(x) if node is not x)
    if wrong:
        return _explain(wrong, x)
    extend(memo, after)
    return ""


def _is_called(cls: type[Any], name: str) -> bool:
    return name in (cls.__name__, cls.__qualname__, f"{cls.__module__}.{cls.__qualname__}")


if TYPE_CHECKING:
    Typed = Annotated[T, "its fields match their annotations"]
else:

    class Typed(metaclass=_TypedClass):
        """Annotate an argument so that its fields are checked too: `Typed[Linear]` or `Typed["Linear"]` for `Linear`.

        Under jaxtyping's decorator, a name in a shape is one size in the whole call: in the fields of the argument and
        in all other arguments. Nodes inside the argument have sizes of their own, as in `check_types`. To type checkers
        `Typed[Linear]` is `Linear`.

        >>> import beartype
        >>> import jax.numpy as jnp
        >>> from jaxtyping import Array, Float, jaxtyped
        >>> from treekit import node
        >>> @node
        ... class Linear:
        ...     weight: Float[Array, "dout din"]
        ...     @jaxtyped(typechecker=beartype.beartype)
        ...     def __call__(self: Typed["Linear"], x: Float[Array, "din"]) -> Float[Array, "dout"]:
        ...         return self.weight @ x
        >>> Linear(jnp.ones((5, 3)))(jnp.ones(3)).shape
        (5,)
        >>> Linear(jnp.ones((5, 3)))(jnp.ones(4))
        Traceback (most recent call last):
        jaxtyping.TypeCheckError: ...
        """
