"""python -m treekit check module:name: what a model is made of, what others make of it, and the laws it breaks."""

import argparse
import contextlib
import dataclasses
import html
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treekit._callable import is_truly_callable
from treekit._check import Broken, LawsBroken, transformation_laws
from treekit._describe import describe
from treekit._dtype import dtype_of
from treekit._filter import is_array, is_inexact_array, is_parameter
from treekit._jax import jtu
from treekit.testing import check_pytree

_BROKEN, _WRONG = 1, 2  # exit statuses
_LISTED = 8  # key paths that are named in one line
_PATIENCE = 5.0  # seconds without a word
_told = 0.0  # when the last word was


class _Wrong(Exception):
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


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: those of the command line; by default the ones that the process was started with.

    Returns:
        The exit status: 0 where all laws hold, 1 where one is broken, 2 where there is nothing to check.

    >>> main(["check", "collections:no_such_name"])
    2
    """
    global _told
    _told = time.monotonic()
    options = _parser().parse_args(arguments)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints is no part of the report
            tree = _tree(options.tree)
            optimizer = None if options.optimizer is None else _optimizer(options.optimizer)
            report = _report(options.tree, tree, options.optimizer, optimizer)
            if options.html is not None:
                _write(options.html, _page(report, tree))
    except _Wrong as error:
        print(f"treekit check: {error}", file=sys.stderr)
        return _WRONG
    print(json.dumps(report.as_data(), indent=2) if options.json else _text(report, _colours()))
    return _BROKEN if report.broken or report.optimizer_broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m treekit", description="Tools for JAX pytrees.")
    commands = parser.add_subparsers(required=True, metavar="command")
    check = commands.add_parser(
        "check",
        help="what a tree is made of, what others make of it, and the laws it breaks",
        description="Prints a tree, what JAX, Optax, Equinox and treekit make of it, and the laws it breaks. The exit "
        "status is 1 if one is broken, and 2 if there is nothing to check.",
    )
    check.add_argument("tree", metavar="module:name", help="a pytree; or a class or function of no arguments, for one")
    check.add_argument("--optimizer", metavar="module:name", help="a gradient transformation, or a function for one")
    check.add_argument("--json", action="store_true", help="print the report for machines")
    check.add_argument("--html", metavar="FILE", help="write the tree as a page, to fold and search; needs treescope")
    return parser


# --------------------------------------------------------------------------------------- what the arguments name


def _tree(name: str) -> Any:
    tree = _call_if_function(name, _load(name))
    if jtu.all_leaves([tree]) and not is_array(tree):
        raise _Wrong(
            f"{name} is no pytree but a leaf of type {type(tree).__qualname__}; a class becomes one by treekit.node "
            "or treekit.register_node"
        )
    return tree


def _optimizer(name: str) -> Any:
    found = _load(name)
    tx = found if _is_transformation(found) else _call_if_function(name, found)
    if not _is_transformation(tx):
        raise _Wrong(f"{name} is no gradient transformation: {type(tx).__qualname__} has no init and update")
    return tx


def _is_transformation(x: Any) -> bool:
    return not isinstance(x, type) and callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))


def _load(name: str) -> Any:
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise _Wrong(f"{name!r} is not of the form module:name")
    _progress(f"importing {module}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise _Wrong(f"importing {module} fails: {_one_line(error)}") from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except Exception as error:
            raise _Wrong(f"{module} has no {path}: {_one_line(error)}") from None
    return found


def _call_if_function(name: str, x: Any) -> Any:
    """What a class or a function makes; a node is itself, though it may be callable."""
    if not (callable(x) and jtu.all_leaves([x])):
        return x
    _progress(f"calling {name}")
    try:
        return x()
    except (Exception, SystemExit) as error:
        raise _Wrong(f"{name} cannot be called without arguments: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


# --------------------------------------------------------------------------------------------------- the report


def _report(name: str, tree: Any, optimizer_name: str | None, tx: Any) -> Report:
    try:
        leaves = [_leaf(jtu.keystr(path), x) for path, x in jtu.tree_flatten_with_path(tree)[0]]
        static = list(_static_parts("", tree))
    except Exception as error:
        raise _Wrong(f"{name} cannot be flattened: {_one_line(error)}") from None
    _progress("the laws of a pytree")
    broken: list[Broken] = []
    try:
        if not jtu.all_leaves([tree]):
            check_pytree(tree)
    except LawsBroken as error:
        broken = error.broken
    _progress("what others make of it")
    fates = list(_fates(tree))
    of_optimizer: list[Broken] = []
    if tx is not None:
        laws = transformation_laws(tx, tree, None, {}, progress=lambda law: _progress(f"optimizer: {law}"))
        of_optimizer = list(laws)
    _progress("")
    return Report(name, type(tree).__qualname__, leaves, static, fates, broken, optimizer_name, of_optimizer)


def _leaf(path: str, x: Any) -> Leaf:
    what, dtype = describe(x), dtype_of(x)
    if is_array(x):
        kind = "array"
    elif dtype is not None:
        kind = "number"
    else:
        kind = "function" if callable(x) else "other"
        what = " ".join(repr(x).split()) if isinstance(x, str) else f"{what} {getattr(x, '__qualname__', '')}".strip()
    shape = tuple(x.shape) if is_array(x) else None
    return Leaf(path, what, kind, None if dtype is None else str(dtype), shape, int(x.nbytes) if is_array(x) else 0)


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
    text = " ".join(repr(x).split())
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
    no_argument = [path for path, x in with_paths if dtype_of(x) is None]
    yield Fate("jax.jit", f"cannot take {where(lambda x: dtype_of(x) is None)}" if no_argument else "takes it as it is")
    yield Fate("jax.grad", f"differentiates {where(is_inexact_array)}")
    yield Fate("optax", f"sees every leaf; {_optax_on(tree)}")
    yield Fate("equinox.filter(tree, is_array)", f"keeps {where(is_array)}")
    yield Fate("treekit.optax", f"sees {where(is_parameter)}")
    yield Fate("treekit.optax.filtered", f"trains {where(is_inexact_array)}")


_CALLABLE = {True: "as a mask or as labels, Optax calls it", False: "as a mask or as labels, Optax takes it for a tree"}


def _optax_on(tree: Any) -> str:
    try:
        optax: Any = importlib.import_module("optax")
    except ImportError:
        return "it is not installed, so what comes of it was not tried"
    try:
        optax.adam(1e-3).init(tree)
    except Exception as error:
        return f"adam's init fails: {_one_line(error)}"
    return "adam's init takes it"


# ------------------------------------------------------------------------------------------- the report on paper


def _text(report: Report, colours: bool) -> str:
    bold, red, green, plain = ("\033[1m", "\033[31m", "\033[32m", "\033[0m") if colours else [""] * 4
    totals = report.totals
    lines = [f"{bold}{report.name}{plain}, {report.cls}"]
    sections: list[tuple[str, list[tuple[str, ...]]]] = [
        ("Leaves", [(leaf.path or "(root)", leaf.what, _size(leaf.bytes)) for leaf in report.leaves]),
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


def _size(count: int) -> str:
    return f"{count:,} B" if count else ""


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _progress(what: str) -> None:
    """On a terminal, one line that is written over; elsewhere a line where work takes longer than a few seconds."""
    global _told
    if sys.stderr.isatty():
        print(f"\r\033[K{what}" + ("…" if what else ""), end="", file=sys.stderr, flush=True)
    elif what and time.monotonic() - _told > _PATIENCE:
        print(f"{what}…", file=sys.stderr, flush=True)
        _told = time.monotonic()


# ------------------------------------------------------------------------------------------- the report as a page


def _page(report: Report, tree: Any) -> str:
    try:
        treescope: Any = importlib.import_module("treescope")
    except ImportError:
        raise _Wrong('--html needs treescope: pip install "treekit[html]"') from None
    _progress("drawing the page")
    rows = [(leaf.path or "(root)", leaf.what, _size(leaf.bytes)) for leaf in report.leaves]
    rows += [(part.path or "(root)", f"static {part.value}", "") for part in report.static]
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return _PAGE.format(
        title=html.escape(f"{report.name}, {report.cls}"),
        totals=html.escape(", ".join(f"{count:,} {what}" for what, count in report.totals.items())),
        rows=body,
        tree=treescope.render_to_html(tree, ignore_exceptions=True),
        report=html.escape(_text(report, False)),
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: system-ui, sans-serif; margin: 2rem; }}
td {{ font-family: ui-monospace, monospace; padding-right: 2rem; }}
input {{ font-size: 1rem; padding: .3rem; width: 24rem; }}
</style>
<h1>{title}</h1>
<p>{totals}</p>
<h2>Tree</h2>
<p>Click a triangle to fold or unfold.</p>
{tree}
<h2>Leaves and static parts</h2>
<p><input id="search" type="search" placeholder="Search key paths, dtypes, shapes"> <span id="count"></span></p>
<table id="rows">{rows}</table>
<h2>Report</h2>
<pre>{report}</pre>
<script>
const search = document.getElementById("search");
function show() {{
  let shown = 0;
  for (const row of document.getElementById("rows").rows) {{
    row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase());
    shown += !row.hidden;
  }}
  document.getElementById("count").textContent = shown + " shown";
}}
search.addEventListener("input", show);
show();
</script>
</html>
"""


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _Wrong(f"{file} cannot be written: {_one_line(error)}") from None


if __name__ == "__main__":
    sys.exit(main())
