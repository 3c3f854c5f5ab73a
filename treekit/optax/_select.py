"""`filtered`, `masked`, `partition` and similar: on which leaves does a transformation run?"""

import difflib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import optax

from treekit._base.describe import describe_value
from treekit._base.jax import jtu
from treekit._base.key_path import flatten_with_path, is_variable, path_name, path_text
from treekit._base.predicates import is_array, is_inexact_array, is_traced
from treekit._base.tree import check_no_foreign_floats, children_of, is_mapping, is_none
from treekit._base.types import FilterSpec, Labels, Mask, OptState, Params, PyTree, TransformationLike, Updates
from treekit._filter import filter
from treekit._resolve_spec import resolve_and_match
from treekit.optax._boundary import at_boundary
from treekit.optax._extra_args import is_like, masking, seeing
from treekit.optax._state_map import is_hole, is_params_placeholder
from treekit.optax._transformation import Core, GradientTransformation, S, core_of


def filtered(
    inner: GradientTransformation[S] | TransformationLike, filter_spec: FilterSpec = is_inexact_array
) -> GradientTransformation[S]:
    """Run a transformation on some of the leaves of a raw (unfiltered) model, and freeze the others.

    True is trained, where True in `freeze` is frozen. `treekit.filter` filters a tree. The other leaves (functions,
    strings, integers, …) are None in the state and in the updates, so that `apply_updates` does not change them. Flax's
    `nnx.Optimizer` calls Optax's own `apply_updates`, which rejects None: docs/guides/from_flax.md has a way around.

    Args:
        inner: any transformation.
        filter_spec: a predicate on leaves, or a prefix tree of the params whose leaves are bools or predicates. By
            default, every floating-point or complex array. A predicate is called with such arrays only.

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
    if filter_spec is None:
        raise TypeError(
            "filter_spec must be a predicate or a tree of bools, not None. To freeze everything, pass False"
        )
    if filter_spec is is_inexact_array:  # one function for all, so that Optimistix compiles once
        return at_boundary(_on_part(core_of(inner), _select_inexact), leaves_out=True)
    # Equinox's `closure_to_pytree`, which Optimistix applies to optimizers, would make a node of a predicate that a
    # function closes over. It does not open a partial.
    return at_boundary(_on_part(core_of(inner), functools.partial(_select, filter_spec)), leaves_out=True)


def _on_part(core: Core, select: Callable[[Any], Any]) -> Core:
    """Run a core on the params that `select` returns, which has None for others: their updates are None too."""
    inner_init, inner_update = core

    def init(params: Params) -> Any:
        return inner_init(select(params))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        part = select(updates if params is None else params)

        def inside(tree: PyTree) -> Any:
            return jtu.tree_map(_hole_or, part, tree, is_leaf=is_hole)

        extra = {name: inside(x) if is_like(name, x, updates) else x for name, x in extra.items()}
        out: tuple[Any, Any] = inner_update(inside(updates), state, None if params is None else part, **extra)
        return out

    return Core(init, update)


def _hole_or(kept: object, x: object) -> Any:
    return kept if is_hole(kept) else x


def _select(filter_spec: FilterSpec, params: Params) -> Any:
    """Return the params with None for the leaves that do not satisfy a filter_spec."""
    if is_params_placeholder(params):
        return params
    if filter_spec is is_inexact_array:
        check_no_foreign_floats(params, "filtered")

    def false_for_none(x: object) -> Any:  # so that a spec made from a filtered model fits the raw one
        return False if x is None else x

    kept = filter(params, jtu.tree_map(false_for_none, filter_spec, is_leaf=is_none))
    # A tree may select nothing, in a model of integers for example. A function was written to select some.
    is_predicate = filter_spec is not is_inexact_array and callable(filter_spec) and jtu.all_leaves([filter_spec])
    if is_predicate and jtu.tree_leaves(params) and not jtu.tree_leaves(kept):
        raise ValueError(
            "filter_spec selects no leaf, so nothing would be trained. It is a function, which is called with each "
            "leaf: filtered(tx, lambda leaf: leaf.ndim > 1). To decide by key path, pass treekit.path_mask, or a tree "
            "of bools: filtered(tx, jax.tree_util.tree_map_with_path(f, params)). To freeze everything, pass False"
        )
    return kept


def _select_inexact(params: Params) -> Any:
    return _select(is_inexact_array, params)


def masked(
    inner: TransformationLike, mask: Mask, *, mask_compatible_extra_args: bool = False
) -> GradientTransformation[optax.MaskedState]:
    """Transform the leaves whose mask is True, and pass the others through: `optax.masked` for every mask and model.

    For a leaf that is masked out, the state has an `optax.MaskedNode`, and its update is returned unchanged: the leaf
    is *not* frozen. To freeze, use `filtered`, or `partition` with `optax.set_to_zero`.

    Args:
        inner: the transformation for leaves whose mask is True.
        mask: a prefix tree of the params whose leaves are bools, or a function from the params to one. A callable tree,
            such as a mask made from an Equinox model, is used as a tree. A function receives what a filtered model has:
            the arrays that are trained, and None for other leaves, which may be None in a tree too.
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
    tx = optax.masked(seeing(core_of(inner)), MaskFunction(mask, "mask"), mask_compatible_extra_args=True)
    return at_boundary(masking(tx, any_shape=mask_compatible_extra_args))


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
        param_labels: a prefix tree of the params whose leaves are labels, or a function from the params to one, as in
            `masked`. A callable tree is used as a tree.
        mask_compatible_extra_args: as in `masked`.

    Returns:
        A transformation; its state is an `optax.transforms.PartitionState`.

    Raises:
        ValueError: raised by `init` and `update` if the labels do not fit the params, or one has no transformation.
        TypeError: an item of `transforms` is not a transformation.

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
            f"transforms must map labels to transformations, found {_short(transforms)}. To split a tree in two, use "
            "treekit.partition"
        )
    keys = frozenset(transforms)

    def labels(params: Params) -> Any:
        return _resolve_labels(param_labels, keys, params)

    cores = {key: core_of(tx, f"transforms[{key!r}] of partition") for key, tx in transforms.items()}
    return _partition(cores, labels, any_shape=mask_compatible_extra_args)


