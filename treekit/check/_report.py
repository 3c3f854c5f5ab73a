"""What a tree is made of, what others make of it, and the laws it breaks: gathered, and in words."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._callable import is_truly_callable
from treekit._describe import describe, describe_value
from treekit._dtype import dtype_of
from treekit._filter import is_array, is_inexact_array, is_parameter
from treekit._jax import jnp, jtu
from treekit.check._laws import Broken
from treekit.check._transformation_laws import transformation_laws
from treekit.check._tree_laws import pytree_laws

_LISTED = 8  # key paths that are named in one line


class Wrong(Exception):
    """What was asked for cannot be done; the message is all that is printed."""


class Leaf(NamedTuple):
    """A leaf of a tree: where, and what."""

    path: str
    what: str  # in words, as f32[2,3]
    kind: str  # "array", "number", "function" or "other"
    dtype: str | None
    shape: tuple[int, ...] | None
    bytes: int


class Static(NamedTuple):
    """A part of a tree that is no leaf: a static field, or what else a node's class keeps in the structure."""

    path: str
    value: str


class Fate(NamedTuple):
    """What somebody does with a tree."""

    who: str
    what: str


@dataclasses.dataclass(frozen=True)
class Report:
    """All that is said of a tree."""

    name: str
    cls: str
    leaves: list[Leaf]
    static: list[Static]
    fates: list[Fate]
    broken: list[Broken]
    optimizer: str | None = None
    optimizer_broken: list[Broken] = dataclasses.field(default_factory=list[Broken])

    @property
    def totals(self) -> dict[str, int]:
        """Counts of leaves by kind, of the numbers in all arrays, and their bytes."""
        arrays = [leaf for leaf in self.leaves if leaf.kind == "array"]
        return {
            "leaves": len(self.leaves),
            "arrays": len(arrays),
            "numbers": sum(leaf.kind == "number" for leaf in self.leaves),
            "functions": sum(leaf.kind == "function" for leaf in self.leaves),
            "others": sum(leaf.kind == "other" for leaf in self.leaves),
            "elements": sum(int(np.prod(leaf.shape or ())) for leaf in arrays),
            "bytes": sum(leaf.bytes for leaf in arrays),
        }

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {
            "name": self.name,
            "class": self.cls,
            "leaves": [leaf._asdict() for leaf in self.leaves],
            "static": [part._asdict() for part in self.static],
            "totals": self.totals,
            "fates": [fate._asdict() for fate in self.fates],
            "broken": [broken._asdict() for broken in self.broken],
            "optimizer": self.optimizer,
            "optimizer_broken": [broken._asdict() for broken in self.optimizer_broken],
        }


def report_on(name: str, tree: Any, optimizer_name: str | None, tx: Any, progress: Callable[[str], None]) -> Report:
    """All that is to be said of a tree, and of an optimizer if there is one; `progress` is told what begins."""
    try:
        leaves = [_leaf(jtu.keystr(path), x) for path, x in jtu.tree_flatten_with_path(tree)[0]]
        static = list(_static_parts("", tree))
    except Exception as error:
        raise Wrong(f"{name} cannot be flattened: {one_line(error)}") from None
    progress("the laws of a pytree")
    broken = [] if jtu.all_leaves([tree]) else list(pytree_laws(tree))
    progress("what others make of it")
    fates = list(_fates(tree))
    of_optimizer: list[Broken] = []
    if tx is not None:
        laws = transformation_laws(tx, tree, None, {}, progress=lambda law: progress(f"optimizer: {law}"))
        of_optimizer = list(laws)
    progress("")
    return Report(name, type(tree).__qualname__, leaves, static, fates, broken, optimizer_name, of_optimizer)


def _leaf(path: str, x: Any) -> Leaf:
    what, dtype = describe(x), dtype_of(x)
    if is_array(x) or _is_abstract(x):
        size = int(np.prod(x.shape)) * x.dtype.itemsize
        what += " (ShapeDtypeStruct)" if _is_abstract(x) else ""
        return Leaf(path, what, "array", str(x.dtype if dtype is None else dtype), tuple(x.shape), size)
    if dtype is not None:
        return Leaf(path, what, "number", str(dtype), None, 0)
    what = describe_value(x) if isinstance(x, str) else f"{what} {getattr(x, '__qualname__', '')}".strip()
    return Leaf(path, what, "function" if callable(x) else "other", None, None, 0)


