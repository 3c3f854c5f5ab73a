"""Write the report as text for a terminal."""

from collections.abc import Sequence

from treekit._base.describe import count, in_columns
from treekit.check._laws import Violation
from treekit.check._report import KINDS, Report

_BOLD, _RED, _GREEN, _PLAIN = "\033[1m", "\033[31m", "\033[32m", "\033[0m"


def as_text(report: Report, colours: bool) -> str:
    """Return the report as text."""
    bold, red, green, plain = (_BOLD, _RED, _GREEN, _PLAIN) if colours else ("", "", "", "")
    static = [(part.path or "(root)", part.value) for part in report.static]
    sections = [
        ("Leaves", [f"  {line}" for line in report.table.splitlines()]),
        ("Static parts", _indented(static)),
        ("What libraries do with it", _indented([tuple(treatment) for treatment in report.treatments])),
    ]
    lines = [f"{bold}{report.name}{plain}, {report.cls}"]
    for title, rows in sections:
        lines += ["", f"{bold}{title}{plain}", *(rows or ["  none"])]
    for title, violations in laws(report):
        lines += ["", f"{bold}{title}{plain}"]
        lines += [f"{red}{violation}{plain}" for violation in violations] or [f"  {green}all hold{plain}"]
    if report.optimizer is not None:
        lines += ["", f"{bold}{summary_title(report)}{plain}", *(f"  {line}" for line in report.summary.splitlines())]
    return "\n".join(lines)


def summary_title(report: Report) -> str:
    """The title of the table of what a step does."""
    return f"What a step of {report.optimizer} does to each leaf"


def laws(report: Report) -> list[tuple[str, list[Violation]]]:
    """Return the violations of the laws that were checked, each list with its title."""
    checked = [(f"Laws of a pytree, on {report.name}", report.violations)]
    if report.optimizer is not None:
        checked.append((f"Laws of a gradient transformation, on {report.optimizer}", report.optimizer_violations))
    return checked


def totals(report: Report) -> str:
    """Write the number of leaves of each kind, and their size."""
    found = report.totals
    kinds = ", ".join(count(found[f"{kind}s"], kind) for kind in KINDS if found[f"{kind}s"])
    sizes = f"{count(found['elements'], 'element')}, {count(found['bytes'], 'byte')}"
    return f"{count(found['leaves'], 'leaf', 'leaves')}{f' ({kinds})' if kinds else ''}; {sizes}"


def size(number: int) -> str:
    """Write a number of bytes; "" for 0."""
    return f"{number:,} B" if number else ""


def _indented(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return ["  " + line for line in in_columns(rows)]
