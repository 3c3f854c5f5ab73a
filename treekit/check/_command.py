"""The command `python -m treekit check module:name`, which reports on a tree and on an optimizer for it."""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

from treekit._diff.diff import in_colours
from treekit.check._load import UsageError, load_loss, load_optimizer, load_tree
from treekit.check._page import as_page
from treekit.check._report import Report, add_optimizer, report_on_tree
from treekit.check._text import as_text

_VIOLATED, _UNUSABLE = 1, 2  # exit statuses
_STDOUT, _STDERR = 1, 2  # file descriptors
_PATIENCE = 5.0  # seconds without a line of progress
_last_line = 0.0  # when the last one was printed

_DESCRIPTION = """\
Report on a pytree: its leaves and static parts, what JAX, Optax, Equinox and treekit do with it, and the laws that it
violates. With --optimizer, check the laws of a gradient transformation too, and show what a step does to each leaf. The
exit status is 0 if all laws hold, 1 if one is violated, and 2 if there is nothing to check."""

_EXAMPLE = """\
example:
  python -m treekit check my_package.models:make_model --optimizer my_package.train:optimizer --html report.html"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the arguments of the command line; by default, those of the process.

    Returns:
        The exit status: 0 if all laws hold, 1 if one is violated, 2 if there is nothing to check.

    >>> main(["check", "collections:no_such_name"])
    2
    """
    global _last_line
    _last_line = time.monotonic()
    options = _parser().parse_args(arguments)
    try:
        with _stdout_to_stderr():  # so that output of the user's code is not part of the report
            report = _report(options)
    except UsageError as error:
        _progress("")
        print(f"treekit check: {error}", file=sys.stderr)
        return _UNUSABLE
    _print(json.dumps(report.as_data(), indent=2) if options.json else as_text(report, in_colours()))
    return _VIOLATED if report.violations or report.optimizer_violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m treekit", description="Tools for JAX pytrees.")
    commands = parser.add_subparsers(required=True, metavar="command")
    check = commands.add_parser(
        "check",
        help="report on a pytree, and on an optimizer for it",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("tree", metavar="module:name", help="a pytree, or a class or function that returns one")
    check.add_argument("--optimizer", metavar="module:name", help="an optimizer, or a function that returns one")
    check.add_argument(
        "--loss",
        metavar="module:name",
        help="the function of the tree that the optimizer minimizes: it gives the gradients and the extra arguments "
        "value, grad and value_fn; by default a sum of squares whose gradients are 1",
    )
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.add_argument("--html", metavar="FILE", help="write the report as an HTML page; needs treescope")
    return parser


def _report(options: argparse.Namespace) -> Report:
    if options.loss is not None and options.optimizer is None:
        raise UsageError("--loss needs --optimizer, the optimizer that minimizes it")
    tree = load_tree(options.tree, _progress)
    optimizer = None if options.optimizer is None else (options.optimizer, load_optimizer(options.optimizer, _progress))
    loss = None if options.loss is None else (options.loss, load_loss(options.loss, _progress))
    report = report_on_tree(options.tree, tree, _progress)
    if optimizer is not None:
        report = add_optimizer(report, tree, optimizer, loss, _progress)
    if options.html is not None:
        _progress("drawing the page")
        _write(options.html, as_page(report, tree))
    _progress("")
    return report


@contextlib.contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """Redirect standard output to standard error, for print, C libraries and child processes."""
    sys.stdout.flush()
    saved = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        print(end="", file=sys.__stdout__, flush=True)
        os.dup2(saved, _STDOUT)
        os.close(saved)


def _print(text: str) -> None:
    """Print, with escapes for characters that the encoding of the output does not have."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # the reader stopped early, as head does; without this, Python would raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        sys.stdout.flush()


def _progress(what: str) -> None:
    """Show progress: on a terminal by rewriting one line, elsewhere by a line every few seconds."""
    global _last_line
    if sys.stderr.isatty():
        print(f"\r\033[K{what}" + ("…" if what else ""), end="", file=sys.stderr, flush=True)
    elif what and time.monotonic() - _last_line > _PATIENCE:
        print(f"{what}…", file=sys.stderr, flush=True)
        _last_line = time.monotonic()


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error}") from None
