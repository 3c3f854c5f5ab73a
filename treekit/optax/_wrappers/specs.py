"""Masks and labels: trees, or functions of the params, resolved to the parts of the params that they select."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import optax

from treekit._base.describe import describe_value
from treekit._base.flax import has_variables, values_of_variables
from treekit._base.jax import jtu
from treekit._base.key_path import flatten_with_path, path_name, path_text
from treekit._base.predicates import is_array, is_traced
from treekit._base.types import Labels, Mask, Params, PyTree
from treekit._select.spec import resolve_and_match
from treekit.optax._kernel.state_map import is_params_placeholder


class MaskFunction:
    """A mask as a function that Optax calls, with the params in `init` and with the updates in `update`.

    It is an object of its own, since Equinox's `closure_to_pytree`, which Optimistix applies to optimizers, would make
    a tree of a function that closes over a mask. Optimistix compares it, to compile once.

    Args:
        mask: a tree of bools, or a function from the params to one.
        name: what the user calls it.
    """

    def __init__(self, mask: Mask, name: str) -> None:
        self._mask, self._name = mask, name

    def __call__(self, params: Params) -> Any:
        """Return a mask that Optax itself can use."""
        return resolve_mask(self._mask, params, self._name)

    def __eq__(self, other: object) -> bool:
        # Equal bools are the same object too.
        return isinstance(other, MaskFunction) and self._name == other._name and self._mask is other._mask

    def __hash__(self) -> int:
        return hash(self._name)


def resolve_mask(mask: Mask, params: Params, name: str) -> Any:
    """Return a mask that Optax itself can use: a prefix tree of the params, with a bool for each part with arrays.

    Args:
        mask: a tree of bools, or a function from the params to one.
        params: the params inside; a part of them without arrays stays as it is, unless it has a bool of its own.
        name: what the user calls the mask.
    """

    resolved, prefix_treedef, matches = resolve(mask, params, _is_bool, name)

    def value(i: int, leaf: object, part: PyTree) -> Any:
        if _is_bool(leaf):
            return bool(leaf)
        if not jtu.tree_leaves(part):
            return part
        hint = ", which is traced: make it outside of jit, or from shapes and dtypes" if is_traced(leaf) else ""
        if isinstance(leaf, str):
            hint = ". To select by key path, use treekit.path_mask"
        path = path_text(flatten_with_path(resolved, _or_none(_is_bool))[0][i][0])
        raise TypeError(
            f"{name} must have bools at its leaves; at {path} it has {short(leaf)} of type {type(leaf).__name__}{hint}"
        )

    return prefix_treedef.unflatten(value(i, *match) for i, match in enumerate(matches))


def masked_part(mask: PyTree, params: Params) -> Any:
    """Return the part that a mask selects, with a MaskedNode for the rest."""
    return jtu.tree_map(_keep_or_mask, mask, params)


def _keep_or_mask(keep: bool, x: PyTree) -> Any:
    return x if keep else optax.MaskedNode()


def parts_by_label(labels: Labels, keys: frozenset[Any], params: Params) -> dict[Any, Any]:
    """Return, for each key, the part of the params with this label."""

    def is_label(x: object) -> bool:
        try:
            return x in keys
        except TypeError:  # unhashable, so not a key
            return False

    if is_params_placeholder(params):
        return dict.fromkeys(keys, params)
    resolved, prefix_treedef, matches = resolve(labels, params, is_label, "param_labels")
    has_arrays = [bool(jtu.tree_leaves(part)) for _, part in matches]
    for i, (label, _) in enumerate(matches):
        if has_arrays[i] and not is_label(label):
            used = _names(label for (label, _), has in zip(matches, has_arrays, strict=True) if has)
            path = path_name(flatten_with_path(resolved, _or_none(is_label))[0][i][0])
            nearest = difflib.get_close_matches(str(label), [key for key in keys if isinstance(key, str)], 1)
            raise ValueError(
                f"Some parameters have no corresponding transformation: the label of {path or 'all'} is {short(label)}"
                f"{f'. Did you mean {nearest[0]!r}?' if nearest else '.'}\nParameter labels: {used}\n"
                f"Transforms keys: {_names(keys)}"
            )
    # A part without arrays needs no label: each group has it as it is.
    return {
        key: prefix_treedef.unflatten(
            part if label == key or not is_label(label) else optax.MaskedNode() for label, part in matches
        )
        for key in keys
    }


def resolve(spec: object, params: Params, is_spec_leaf: Callable[[Any], bool], name: str) -> Any:
    """Resolve and match a spec; an error says how to make one that fits."""
    try:
        return resolve_and_match(spec, params, is_spec_leaf=is_spec_leaf, name=name)
    except ValueError as error:
        if not str(error).startswith(name):  # an error of the user's own function
            raise
        if has_variables(spec) and not has_variables(plain := values_of_variables(spec)):
            return resolve(plain, params, is_spec_leaf, name)
        hint = f"Make {name} with jax.tree.map over the params, or pass a function that does. A value covers a subtree"
        if has_variables(params):
            hint = (
                f"The params are variables of Flax: make {name} with treekit.path_mask or path_labels, or pass a "
                "function that uses jax.tree.map"
            )
        raise ValueError(f"{error}\n{hint}") from None


def _or_none(is_spec_leaf: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x is None or is_spec_leaf(x)


def _is_bool(x: object) -> bool:
    if isinstance(x, (bool, np.bool_)):
        return True
    return is_array(x) and not is_traced(x) and x.dtype == np.bool_ and x.shape == ()


def _names(keys: Iterable[object]) -> str:
    return "{" + ", ".join(sorted({short(key) for key in keys})) + "}"


def short(label: object) -> str:
    text = describe_value(label)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 60  # columns for a label