def _is_abstract(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def _static_parts(path: str, x: Any) -> Iterator[Static]:
    children = [] if jtu.all_leaves([x]) else jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
    data = jtu.tree_structure(x, is_leaf=lambda y: y is not x).node_data()
    if dataclasses.is_dataclass(x) and data is not None:
        dynamic = {getattr(key[0], "name", None) for key, _ in children}
        for field in dataclasses.fields(x):
            if field.name not in dynamic and hasattr(x, field.name):
                yield Static(f"{path}.{field.name}", _short(getattr(x, field.name)))
    elif data is not None and data[1] is not None and not isinstance(x, (dict, list, tuple)):
        yield Static(path, _short(data[1]))
    for key, child in children:
        yield from _static_parts(path + jtu.keystr(key), child)


def _short(x: Any) -> str:
    text = describe_value(x)
    return text if len(text) <= 60 else text[:59] + "…"


def _fates(tree: Any) -> Iterator[Fate]:
    with_paths = [(jtu.keystr(path) or "(root)", x) for path, x in jtu.tree_flatten_with_path(tree)[0]]

    def where(holds: Callable[[Any], bool]) -> str:
        paths = [path for path, x in with_paths if holds(x)]
        more = f" and {len(paths) - _LISTED} others" if len(paths) > _LISTED else ""
        return f"{len(paths)} of {len(with_paths)} leaves" + (f": {', '.join(paths[:_LISTED])}{more}" if paths else "")

    yield Fate("callable(tree)", f"{callable(tree)}: {_CALLABLE[callable(tree)]}")
    truly = is_truly_callable(tree)
    yield Fate("treekit.is_truly_callable(tree)", f"{truly}: treekit takes it for a {'function' if truly else 'tree'}")
    for who, wrong, right in (
        ("jax.jit", _no_argument, "takes it as it is"),
        ("jax.grad", _no_variable, "differentiates all leaves"),
    ):
        takes_all = not any(wrong(x) for _, x in with_paths)
        yield Fate(who, right if takes_all else f"cannot take {where(wrong)}")
    yield Fate("optax", f"sees every leaf; {_optax_on(tree)}")
    yield Fate("equinox.filter(tree, is_array)", f"keeps {where(is_array)}")
    yield Fate("treekit.optax", f"sees {where(is_parameter)}")
    yield Fate("treekit.optax.filtered", f"trains {where(is_inexact_array)}")


def _no_argument(x: Any) -> bool:
    return dtype_of(x) is None or _is_abstract(x)


def _no_variable(x: Any) -> bool:
    return _no_argument(x) or not jnp.issubdtype(dtype_of(x), np.inexact)


_CALLABLE = {True: "as a mask or as labels, Optax calls it", False: "as a mask or as labels, Optax takes it for a tree"}


def _optax_on(tree: Any) -> str:
    try:
        optax: Any = importlib.import_module("optax")
    except ImportError:
        return "it is not installed, so what comes of it was not tried"
    try:
        optax.adam(1e-3).init(tree)
    except Exception as error:
        return f"adam's init fails: {one_line(error)}"
    return "adam's init takes it"


def as_text(report: Report, colours: bool) -> str:
    """For people."""
    bold, red, green, plain = ("\033[1m", "\033[31m", "\033[32m", "\033[0m") if colours else [""] * 4
    totals = report.totals
    lines = [f"{bold}{report.name}{plain}, {report.cls}"]
    sections: list[tuple[str, list[tuple[str, ...]]]] = [
        ("Leaves", [(leaf.path or "(root)", leaf.what, size(leaf.bytes)) for leaf in report.leaves]),
        ("Static parts", [(part.path or "(root)", part.value) for part in report.static]),
        ("What others make of it", [(fate.who, fate.what) for fate in report.fates]),
    ]
    for title, rows in sections:
        lines += ["", f"{bold}{title}{plain}", *(_aligned(rows) or ["  none"])]
        if title == "Leaves":
            kinds = ", ".join(f"{totals[kind]} {kind}" for kind in ("arrays", "numbers", "functions", "others"))
            lines.append(
                f"  {totals['leaves']} leaves ({kinds}); {totals['elements']:,} elements, {totals['bytes']:,} bytes"
            )
    broken = [(f"Laws of a pytree, on {report.name}", report.broken)]
    if report.optimizer is not None:
        broken.append((f"Laws of a gradient transformation, on {report.optimizer}", report.optimizer_broken))
    for title, laws in broken:
        lines += ["", f"{bold}{title}{plain}"]
        lines += [f"{red}{law}{plain}" for law in laws] or [f"  {green}all hold{plain}"]
    return "\n".join(lines)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(f"{x:<{width}}" for x, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def size(count: int) -> str:
    """A count of bytes in words, where there is one."""
    return f"{count:,} B" if count else ""


def one_line(error: BaseException) -> str:
    """Its type and what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
