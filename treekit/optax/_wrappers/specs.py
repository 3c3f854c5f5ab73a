"""A tree, or a function of the params, as a core asks for it: a mask, labels, rates, dimension numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from treekit._base.flax import has_variables, is_nnx_state, values_of_variables
from treekit._base.jax import jtu
from treekit._base.predicates import is_traced
from treekit._base.tree import is_mapping
from treekit._base.types import Params
from treekit._compare.prefix import FittedPrefix
from treekit._select.spec import Argument, fit_spec
from treekit._select.tree_spec import TreeSpec
from treekit.optax._kernel.leaf_group import group_inside
from treekit.optax._kernel.passed import NOT_PASSED, as_passed


def resolve(spec: object, params: Params, is_spec_leaf: Callable[[Any], bool], name: str) -> FittedPrefix:
    """Resolve a spec, and fit it to the params inside; an error says how to make one that fits.

    | the core sees | the spec is resolved for | a function is asked about |
    |---|---|---|
    | a list of some leaves, in `param_groups` | the tree of all leaves, once | that, as the user passed it |
    | the params, or updates that are like them | these | these, as the user passed them |
    | other arrays, as inside of `flatten` | these | nothing: it raises |

    Args:
        spec: the spec.
        params: what the core sees.
        is_spec_leaf: whether something is a leaf of a spec, such as a bool.
        name: what the user calls the spec.
    """
    group = group_inside(params)
    if group is None:
        return _resolve_tree(spec, params, is_spec_leaf, name)
    values = group.answers_of(spec, lambda whole: _answers(_resolve_tree(spec, whole, is_spec_leaf, name)))
    return fit_spec(values, params, Argument(name, is_spec_leaf))


def _resolve_tree(spec: object, params: Params, is_spec_leaf: Callable[[Any], bool], name: str) -> FittedPrefix:
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
    try:
        of_values = fit_spec(spec, values_of_variables(params), Argument(name, is_spec_leaf))
    except Exception:  # it cannot take values, so it raises in an update that has only those
        return
    if any(map(_differ, _answers(fitted), _answers(of_values))):
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
