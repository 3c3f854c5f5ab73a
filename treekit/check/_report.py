"""Collect the report on a tree: leaves, static parts, what libraries do with it, and the laws that it violates."""

import dataclasses
import functools
import importlib
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from treekit._base.describe import describe, describe_error, describe_value
from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.key_path import flatten_with_names, named_children
from treekit._base.predicates import is_array
from treekit._base.tree import children_of
from treekit._base.types import PyTree
from treekit._summary.summary import tree_summary
from treekit.check._laws import Violation
from treekit.check._load import Progress, UsageError
from treekit.check._loss import Loss, extra_arguments, gradients, squares
from treekit.check._transformation_laws import transformation_laws
from treekit.check._treatments import Treatment, is_abstract, treatments
from treekit.check._tree_laws import tree_laws

_WIDTH = 60  # columns for a static value
KINDS = ("array", "number", "function", "other")


class Leaf(NamedTuple):
    """A leaf of a tree."""

    path: str
    what: str  # a description, such as f32[2,3]
    kind: str  # one of `KINDS`
    dtype: str | None
    shape: tuple[int, ...] | None
    bytes: int


class Static(NamedTuple):
    """A part of a tree that is not a leaf: a static field, or other data in the structure of a node."""

    path: str
    value: str


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that the command reports on a tree, and on an optimizer if there is one."""

    name: str
    cls: str
    table: str  # of the leaves, as `tree_summary` shows it
    leaves: list[Leaf]
    static: list[Static]
    treatments: list[Treatment]
    violations: list[Violation]
    optimizer: str | None = None
    optimizer_violations: list[Violation] = dataclasses.field(default_factory=list[Violation])
    summary: str = ""  # what the optimizer does to each leaf, as a table
    summary_rows: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])

    @property
    def totals(self) -> dict[str, int]:
        """Return the number of leaves of each kind, of elements in all arrays, and of bytes."""
        arrays = [leaf for leaf in self.leaves if leaf.kind == "array"]
        return {
            "leaves": len(self.leaves),
            **{f"{kind}s": sum(leaf.kind == kind for leaf in self.leaves) for kind in KINDS},
            "elements": sum(int(np.prod(leaf.shape or ())) for leaf in arrays),
            "bytes": sum(leaf.bytes for leaf in arrays),
        }

    def as_data(self) -> dict[str, Any]:
        """Return the report as data, for JSON."""
        return {
            "name": self.name,
            "class": self.cls,
            "leaves": [leaf._asdict() for leaf in self.leaves],
            "static": [part._asdict() for part in self.static],
            "totals": self.totals,
            "treatments": [treatment._asdict() for treatment in self.treatments],
            "violations": [violation._asdict() for violation in self.violations],
            "optimizer": self.optimizer,
            "optimizer_violations": [violation._asdict() for violation in self.optimizer_violations],
            "summary": self.summary_rows,
        }


def report_on_tree(name: str, tree: PyTree, progress: Progress) -> Report:
    """Return the report on a tree; `progress` is called with the name of each part before it starts."""
    try:
        leaves = [_leaf(leaf_name, x) for leaf_name, x in flatten_with_names(tree)]
        static = list(_static_parts("", tree))
        table = str(tree_summary(tree))
    except Exception as error:
        raise UsageError(f"{name} cannot be flattened: {describe_error(error)}") from None
    progress("checking the laws of a pytree")
    violations = [] if jtu.all_leaves([tree]) else list(tree_laws(tree))
    progress("trying other libraries")
    return Report(name, type(tree).__qualname__, table, leaves, static, list(treatments(tree)), violations)


def add_optimizer(
    report: Report, tree: PyTree, optimizer: tuple[str, Any], loss: tuple[str, Loss] | None, progress: Progress
) -> Report:
    """Add the laws that an optimizer violates on this tree, and what a step does to each leaf.

    Optimizer and loss are pairs of a name and a value.
    """
    name, tx = optimizer
    grads = None if loss is None else gradients(*loss, tree)
    extra = extra_arguments(tx, tree, grads, squares(tree) if loss is None else loss[1])
    laws = transformation_laws(tx, tree, grads, extra, progress=lambda law: progress(f"optimizer: {law}"))
    report = dataclasses.replace(report, optimizer=name, optimizer_violations=list(laws))
    progress("optimizer: a step of each leaf")
    summary, rows = _summary(tx, tree)
    return dataclasses.replace(report, summary=summary, summary_rows=rows)


def _summary(tx: object, tree: PyTree) -> tuple[str, list[dict[str, Any]]]:
    """Return the table of `treekit.optax.summary`, or the reason why it cannot be made, and its rows."""
    try:
        optax: Any = importlib.import_module("treekit.optax")
        found = optax.summary(tx, tree)
    except Exception as error:  # the user's code may raise anything, and there may be no Optax
        return f"cannot be shown: {describe_error(error)}", []
    rows = [{**row._asdict(), "state": [x._asdict() for x in row.state], "bytes": row.bytes} for row in found.rows]
    return str(found), rows


def _leaf(path: str, x: Any) -> Leaf:
    what, dtype = describe(x), dtype_of(x)
    if is_array(x) or is_abstract(x):
        size = int(np.prod(x.shape)) * x.dtype.itemsize
        what += " (ShapeDtypeStruct)" if is_abstract(x) else ""
        return Leaf(path, what, "array", str(x.dtype if dtype is None else dtype), tuple(x.shape), size)
    if dtype is not None:
        return Leaf(path, what, "number", str(dtype), None, 0)
    return Leaf(path, _in_words(x), "function" if callable(x) else "other", None, None, 0)


def _static_parts(name: str, x: object) -> Iterator[Static]:
    data = jtu.tree_structure(x, is_leaf=functools.partial(operator.is_not, x)).node_data()
    if dataclasses.is_dataclass(x) and data is not None:
        dynamic = {getattr(key, "name", None) for key in children_of(x)}
        for field in dataclasses.fields(x):
            if field.name not in dynamic and hasattr(x, field.name):
                yield Static(f"{name}.{field.name}".lstrip("."), _in_words(getattr(x, field.name)))
    elif data is not None and data[1] is not None and not isinstance(x, (dict, list, tuple)):
        yield Static(name, _in_words(data[1]))
    for below, child in named_children(x, name):
        yield from _static_parts(below, child)


def _in_words(x: object) -> str:
    """Describe a function by its type and name, since its repr has an address; other values by a short repr."""
    if name := getattr(x, "__qualname__", "") if callable(x) else "":
        return f"{type(x).__name__} {name}"
    text = describe_value(x)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
