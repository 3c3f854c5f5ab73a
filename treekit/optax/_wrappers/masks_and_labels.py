"""Masks and labels: trees, or functions of the params, resolved to the parts of the params that they select."""

import contextlib
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import optax

from treekit._base.flax import has_variables, is_nnx_state, values_of_variables
from treekit._base.jax import jtu
from treekit._base.predicates import is_array, is_traced
from treekit._base.tree import is_mapping
from treekit._base.types import Labels, Mask, Params, PyTree
from treekit._compare.prefix import FittedPrefix
from treekit._names.key_path import path_name, path_text
from treekit._select.spec import Argument, fit_spec
from treekit._select.tree_spec import TreeSpec
from treekit._text.describe import describe_value, shortened
from treekit.optax._kernel.holes import is_params_placeholder
from treekit.optax._kernel.leaf_group import group_inside
from treekit.optax._kernel.passed import NOT_PASSED, as_passed

_LONGEST = 60  # columns for a label in an error


def resolve(spec: object, params: Params, is_spec_leaf: Callable[[Any], bool], name: str) -> FittedPrefix:
    """Resolve a spec, and fit it to the params inside; an error says how to make one that fits."""
    if group := group_inside(params):
        values = group.answers_of(spec, lambda whole: _answers(resolve(spec, whole, is_spec_leaf, name)))
        return fit_spec(values, params, Argument(name, is_spec_leaf))
    asked = as_passed(params)
    refusal = NOT_PASSED if asked is None and params is not None else ""
    argument = Argument(name, is_spec_leaf, hint=f"\n{_hint(spec, params, name)}")
    fitted = fit_spec(spec, params, argument, asked=asked, refusal=refusal)
    is_function = callable(spec) and jtu.all_leaves([spec]) and not isinstance(spec, TreeSpec)
    if is_function and has_variables(params) and is_nnx_state(asked):
        _check_asks_no_classes(spec, fitted, params, is_spec_leaf, name)
    return fitted


def _hint(spec: object, params: Params, name: str) -> str:
    """Say how to make a spec that fits."""
    hint = f"Make {name} with jax.tree.map over the params, or pass a function that does. A value covers a subtree"
    if has_variables(params):
        hint = (
            f"The params are variables of Flax: make {name} with treekit.path_mask or path_labels, or pass a function "
            "that uses jax.tree.map"
        )
    if "label" in name:
        return f"{hint}. A label is one of the keys of transforms"
    if patterns := [x for x in jtu.tree_leaves(spec) if isinstance(x, str)]:
        return f"To select by key path, write {name}=treekit.path_mask({', '.join(map(repr, patterns))})"
    if name == "rates" and is_mapping(spec) and any("*" in str(key) for key in spec):
        return "To select by key path, write rates=treekit.path_labels({...}, default=1.0)"
    return hint


def _check_asks_no_classes(
    spec: object, fitted: FittedPrefix, params: Params, is_spec_leaf: Callable[[Any], bool], name: str
) -> None:
    """Raise a ValueError if a function of an `nnx.State` asks for the classes of its variables.

    `nnx.Optimizer` throws these away before it calls `update`, and a mask of weight decay has no state that would tell.
    So only a second answer, for the values of the variables, can show it.
    """
    answers = of_values = _answers(fitted)
    with contextlib.suppress(Exception):  # one that cannot take values raises in an update that has only those
        of_values = _answers(fit_spec(spec, values_of_variables(params), Argument(name, is_spec_leaf)))
    if any(map(_differ, answers, of_values)):
        raise ValueError(
            f"the function given as {name} selects other params in a state of Flax's variables than in one of "
            "their values. nnx.Optimizer passes variables to init, and values to update. Pass what it returns for "
            f"the variables, which fits both by name: {name}=f(nnx.state(model, nnx.Param)); or select by name"
        )


def _answers(fitted: FittedPrefix) -> list[Any]:
    """Return the value of a spec for each leaf of the params."""
    return [x for x, part in fitted.pairs for _ in jtu.tree_leaves(part)]


def _differ(x: Any, y: Any) -> bool:
    """Whether two values of a spec differ: bools, labels, rates; of functions and traced values this is not known."""
    if callable(x) or is_traced(x) or is_traced(y):
        return False
    return not np.array_equal(x, y)


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
