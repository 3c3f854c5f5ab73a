"""`Typed` and `Batched`: check the fields of an argument in the signature of a function."""

import re
from collections.abc import Callable
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_origin

import numpy as np
from jaxtyping import Shaped

from treekit._base.jax import jtu, untyped
from treekit._base.predicates import is_array
from treekit._names.key_path import path_text
from treekit._text.describe import describe
from treekit._types.fields import explain_mismatches
from treekit._types.hints import has_fields
from treekit._types.sizes import Memo, bind, describe_memo, extend, storage

__all__ = ["Batched", "Typed"]

T = TypeVar("T")

_CLASS_NAME = re.compile(r"(?!([\w.]+\.)?(Optional|Union)\[)[\w.]+(\[.*\])?")  # a generic class in quotes has brackets


def _class_and_name(node: object, what: str) -> tuple[type[Any] | str, str]:
    """Return the class in brackets, or its name in quotes; and how it is written in the name of the new type.

    That is the full name, since beartype treats two types of one name as the same.
    """
    origin = get_origin(node) or node
    if not isinstance(origin, (type, str)) or origin in (Union, UnionType, Annotated):
        raise TypeError(
            f"{what} takes one class, or its name in quotes, found {node!r}. Write {what}[A] | {what}[B] for a union, "
            "and the bound of a type variable"
        )
    if isinstance(origin, type):
        return origin, f"{origin.__module__}.{origin.__qualname__}"
    if not _CLASS_NAME.fullmatch(origin):
        raise TypeError(f"{what} takes the name of one class in quotes, found {origin!r}: write {what}[...] | None")
    return origin.partition("[")[0], repr(origin)


class _CheckedClass(type):
    """The class of `Typed[Linear]` and of `Batched[Linear, "batch"]`, which answers `isinstance`."""

    cls: type[Any] | str = object  # of Typed itself, without a class in brackets
    axes: str | None = None  # of Batched

    # Lambdas instead of `def`, to which jaxtyping's import hook, if used on treekit, gives a scope of sizes of its own.
    _explain: Callable[[Any, Any], str] = lambda cls, x: _mismatch(x, cls, storage().get_shape_memo())
    _fits: Callable[[Any, Any], bool] = lambda cls, x: not cls._explain(x)
    __instancecheck_str__: Any = _explain  # for beartype
    __instancecheck__: Any = _fits


def _mismatch(x: object, wanted: _CheckedClass, memo: Memo) -> str:
    """Say why `x` is not an instance of a class with right fields; else return "" and extend the memo."""
    if problem := _is_not_a(x, wanted.cls):
        return problem
    if wanted.axes is not None:
        return _batched_mismatch(x, wanted.axes, memo)
    problem, after = explain_mismatches(x, memo)
    if not problem:
        extend(memo, after)
    return problem


def _batched_mismatch(x: object, axes: str, memo: Memo) -> str:
    """Do the same as `_mismatch` for a node whose arrays have these axes first: its fields are checked without them."""
    count, bound = len(axes.split()), memo
    leaves, treedef = jtu.tree_flatten_with_path(x)
    rest = [leaf for _, leaf in leaves]
    arrays: dict[int, Any] = {}  # without these axes, by their index among the leaves
    for i, (path, leaf) in enumerate(leaves):
        if not is_array(leaf):
            continue
        first = untyped.ShapeDtypeStruct(leaf.shape[:count], leaf.dtype)
        after = bind(first, Shaped[Any, axes], bound) if leaf.ndim >= count else None
        if after is None:
            what = f"{path_text(path)}, {describe(leaf, short=False)},"
            return f"the first axes of {what} are not {axes!r}   {describe_memo(bound)}".rstrip()
        bound = after
        if isinstance(leaf, np.ndarray):  # it stays one, since an annotation may ask for it; without memory of its size
            rest[i] = np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape[count:])
        else:
            arrays[i] = untyped.ShapeDtypeStruct(leaf.shape[count:], leaf.dtype)

    results: list[tuple[str, Memo]] = []  # in a list, since eval_shape returns nothing but shapes

    def explain(tracers: dict[int, Any]) -> None:
        node = treedef.unflatten([tracers.get(i, y) for i, y in enumerate(rest)])
        results.append(explain_mismatches(node, bound))

    untyped.eval_shape(explain, arrays)  # so that they are arrays to an annotation, and nothing is computed
    ((problem, after),) = results
    if problem:
        return f"without the first axes of its arrays, {axes!r}: {problem}"
    extend(memo, after)
    return ""


def _is_not_a(x: object, cls: type[Any] | str) -> str:
    """Say why `x` is not an instance of `cls` with fields; "" if it is one."""
    name = cls if isinstance(cls, str) else cls.__qualname__
    if not (any(_is_called(base, cls) for base in type(x).__mro__) if isinstance(cls, str) else isinstance(x, cls)):
        return f"{type(x).__qualname__} is not {name}"
    if not has_fields(x):
        return f"{type(x).__qualname__} is not a node or dataclass, so it has no fields to check"
    return ""


def _is_called(cls: type[Any], name: str) -> bool:
    return name in (cls.__name__, cls.__qualname__, f"{cls.__module__}.{cls.__qualname__}")


if TYPE_CHECKING:
    from typing import Annotated as Batched  # which takes a class and anything else, so Batched[Linear, "n"] is Linear

    Typed = Annotated[T, "its fields match their annotations"]
else:

    class Typed(metaclass=_CheckedClass):
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

        def __class_getitem__(cls, node: object) -> _CheckedClass:
            of, name = _class_and_name(node, "Typed")
            return _CheckedClass(f"Typed[{name}]", (), {"cls": of, "__module__": "treekit"})

    class Batched:
        """Annotate an argument whose arrays have more axes: `Batched[Linear, "batch"]` for a `Linear` that is stacked.

        All arrays have these axes first, which are written as in jaxtyping's shapes. Without them, the fields are
        checked as by `Typed[Linear]`. Inside of `jax.vmap`, the axis is gone, so the annotation is `Typed[Linear]` or
        `Linear`. To type checkers `Batched[Linear, "batch"]` is `Linear`.

        >>> import beartype
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxtyping import Array, Float, jaxtyped
        >>> from treekit import node, tree_stack
        >>> @node
        ... class Linear:
        ...     weight: Float[Array, "dout din"]
        >>> @jaxtyped(typechecker=beartype.beartype)
        ... def ensemble(models: Batched[Linear, "n"], x: Float[Array, "din"]) -> Float[Array, "n dout"]:
        ...     return jax.vmap(lambda model: model.weight @ x)(models)
        >>> model = Linear(jnp.ones((5, 3)))
        >>> ensemble(tree_stack([model, model]), jnp.ones(3)).shape
        (2, 5)
        >>> ensemble(model, jnp.ones(3))
        Traceback (most recent call last):
        jaxtyping.TypeCheckError: ...
        """

        def __class_getitem__(cls, parts: object) -> _CheckedClass:
            match parts:
                case (node, str(axes)) if axes.split() and not any(
                    "*" in axis or "..." in axis for axis in axes.split()
                ):
                    of, name = _class_and_name(node, "Batched")
                    fields = {"cls": of, "axes": axes, "__module__": "treekit"}
                    return _CheckedClass(f"Batched[{name}, {axes!r}]", (), fields)
            raise TypeError(
                'Batched takes a class and its first axes, such as Batched[Linear, "batch"] or Batched[Linear, "m n"], '
                f"found {parts!r}; their number is fixed, so neither ... nor *axes is allowed"
            )
