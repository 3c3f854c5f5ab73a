"""`summary`: show what the first step of an optimizer does to each leaf, and which state it has for it."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.describe import describe, describe_function, short_dtype
from treekit._base.dtype import as_array, dtype_of, resolve_array
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.key_path import flatten_with_path, key_name, path_name, path_text
from treekit._base.predicates import is_parameter
from treekit._base.table import ROWS, Table, in_colours, left_out
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, TransformationLike
from treekit._select.trainable import declared_frozen
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.state_map import Entry, is_optimizer_state, map_state
from treekit.optax._kernel.transformation import GradientTransformation
from treekit.training._effects import filled, find_effects

_LAST_LINE = (
    "leaves: {leaves:,}, unmoved: {unmoved:,}; numbers: {elements:,}, bytes: {bytes:,}; bytes of state: "
    "{state_bytes:,}, shared by all leaves: {shared_bytes:,}"
)


class Accumulator(NamedTuple):
    """An array in the state that belongs to one leaf: the name of its field, its key path, dtype and size in bytes."""

    name: str
    path: str
    dtype: str
    bytes: int


class Row(NamedTuple):
    """What the first step of an optimizer does to one leaf.

    Attributes:
        path: the key path, as a name: `layers.0.weight`; "" for the root.
        type: such as "f32[2,3]" for an array or a number; what another leaf is, such as "Config".
        shape: the shape of the leaf; () for a leaf that is not an array.
        dtype: its dtype; "" for a leaf that is not an array.
        step: the root mean square of what a gradient of ones adds to the first update: the learning rate, for most
            optimizers. It is negative if the update goes along the gradient instead of against it, and None if it is
            unknown: `note` then says why.
        decay: the root mean square of the first update without a gradient, for a leaf of ones: the fraction that weight
            decay subtracts. None if it is unknown.
        state: the arrays in the state that belong to the leaf.
        note: a remark, or "".
    """

    path: str
    type: str
    shape: tuple[int, ...]
    dtype: str
    step: float | None
    decay: float | None
    state: tuple[Accumulator, ...]
    note: str

    @property
    def bytes(self) -> int:
        """The size of the state for this leaf, in bytes."""
        return sum(x.bytes for x in self.state)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the first step of an optimizer does to each leaf. Its `str()` is a table of fifty rows at most.

    In the table, and in a notebook, a subtree whose leaves differ only in their shapes is one row.

    Attributes:
        rows: a row for each leaf that is not a function, in the order of the tree.
        totals: of the leaves that can be parameters, the counts "leaves", "unmoved" (the first step does not change
            them, with a gradient or without) and "elements"; the "bytes" of the params, the "state_bytes", and the
            "shared_bytes" of state that does not belong to one leaf (counts, hyperparameters).
    """

    rows: tuple[Row, ...]
    totals: dict[str, int]
    _keys: tuple[tuple[str, ...], ...] = dataclasses.field(repr=False)  # the parts of the path of each row

    def __str__(self) -> str:
        return self._table().text()

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set.

        >>> import jax.numpy as jnp
        >>> import optax
        >>> summary(optax.sgd(0.1), {"w": jnp.ones(2), "b": jnp.ones(3)}).show()
        leaf   array                     step  decay  state  bytes
        (all)  f32, 2 leaves, 5 numbers  0.1   0             0
        leaves: 2, unmoved: 0; numbers: 5, bytes: 20; bytes of state: 0, shared by all leaves: 0
        """
        print(self._table().text(in_colours()))

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        groups = list(_group(self.rows, self._keys, 0)) if self.rows else []
        return Table(
            ("leaf", "array", "step", "decay", "state", "bytes", "note"),
            [_cells(*group) for group in groups[:ROWS]],
            [*left_out(len(groups) - ROWS), _LAST_LINE.format(**self.totals)],
            optional=("note",),
            highlighted={i for i, (_, rows) in enumerate(groups) if _is_unmoved(rows[0])},
        )


def summary(optimizer: TransformationLike, params: Params, state: OptState = None) -> Summary:
    """Show what the first step of an optimizer does to each leaf, and which state it keeps for that leaf.

    Use it to check that masks, labels and rates reach the leaves that they were meant for. It takes two steps, outside
    of jit and from params of ones: one with a gradient of ones, one with a gradient of zeros. So it works for any
    optimizer in any wrapper, and it shows what it saw: a leaf whose step is "0 in the first step" may move later, as
    with a warm-up. Pass a later `state` to see a later step.

    With `MultiSteps`, a step is a whole round of equal gradients: the sum of its updates. Clipping by the global norm
    clips the ones too, so that all steps are smaller than the rates by the same factor.

    Args:
        optimizer: a transformation of treekit, of plain Optax or your own, or a `MultiSteps`.
        params: the params, or the raw model. Leaves may be `jax.ShapeDtypeStruct`.
        state: the state to start from; by default that of `optimizer.init`. Momentum in it shows as `decay`.

    Returns:
        A `Summary`: print it, or read its `rows`. The notes of rows say what two steps do not show: a step depends on a
        loss, as in a line search, or on random numbers; it is not finite; the optimizer fails, or needs other
        arguments; the leaf is not a parameter, such as an object of a class that is not a pytree.

    Raises:
        TypeError: `optimizer` is not a transformation; or `params` has the state of an optimizer.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params = {"body": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "head": jnp.ones(3), "scale": jnp.ones(())}
    >>> optimizer = optax.partition(
    ...     {"adamw": optax.adamw(1e-3, weight_decay=0.1), "sgd": optax.sgd(0.1), "freeze": optax.set_to_zero()},
    ...     {"body": "adamw", "head": "sgd", "scale": "freeze"},
    ... )
    >>> print(summary(optimizer, params))
    leaf   array                     step   decay   state           bytes  note
    body   f32, 2 leaves, 9 numbers  0.001  0.0001  mu f32, nu f32  72
    head   f32[3]                    0.1    0                       0
    scale  f32[]                     0      0                       0      0 in the first step
    leaves: 4, unmoved: 1; numbers: 13, bytes: 52; bytes of state: 76, shared by all leaves: 4
    """
    tx = at_boundary(optimizer)
    for path, x in flatten_with_path(params, is_optimizer_state)[0]:
        if is_optimizer_state(x):
            raise TypeError(
                f"summary(optimizer, params, state): params must be the params, or a model, found {type(x).__name__} "
                f"at {path_text(path)}: the state of an optimizer"
            )
    params = jtu.tree_map(_concrete, params)
    ones = filled(params, 1.0)
    leaves = flatten_with_path(params, is_none)[0]
    start = jtu.tree_map(as_array, tx.init(ones) if state is None else state)
    entries = map_state(start, ones)
    owned: dict[int | None, list[Accumulator]] = {}
    for x, entry in zip(jtu.tree_leaves(start), entries, strict=True):
        name = entry.field or path_name(entry.path[: entry.depth])
        array = Accumulator(name, path_name(entry.path), str(dtype_of(x)), int(getattr(x, "nbytes", 0)))
        owned.setdefault(entry.param, []).append(array)
    has_copies = state is not None and _copies_params(tx, params, entries)  # of params that are not ones
    rows: list[Row] = []
    keys: list[tuple[str, ...]] = []
    present = [(i, path, x) for i, (path, x) in enumerate(leaves) if x is not None]
    frozen = declared_frozen(params)
    for (i, path, x), effect in zip(present, find_effects(tx, ones, start), strict=True):
        if describe_function(x):
            continue
        shape, dtype = (np.shape(x), str(dtype_of(x))) if is_parameter(x) else ((), "")
        kind = describe(untyped.ShapeDtypeStruct(shape, dtype) if dtype else x)
        decay = None if has_copies else effect.decay
        note = "trainable=False" if frozen[i] else effect.note
        rows.append(Row(path_name(path), kind, shape, dtype, effect.step, decay, tuple(owned.get(i, ())), note))
        keys.append(tuple(map(key_name, path)))
    state_bytes = sum(x.bytes for arrays in owned.values() for x in arrays)
    parameters = [row for row in rows if row.dtype]
    totals = {
        "leaves": len(parameters),
        "unmoved": sum(map(_is_unmoved, parameters)),
        "elements": sum(math.prod(row.shape) for row in parameters),
        "bytes": sum(math.prod(row.shape) * jnp.dtype(row.dtype).itemsize for row in parameters),
        "state_bytes": state_bytes,
        "shared_bytes": state_bytes - sum(row.bytes for row in rows),
    }
    return Summary(tuple(rows), totals, tuple(keys))


def _copies_params(tx: GradientTransformation[Any], params: Params, entries: Sequence[Entry]) -> bool:
    """Whether `init` puts values of the params into the state."""
    states = [jtu.tree_leaves(tx.init(filled(params, value))) for value in (1.0, 2.0)]
    return any(x.param is not None and bool((a != b).any()) for x, a, b in zip(entries, *states, strict=True))


def _concrete(x: Any) -> Any:
    return jnp.ones(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else resolve_array(x)


def _is_unmoved(row: Row) -> bool:
    return row.step == 0 and row.decay == 0


def _group(rows: Sequence[Row], keys: Sequence[tuple[str, ...]], depth: int) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows that are printed as one row, with the path of their subtree."""
    if len(set(map(_look, rows))) == 1:
        shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*keys, strict=False))
        yield ".".join(parts[0] for parts in shared), list(rows)
        return
    below: dict[str, list[int]] = {}
    for i, path in enumerate(keys):
        below.setdefault(path[depth], []).append(i)
    for places in below.values():
        yield from _group([rows[i] for i in places], [keys[i] for i in places], depth + 1)


def _look(row: Row) -> tuple[str, ...]:
    """Return what is printed for a row, without its path, shape and bytes."""
    state = ", ".join(f"{x.name} {short_dtype(x.dtype)}" for x in row.state)
    kind = short_dtype(row.dtype) if row.dtype else row.type
    return kind, *("-" if x is None else f"{x:.3g}" for x in (row.step, row.decay)), state, row.note


def _cells(path: str, rows: Sequence[Row]) -> tuple[str, ...]:
    kind, step, decay, state, note = _look(rows[0])
    numbers = f", {sum(math.prod(row.shape) for row in rows):,} numbers" if rows[0].dtype else ""
    array = rows[0].type if len(rows) == 1 else f"{kind}, {len(rows)} leaves{numbers}"
    return path or "(all)", array, step, decay, state, f"{sum(row.bytes for row in rows):,}", note
