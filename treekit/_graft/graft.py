"""graft: carry the values of one tree over to a tree of another structure."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from treekit._base.jax import is_ref, jtu, ref_like
from treekit._base.types import PyTree
from treekit._graft.arguments import Choices, Convert, Resize, check_arguments, chosen
from treekit._graft.leaves import leaves_of
from treekit._graft.left import check_rename, left_of
from treekit._graft.list_lengths import other_lengths
from treekit._graft.matches import match_leaves
from treekit._graft.rename import Targets, rules_of
from treekit._graft.report import GraftReport, report_of
from treekit._graft.sources import sources_of
from treekit._graft.strict import check_strict
from treekit._graft.values import Refused, values_of
from treekit._names.key_path import flatten_with_names
from treekit._names.patterns import Pattern
from treekit._text.arguments import check_bool
from treekit._text.describe import describe_value
from treekit._text.lists import listed

T = TypeVar("T")
_FILE: Any = (str, bytes, os.PathLike)


def graft(
    new: T,
    old: object,
    *,
    fresh: Pattern | Sequence[Pattern] = (),
    rename: Mapping[str, Targets] | None = None,
    convert: Mapping[Any, Convert] | None = None,
    resize: Resize | Mapping[Any, Resize] | None = None,
    cast: bool = False,
    strict: bool = True,
) -> tuple[T, GraftReport]:
    """Carry the values of a tree over to another one, such as a checkpoint to a model that has changed.

    A leaf of `new` gets the value of the leaf of `old` at the same key path, if shape and dtype are the same. An
    attribute `w`, a key "w" and an index written as a string count as the same name. So `old` may be the plain dicts
    and lists that Orbax or Flax restore, or a flat dict such as a PyTorch state dict, a safetensors or npz file, or the
    result of `to_state_dict`. Paths are written as in `path_mask`. A typed PRNG key also takes what
    `jax.random.key_data` returns, which files can have.

    In an optimizer state, paths depend on the wrappers. So between two trees that have states, that is, named tuples
    whose class name ends in `State`, as Optax's do, a leaf is matched by the class of the state, its field, the
    parameter, and the label if both trees have it. Therefore, a parameter keeps its moments in another wrapper. Keys
    above the outermost state are names like any other. A state that was restored as plain dicts is matched by name
    alone: if wrappers have changed, restore it into `old_optimizer.init(old_params)` first.

    Settings are values like any other: the new tree gets the rate of a Dropout or a count of steps if the old one has
    it, as from `equinox.tree_deserialise_leaves`. To keep a setting of the new model, name it in `fresh`. The result of
    `to_state_dict` has no settings, so with it the new tree keeps its own. A Python number that is trained, as in
    `{"scale": 1.0}`, is an array.

    Args:
        new: a tree of the new structure, fresh from its `__init__` or its optimizer's `init`. Leaves may be
            `jax.ShapeDtypeStruct`; those without an old value stay as they are.
        old: the tree that has the values.
        fresh: patterns of new paths that keep the new values, as in `path_mask`; a single pattern too. If the old tree
            has values for them, these are dropped.
        rename: maps old paths to new ones, `{"body.**": "encoder.**"}`; to a list of new ones that share the value; or
            to None, to drop it. `*` and `**` match the same on both sides; the first pattern that matches decides. If
            one side lacks a `*`, arrays are stacked (`{"layers.*.**": "layers.**"}`) or unstacked. A pair that begins
            with `**` also applies inside optimizer states: `{"**.layers.2.**": "**.layers.3.**"}`.
        convert: maps patterns of new paths to functions of the old array, `{"**.weight": lambda x: x.T}`, which run
            before shapes are compared: on each array before stacking, and on each part after unstacking.
        resize: a function for leaves whose old value has another shape, such as a grown vocabulary. It takes the new
            leaf and the old one, and returns an array of the new shape, or None to refuse it. Or a dict from patterns
            of new paths to such functions.
        cast: also cast old values of other dtypes, as far as NumPy's same_kind allows: bf16 to f32 and back, but not
            a float to an int, nor a number to a bool. Without it, only 64-bit values are cast to JAX's 32 bits. A value
            that would become infinite, and an integer out of bounds, are refused.
        strict: raise an error unless each leaf of `new` has an old value or is named in `fresh`, and each leaf of
            `old` is used or dropped by `rename`. Of `new`, settings, typed PRNG keys and Flax's counters of
            random streams need no old value. False carries over what fits; the report says what is left.

    Returns:
        A tree of the structure, shapes, dtypes and shardings of `new`; and a report with `kept`, `fresh`, `dropped`,
        `refused` and `missing`, which prints as a table, and `not_finite`, the number of infinities and NaNs that the
        tree gets. Old values are copied, except under `jit`, so that a step may donate the tree; a `jax.Ref` and a
        variable of Flax are new ones. Other leaves are those of `new`; the report does not have those without a dtype
        (functions, strings).

    Raises:
        TypeError: the old tree has a `jax.ShapeDtypeStruct` for a value; an argument has another type; or `convert` or
            `resize` does not return an array.
        ValueError: with `strict`, a leaf is left: the message lists these leaves, and the `fresh` and `rename` that
            accept them. The trees have no leaf in common, or only one has leaves; several old states are possible (the
            message lists them); a pattern never applies, or none of its targets exists (with `strict`, one of them does
            not); two leaves are renamed to one path; or `resize` returns another shape.

    Warns:
        UserWarning: without `strict`, a list has more entries in one tree. They are matched by index, so a layer
            inserted in the middle would get its neighbour's weights. With `strict`, the error says so.

    >>> import jax.numpy as jnp
    >>> old = {"encoder.w": jnp.ones((2, 3)), "head": jnp.ones(10), "step": jnp.ones(())}
    >>> new = {"body": {"w": jnp.zeros((3, 2))}, "head": jnp.zeros(11), "scale": jnp.zeros(())}
    >>> rename = {"encoder.**": "body.**", "step": None}
    >>> convert = {"body.w": lambda x: x.T}
    >>> tree, report = graft(new, old, fresh=["head", "scale"], rename=rename, convert=convert)
    >>> print(report)
    1 kept, 2 fresh, 1 dropped, 0 refused (new | old)
    head    fresh    f32[11] | f32[10], which is not used
    scale   fresh    f32[] | nothing
    step    dropped  nothing | f32[], which rename drops
    body.w  kept     f32[3,2] | f32[2,3] at encoder.w, converted
    """
    fresh_patterns = check_arguments(fresh, rename, convert, resize)
    check_bool("cast", cast)
    check_bool("strict", strict)
    ours, theirs = leaves_of(new), leaves_of(old, are_read=True)
    if ours and not theirs:
        raise _has_no_leaves("old", old)
    if theirs and not ours:
        raise _has_no_leaves("new", new)
    names, old_names = [leaf.name for leaf in ours], [leaf.name for leaf in theirs]
    rename = rename or {}
    choices = Choices(
        fresh=chosen("fresh", dict.fromkeys(fresh_patterns), names, may_overlap=True),
        convert=chosen("convert", convert, names),
        resize=dict.fromkeys(names, resize) if callable(resize) else chosen("resize", resize, names),
        rename=chosen("rename", {x: rules_of(x, targets) for x, targets in rename.items()}, old_names, side="old"),
    )
    sources = sources_of(theirs, choices.rename, ours)
    matches = match_leaves(ours, sources, choices.fresh)
    left = left_of(ours, sources.values(), matches, choices.fresh)
    check_rename(sources.values(), left, strict, names)
    if strict:
        _check_no_objects(old, {x.name for x in left.lacking})
    if ours and not matches:
        raise ValueError(
            f"the trees have no leaf in common. Old: {listed(old_names)}. New: {listed(names)}. Leaves match by name, "
            "and in an optimizer state by its class too. Pass the part of a tree that the other has, or say which is "
            f"which: rename={{{old_names[0] or '**'!r}: …, …}}"
        )

    values = values_of(matches, choices, cast)
    report = report_of(ours, theirs, left, matches, values, choices)
    lengths_differ = other_lengths(left, matches)
    if strict:
        check_strict(report, old_names, fresh_patterns, rename, lengths_differ)
    elif lengths_differ:
        warnings.warn(f"graft: {lengths_differ}", stacklevel=2)

    carried = {leaf.index: value for leaf, value in values.items() if not isinstance(value, Refused)}
    leaves, treedef = jtu.tree_flatten(new)
    for i, x in enumerate(leaves):
        if is_ref(x):  # a new one too, so that training the result changes neither tree
            leaves[i] = ref_like(x, carried.get(i))
        elif i in carried:
            leaves[i] = carried[i]
    out: T = treedef.unflatten(leaves)
    return out, report


def _has_no_leaves(side: str, tree: Any) -> ValueError:
    is_file = isinstance(tree, _FILE) or hasattr(tree, "read")
    load = ". graft reads no files: load it first, as with safetensors.numpy.load_file or numpy.load" * is_file
    return ValueError(
        f"graft: the {side} tree must be a pytree with arrays or numbers; found {describe_value(tree)}{load}"
    )


def _check_no_objects(old: PyTree, lacking: set[str]) -> None:
    """Raise a TypeError if the value that a new leaf lacks is in an array of Python objects, which has no numbers."""
    for name, x in flatten_with_names(old):
        if name in lacking and type(x) is np.ndarray and x.dtype == object:
            raise TypeError(
                f"{name} of the old tree is an array of Python objects: make it one of numbers, numpy.asarray(x, float)"
            )
