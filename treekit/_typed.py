"""`Typed`: check the fields of an argument in the signature of a function."""

import re
from collections.abc import Callable
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_origin

from treekit._annotations import Memo, extend, get_memo, has_fields
from treekit._check_types import explain_misfits

T = TypeVar("T")

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
    problem, after = explain_misfits(x, memo)
    if not problem:
        extend(memo, after)
    return problem


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
