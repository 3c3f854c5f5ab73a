"""`graft`: carry the values of one tree over to a tree of another structure."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from treekit._describe import describe, describe_value
from treekit._diff import as_table, in_colours
from treekit._dtype import cast_like, dtype_of, has_dtype
from treekit._graft.rename import Renamed
from treekit._graft.states import Leaf, State, sources, states_of
from treekit._jax import jnp, jtu, untyped
from treekit._paths import nearest, path_labels
from treekit._predicates import is_traced

T = TypeVar("T")
Resize = Callable[[Any, Any], Any]
_NUMPY: Any = (np.ndarray, np.generic)


@dataclasses.dataclass(frozen=True)
class Grafted:
    """What became of one leaf.

    Attributes:
        path: its key path in the new tree, or in the old tree if it was dropped.
        kind: "kept" (it has the old value), "fresh" (only the new tree has it), "dropped" (only the old tree has it) or
            "refused" (the old value has another shape or dtype).
        new: a description of what the new tree has there.
        old: a description of what the old tree has, with its path if that differs.
    """

    path: str
    kind: Literal["kept", "fresh", "dropped", "refused"]
    new: str
    old: str


class GraftReport(tuple[Grafted, ...]):
    """What became of each leaf: first the leaves of the new tree in order, then those dropped. `str()` is a table."""

    @property
    def kept(self) -> tuple[Grafted, ...]:
        """The leaves that have the old values."""
        return self._of("kept")

    @property
    def fresh(self) -> tuple[Grafted, ...]:
        """The leaves that only the new tree has."""
        return self._of("fresh")

    @property
    def dropped(self) -> tuple[Grafted, ...]:
        """The leaves that only the old tree has."""
        return self._of("dropped")

    @property
    def refused(self) -> tuple[Grafted, ...]:
        """The leaves whose old values have another shape or dtype."""
        return self._of("refused")

    def __str__(self) -> str:
        return self._table(False)

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set."""
        print(self._table(in_colours()))

    def _of(self, kind: str) -> tuple[Grafted, ...]:
        return tuple(row for row in self if row.kind == kind)

    def _table(self, colours: bool) -> str:
        groups = [self.refused, self.dropped, self.fresh, self.kept]
        counts = ", ".join(f"{len(self._of(kind))} {kind}" for kind in ("kept", "fresh", "dropped", "refused"))
        rows = [(row.path or "(root)", row.kind, row.new, row.old) for group in groups for row in group]
        return f"{counts} (new | old)\n{as_table(rows, colours)}".rstrip()


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
        ValueError: the trees have no leaf in common; with `strict`, a leaf is not kept; several old states could be
            meant (the message lists them); a pattern of `rename` matches nothing, or its target does not exist; two
            leaves are renamed to one path; or `resize` returns another shape.

    Warns:
        UserWarning: a list has another length than in `old`, and `rename` does not mention it. Its entries are matched
            by their indices, so a layer inserted in the middle would get the weights of its neighbour.

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
    _check_types(rename, resize)
    new_states, old_states = states_of(new, old)
    new_leaves, old_leaves = ([leaf for state in x for leaf in state.leaves.values()] for x in (new_states, old_states))
    names = [leaf.name for leaf in new_leaves]
    renamed = Renamed(old_states, rename or {}, names)
    _warn_of_lengths(new_states, old_states, renamed)

    found = {id(leaf): [renamed.to[leaf.name]] for leaf in new_leaves if leaf.name in renamed.to}
    for state in new_states:
        found |= {id(leaf): leaves for leaf, leaves in sources(state, new_states, old_states, renamed.to)}
    used = {id(source) for leaves in found.values() for source in leaves}
    renamed.check_used(used)
    if names and old_leaves and not found:
        name = old_leaves[0].name
        raise ValueError(
            f"the trees have no leaf in common. Old: {name}. The nearest new paths: {nearest(name, names)}. Optimizer "
            "states are matched by their class; from one class to another, use rename with full paths"
        )

    resizers = _resizers(resize, names)
    values: dict[Any, Any] = {}
    rows: list[Grafted] = []
    for leaf in new_leaves:
        if id(leaf) not in found:
            rows.append(Grafted(leaf.name, "fresh", describe(leaf.value), "nothing"))
            continue
        source = found[id(leaf)][0]
        value = _carry(leaf, source.value, resizers[leaf.name], cast)
        if value is not None:
            values[leaf.path] = value
        where = f" at {source.name}" if source.name != leaf.name else ""
        kind: Any = "refused" if value is None else "kept"
        rows.append(Grafted(leaf.name, kind, describe(leaf.value), describe(source.value) + where))
    rows += [Grafted(x.name, "dropped", "nothing", describe(x.value)) for x in old_leaves if id(x) not in used]
    report = GraftReport(rows)
    if strict and len(report.kept) < len(report):
        raise ValueError(f"graft with strict=True: not every leaf was kept.\n{report}")
    flat, treedef = jtu.tree_flatten_with_path(new)
    out: T = treedef.unflatten([values.get(path, x) for path, x in flat])
    return out, report


