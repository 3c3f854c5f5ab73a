"""Differences between two trees, each with its name, and their table."""

import dataclasses
from typing import Literal

from treekit._text.table import Comparison, Shown

LeafKind = Literal["type", "shape", "dtype", "weak type", "sharding", "value"]
NodeKind = Literal["type", "structure", "static value", "array against None"]
Kind = LeafKind | NodeKind
STRUCTURE: tuple[Kind, ...] = ("type", "structure", "static value", "array against None", "shape")


@dataclasses.dataclass(frozen=True)
class Difference:
    """One difference between two trees.

    Attributes:
        path: the name, such as "layers.0.weight"; "" for the root.
        kind: what differs, such as "dtype".
        left: a description of what the first tree has there.
        right: the same for the second tree.
        largest_absolute: of the numbers that differ in value, the largest `abs(left - right)`: with this as `atol`, no
            number would differ, up to rounding. It is inf for NaN or an infinity against another number, and None for
            other kinds of differences, bools, keys and what is not a number.
        largest_relative: the same of `abs(left - right) / abs(right)`, for `rtol`. It is inf where `right` is 0.
    """

    path: str
    kind: Kind
    left: str
    right: str
    largest_absolute: float | None = None
    largest_relative: float | None = None


class TreeDiff(Shown, tuple[Difference, ...]):
    """The differences between two trees: a tuple that is empty if the trees are the same.

    Its `str()` is a table, `show()` prints it, and a notebook shows it. The table ends after fifty rows with a count of
    the others; the tuple has all of them.
    """

    def _table(self) -> Comparison:
        rows = [(d.path or "(root)", d.kind, d.left, _right_and_how_far(d)) for d in self]
        return Comparison(("name", "kind", "left", "right"), rows, title="" if rows else "no difference")


def _right_and_how_far(d: Difference) -> str:
    if d.largest_absolute is None or d.largest_relative is None:
        return d.right
    return f"{d.right}  off by up to {d.largest_absolute:.3g}, relative {d.largest_relative:.3g}"
