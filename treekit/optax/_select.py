"""`filtered`, `masked`, `partition` and similar: which leaves are meant, and how a transformation runs on these."""

import contextlib
import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import optax

from treekit._base.describe import describe_value
from treekit._base.dtype import as_array
from treekit._base.jax import jtu
from treekit._base.key_path import is_variable, path_name, path_text
from treekit._base.predicates import (
    is_array,
    is_inexact_array,
    is_parameter,
    is_traced,
    is_truly_callable,
)
from treekit._base.tree import check_no_foreign_floats, is_mapping, is_none
from treekit._base.types import FilterSpec, KeyPath, Labels, Mask, OptState, Params, PyTree, TransformationLike, Updates
from treekit._filter import filter
from treekit._path_mask import WHOLE_TREE
from treekit._resolve_spec import match_spec, resolve_shown
from treekit.optax._boundary import at_boundary, update_parts, view_extra_args
from treekit.optax._state_map import is_params_placeholder
from treekit.optax._transformation import (
    FROZEN,
    SET_TO_ZERO,
    Core,
    DeclaringCore,
    GradientTransformation,
    S,
    core_of,
    described,
    freezes,
    original,
)

T = TypeVar("T")


@described
def filtered(
    inner: GradientTransformation[S] | TransformationLike, filter_spec: FilterSpec = is_inexact_array
) -> GradientTransformation[S]:
    """Run a transformation on some of the leaves of a raw (unfiltered) model, and freeze the others.

    True is trained, where True in `freeze` is frozen. `treekit.filter` filters a tree. The other leaves (functions,
    strings, integers, …) are None in the state and in the updates, so that `apply_updates` does not change them.

    Args:
        inner: any transformation.
        filter_spec: a predicate on leaves, or a prefix tree of the params whose leaves are bools or predicates. By
            default, every floating-point or complex array.

    Returns:
        A transformation for the raw model, with the state of `inner`.

    Raises:
        ValueError: raised by `init` and `update` if `filter_spec` does not fit the params, or selects no leaf.
        TypeError: `inner` is not a transformation, or `filter_spec` is None.

    >>> import jax
    >>> import equinox as eqx
    >>> import optax
    >>> model = eqx.nn.MLP(2, 1, 8, depth=1, key=jax.random.key(0))
    >>> tx = filtered(optax.adam(1e-3))  # plain Optax's adam, on a model with its activation function
    >>> state = tx.init(model)
    """
    # Equinox's `closure_to_pytree`, which Optimistix applies to optimizers, would make a node of a predicate that a
    # function closes over. It does not open a partial.
    choose = _choose_inexact if filter_spec is is_inexact_array else functools.partial(choose_filtered, filter_spec)
    return at_boundary(_apply_to_selection(core_of(inner), choose))


@described
def masked(
    inner: TransformationLike, mask: Mask, *, mask_compatible_extra_args: bool = False
) -> GradientTransformation[optax.MaskedState]:
    """Transform the leaves whose mask is True, and pass the others through: `optax.masked` for every mask and model.

    For a leaf that is masked out, the state has an `optax.MaskedNode`, and its update is returned unchanged: the leaf
    is *not* frozen. To freeze, use `filtered`, or `partition` with `optax.set_to_zero`.

    Args:
        inner: the transformation for leaves whose mask is True.
        mask: a prefix tree of the params whose leaves are bools, or a function from the params to one. A callable tree,
            such as a mask made from an Equinox model, is used as a tree. Leaves of the model that cannot be parameters
            need no entry.
        mask_compatible_extra_args: mask every extra argument that has the structure of the params or the updates. By
            default, it must have their shapes too, so that a batch (x, y) is not masked.

    Returns:
        A transformation; its state is an `optax.MaskedState`.

    Raises:
        ValueError: raised by `init` and `update` if the mask does not fit the params.
        TypeError: raised by them if a leaf of the mask is not a bool; or `inner` is not a transformation.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import optax
    >>> params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    >>> decay = masked(optax.add_decayed_weights(0.1), {"w": True, "b": False})
    >>> updates, _ = decay.update(jax.tree.map(jnp.zeros_like, params), decay.init(params), params)
    >>> updates["b"]
    Array([0., 0.], dtype=float32)
    """

    core = core_of(inner)
    trains = core is not SET_TO_ZERO

    def choose(params: Params) -> LeafSelection:
        chooses = _is_true if trains else None
        prefix_treedef, matches = match_to_params(mask, params, is_spec_leaf=_is_bool, chooses=chooses, name="mask")
        return LeafSelection(prefix_treedef, tuple(_keep_masked("mask", *m) for m in matches), pass_through=True)

    return at_boundary(_apply_to_selection(core, choose, mask_compatible_extra_args, in_masked_state=True))


