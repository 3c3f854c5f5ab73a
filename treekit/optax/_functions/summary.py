"""`summary`: show what an optimizer does to each leaf, and which state it has for it."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.describe import describe, in_columns
from treekit._base.dtype import as_array, dtype_of, resolve_array
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.key_path import flatten_with_path, key_name, path_name
from treekit._base.predicates import is_parameter
from treekit._base.types import OptState, Params, TransformationLike
from treekit._diff.diff import in_colours
from treekit.optax._functions.probe_step import probe_step
from treekit.optax._functions.take_rounds import Start
from treekit.optax._kernel.boundary import normalize
from treekit.optax._kernel.state_map import Entry, map_state

_ROWS = 50  # in str() at most
_RESET, _BOLD, _YELLOW = "\033[0m", "\033[1m", "\033[33m"


class Accumulator(NamedTuple):
    """An array in the state that belongs to one leaf: the name of its field, its key path, dtype and size in bytes."""

    name: str
    path: str
    dtype: str
    bytes: int


class Row(NamedTuple):
    """What an optimizer does to one leaf.

    Attributes:
        path: the key path, as a name: `layers.0.weight`; "" for the root.
        shape: the shape of the leaf.
        dtype: its dtype.
        step: the root mean square of what a gradient of ones adds to the update: the learning rate, for most
            optimizers. It is 0 if the leaf is frozen, unless `note` says otherwise; negative if the update goes along
            the gradient instead of against it; and None if it is unknown: `note` then says why.
        decay: the same for params of ones: the fraction that weight decay subtracts. None if it is unknown, as with a
            `state` that has copies of the params.
        state: the arrays in the state that belong to the leaf.
        note: a remark, or "".
    """

    path: str
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
    """What an optimizer does to each leaf. Its `str()` is a table.

    In the table, a subtree whose leaves differ only in their shapes is one row. The table ends after fifty rows.

    Attributes:
        rows: a row for each leaf that can be a parameter.
        totals: the counts "leaves", "frozen" and "elements"; the "bytes" of the params, the "state_bytes", and the
            "shared_bytes" of state that does not belong to one leaf (counts, hyperparameters).
    """

    rows: tuple[Row, ...]
    totals: dict[str, int]
    _keys: tuple[tuple[str, ...], ...] = dataclasses.field(repr=False)  # the parts of the path of each row

    def __str__(self) -> str:
        return self._table(False)

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set.

        >>> import jax.numpy as jnp
        >>> import optax
        >>> summary(optax.sgd(0.1), {"w": jnp.ones(2), "b": jnp.ones(3)}).show()
        leaf   array                     step  decay  state  bytes
        (all)  f32, 2 leaves, 5 numbers  0.1   0             0
        leaves: 2, frozen: 0; numbers: 5, bytes: 20; bytes of state: 0, shared by all leaves: 0
        """
        print(self._table(in_colours()))

    def _table(self, colours: bool) -> str:
        bold, yellow, plain = (_BOLD, _YELLOW, _RESET) if colours else [""] * 3
        groups = list(_groups(self.rows, self._keys, 0)) if self.rows else []
        shown = groups[:_ROWS]
        note = "note" if any(row.note for row in self.rows) else ""
        cells = [("leaf", "array", "step", "decay", "state", "bytes", note), *[_cells(*group) for group in shown]]
        lines = in_columns(cells)
        lines[0] = f"{bold}{lines[0]}{plain}"
        for i, (_, rows) in enumerate(shown, 1):
            lines[i] = f"{yellow}{lines[i]}{plain}" if _is_frozen(rows[0]) else lines[i]
        if len(groups) > _ROWS:
            lines.append(f"… and {len(groups) - _ROWS} more rows")
        return "\n".join([*lines, _last_line(self.totals)])


