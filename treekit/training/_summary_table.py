"""What `summary` returns: a row for each leaf, and how they are printed."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from treekit._text.describe import count, describe_bytes, short_dtype
from treekit._text.table import ROWS, Shown, Table, left_out


class Accumulator(NamedTuple):
    """An array in the state that belongs to one leaf: the name of its field, its key path, dtype and size in bytes."""

    name: str
    path: str
    dtype: str
    bytes: int


class Row(NamedTuple):
    """What one step of an optimizer does to one leaf.

    Attributes:
        path: the key path, as a name: `layers.0.weight`; "" for the root.
        type: such as "f32[2,3]" for an array or a number; what another leaf is, such as "Config".
        shape: the shape of the leaf; () for a leaf that is not an array.
        dtype: its dtype; "" for a leaf that is not an array.
        step: the root mean square of what a gradient of ones adds to the update: in the first step, and with `step=n`,
            the learning rate, for most optimizers. It is negative if the update goes along the gradient instead of
            against it, and None if it is unknown: `note` then says why.
        decay: the root mean square of the update without a gradient, for a leaf of ones: in the first step, and with
            `step=n`, the fraction that weight decay subtracts. It is negative if the leaf grows instead, and None if it
            is unknown. With `state` alone, it has no sign.
        state: the arrays in the state that belong to the leaf.
        note: such as "frozen", "trainable=False", "row head", of `param_groups`, "0 in the first step",
            "grows without a gradient", "random", "depends on the loss", or why the optimizer fails; "" if there is
            nothing to say.
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
class Summary(Shown):
    """What one step of an optimizer does to each leaf.

    Its `str()` is a table of fifty rows at most, `show()` prints it, and a notebook shows it. There, a subtree whose
    leaves differ only in their shapes is one row.

    Attributes:
        rows: a row for each leaf that is not a function, in the order of the tree.
        totals: of the leaves that can be parameters, the counts "leaves", "unmoved" (the step does not change them,
            with a gradient or without) and "elements"; the "bytes" of the params, the "state_bytes", and the
            "shared_bytes" of state that does not belong to one leaf (counts, hyperparameters).
        note: a remark on all rows, such as "nothing is trained", or "".
    """

    rows: tuple[Row, ...]
    totals: dict[str, int]
    note: str
    _keys: tuple[tuple[str, ...], ...] = dataclasses.field(repr=False)  # the parts of the path of each row

    def _table(self) -> Table:
        groups = list(_group(list(zip(self._keys, self.rows, strict=True)), 0)) if self.rows else []
        return Table(
            ("leaf", "array", "step", "decay", "state", "bytes", "note"),
            [_cells(*group) for group in groups[:ROWS]],
            [*left_out(len(groups) - ROWS), _last_line(self.totals), *filter(None, [self.note])],
            optional=("note",),
            highlighted={i for i, (_, rows) in enumerate(groups) if is_unmoved(rows[0])},
        )


def is_unmoved(row: Row) -> bool:
    return row.step == 0 and row.decay == 0


def _last_line(totals: Mapping[str, int]) -> str:
    leaves, numbers = count(totals["leaves"], "leaf", "leaves"), count(totals["elements"], "number")
    size, state, shared = (describe_bytes(totals[key]) for key in ("bytes", "state_bytes", "shared_bytes"))
    shared = f", {shared} shared" if totals["shared_bytes"] else ""
    return f"{leaves}, {totals['unmoved']:,} not moving; {numbers}, {size}; state: {state}{shared}"


def _group(leaves: Sequence[tuple[tuple[str, ...], Row]], depth: int) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows that are printed as one row, with the path of their subtree.

    Args:
        leaves: for each leaf of a subtree, the parts of its path, and its row.
        depth: the number of parts that they share: those of the path of the subtree.
    """
    paths, rows = [path for path, _ in leaves], [row for _, row in leaves]
    if len(set(map(_shared_cells, rows))) == 1:
        shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
        yield ".".join(parts[0] for parts in shared), rows
        return
    if any(len(path) == depth for path in paths):  # a node may give one key to two children, so a leaf is not alone
        yield from ((".".join(path), [row]) for path, row in leaves)
        return
    below: dict[str, list[tuple[tuple[str, ...], Row]]] = {}
    for path, row in leaves:
        below.setdefault(path[depth], []).append((path, row))
    for part in below.values():
        yield from _group(part, depth + 1)


def _shared_cells(row: Row) -> tuple[str, ...]:
    """Return what is printed for a row, without its path, shape and bytes."""
    names: dict[str, list[str]] = {}  # by dtype
    for x in row.state:
        names.setdefault(short_dtype(x.dtype), []).append(x.name)
    state = ", ".join(" ".join([*of_one, dtype]) for dtype, of_one in names.items())
    kind = short_dtype(row.dtype) if row.dtype else row.type
    return kind, *("-" if x is None else f"{x:.3g}" for x in (row.step, row.decay)), state, row.note


def _cells(path: str, rows: Sequence[Row]) -> tuple[str, ...]:
    kind, step, decay, state, note = _shared_cells(rows[0])
    numbers = f"{sum(math.prod(row.shape) for row in rows):,} " if rows[0].dtype else ""
    array = rows[0].type if len(rows) == 1 else f"{len(rows)} leaves, {numbers}{kind}"
    size = describe_bytes(sum(row.bytes for row in rows)).removesuffix(" bytes")
    return path or "(all)", array, step, decay, state, size, note
