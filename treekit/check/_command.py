"""python -m treekit check module:name: what a model is made of, what others make of it, and the laws it breaks."""

import argparse
import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from treekit._filter import is_array
from treekit._jax import jtu
from treekit.check._page import as_page
from treekit.check._report import Wrong, as_text, one_line, report_on

_BROKEN, _WRONG = 1, 2  # exit statuses
_STDOUT, _STDERR = 1, 2  # file descriptors
_PATIENCE = 5.0  # seconds without a word
_told = 0.0  # when the last word was


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
        with _stdout_to_stderr():  # what the user's code writes is no part of the report
            tree = _tree(options.tree)
            optimizer = None if options.optimizer is None else _optimizer(options.optimizer)
            report = report_on(options.tree, tree, options.optimizer, optimizer, _progress)
            if options.html is not None:
                _progress("drawing the page")
                _write(options.html, as_page(report, tree))
    except Wrong as error:
        print(f"treekit check: {error}", file=sys.stderr)
        return _WRONG
    _say(json.dumps(report.as_data(), indent=2) if options.json else as_text(report, _colours()))
    return _BROKEN if report.broken or report.optimizer_broken else 0


@contextlib.contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """For print, and for what writes to the process's own standard output: C libraries, other processes."""
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        print(end="", file=sys.__stdout__, flush=True)
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _say(text: str) -> None:
    """Print, with escapes for what the encoding of the output does not have."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # a reader that has seen enough, such as head; Python would try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        sys.stdout.flush()


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
    if tree is None:
        raise Wrong(f"{name} is None, or returns it: there is nothing to check")
    if jtu.all_leaves([tree]) and not is_array(tree):
        raise Wrong(
            f"{name} is no pytree but a leaf of type {type(tree).__qualname__}; a class becomes one by treekit.node "
            "or treekit.register_node"
        )
    return tree


def _optimizer(name: str) -> Any:
    found = _load(name)
    tx = found if _is_transformation(found) else _call_if_function(name, found)
    if not _is_transformation(tx):
        raise Wrong(f"{name} is no gradient transformation: {type(tx).__qualname__} has no init and update")
    return tx


def _is_transformation(x: Any) -> bool:
    return not isinstance(x, type) and callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))


def _load(name: str) -> Any:
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise Wrong(f"{name!r} is not of the form module:name")
    if os.sep in module or module.endswith(".py"):
        raise Wrong(f"{module} is a file; name the module as an import does, such as package.models:model")
    _progress(f"importing {module}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's module may raise anything, and exit, or skip itself as a test
        raise Wrong(f"importing {module} fails: {one_line(error)}") from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except Exception as error:
            raise Wrong(f"{module} has no {path}: {one_line(error)}") from None
    return found


def _call_if_function(name: str, x: Any) -> Any:
    """What a class or a function makes; a node is itself, though it may be callable."""
    if not (callable(x) and jtu.all_leaves([x])):
        return x
    _progress(f"calling {name}")
    try:
        return x()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Wrong(f"{name} cannot be called without arguments: {one_line(error)}") from None


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


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
    except OSError as error:
        raise Wrong(f"{file} cannot be written: {one_line(error)}") from None
