"""The sizes that names in shapes are bound to. Jaxtyping stores them, and has no public functions to read or set them.

All that treekit uses of jaxtyping without being in its documentation is here, for jaxtyping 0.3.9 to 0.3.11, and is
tried out before its first use. Jaxtyping has a stack of *memos*, one for each call of a function under `jaxtyped`, with
the sizes that names in shapes ("n m") and structures ("T") are bound to. `isinstance` with one of its types reads and
extends the top.
"""

import functools
import importlib
from typing import Any

import jaxtyping
from jaxtyping import AnnotationError, Shaped

from treekit._base.jax import untyped
from treekit._text.describe import describe_error

_public: Any = jaxtyping  # its types are incomplete

# Sizes of names, shapes of `*names`, structures of trees, and the arguments in which `{self.n}` is looked up.
Memo = tuple[dict[str, int], dict[str, tuple[bool, tuple[int, ...]]], dict[str, Any], dict[str, Any]]


class UnknownJaxtypingError(AnnotationError, ImportError):
    """Jaxtyping is not as treekit knows it. As an AnnotationError, it passes through jaxtyping's decorators."""


# What `_try` returns: whether two shapes fit, the memo, and the parts of a PyTree.
_EXPECTED: Any = [True, False], ({"n": 2, "m": 3, "k": 6}, {"batch": (False, (4, 5))}, {}, {"self": [7]}), (int, "T")


@functools.cache
def storage() -> Any:
    """Return jaxtyping's module that stores memos, once it has done what treekit relies on.

    Raises:
        UnknownJaxtypingError: it did something else; the message says what.
    """
    try:
        module: Any = importlib.import_module("jaxtyping._storage")
        found = _try(module)
    except Exception as error:  # anything, in a later release
        module, found = None, describe_error(error)
    if found != _EXPECTED:
        raise UnknownJaxtypingError(
            "check_types, node(check=True), Typed and Batched read the sizes that jaxtyping stores for names, and "
            f"jaxtyping {_public.__version__} stores them in another way than 0.3.11: expected {_EXPECTED}, found "
            f"{found}. Install jaxtyping 0.3.11, or a later treekit"
        )
    return module


def _try(module: Any) -> Any:
    shape: Any = Shaped[Any, "n m *batch {self[0]}"]
    with _public.jaxtyped("context"):
        module.set_shape_memo({"n": 2}, {}, {}, {"self": [7]})
        fits = [isinstance(untyped.ShapeDtypeStruct((n, 3, 4, 5, 7), bool), shape) for n in (2, 3)]
        module.get_shape_memo()[0]["k"] = 6
        tree = _pytree()[int, "T"]
        return fits, module.get_shape_memo(), (tree.leaftype, tree.structure)


def fresh_memo(node: object) -> Memo:
    """Return a memo in which nothing is bound, and in which shapes can read attributes of `self`."""
    storage()  # an error in it is not one of the field that is checked next
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
        storage().set_shape_memo(*(part.copy() for part in memo))
        return storage().get_shape_memo() if isinstance(x, hint) else None


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
