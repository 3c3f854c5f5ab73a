"""The laws of a pytree and of a gradient transformation, for test suites.

`check_pytree` and `check_transformation` raise one AssertionError that lists every law broken, each with what will go
wrong and what to do about it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from treekit._diff import tree_diff
from treekit._dtype import dtype_of, wider
from treekit._filter import is_array, is_inexact_array, is_parameter
from treekit._jax import jnp, jtu, untyped


class _Broken(NamedTuple):
    """A broken law: what should hold, what was found instead, what will go wrong, what to do."""

    law: str
    found: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        found = self.found.replace("\n", "\n    ")
        return f"- {self.law}\n  found: {found}\n  so: {self.cause}\n  mend: {self.remedy}"


def check_pytree(example: Any) -> None:
    """Check that a pytree can be taken apart and rebuilt, with anything JAX puts in the place of its leaves.

    Args:
        example: an instance of any pytree class, of any library.

    Raises:
        AssertionError: lists each law that is broken, what will go wrong, and what to do.

    >>> import jax.numpy as jnp
    >>> check_pytree({"w": jnp.ones(2), "b": None})
    """
    _raise_broken(f"a pytree of class {type(example).__qualname__}", _pytree_laws(example))


def check_transformation(tx: Any, params: Any, grads: Any = None, **extra: Any) -> None:
    """Check that a gradient transformation keeps the structure and dtypes of state and updates, and is traced once.

    Args:
        tx: a transformation, with `init` and `update`.
        params: the params or the raw model that it is for.
        grads: gradients; by default ones for the inexact arrays of `params`, None for the other leaves.
        **extra: extra arguments for `update`.

    Raises:
        AssertionError: lists each law that is broken, what will go wrong, and what to do.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> check_transformation(optax.adam(1e-3), {"w": jnp.ones(2, jnp.bfloat16)})
    """
    if grads is None:
        grads = jtu.tree_map(_one_or_none, params)
    _raise_broken("the transformation", _transformation_laws(tx, params, grads, extra))


def _raise_broken(what: str, laws: Iterator[_Broken]) -> None:
    broken = list(laws)
    if broken:
        count = "1 law" if len(broken) == 1 else f"{len(broken)} laws"
        raise AssertionError(f"{what} breaks {count}:\n" + "\n".join(map(str, broken)))


_REGISTER = "make the class a treekit.node, or register it with treekit.register_node"


def _pytree_laws(example: Any) -> Iterator[_Broken]:
    if jtu.all_leaves([example]):
        yield _Broken(
            law="it is a pytree node",
            found=f"a leaf of type {type(example).__qualname__}",
            cause="jit, grad and vmap cannot see what is inside it",
            remedy=_REGISTER,
        )
        return
    leaves, treedef = jtu.tree_flatten(example)
    for what, stand_ins in [
        ("its own leaves", leaves),
        ("objects that are no arrays, as by tree_at and vmap", [object() for _ in leaves]),
        ("None, as by filter and partition", [None for _ in leaves]),
        ("ShapeDtypeStructs, as by eval_shape", [_abstract(x) for x in leaves]),
    ]:
        yield from _rebuilds(treedef, stand_ins, f"it is rebuilt with {what}")
    yield from _has_static_parts(example, treedef)
    yield from _has_paths(example, leaves)


def _rebuilds(treedef: Any, leaves: list[Any], law: str) -> Iterator[_Broken]:
    try:
        rebuilt = treedef.unflatten(leaves)
        again, treedef_again = jtu.tree_flatten(rebuilt)
    except Exception as error:  # the user's code may raise anything
        yield _Broken(
            law,
            found=_describe(error),
            cause="reconstruction runs code that wants real leaves, such as __init__; transformations of JAX fail",
            remedy=_REGISTER,
        )
        return
    expected = [x for x in leaves if x is not None]
    if len(again) != len(expected) or any(x is not y for x, y in zip(again, expected, strict=True)):
        yield _Broken(
            f"{law}, and has these leaves again",
            found=f"{len(again)} leaves for {len(expected)}, or others, or in another order",
            cause="reconstruction overwrites what it is given: tree_at is without effect, gradients are lost",
            remedy=_REGISTER,
        )
    elif len(expected) == len(leaves) and treedef_again != treedef:
        yield _Broken(
            f"{law}, and has the same structure again",
            found=f"{treedef_again} after {treedef}",
            cause="jit compiles anew, scan and cond reject it",
            remedy="let the static parts be the same for the rebuilt instance; " + _REGISTER,
        )


def _has_static_parts(example: Any, treedef: Any) -> Iterator[_Broken]:
    try:
        again = jtu.tree_structure(example)
        found = "" if hash(again) == hash(treedef) and again == treedef else "two flattenings give different ones"
    except Exception as error:
        found = _describe(error)
    if found:
        yield _Broken(
            "its static parts can be hashed and compared",
            found,
            cause="jit fails, or compiles at each call",
            remedy="hold arrays, lists and dicts as data; only hashable values that hold no array can be static",
        )


def _has_paths(example: Any, leaves: list[Any]) -> Iterator[_Broken]:
    with_path = jtu.tree_flatten_with_path(example)[0]
    paths = [jtu.keystr(path) for path, _ in with_path]
    if [id(x) for _, x in with_path] != [id(x) for x in leaves]:
        yield _Broken(
            "it is flattened with key paths in the same order as without",
            found=", ".join(paths),
            cause="checkpoints, tree_map_with_path and error messages take one leaf for another",
            remedy="let flatten and flatten_with_keys agree; " + _REGISTER,
        )
    if len(set(paths)) != len(paths):
        yield _Broken(
            "each of its leaves has a key path of its own",
            found=", ".join(paths),
            cause="checkpoints that go by key path write one leaf over another",
            remedy="give each child a key of its own; " + _REGISTER,
        )


_FILTER = "treekit.optax.filtered(tx)"
_PRESERVE = "treekit.optax.dtype_preserving(tx)"


def _transformation_laws(tx: Any, params: Any, grads: Any, extra: dict[str, Any]) -> Iterator[_Broken]:
    try:
        state = tx.init(params)
    except Exception as error:
        yield _Broken(
            "init takes the params",
            found=_describe(error),
            cause="the optimizer cannot be used on these params",
            remedy=f"{_FILTER}, which shows it inexact arrays alone",
        )
        return

    traces = 0

    arrays, structure = jtu.tree_flatten(grads)

    def traced(arrays: list[Any], state: Any) -> Any:
        nonlocal traces
        traces += 1
        return tx.update(structure.unflatten(arrays), state, params, **extra)

    update = untyped.jit(traced)
    try:
        updates, new_state = update(arrays, state)
        for _ in range(3):
            updates, new_state = update(arrays, new_state)
    except Exception as error:
        yield _Broken(
            "update takes the gradients and its own state, under jit",
            found=_describe(error),
            cause="the optimizer cannot be used with these gradients",
            remedy=f"{_FILTER}, or {_PRESERVE} where the error is one of dtypes",
        )
        return
    diff = tree_diff(state, new_state, values=False)
    if diff:
        yield _Broken(
            "update keeps the structure, shapes, dtypes and weak types of the state",
            found=f"(init | update)\n{diff}",
            cause="scan and cond reject it, jit compiles again, memory grows",
            remedy=_PRESERVE,
        )
    diff = tree_diff(_wanted_updates(grads, params), jtu.tree_map(_abstract, updates), values=False)
    if diff:
        yield _Broken(
            "updates have the structure of the gradients, and the wider of the gradient's and the param's dtype",
            found=f"(wanted | updates)\n{diff}",
            cause="apply_updates fails or changes the dtypes of params, cond rejects the updates",
            remedy=_PRESERVE,
        )
    if traces > 1:
        yield _Broken(
            "update is traced once in four steps",
            found=f"{traces} traces",
            cause="jit compiles again, silently",
            remedy=_PRESERVE,
        )


def _wanted_updates(grads: Any, params: Any) -> Any:
    def wanted(grad: Any, param: Any) -> Any:
        if grad is None or dtype_of(grad) == jax.dtypes.float0:
            return None
        return untyped.ShapeDtypeStruct(grad.shape, wider(grad, param) if is_parameter(param) else grad.dtype)

    return jtu.tree_map(wanted, grads, params, is_leaf=_is_none)


def _one_or_none(x: Any) -> Any:
    return jnp.ones_like(x) if is_inexact_array(x) else None


def _abstract(x: Any) -> Any:
    return untyped.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x


def _is_none(x: Any) -> bool:
    return x is None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