def _check_types(rename: Any, resize: Any) -> None:
    names = [*rename, *rename.values()] if _is_mapping(rename) else []
    if rename is not None and not (_is_mapping(rename) and all(isinstance(x, str) for x in names)):
        raise TypeError(
            "rename must be a dict that maps old paths to new ones, {'body.**': 'encoder.**'}; found "
            f"{describe_value(rename)}"
        )
    functions = resize.values() if _is_mapping(resize) else [resize]
    if resize is not None and not all(map(callable, functions)):
        raise TypeError(
            "resize must be a function of the new leaf and the old one, or a dict from patterns to such functions; "
            f"found {describe_value(resize)}"
        )


def _is_mapping(x: object) -> bool:
    return isinstance(x, Mapping)


def _carry(leaf: Leaf, old: Any, resize: Resize | None, cast: bool) -> Any:
    """Return the old value with the shape and dtype of the new leaf, or None if it is refused."""
    new = leaf.value
    if isinstance(old, jax.ShapeDtypeStruct):
        raise TypeError(f"at {leaf.name}: the old tree has a shape and dtype, but no value")
    if np.shape(old) != np.shape(new):
        old = None if resize is None else resize(new, old)
        if old is None:
            return None
        if np.shape(old) != np.shape(new):
            raise ValueError(
                f"at {leaf.name}: resize must return an array of shape {np.shape(new)}, found {np.shape(old)}"
            )
    is_same = dtype_of(old) == dtype_of(new)
    if not (is_same or cast):
        return None
    try:
        value = cast_like(old, new)
    except TypeError:  # the cast is not allowed
        return None
    # A NumPy array may have 64 bits, and must not be rounded to the 32 bits of JAX.
    return _placed(old if is_same and isinstance(new, _NUMPY) else value, new)


def _placed(value: Any, new: Any) -> Any:
    """Convert a value to the type of the new leaf: a Python number, a NumPy array, or a JAX array with its sharding."""
    if is_traced(value):
        return value
    if not has_dtype(new):
        return type(new)(np.asarray(value).item())
    if isinstance(new, _NUMPY):
        return np.asarray(value, new.dtype)
    like: Any = new
    has_place = isinstance(new, jax.ShapeDtypeStruct) or (not is_traced(new) and like.committed)
    return untyped.device_put(value, like.sharding) if has_place and like.sharding else jnp.asarray(value)


def _resizers(resize: Resize | Mapping[Any, Resize] | None, names: list[str]) -> dict[str, Resize | None]:
    if callable(resize) or resize is None:
        return dict.fromkeys(names, resize)
    resizers: dict[str, Resize | None] = path_labels(resize, default=None)(dict.fromkeys(names, 0))
    return resizers


def _warn_of_lengths(new: list[State], old: list[State], renamed: Renamed) -> None:
    old_lengths = {(state.kind, below): n for state in old for below, n in state.lengths.items()}
    found = [
        f"{below or 'the root'} (new {n}, old {old_lengths[state.kind, below]})"
        for state in new
        for below, n in state.lengths.items()
        if old_lengths.get((state.kind, below), n) != n and not renamed.mentions(state.kind, below)
    ]
    if found:
        warnings.warn(
            f"graft: lengths of lists differ: {', '.join(dict.fromkeys(found))}. Their entries are matched by index. "
            "If a layer was inserted or removed before the end, the layers after it get wrong values: use rename, such "
            "as rename={'**.layers.2.**': '**.layers.3.**'}. If the indices are right, say so with "
            "rename={'**.layers.**': '**.layers.**'}",
            stacklevel=3,
        )
