"""After an error: whether the gradients and the state fit the params, by comparing them. Nothing is run again."""

from typing import Any

from treekit._base.describe import describe, describe_error
from treekit._base.dtype import is_weak, shape_of
from treekit._base.jax import jtu
from treekit._base.key_path import flatten_with_names, path_name
from treekit._base.predicates import is_traced
from treekit._base.tree import children_of
from treekit._base.types import KeyPath, OptState, Params, Updates
from treekit.optax._state_map import is_hole, is_hole_or_codes


def explained(error: Exception, state: OptState, params: Params, updates: Updates) -> Exception | None:
    """Return an error of an update with an explanation, if its state or its gradients do not fit the params.

    An error that shows a state of another class gets a note instead.

    Args:
        error: the error.
        state: the state that update received.
        params: the params, as the transformation sees them, or None.
        updates: the updates, as it sees them.

    Returns:
        A ValueError, or a TypeError if the error is one, that names the key path; None if all of them fit.
    """
    if "required keyword-only argument" in str(error):  # says what is wrong, which is neither of the two
        return None
    if problem := _wrong_gradient(params, updates) or _wrong_state(state, params, updates):
        kind = TypeError if isinstance(error, TypeError) else ValueError
        return kind(f"{problem}\nIt led to {describe_error(error)}")
    is_of_state = isinstance(error, AttributeError) and isinstance(error.obj, tuple)
    if is_of_state or "updates and states has to be the same" in str(error):  # the second is what a chain raises
        error.add_note(
            "Is the state that of another optimizer? To carry over what this one can use: "
            "treekit.graft(optimizer.init(params), state)[0]"
        )
    return None


def _wrong_gradient(params: Params, updates: Updates) -> str:
    """Say which gradient has another shape than its parameter; "" if none does."""
    pairs = zip(flatten_with_names(params), jtu.tree_leaves(updates), strict=False)
    for (name, param), update in pairs:
        if shape_of(update) != shape_of(param):
            return (
                f"the gradient at {name or 'the root'} has shape {shape_of(update)}, and its parameter "
                f"{shape_of(param)}. Pass the gradients of these params to update"
            )
    return ""


def _wrong_state(state: OptState, params: Params, updates: Updates) -> str:
    """Say where a tree in the state that has the names of the params differs from them; "" if none does."""
    given = updates if params is None else params
    wanted = dict(flatten_with_names(given, is_hole))

    def first(x: Any, path: KeyPath) -> str:
        if jtu.all_leaves([x]) or is_hole_or_codes(x):
            return ""
        if type(x) is type(given):
            held = dict(flatten_with_names(x, is_hole_or_codes))
            if not wanted.keys().isdisjoint(held):
                return _difference(held, wanted, path_name(path), params is not None)
        return next(filter(None, (first(child, (*path, key)) for key, child in children_of(x).items())), "")

    problem = first(state, ())
    return f"the state does not fit this optimizer and these params: {problem}" if problem else ""


def _difference(held: dict[str, Any], wanted: dict[str, Any], where: str, of_params: bool) -> str:
    """Say where a tree in the state, by names, differs from the params, or from the updates."""
    what = "params" if of_params else "updates"
    for name in dict.fromkeys([*wanted, *held]):
        if name not in wanted or name not in held:
            above = [x for x, leaf in (held | wanted).items() if is_hole(leaf) and f"{name}.".startswith(f"{x}.")]
            if above:  # it is in a subtree that is left out
                continue
            has, lacks = (f"{what} have", "state") if name in wanted else ("state has", what)
            return f"the {has} {name or 'a leaf'} at {where or 'the root'}, and the {lacks} not. {_OTHER_PARAMS}"
        at, x, param = ".".join(filter(None, (where, name))), held[name], wanted[name]
        has = f"at {at}, the state has {describe(x)}"
        if is_hole(param) and not is_hole(x):
            if not of_params:
                return f"{has}, and {name} has no gradient. Pass the params too: update(updates, state, params)"
            return (
                f"{has}, and {name} is not trained: it is not a floating-point or complex array, or a filter or a mask "
                "leaves it out. To use the rest of the state: treekit.graft(optimizer.init(params), state, "
                f"rename={{'**.{name}': None}})[0]"
            )
        if is_hole(x) and not is_hole(param) and is_weak(param) and is_traced(param):
            return (
                f"{has}, since init received a Python number, of which jax.jit has made an array. Make it an array "
                "before init, with jnp.asarray, or jit the step with equinox.filter_jit, which does not convert numbers"
            )
        if is_hole(x) and not is_hole(param):
            return (
                f"{has}, and the {what} have {describe(param)}. If a `filtered` inside of another transformation left "
                f"it out, put `filtered` outermost. {_OTHER_PARAMS}"
            )
        if not is_hole(x) and len(shape_of(x)) == len(shape_of(param)) and shape_of(x) != shape_of(param):
            return f"{has}, and the {what} have {describe(param)}. {_OTHER_PARAMS}"
    return ""


_OTHER_PARAMS = "If it was made for other params, or with another mask, labels or filter_spec, make it again with init"