def _partition(
    cores: Mapping[Any, Core], labels: Callable[[Any], Any], *, any_shape: bool
) -> GradientTransformation[optax.transforms.PartitionState]:
    seen = {key: seeing(core) for key, core in cores.items()}
    tx = optax.partition(seen, labels, mask_compatible_extra_args=True)
    return at_boundary(masking(tx if _have_order(cores) else _in_order(tx), any_shape=any_shape))


def _have_order(keys: Iterable[Any]) -> bool:
    """Whether JAX can sort the keys of a dict; those of an Enum have no order, nor have those of several types."""
    try:
        sorted(keys)
    except TypeError:
        return False
    return True


def _in_order(tx: Core) -> Core:
    """Keep the states of groups in the order in which they were given."""
    inner_init, inner_update = tx

    def init(params: Params) -> Any:
        return optax.transforms.PartitionState(OrderedDict(inner_init(params).inner_states))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        updates, new = inner_update(updates, state, params, **extra)
        return updates, optax.transforms.PartitionState(OrderedDict(new.inner_states))

    return Core(init, update)


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

    is_frozen = MaskFunction(freeze_mask, "freeze_mask")

    def labels(params: Params) -> Any:
        return jtu.tree_map(_freeze_or_train, is_frozen(params))

    return _partition({"train": core_of(optimizer), "freeze": core_of(optax.set_to_zero())}, labels, any_shape=False)


def _freeze_or_train(frozen: bool) -> str:
    return "freeze" if frozen else "train"


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
            f"{name} must have bools at its leaves; at {path} it has {_short(leaf)} of type {type(leaf).__name__}{hint}"
        )

    resolved, prefix_treedef, matches = resolve(mask, params, _is_bool, name)
    return prefix_treedef.unflatten(value(i, *match) for i, match in enumerate(matches))


def _resolve_labels(labels: Labels, keys: frozenset[Any], params: Params) -> Any:
    """Return labels that Optax itself can use, as `resolve_mask` does for masks."""

    def is_label(x: object) -> bool:
        try:
            return x in keys
        except TypeError:  # unhashable, so not a key
            return False

    if is_params_placeholder(params):
        return params
    resolved, prefix_treedef, matches = resolve(labels, params, is_label, "param_labels")
    has_arrays = [bool(jtu.tree_leaves(part)) for _, part in matches]
    for i, (label, _) in enumerate(matches):
        if has_arrays[i] and not is_label(label):
            used = _names(label for (label, _), has in zip(matches, has_arrays, strict=True) if has)
            path = path_name(flatten_with_path(resolved, _or_none(is_label))[0][i][0])
            nearest = difflib.get_close_matches(str(label), [key for key in keys if isinstance(key, str)], 1)
            raise ValueError(
                f"Some parameters have no corresponding transformation: the label of {path or 'all'} is {_short(label)}"
                f"{f'. Did you mean {nearest[0]!r}?' if nearest else '.'}\nParameter labels: {used}\n"
                f"Transforms keys: {_names(keys)}"
            )
    return prefix_treedef.unflatten(_Label(label) if is_label(label) else part for label, part in matches)


class _Label:
    """A label as a leaf, equal to itself: to JAX, a tuple would be a tree of labels."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, _Label) else other))

    def __hash__(self) -> int:
        return hash(self.value)


def resolve(spec: object, params: Params, is_spec_leaf: Callable[[Any], bool], name: str) -> Any:
    """Resolve and match a spec; an error says how to make one that fits."""
    try:
        return resolve_and_match(spec, params, is_spec_leaf=is_spec_leaf, name=name)
    except ValueError as error:
        if not str(error).startswith(name):  # an error of the user's own function
            raise
        if _has_variables(spec) and not _has_variables(plain := _values_of_variables(spec)):
            return resolve(plain, params, is_spec_leaf, name)
        hint = f"Make {name} with jax.tree.map over the params, or pass a function that does. A value covers a subtree"
        if _has_variables(params):
            hint = (
                f"The params are variables of Flax: make {name} with treekit.path_mask or path_labels, or pass a "
                "function that uses jax.tree.map"
            )
        raise ValueError(f"{error}\n{hint}") from None


def _or_none(is_spec_leaf: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x is None or is_spec_leaf(x)


def _values_of_variables(tree: PyTree) -> Any:
    """Return a tree with the value of each variable of Flax, its only child.

    `nnx.Optimizer` passes variables to `init`, and their values to `update`.
    """

    def value(x: PyTree) -> Any:
        if not is_variable(x):
            return x
        (only,) = children_of(x).values()
        return only

    return jtu.tree_map(value, tree, is_leaf=is_variable)


def _has_variables(tree: PyTree) -> bool:
    return any(map(is_variable, jtu.tree_leaves(tree, is_leaf=is_variable)))


def _is_bool(x: object) -> bool:
    if isinstance(x, (bool, np.bool_)):
        return True
    return is_array(x) and not is_traced(x) and x.dtype == np.bool_ and x.shape == ()


def _names(keys: Iterable[object]) -> str:
    return "{" + ", ".join(sorted({_short(key) for key in keys})) + "}"


def _short(label: object) -> str:
    text = describe_value(label)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 60  # columns for a label
