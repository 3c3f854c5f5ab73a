"""All uses of private parts of jaxtyping, tested with jaxtyping 0.3.9 and 0.3.11.

jaxtyping stores the sizes that names in shapes ("n m") and structures ("T") are bound to in a memo. It has a stack of
them, one for each call of a function under `jaxtyped`. `isinstance` with one of its types reads and extends the top.
"""

import functools
import importlib
from typing import Any

import jaxtyping

_public: Any = jaxtyping  # its types are incomplete

_storage: Any = importlib.import_module("jaxtyping._storage")

# Sizes of names, shapes of `*names`, structures of trees, and the arguments in which `{self.n}` is looked up.
Memo = tuple[dict[str, int], dict[str, tuple[bool, tuple[int, ...]]], dict[str, Any], dict[str, Any]]

# Not wrapped in functions: jaxtyping's import hook, if used on treekit, would give those a memo of their own.
get_memo: Any = _storage.get_shape_memo
_set_memo: Any = _storage.set_shape_memo


def fresh_memo(node: object) -> Memo:
    """Return a memo in which nothing is bound, and in which shapes can read attributes of `self`."""
    return {}, {}, {}, {"self": node}


def is_jaxtyping(hint: object) -> bool:
    """Whether a type is one of jaxtyping's, such as `Float[Array, "n"]` or `PyTree[...]`."""
    return isinstance(hint, type) and issubclass(hint, (_public.AbstractArray, _pytree()))


def bind(x: object, hint: Any, memo: Memo) -> Memo | None:
    """Return the memo extended by the sizes that `x` binds as an instance of `hint`; None if it is not an instance.

    Raises:
        AnnotationError: a shape such as "n+1" is checked before "n" is bound.
    """
    with _public.jaxtyped("context"):
        _set_memo(*(part.copy() for part in memo))
        return get_memo() if isinstance(x, hint) else None


def extend(memo: Memo, by: Memo) -> None:
    """Add the bindings of another memo to this one, except its arguments."""
    for i in range(3):
        part: dict[str, Any] = memo[i]
        part.update(by[i])


def describe_memo(memo: Memo) -> str:
    """Write the bindings of a user's names as `(n=3, batch=(2, 2))`; "" if nothing is bound."""
    sizes, shapes, _, _ = memo
    bound = sizes | {name: shape for name, (_, shape) in shapes.items()}
    names = ", ".join(f"{name}={size}" for name, size in bound.items() if not name.startswith("~"))
    return names and f"({names})"


def pytree_parts(hint: object) -> tuple[Any, str | None] | None:
    """Return leaf type and structure of `PyTree[leaf, "structure"]`; None for other types, also a bare `PyTree`."""
    if isinstance(hint, type) and issubclass(hint, _pytree()) and hasattr(hint, "leaftype"):
        parts: Any = hint
        return parts.leaftype, parts.structure
    return None


def pytree_of(leaf: object, structure: str | None) -> Any:
    """Return `PyTree[leaf, "structure"]`."""
    return _pytree()[leaf] if structure is None else _pytree()[leaf, structure]


@functools.cache
def _pytree() -> Any:
    return _public.PyTree  # looked up when first needed, since it imports a type checker
