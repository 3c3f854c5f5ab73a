"""graft: carry the values of one tree over to a tree of another structure."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax

from treekit._base.describe import describe, describe_value
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.key_path import is_rng_variable, is_variable
from treekit._base.patterns import nearest
from treekit._base.predicates import is_numeric_array
from treekit._base.types import KeyPath, PyTree
from treekit._graft.leaf import Convert, Leaf, Slice
from treekit._graft.lengths import warn_of_lengths
from treekit._graft.match import match_states
from treekit._graft.names import with_dicts
from treekit._graft.rename import RenamedTree, Targets
from treekit._graft.report import Grafted, GraftReport, check_strict
from treekit._graft.states import State, leaves_of, states_of
from treekit._graft.values import Resize, carry, check_arguments, functions_of

T = TypeVar("T")


def graft(
    new: T,
    old: object,
    *,
    strict: bool = False,
    rename: Mapping[str, Targets] | None = None,
    convert: Mapping[Any, Callable[[Any], Any]] | None = None,
    resize: Resize | Mapping[Any, Resize] | None = None,
    cast: bool = False,
) -> tuple[T, GraftReport]:
    """Carry the values of a tree over to another one, such as a checkpoint to a model that has changed.

    A leaf of `new` gets the value of the leaf of `old` at the same key path, if shape and dtype are the same. An
    attribute `w`, a key "w" and an index written as a string count as the same name. So `old` may be the plain dicts
    and lists that Orbax or Flax restore, or a flat dict such as a PyTorch state dict, a safetensors or npz file, or the
    result of `to_state_dict`. Paths are written as in `path_mask`.

    In an optimizer state, paths depend on the wrappers. So inside named tuples whose class name ends in `State`, as
    Optax's do, a leaf is matched by the class of the state, its field and the parameter. Therefore, a parameter keeps
    its moments if its label in a partition changes. Keys above the outermost state are names like any other.

    Args:
        new: a tree of the new structure, fresh from its `__init__` or its optimizer's `init`. Leaves may be
            `jax.ShapeDtypeStruct`; those without an old value stay as they are.
        old: the tree that has the values.
        strict: raise an error unless every leaf of both trees is kept. Of `new`, Python numbers, typed PRNG keys and
            Flax's counters of random streams need no old value.
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

    Returns:
        A tree of the structure, shapes, dtypes and shardings of `new`; and a report with `kept`, `fresh`, `dropped`,
        `refused` and `missing`, which prints as a table. Leaves without a dtype (functions, strings) are taken from
        `new`, and are not in the report.

    Raises:
        TypeError: the old tree has a `jax.ShapeDtypeStruct` for a value; `rename`, `convert` or `resize` has another
            type; or `convert` or `resize` does not return an array.
        ValueError: the trees have no leaf in common, or only one has leaves; with `strict`, a leaf is not kept; several
            old states are possible (the message lists them); a pattern never applies, or its target does not
            exist; two leaves are renamed to one path; or `resize` returns another shape.

    Warns:
        UserWarning: a list has another length than in `old`. Its entries are matched by index, so a layer inserted in
            the middle would get its neighbour's weights. Silent if `rename` has patterns for an entry and all after it.

    >>> import jax.numpy as jnp
    >>> old = {"encoder.w": jnp.ones((2, 3)), "head": jnp.ones(10), "step": jnp.ones(())}
    >>> new = {"body": {"w": jnp.zeros((3, 2))}, "head": jnp.zeros(11), "scale": jnp.zeros(())}
    >>> tree, report = graft(new, old, rename={"encoder.**": "body.**"}, convert={"body.w": lambda x: x.T})
    >>> print(report)
    1 kept, 1 fresh, 1 dropped, 1 refused (new | old)
    head    refused  f32[11] | f32[10]
    scale   fresh    f32[] | nothing
    step    dropped  nothing | f32[]
    body.w  kept     f32[3,2] | f32[2,3] at encoder.w, converted
    """
    check_arguments(rename, convert, resize)
    matched = _match(new, with_dicts(old), rename or {})
    names = [leaf.name for leaf in matched.new]
    functions = functions_of("convert", convert, names), functions_of("resize", resize, names)
    values, rows = _carry_each(matched, *functions, cast, _paths_of_rngs(new))
    report = GraftReport([*rows, *matched.rest])
    if strict:
        check_strict(report)
    flat, treedef = jtu.tree_flatten_with_path(new)
    out: T = treedef.unflatten([_put(values[path], x) if path in values else x for path, x in flat])
    return out, report


def _carry_each(
    matched: "_Matched",
    convert_of: Mapping[str, Convert | None],
    resize_of: Mapping[str, Resize | None],
    cast: bool,
    counters: set[KeyPath],
) -> tuple[dict[KeyPath, Any], list[Grafted]]:
    """Return the values of the new leaves that have one, by key path, and a row for each new leaf."""
    values: dict[KeyPath, Any] = {}
    rows: list[Grafted] = []
    used: set[int] = set()
    for leaf in matched.new:
        source, f = matched.sources.get(leaf), convert_of[leaf.name]
        value = None if source is None else carry(leaf, source, f, resize_of[leaf.name], cast, used)
        if value is not None:
            values[leaf.path] = value
        is_counter = leaf.path in counters
        rows.append(_row(leaf, source, is_kept=value is not None, is_converted=f is not None, is_counter=is_counter))
    return values, rows


def _put(value: object, new: object) -> Any:
    return untyped.new_ref(jnp.asarray(value)) if isinstance(new, jax.Ref) else value


class _Matched(NamedTuple):
    """What `graft` has found before it reads a value.

    Attributes:
        new: the leaves of the new tree.
        sources: the old leaf that each of them matches, if any.
        rest: rows for old leaves that match none, and for names in `rename` that the new tree does not have.
    """

    new: list[Leaf]
    sources: dict[Leaf, Leaf]
    rest: list[Grafted]


def _match(new: PyTree, old: PyTree, rename: Mapping[str, Targets]) -> _Matched:
    new_states, old_states = states_of(new, old)
    new_leaves, old_leaves = leaves_of(new_states), leaves_of(old_states)
    if bool(new_leaves) != bool(old_leaves):
        side, tree = ("old", old) if new_leaves else ("new", new)
        raise ValueError(
            f"graft: the {side} tree must be a pytree with arrays or numbers; found {describe_value(tree)}"
        )
    renamed = RenamedTree(new_states, old_states, rename)
    by_name = {leaf.name: leaf for leaf in leaves_of(renamed.states) if leaf.state.kind is None} | renamed.exact
    sources = {leaf: by_name[leaf.name] for leaf in new_leaves if leaf.name in renamed.exact}
    sources |= {leaf: by_name[leaf.name] for leaf in _outside(new_states) if leaf.name in by_name}
    found = match_states(
        [x for x in new_states if x.kind is not None], [x for x in renamed.states if x.kind is not None], sources
    )
    sources |= {leaf: leaves[0] for leaf, leaves in found.items()}
    sources |= _by_name(_outside(new_states), leaves_of(renamed.states), sources)
    warn_of_lengths(sources, old_leaves, renamed.patterns)

    taken = {*sources.values(), *(x for leaves in found.values() for x in leaves)}
    used = {origin for leaf in taken for origin in leaf.origins}
    renamed.check_used(used)
    if new_leaves and not sources:
        raise ValueError(_nothing_in_common(new_leaves, old_leaves))
    _check_slices(taken, renamed.derived)
    rest = [
        Grafted(x.name, "missing", "nothing", f"{x} at {x.origins[0].name}")
        for x in renamed.derived
        if x not in taken and not isinstance(x, Slice) and all(origin in used for origin in x.origins)
    ]
    excluded = set(renamed.excluded)
    rest += [
        Grafted(x.name, "dropped", "nothing", f"{x}{', which rename drops' * (x in excluded)}", x not in excluded)
        for x in old_leaves
        if x not in used
    ]
    return _Matched(new_leaves, sources, rest)


def _by_name(new: list[Leaf], old: list[Leaf], sources: Mapping[Leaf, Leaf]) -> dict[Leaf, Leaf]:
    """Match by name the leaves outside of states that are left over: an old dict in a model may look like a state."""
    taken = set(sources.values())
    left = {leaf.name: leaf for leaf in old if leaf not in taken}
    return {leaf: left[leaf.name] for leaf in new if leaf not in sources and leaf.name in left}


def _outside(states: list[State]) -> list[Leaf]:
    return leaves_of(state for state in states if state.kind is None)


def _check_slices(taken: set[Leaf], derived: list[Leaf]) -> None:
    """Refuse the slices of an array unless the new tree has a leaf for each of them, and no more."""
    groups: dict[Any, list[Slice]] = {}
    for x in derived:
        if isinstance(x, Slice):
            groups.setdefault((x.value, x.pattern, x.target), []).append(x)
    for slices in groups.values():
        *entries, beyond = slices
        if beyond in taken or not all(x in taken for x in entries):
            for x in slices:
                x.fits = False


def _nothing_in_common(new: list[Leaf], old: list[Leaf]) -> str:
    start = "the trees have no leaf in common. "
    kinds = {leaf.state.kind: leaf.state for leaf in reversed(new) if leaf.state.kind}
    for leaf in old:
        state = kinds.get(leaf.state.kind)
        if state is not None and state.names != leaf.state.names:
            before, after = (".".join((*x.names, "**")) for x in (leaf.state, state))
            return (
                f"{start}Both have optimizer states, but under other keys, which are names: use "
                f"rename={{{before!r}: {after!r}}}"
            )
    names = [leaf.name for leaf in new]
    if old[0].name in names:
        return (
            f"{start}Both have {old[0].name}, but optimizer states are matched by their class (by the names of their "
            "fields, if one is a dict); from one class to another, use rename with full paths"
        )
    return (
        f"{start}Old: {old[0].name or '(the root)'}. The nearest new paths: {nearest(old[0].name, names)}. Use rename"
    )


def _paths_of_rngs(tree: PyTree) -> set[KeyPath]:
    """Return the key paths of the counters of Flax's random streams, which no file of weights has."""
    found = jtu.tree_flatten_with_path(tree, is_leaf=is_variable)[0]
    streams = [(path, x) for path, x in found if is_rng_variable(x)]
    return {(*path, *below) for path, x in streams for below, _ in jtu.tree_flatten_with_path(x)[0]}


def _row(leaf: Leaf, source: Leaf | None, *, is_kept: bool, is_converted: bool, is_counter: bool) -> Grafted:
    if source is None:
        is_asked = is_numeric_array(leaf.value) and not is_counter
        return Grafted(leaf.name, "fresh", describe(leaf.value), "nothing", is_asked)
    where = f" at {source.source_name}" if source.source_name != leaf.name else ""
    changed = ", converted" if is_converted else ""
    return Grafted(leaf.name, "kept" if is_kept else "refused", describe(leaf.value), f"{source}{where}{changed}")