@described
def partition(
    transforms: Mapping[Any, TransformationLike],
    param_labels: Labels,
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformation[optax.transforms.PartitionState]:
    """Give each leaf to the transformation with its label: `optax.partition` for every label tree and model.

    `treekit.partition` is another function: it splits a tree in two.

    Args:
        transforms: maps labels to transformations.
        param_labels: a prefix tree of the params whose leaves are labels, or a function from the params to one. A
            callable tree is used as a tree. Leaves of the model that cannot be parameters need no label.
        mask_compatible_extra_args: as in `masked`.

    Returns:
        A transformation; its state is an `optax.transforms.PartitionState`.

    Raises:
        ValueError: raised by `init` and `update` if the labels do not fit the params, or one has no transformation.
        TypeError: an item of `transforms` is not a transformation, or its keys cannot be sorted.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx = partition({"train": optax.sgd(1.0), "freeze": optax.set_to_zero()}, {"w": "train", "b": "freeze"})
    >>> updates, _ = tx.update(params, tx.init(params), params)
    >>> updates["w"], updates["b"]
    (Array([-1., -1.], dtype=float32), Array([0., 0.], dtype=float32))
    """
    if not is_mapping(transforms):
        raise TypeError(
            f"transforms must map labels to transformations, {{'decay': tx, …}}, found {describe_value(transforms)}"
        )
    try:
        sorted(transforms)
    except TypeError:
        raise TypeError(
            f"the labels of transforms are the keys of a dict in the state, which JAX sorts, but it cannot sort "
            f"{_names(transforms)}. Use strings, or an enum.StrEnum"
        ) from None
    return _partition(transforms, _first, param_labels, mask_compatible_extra_args)


def _first(x: T, _: Params) -> T:
    return x


def _partition(
    transforms: Mapping[Any, TransformationLike],
    labels_of: Callable[[Any, Any], Labels],
    spec: Any,
    any_shape: bool = False,
) -> GradientTransformation[optax.transforms.PartitionState]:
    """Give each leaf to the transformation with its label; `labels_of(spec, params)` are the labels that apply.

    The two are not bound together, since Equinox's `closure_to_pytree` compares what `init` and `update` close over.
    """
    cores = {key: core_of(tx) for key, tx in transforms.items()}
    frozen = frozenset(key for key, core in cores.items() if core is SET_TO_ZERO)
    inits = {key: core.init for key, core in cores.items()}  # `init` closes over these alone: see `at_boundary`
    keys = frozenset(cores)

    def groups_of(params: Params) -> dict[Any, LeafSelection]:
        return choose_groups(keys, frozen, labels_of(spec, params), params)

    def init(params: Params) -> Any:
        if is_params_placeholder(params):
            inside = dict.fromkeys(inits, params)
        else:
            inside = {key: selection.inside(params) for key, selection in groups_of(params).items()}
        states = {key: optax.MaskedState(inits[key](inside[key])) for key in inits}
        return optax.transforms.PartitionState(states)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        states: dict[Any, Any] = {}
        for key, selection in groups_of(updates if params is None else params).items():
            inner_state = state.inner_states[key].inner_state
            updates, new = _update_selection(cores[key], selection, any_shape, updates, inner_state, params, extra)
            states[key] = optax.MaskedState(new)
        return updates, optax.transforms.PartitionState(states)

    def freezes_all(params: Params) -> bool:
        return all(freezes(cores[key], group.inside(params)) for key, group in groups_of(params).items())

    return at_boundary(DeclaringCore(init, update, freezes=freezes_all))


@described
def freeze(mask: Mask) -> GradientTransformation[optax.MaskedState]:
    """Make updates zero where the mask is True: `optax.freeze` for every mask and model.

    Here True means frozen; in `filtered` it means trained.

    Args:
        mask: as in `masked`.

    Returns:
        A transformation; its state is an `optax.MaskedState`.

    Raises:
        ValueError, TypeError: the mask is wrong, as in `masked`.

    >>> import jax.numpy as jnp
    >>> tx = freeze(lambda params: {"w": True, "b": False})
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx.update(params, tx.init(params), params)[0]
    {'b': Array([1., 1.], dtype=float32), 'w': Array([0., 0.], dtype=float32)}
    """
    return masked(optax.set_to_zero(), mask)


@described
def selective_transform(
    optimizer: TransformationLike, *, freeze_mask: Mask
) -> GradientTransformation[optax.transforms.PartitionState]:
    """Freeze the leaves whose mask is True, and transform the others: `optax.selective_transform` for every model.

    Args:
        optimizer: the transformation for the other leaves.
        freeze_mask: as `mask` in `masked`.

    Returns:
        A transformation; its state is an `optax.transforms.PartitionState`, with the labels "train" and "freeze".

    Raises:
        ValueError, TypeError: the mask is wrong, as in `masked`; or `optimizer` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = selective_transform(optax.sgd(1.0), freeze_mask={"w": True, "b": False})
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx.update(params, tx.init(params), params)[0]
    {'b': Array([-1., -1.], dtype=float32), 'w': Array([0., 0.], dtype=float32)}
    """
    if freeze_mask is None:
        raise TypeError("freeze_mask is None, which would freeze nothing: to do so, use the optimizer alone")
    # Resolved before the labels are, so that an error names the argument that the user wrote.
    return _partition({"train": optimizer, "freeze": optax.set_to_zero()}, _train_or_freeze, freeze_mask)


def _train_or_freeze(freeze_mask: Mask, params: Params) -> Any:
    def label(frozen: bool | None) -> str | None:
        return None if frozen is None else "freeze" if frozen else "train"

    return jtu.tree_map(label, resolve_mask(freeze_mask, params, "freeze_mask", trains=False), is_leaf=is_none)


@dataclasses.dataclass(frozen=True)
class LeafSelection:
    """A selection of leaves or subtrees of a tree.

    Attributes:
        prefix_treedef: a prefix of the structure of the tree, whose leaves are selected or not.
        keep: one bool for each leaf of `prefix_treedef`.
        pass_through: whether updates of unselected leaves are returned unchanged, as in `masked`; else they are None,
            which freezes the leaves.
    """

    prefix_treedef: Any
    keep: tuple[bool, ...]
    pass_through: bool

    def parts(self, tree: PyTree) -> list[Any]:
        """Return the leaf or subtree of `tree` at each leaf of `prefix_treedef`."""
        return update_parts(self.prefix_treedef, tree)

    def inside(self, tree: PyTree) -> Any:
        """Return a tree like the params as the inner transformation sees it."""
        pairs = zip(self.keep, self.parts(tree), strict=True)
        placeholder = optax.MaskedNode() if self.pass_through else None
        return self.prefix_treedef.unflatten([x if keep else placeholder for keep, x in pairs])

    def outside(self, new: Updates, old: Updates) -> Any:
        """Return the updates, given those of the inner transformation and those it was called for."""
        return self.restore(new, old) if self.pass_through else self.inside(new)

    def restore(self, inside_params: Params, params: Params) -> Any:
        """Undo `inside` for params: restore the whole params, with new values for selected leaves."""
        triples = zip(self.keep, self.parts(inside_params), self.parts(params), strict=True)
        return self.prefix_treedef.unflatten([x if keep else y for keep, x, y in triples])


def _apply_to_selection(
    inner: Core, choose: Callable[[Any], LeafSelection], any_shape: bool = False, in_masked_state: bool = False
) -> Core:
    """Run a core on the leaves that `choose` selects.

    Args:
        inner: the core.
        choose: maps the params, or the updates if params were not passed, to a selection.
        any_shape: whether extra arguments with the structure of params or updates are like them, whatever their shapes.
        in_masked_state: whether the state is an `optax.MaskedState`.
    """
    inner_init = inner.init

    def init(params: Params) -> Any:
        state = inner_init(params if is_params_placeholder(params) else choose(params).inside(params))
        return optax.MaskedState(state) if in_masked_state else state

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        selection = choose(updates if params is None else params)
        inner_state = state.inner_state if in_masked_state else state
        updates, new = _update_selection(inner, selection, any_shape, updates, inner_state, params, extra)
        return updates, optax.MaskedState(new) if in_masked_state else new

    def freezes_all(params: Params) -> bool:
        selection = choose(params)
        return (all(selection.keep) or not selection.pass_through) and freezes(inner, selection.inside(params))

    return DeclaringCore(init, update, freezes=freezes_all)


def _update_selection(
    core: Core,
    selection: LeafSelection,
    any_shape: bool,
    updates: Updates,
    state: OptState,
    params: Params,
    extra: dict[str, Any],
) -> tuple[Any, Any]:
    """Update with a core that sees the selected leaves of updates and params, and of extra arguments like them."""
    inside, restore = selection.inside, selection.restore
    inside_params = None if params is None else inside(params)
    views = view_extra_args(extra, updates, params, inside_params, inside, restore, any_shape=any_shape)
    new_updates, new_state = core.update(inside(updates), state, inside_params, **views)
    return selection.outside(new_updates, updates), new_state


def is_spec_leaf(x: object) -> bool:
    """Whether `x` is a leaf of a mask, a label tree or a tree of dimension numbers; None is."""
    return x is None or isinstance(x, (bool, np.bool_, str)) or type(x).__name__.endswith("DimensionNumbers")


def choose_filtered(filter_spec: FilterSpec, params: Params) -> LeafSelection:
    """Select the leaves that satisfy a filter_spec, which is called with the user's own leaves."""
    if filter_spec is None:
        raise TypeError(
            "filter_spec must be a predicate or a tree of bools, not None. To freeze everything, pass False"
        )
    leaves, treedef = jtu.tree_flatten(params)
    originals = jtu.tree_map(original, params)
    if filter_spec is is_inexact_array:
        check_no_foreign_floats(originals, "filtered")
    else:
        _check_declared(filter_spec, _is_true, is_spec_leaf=_is_bool, name="filter_spec")

    def false_for_none(x: object) -> Any:  # so that a spec made from a filtered model fits the raw one
        return False if x is None else x

    spec = jtu.tree_map(false_for_none, filter_spec, is_leaf=is_none)
    kept = treedef.flatten_up_to(filter(originals, spec))
    keep = tuple(x is not None for x in kept)
    # A model of integers has no inexact leaves. Any other function was written to select some.
    is_predicate = filter_spec is not is_inexact_array and callable(filter_spec) and jtu.all_leaves([filter_spec])
    if is_predicate and leaves and not any(keep):
        raise ValueError(
            "filter_spec selects no leaf, so nothing would be trained. It is a function, which is called with each "
            "leaf: filtered(tx, lambda leaf: treekit.is_array(leaf) and leaf.ndim > 1). To decide by key path, "
            "pass treekit.path_mask, or a tree of bools: filtered(tx, jax.tree_util.tree_map_with_path(f, params))."
            " To freeze everything, pass False"
        )
    return LeafSelection(treedef, keep, pass_through=False)


_choose_inexact = functools.partial(choose_filtered, is_inexact_array)  # one for all, so that Optimistix compiles once


def choose_groups(
    keys: frozenset[Any], frozen: frozenset[Any], param_labels: Labels, params: Params
) -> dict[Any, LeafSelection]:
    """Select the leaves that have each label; those with a label in `frozen` are not trained."""

    def is_label(x: object) -> bool:
        try:
            return x in keys
        except TypeError:  # unhashable, so not a key
            return False

    def trains(label: object) -> bool:
        return is_label(label) and label not in frozen

    prefix_treedef, matches = match_to_params(
        param_labels, params, is_spec_leaf=is_label, chooses=trains, name="param_labels"
    )
    for path, label, part in matches:
        if not is_label(label) and _has_parameters(label, part):
            used = _names(label for _, label, part in matches if _has_parameters(label, part))
            raise ValueError(
                f"Some parameters have no corresponding transformation: the label of {path_name(path) or 'all'} is "
                f"{label!r}{_nearest(label, keys)}\nParameter labels: {used}\nTransforms keys: {_names(keys)}"
            )

    def selection(key: object) -> LeafSelection:
        keep = (bool(label == key) if is_label(label) else not _holds_parameters(part) for _, label, part in matches)
        return LeafSelection(prefix_treedef, tuple(keep), pass_through=True)

    return {key: selection(key) for key in keys}


def resolve_mask(mask: Mask, params: Params, name: str, trains: bool = True) -> Any:
    """Return a mask that Optax itself can use: a bool for each leaf of the params; `trains` says what True means.

    None is False, as in `filtered`: it stands for a number of the raw model, which is an array here.
    """

    def is_mask_leaf(x: object) -> bool:
        return x is None or _is_bool(x)

    chooses = _is_true if trains else None
    prefix_treedef, matches = match_to_params(mask, params, is_spec_leaf=is_mask_leaf, chooses=chooses, name=name)
    if mask is not None and [found[:2] for found in matches] == [((), None)] and _holds_parameters(params):
        raise TypeError(f"the function given as {name} returned None for all params. Does it lack a return?")
    return prefix_treedef.unflatten(None if found[2] is None else _keep_masked(name, *found) for found in matches)


def match_to_params(
    spec: object,
    params: Params,
    *,
    is_spec_leaf: Callable[[Any], bool],
    chooses: Callable[[Any], bool] | None = None,
    name: str,
) -> tuple[Any, Any]:
    """Resolve a spec for the user's own leaves; a function sees Python numbers as arrays.

    Args:
        spec: a tree, or a function from the params to one.
        params: the params as cores see them.
        is_spec_leaf: whether an object is a leaf of the spec.
        chooses: whether a leaf of the spec trains what it covers; None if none does.
        name: what the user calls the spec.
    """
    if chooses is not None:
        _check_declared(spec, chooses, is_spec_leaf=is_spec_leaf, name=name)
    params = jtu.tree_map(original, params)
    as_arrays = functools.partial(jtu.tree_map, as_array)
    try:
        resolved = resolve_shown(spec, params, as_arrays, is_spec_leaf=is_spec_leaf, name=name)
        return match_spec(resolved, params, is_spec_leaf=is_spec_leaf, name=name)
    except ValueError as error:
        if not str(error).startswith(name):  # an error of the user's own function
            raise
        if _has_variables(spec):  # nnx.Optimizer passes variables to init, and their values to update
            hint = f"{name} contains variables of Flax: pass flax.nnx.as_pure({name})"
        elif _has_variables(params):
            hint = (
                f"The params are variables of Flax: make {name} with treekit.path_mask or path_labels, or pass a "
                "function that uses jax.tree.map"
            )
        else:
            hint = (
                f"Make {name} with jax.tree.map over the params, or pass a function that does. A value covers a subtree"
            )
        raise ValueError(f"{error}\n{hint}") from None


def _check_declared(
    spec: object, chooses: Callable[[Any], bool], *, is_spec_leaf: Callable[[Any], bool], name: str
) -> None:
    """Raise a ValueError if a leaf of a tree chooses exactly one leaf, which its class declares not to be trained."""
    frozen = FROZEN.get()
    if frozen is None or is_truly_callable(spec):
        return
    flags = jtu.tree_structure(WHOLE_TREE.get(), is_leaf=is_none).unflatten(frozen)
    with contextlib.suppress(ValueError):  # the spec is for a part of the params
        _, matches = match_spec(spec, flags, is_spec_leaf=is_spec_leaf, name=name)
        chosen = [path for path, leaf, flag in matches if flag is True and chooses(leaf)]
        if not chosen:
            return
        raise TypeError(
            f"{name} selects {path_name(chosen[0])}, which its class declares not to be trained (trainable=False). "
            "Leave it out; or, to train it, declare so at the class"
        )


def _is_true(leaf: object) -> bool:
    return _is_bool(leaf) and bool(leaf)


def _has_variables(tree: PyTree) -> bool:
    return any(map(is_variable, jtu.tree_leaves(tree, is_leaf=is_variable)))


def _has_parameters(spec_leaf: object, part: object) -> bool:
    """Whether this spec leaf covers any parameter; other spec leaves are remnants of the model it was made from."""
    return spec_leaf is not None and _holds_parameters(part)


def _holds_parameters(part: object) -> bool:
    return any(map(is_parameter, jtu.tree_leaves(part)))


def _is_bool(x: object) -> bool:
    if isinstance(x, (bool, np.bool_)):
        return True
    return is_array(x) and not is_traced(x) and x.dtype == np.bool_ and x.shape == ()


def _keep_masked(name: str, path: KeyPath, leaf: object, part: object) -> bool:
    if _is_bool(leaf):
        return bool(leaf)
    if _has_parameters(leaf, part):
        hint = ", which is traced: make it outside of jit, or from shapes and dtypes" if is_traced(leaf) else ""
        if isinstance(leaf, str):
            hint = ". To select by key path, use treekit.path_mask"
        raise TypeError(
            f"{name} must have bools at its leaves; at {path_text(path)} it has {leaf!r} of type "
            f"{type(leaf).__name__}{hint}"
        )
    return not _holds_parameters(part)  # functions are None in the state, whether the model is raw or filtered


def _nearest(label: object, keys: frozenset[Any]) -> str:
    found = difflib.get_close_matches(str(label), [key for key in keys if isinstance(key, str)], 1)
    return f". Did you mean {found[0]!r}?" if found else "."


def _names(keys: Any) -> str:
    return "{" + ", ".join(sorted({repr(key) for key in keys})) + "}"
