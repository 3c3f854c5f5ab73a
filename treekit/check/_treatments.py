"""Find out what Python, JAX, Optax, Equinox and treekit do with a tree."""

import importlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from treekit._base.callable import is_truly_callable
from treekit._base.describe import count, describe_error
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jtu, untyped
from treekit._base.key_path import path_text
from treekit._base.predicates import is_array, is_inexact_array, is_parameter
from treekit._base.types import PyTree

_LISTED = 8  # the number of key paths in one line


class Treatment(NamedTuple):
    """How a library treats a tree."""

    library: str
    what: str


def treatments(tree: PyTree) -> Iterator[Treatment]:
    """Yield how each library treats a tree."""
    leaves = [(path_text(path), x) for path, x in jtu.tree_flatten_with_path(tree)[0]]

    def where(applies: Callable[[Any], bool]) -> str:
        paths = [path for path, x in leaves if applies(x)]
        more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
        names = f": {', '.join(paths[:_LISTED])}{more}" if paths else ""
        return f"{len(paths)} of {count(len(leaves), 'leaf', 'leaves')}{names}"

    use = "calls it" if callable(tree) else "uses it as a tree"
    yield Treatment("callable(tree)", f"{callable(tree)}: as a mask or as labels, Optax {use}")
    truly = is_truly_callable(tree)
    yield Treatment(
        "treekit.is_truly_callable(tree)", f"{truly}: treekit {'calls it' if truly else 'uses it as a tree'}"
    )
    for library, rejects, accepts in (
        ("jax.jit", _is_no_argument, "accepts every leaf"),
        ("jax.grad", _is_no_variable, "differentiates every leaf"),
    ):
        yield Treatment(library, f"cannot take {where(rejects)}" if any(rejects(x) for _, x in leaves) else accepts)
    yield Treatment("pickle", _pickled(tree))
    yield Treatment("optax", f"sees every leaf; {_given_to_optax(tree)}")
    yield Treatment("equinox.filter(tree, is_array)", f"keeps {where(is_array)}")
    yield Treatment("treekit.optax", f"sees {where(is_parameter)}")
    yield Treatment("treekit.optax.filtered", f"trains {where(is_inexact_array)}")


def abstract(x: object) -> Any:
    """Return the shape and dtype of an array; anything else unchanged."""
    return untyped.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x


def is_abstract(x: object) -> bool:
    """Whether a leaf has a shape and a dtype but no values."""
    return isinstance(x, untyped.ShapeDtypeStruct)


def _is_no_argument(x: object) -> bool:
    return dtype_of(x) is None or is_abstract(x)


def _is_no_variable(x: object) -> bool:
    return _is_no_argument(x) or not issubdtype(dtype_of(x), np.inexact)


def _pickled(tree: PyTree) -> str:
    try:
        pickle.loads(pickle.dumps(tree))
    except Exception as error:
        return f"fails: {describe_error(error)}"
    return "saves and loads it"


def _given_to_optax(tree: PyTree) -> str:
    try:
        optax: Any = importlib.import_module("optax")
    except ImportError:
        return "it is not installed, so its adam was not tried"
    try:
        optax.adam(1e-3).init(tree)
    except Exception as error:
        return f"adam's init fails: {describe_error(error)}"
    return "adam's init works"