def summary(optimizer: TransformationLike, params: Params, state: OptState = None) -> Summary:
    """Show what one step of an optimizer does to each leaf, and which state it keeps for that leaf.

    Use it to check that masks, labels and rates reach the leaves that they were meant for. It runs the optimizer, so
    the table is right for any optimizer in any wrapper. It takes two steps outside of jit: one with a gradient of ones,
    one with params of ones and a gradient of zeros. If the latter changes params, two more separate what belongs to the
    gradient, to the params and to neither. If a step is zero, it takes another, and traces the update to find out
    whether any gradient has an effect. With `MultiSteps` it takes rounds.

    Clipping by the global norm clips the ones too, so that all steps are smaller than the rates by the same factor.

    Args:
        optimizer: a transformation of treekit, of plain Optax or your own, or a `MultiSteps`.
        params: the params, or the raw model. Their values matter if the optimizer uses them; leaves may be
            `jax.ShapeDtypeStruct`, which count as ones.
        state: the state to start from; by default that of `optimizer.init`.

    Returns:
        A `Summary`: print it, or read its `rows`. The notes of rows say what the steps do not decide: a step depends on
        a loss, as in a line search, or on random numbers; it is zero at this count of a schedule; the optimizer needs
        other arguments.

    Raises:
        TypeError: `optimizer` is not a transformation.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params = {"body": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "head": jnp.ones(3), "scale": jnp.ones(())}
    >>> optimizer = optax.partition(
    ...     {"adamw": optax.adamw(1e-3, weight_decay=0.1), "sgd": optax.sgd(0.1), "freeze": optax.set_to_zero()},
    ...     {"body": "adamw", "head": "sgd", "scale": "freeze"},
    ... )
    >>> print(summary(optimizer, params))
    leaf   array                     step   decay   state           bytes
    body   f32, 2 leaves, 9 numbers  0.001  0.0001  mu f32, nu f32  72
    head   f32[3]                    0.1    0                       0
    scale  f32[]                     0      0                       0
    leaves: 4, frozen: 1; numbers: 13, bytes: 52; bytes of state: 76, shared by all leaves: 4
    """
    tx = normalize(optimizer)
    leaves, treedef = flatten_with_path(params)
    real = [_concrete(x) for _, x in leaves]
    tree = treedef.unflatten(real)
    start = jtu.tree_map(as_array, tx.init(tree) if state is None else state)
    entries = map_state(start, tree, tx.init)
    effects = probe_step(Start(tx, tree, start, entries, is_given=state is not None))
    owned = _accumulators(start, entries)
    rows: list[Row] = []
    keys: list[tuple[str, ...]] = []
    for i, ((path, _), x, effect) in enumerate(zip(leaves, real, effects, strict=True)):
        if is_parameter(x):
            of_leaf = np.shape(x), str(dtype_of(x)), effect.step, effect.decay, tuple(owned.get(i, ())), effect.note
            rows.append(Row(path_name(path), *of_leaf))
            keys.append(tuple(map(key_name, path)))
    return Summary(tuple(rows), _totals(rows, start), tuple(keys))


def _concrete(x: Any) -> Any:
    return jnp.ones(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else resolve_array(x)


def _accumulators(state: OptState, entries: Sequence[Entry]) -> dict[int, list[Accumulator]]:
    """Return the arrays in a state that belong to each leaf of the params, by its index."""
    owned: dict[int, list[Accumulator]] = {}
    for x, entry in zip(jtu.tree_leaves(state), entries, strict=True):
        if entry.param is not None:
            name = entry.field or path_name(entry.path[: entry.depth])
            found = Accumulator(name, path_name(entry.path), str(dtype_of(x)), _nbytes(x))
            owned.setdefault(entry.param, []).append(found)
    return owned


def _nbytes(x: object) -> int:
    """Return the size of an array in bytes; 0 for anything else."""
    return int(getattr(x, "nbytes", 0))


def _totals(rows: Sequence[Row], state: OptState) -> dict[str, int]:
    sizes = [int(np.prod(row.shape)) for row in rows]
    state_bytes = sum(map(_nbytes, jtu.tree_leaves(state)))
    return {
        "leaves": len(rows),
        "frozen": sum(map(_is_frozen, rows)),
        "elements": sum(sizes),
        "bytes": sum(size * jnp.dtype(row.dtype).itemsize for row, size in zip(rows, sizes, strict=True)),
        "state_bytes": state_bytes,
        "shared_bytes": state_bytes - sum(row.bytes for row in rows),
    }


def _is_frozen(row: Row) -> bool:
    return row.step == 0 and not row.decay and not row.note


def _groups(rows: Sequence[Row], keys: Sequence[tuple[str, ...]], depth: int) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows that are printed as one row, with the path of their subtree."""
    if len(set(map(_look, rows))) == 1:
        shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*keys, strict=False))
        yield ".".join(parts[0] for parts in shared), list(rows)
        return
    below: dict[str, list[int]] = {}
    for i, path in enumerate(keys):
        below.setdefault(path[depth], []).append(i)
    for places in below.values():
        yield from _groups([rows[i] for i in places], [keys[i] for i in places], depth + 1)


def _look(row: Row) -> tuple[str, ...]:
    """Return what is printed for a row, without its path, shape and bytes."""
    state = ", ".join(f"{x.name} {_short(x.dtype)}" for x in row.state)
    return row.dtype, _number(row.step), _number(row.decay), state, row.note


def _cells(path: str, rows: Sequence[Row]) -> tuple[str, ...]:
    dtype, step, decay, state, note = _look(rows[0])
    if len(rows) == 1:
        array = describe(untyped.ShapeDtypeStruct(rows[0].shape, dtype))
    else:
        array = f"{_short(dtype)}, {len(rows)} leaves, {sum(int(np.prod(row.shape)) for row in rows):,} numbers"
    return path or "(all)", array, step, decay, state, f"{sum(row.bytes for row in rows):,}", note


def _short(dtype: str) -> str:
    return describe(untyped.ShapeDtypeStruct((), dtype)).removesuffix("[]")


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.3g}"


def _last_line(totals: dict[str, int]) -> str:
    return (
        "leaves: {leaves:,}, frozen: {frozen:,}; numbers: {elements:,}, bytes: {bytes:,}; "
        "bytes of state: {state_bytes:,}, shared by all leaves: {shared_bytes:,}"
    ).format(**totals)
