"""Tables: cells in columns, as text for a terminal and as HTML for a notebook."""

import html
import os
import sys
from collections import Counter
from collections.abc import Container, Sequence

ROWS = 50  # in str() at most
BOLD, YELLOW, RED, GREEN, PLAIN = "\033[1m", "\033[33m", "\033[31m", "\033[32m", "\033[0m"


def in_columns(rows: Sequence[tuple[str, ...]], gap: str = "  ") -> list[str]:
    """Write each row on a line, with its cells below those of the row before."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(map(str.ljust, row, widths)).rstrip() for row in rows]


def as_table(rows: Sequence[tuple[str, str, str, str]], colours: bool) -> str:
    """Align rows of a name, a kind, a left and a right description in columns; at most fifty rows."""
    yellow, red, green, plain = (YELLOW, RED, GREEN, PLAIN) if colours else [""] * 4
    lines = in_columns(
        [
            (name, f"{yellow}{kind}{plain}", f"{red}{left}{plain} | {green}{right}{plain}")
            for name, kind, left, right in rows[:ROWS]
        ]
    )
    return "\n".join([*lines, *[more_rows(rows)] * (len(rows) > ROWS)])


def more_rows(rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Count the rows after the first fifty by their kinds; "" for fifty rows or fewer."""
    kinds = Counter(kind for _, kind, _, _ in rows[ROWS:])
    counts = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
    return f"… and {len(rows) - ROWS} more: {counts}" if kinds else ""


def as_html(rows: Sequence[tuple[str, ...]], after: str = "", heads: Container[int] = (0,)) -> str:
    """Write rows as an HTML table, for `_repr_html_`.

    Args:
        rows: the rows, the first of which is usually the names of the columns.
        after: a paragraph below the table; "" for none.
        heads: the indices of the rows that are printed as headings.
    """
    lines: list[str] = []
    for i, cells in enumerate(rows):
        tag = "th" if i in heads else "td"
        cell = f'<{tag} style="text-align: left">{{}}</{tag}>'
        lines.append(f"<tr>{''.join(cell.format(html.escape(text)) for text in cells)}</tr>")
    return f"<table>{''.join(lines)}</table>" + f"<p>{html.escape(after)}</p>" * bool(after)


def in_colours() -> bool:
    """Whether the output goes to a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
