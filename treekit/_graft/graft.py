"""graft: carry the values of one tree over to a tree of another structure."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from treekit._base.describe import describe, describe_value
from treekit._base.jax import jtu
from treekit._base.patterns import nearest
from treekit._base.types import PyTree
from treekit._graft.lengths import warn_of_lengths
from treekit._graft.match import sources
from treekit._graft.rename import Renamed
from treekit._graft.report import Grafted, GraftReport
from treekit._graft.states import Leaf, states_of
from treekit._graft.values import Resize, carry, check_arguments, resizers

T = TypeVar("T")


def graft(
    new: T,
    old: object,
    *,
    strict: bool = False,
    rename: Mapping[str, str] | None = None,
    resize: Resize | Mapping[Any, Resize] | None = None,
    cast: bool = False,
) -> tuple[T, GraftReport]:
    """Carry the values of a tree over to another one, such as a checkpoint to a model that has changed.

    A leaf of `new` gets the value of the leaf of `old` at the same key path, if shape and dtype are the same. An
    attribute `w`, a key "w" and an index written as a string count as the same name, so `old` may consist of the plain
    dicts and lists that Orbax or Flax restore. Paths are written as in `path_mask`.

    In an optimizer state, paths depend on the wrappers. So inside named tuples whose class name ends in `State`, as
    Optax's do, a leaf is matched by the class, the label of its partition, its position among equal states, and the
    path below that state. A parameter that changes its label keeps its moments.

    Args:
        new: a tree of the new structure, fresh from its `__init__` or its optimizer's `init`. Leaves may be
            `jax.ShapeDtypeStruct`; those without an old value stay as they are.
        old: the tree that has the values.
        strict: raise an error unless every leaf of both trees is kept.
        rename: maps old paths to new ones, `{"body.**": "encoder.**"}`. `*` and `**` match the same on both sides; the
            first pattern that matches decides. A pair that begins with `**` also applies inside optimizer states:
            `{"**.layers.2.**": "**.layers.3.**"}`.
        resize: a function for leaves whose old value has another shape, such as a grown vocabulary. It takes the new
            leaf and the old one, and returns an array of the new shape, or None to refuse it. Or a dict from patterns,
            as in `path_labels`, to such functions.
        cast: also cast old values of other dtypes, as far as NumPy's same_kind allows: bf16 to f32 and back, but not
            a float to an int.

    Returns:
        A tree of the structure, shapes, dtypes and shardings of `new`; and a report with `kept`, `fresh`, `dropped` and
        `refused`, which prints as a table. Leaves without a dtype (functions, strings) are taken from `new`, and are
        not in the report.

    Raises:
        TypeError: the old tree has a `jax.ShapeDtypeStruct` for a value; `rename` is not a dict of paths; or `resize`
            is neither a function nor a dict of functions.
        ValueError: the trees have no leaf in common, or only one has leaves; with `strict`, a leaf is not kept; several
            old states could be meant (the message lists them); a pattern of `rename` decides about no leaf, or its
            target does not exist; two leaves are renamed to one path; or `resize` returns another shape.

    Warns:
        UserWarning: a list has another length than in `old`. Its entries are matched by index, so a layer inserted in
            the middle would get its neighbour's weights. Silent if `rename` has patterns for an entry and all after it.

    >>> import jax.numpy as jnp
    >>> old = {"encoder": {"w": jnp.ones(2)}, "head": jnp.ones(10)}
    >>> new = {"body": {"w": jnp.zeros(2)}, "head": jnp.zeros(11), "scale": jnp.zeros(())}
    >>> tree, report = graft(new, old, rename={"encoder.**": "body.**"})
    >>> tree["body"]
    {'w': Array([1., 1.], dtype=float32)}
    >>> print(report)
    1 kept, 1 fresh, 0 dropped, 1 refused (new | old)
    head    refused  f32[11] | f32[10]
    scale   fresh    f32[] | nothing
    body.w  kept     f32[2] | f32[2] at encoder.w
    """
    check_arguments(rename, resize)
    matched = _match(new, old, rename or {})
    resize_of = resizers(resize, [leaf.name for leaf in matched.new])
    values: dict[Any, Any] = {}
    rows: list[Grafted] = []
    for leaf in matched.new:
        source = matched.sources.get(id(leaf))
        value = None if source is None else carry(leaf, source.value, resize_of[leaf.name], cast)
        if value is not None:
            values[leaf.path] = value
        rows.append(_row(leaf, source, is_kept=value is not None))
    rows += [Grafted(x.name, "dropped", "nothing", describe(x.value)) for x in matched.dropped]
    report = GraftReport(rows)
    if strict and len(report.kept) < len(report):
        raise ValueError(f"graft with strict=True: not every leaf was kept.\n{report}")
    flat, treedef = jtu.tree_flatten_with_path(new)
    out: T = treedef.unflatten([values.get(path, x) for path, x in flat])
    return out, report


class _Matched(NamedTuple):
    """The leaves of the new tree, by their ids the old leaves that they match, and the old leaves that match none."""

    new: list[Leaf]
    sources: dict[int, Leaf]
    dropped: list[Leaf]


def _match(new: PyTree, old: PyTree, rename: Mapping[str, str]) -> _Matched:
    new_states, old_states = states_of(new, old)
    new_leaves, old_leaves = ([leaf for state in x for leaf in state.leaves.values()] for x in (new_states, old_states))
    if bool(new_leaves) != bool(old_leaves):
        side, tree = ("old", old) if new_leaves else ("new", new)
        raise ValueError(
            f"graft: the {side} tree must be a pytree with arrays or numbers; found {describe_value(tree)}"
        )
    names = [leaf.name for leaf in new_leaves]
    renamed = Renamed(old_states, rename, names)
    warn_of_lengths(new_states, old_states, renamed)

    found = {id(leaf): [renamed.to[leaf.name]] for leaf in new_leaves if leaf.name in renamed.to}
    for state in new_states:
        found |= {id(leaf): leaves for leaf, leaves in sources(state, new_states, old_states, renamed.to)}
    used = {id(source) for leaves in found.values() for source in leaves}
    renamed.check_used(used)
    if names and not found:
        name = old_leaves[0].name
        raise ValueError(
            f"the trees have no leaf in common. Old: {name}. The nearest new paths: {nearest(name, names)}. Optimizer "
            "states are matched by their class; from one class to another, use rename with full paths"
        )
    firsts = {key: leaves[0] for key, leaves in found.items()}
    return _Matched(new_leaves, firsts, [leaf for leaf in old_leaves if id(leaf) not in used])


def _row(leaf: Leaf, source: Leaf | None, *, is_kept: bool) -> Grafted:
    if source is None:
        return Grafted(leaf.name, "fresh", describe(leaf.value), "nothing")
    where = f" at {source.name}" if source.name != leaf.name else ""
    return Grafted(leaf.name, "kept" if is_kept else "refused", describe(leaf.value), describe(source.value) + where)
