"""What treekit uses of jaxtyping that is private: tried with jaxtyping 0.3.0 and 0.3.11.

jaxtyping keeps what the names in shapes ("n m") and structures ("T") are bound to on a stack, one memo for each call of
a function under `jaxtyped`, and `isinstance` with one of its types reads and extends the topmost.
"""

import functools
import importlib
import inspect
import itertools
import linecache
import re
from types import FrameType
from typing import Any

import jaxtyping

_public: Any = jaxtyping  # its types are unknown in part
_JAXTYPED = re.compile(r"\s*@.*\bjaxtyped\b")

_storage: Any = importlib.import_module("jaxtyping._storage")

# The sizes of names, the shapes of `*names`, the structures of trees, and the arguments that `{self.n}` is read from.
Memo = tuple[dict[str, int], dict[str, tuple[bool, tuple[int, ...]]], dict[str, Any], dict[str, Any]]

# Called with no function of ours around them, since jaxtyping's import hook would give that one a memo of its own.
get_memo: Any = _storage.get_shape_memo
_set_memo: Any = _storage.set_shape_memo


def fresh_memo(node: object) -> Memo:
    """A memo in which nothing is bound, and in which shapes may read the attributes of `self`."""
    return {}, {}, {}, {"self": node}


def is_jaxtyping(hint: object) -> bool:
    """Whether a type is one of jaxtyping's, `Float[Array, "n"]` or `PyTree[...]`."""
    return isinstance(hint, type) and issubclass(hint, (_public.AbstractArray, _pytree()))


def bind(x: object, hint: Any, memo: Memo) -> Memo | None:
    """The memo extended by what `x` binds as an instance of one of jaxtyping's types; None where it is not one.

    Raises:
        AnnotationError: a shape such as "n+1" comes before its "n" is bound.
    """
    with _public.jaxtyped("context"):
        _set_memo(*(part.copy() for part in memo))
        return get_memo() if isinstance(x, hint) else None


def extend(memo: Memo, by: Memo) -> None:
    """Add what another memo binds to this one; its arguments stay its own."""
    for i in range(3):
        part: dict[str, Any] = memo[i]
        part.update(by[i])


def describe_memo(memo: Memo) -> str:
    """`(n=3, batch=(2, 2))`, the names in a memo that a user has written; nothing where there are none."""
    sizes, shapes, _, _ = memo
    bound = sizes | {name: shape for name, (_, shape) in shapes.items()}
    names = ", ".join(f"{name}={size}" for name, size in bound.items() if not name.startswith("~"))
    return names and f"({names})"


def pytree_parts(hint: object) -> tuple[Any, str | None] | None:
    """Leaf type and structure of `PyTree[leaf, "structure"]`; None for every other type, also for a bare `PyTree`."""
    if isinstance(hint, type) and issubclass(hint, _pytree()) and hasattr(hint, "leaftype"):
        parts: Any = hint
        return parts.leaftype, parts.structure
    return None


def pytree_of(leaf: Any, structure: str | None) -> Any:
    """`PyTree[leaf, "structure"]`."""
    return _pytree()[leaf] if structure is None else _pytree()[leaf, structure]


@functools.cache
def _pytree() -> Any:
    return _public.PyTree  # looked up when first asked for: it imports a type checker


def is_jaxtyped_below(cls: type[Any]) -> bool:
    """Whether the decorator that is being applied to a class stands above `@jaxtyped`.

    There jaxtyping does nothing, since the class is not a dataclass yet, and leaves no trace. So this reads the source,
    of a module that mentions `jaxtyped`.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame and frame.f_globals.get("__name__") != cls.__module__:
        frame = frame.f_back
    if frame is None or "jaxtyped" not in {*frame.f_code.co_names, *frame.f_code.co_varnames}:
        return False
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)[frame.f_lineno - 1 :]
    decorators = itertools.takewhile(lambda line: not re.match(r"\s*class\b", line), lines)
    return next(decorators, "").lstrip().startswith("@") and any(map(_JAXTYPED.match, decorators))
