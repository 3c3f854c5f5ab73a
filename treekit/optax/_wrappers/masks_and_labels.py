"""Masks and labels: trees, or functions of the params, resolved to the parts of the params that they select."""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import optax

from treekit._base.jax import jtu
from treekit._base.predicates import is_array, is_traced
from treekit._base.types import Labels, Mask, Params, PyTree
from treekit._compare.prefix import FittedPrefix
from treekit._names.key_path import path_name, path_text
from treekit._text.describe import describe_value, shortened
from treekit.optax._kernel.holes import is_params_placeholder
from treekit.optax._wrappers.specs import resolve

_LONGEST = 60  # columns for a label in an error


class MaskFunction:
    """A mask as a function that Optax calls, with the params or the updates that are inside.

    It is an object, not a closure, as `transformation` says of closures. Optimistix compares it, to compile once.

    Args:
        mask: a tree of bools, or a function from the params to one.
        name: what the user calls it.
    """

    def __init__(self, mask: Mask, name: str) -> None:
        self._mask, self._name = mask, name

    def __call__(self, params: Params) -> Any:
        """Return a mask that Optax itself can use: a prefix tree of the params, with a bool for each part with arrays.

        A part of the params without arrays stays as it is, unless it has a bool of its own.
        """
        fitted = resolve(self._mask, params, _is_bool, self._name)

        def value(i: int, leaf: object, part: PyTree) -> Any:
            if _is_bool(leaf):
                return bool(leaf)
            if jtu.tree_leaves(part):
                raise TypeError(
                    f"{self._name} must have bools at its leaves; at {path_text(fitted.path(i))} it has {short(leaf)}. "
                    "To select by key path, use treekit.path_mask. In jit, make a mask of shapes and dtypes"
                )
            return part

        return fitted.treedef.unflatten(value(i, *pair) for i, pair in enumerate(fitted.pairs))

    def part(self, params: Params) -> Any:
        """Return the part that the mask selects, with a MaskedNode for the rest."""
        return params if is_params_placeholder(params) else _part(self(params), params)

    def part_and_rest(self, params: Params) -> tuple[Any, Any]:
        """Return the part that the mask selects, and the rest, each with a MaskedNode for the other."""
        if is_params_placeholder(params):
            return params, params
        mask = self(params)
        return _part(mask, params), _part(jtu.tree_map(operator.not_, mask), params)

    def __eq__(self, other: object) -> bool:
        # By `is`, since the == of a mask of arrays is not a bool. It works for the masks True and False too.
        return isinstance(other, MaskFunction) and self._name == other._name and self._mask is other._mask

    def __hash__(self) -> int:
        return hash(self._name)


def _part(mask: PyTree, params: Params) -> Any:
    return jtu.tree_map(_keep_or_mask, mask, params)


def _keep_or_mask(keep: bool, x: PyTree) -> Any:
    return x if keep else optax.MaskedNode()


def _is_bool(x: object) -> bool:
    if isinstance(x, (bool, np.bool_)):
        return True
    return is_array(x) and not is_traced(x) and x.dtype == np.bool_ and x.shape == ()


def parts_by_label(labels: Labels, keys: frozenset[Any], params: Params) -> dict[Any, Any]:
    """Return, for each key, the part of the params with this label."""
    if is_params_placeholder(params):
        return dict.fromkeys(keys, params)

    def is_label(x: object) -> bool:
        try:
            return x in keys
        except TypeError:  # unhashable, so not a key
            return False

    fitted = resolve(labels, params, is_label, "param_labels")
    _check_labels(fitted, is_label, keys)

    def in_part(key: object, label: object, part: PyTree) -> Any:
        # What has no array needs no label, and each part has it as it is.
        return part if not is_label(label) or label == key else optax.MaskedNode()

    return {key: fitted.treedef.unflatten(in_part(key, *pair) for pair in fitted.pairs) for key in keys}


def _check_labels(fitted: FittedPrefix, is_label: Callable[[Any], bool], keys: frozenset[Any]) -> None:
    """Raise a ValueError if something with arrays has a label that is not one of the keys."""
    labels = {i: label for i, (label, part) in enumerate(fitted.pairs) if jtu.tree_leaves(part)}
    for i, label in labels.items():
        if not is_label(label):
            raise ValueError(
                "Some parameters have no corresponding transformation: the label of "
                f"{path_name(fitted.path(i)) or 'all'} is {short(label)}.\n"
                f"Parameter labels: {_names(labels.values())}\nTransforms keys: {_names(keys)}"
            )


def _names(keys: Iterable[object]) -> str:
    return "{" + ", ".join(sorted({short(key) for key in keys})) + "}"


def short(label: object) -> str:
    """Write a label for an error."""
    return shortened(describe_value(label), _LONGEST)
