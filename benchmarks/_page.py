"""What a benchmark found, as text, and as a page in Markdown with pictures.

A module of benchmarks/ has `sections()`, which measures and yields one `Section` after the other.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._timing import setting, table

GREY = "#7f7f7f"  # legible on white and on black
COLOURS = ("#e8710a", "#3b82c4", "#2f9e62", "#a15fc0", "#c2484d", "#8a6d3b", "#d16ba5", "#7f7f7f")


class Chart(NamedTuple):
    """Growth, on logarithmic axes: a panel an operation, a line a name, a point a size."""

    x: str
    y: str
    panels: Mapping[str, Mapping[str, Mapping[int, float]]]


class Section(NamedTuple):
    """One thing that was measured."""

    title: str
    text: str  # what the figures are
    table: Mapping[str, Mapping[str, object]]  # by the column's title, then by the row's name
    chart: Chart | None = None


def as_text(section: Section) -> str:
    """For a terminal."""
    return f"\n{section.title}\n\n{section.text}\n\n{table(section.table)}"


def show(sections: Iterable[Section], *packages: str) -> None:
    """Print sections as they come, after the versions of packages and the machine."""
    print(setting(*packages))
    for section in sections:
        print(as_text(section), flush=True)


def as_markdown(section: Section, picture: Path) -> str:
    """For the page; the chart is drawn into `picture`, which lies in a folder next to it."""
    names = list(dict.fromkeys(name for column in section.table.values() for name in column))
    lines = [f"## {section.title}", "", section.text, "", f"| | {' | '.join(section.table)} |"]
    lines.append("|---|" + "---:|" * len(section.table))
    lines += [
        f"| {name} | {' | '.join(_cell(column.get(name, '')) for column in section.table.values())} |" for name in names
    ]
    if section.chart:
        draw(section.chart, picture)
        panels = ", ".join(section.chart.panels)
        lines += ["", f"![{section.chart.y} by {section.chart.x}: {panels}]({picture.parent.name}/{picture.name})"]
    return "\n".join([*lines, ""])


def _cell(x: object) -> str:
    return str(x).strip().replace("-", "\N{EN DASH}") if isinstance(x, tuple) else str(x).strip()


def draw(chart: Chart, picture: Path) -> None:
    """An SVG without a background: what it is laid on may be light or dark."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    # Text stays text, in the reader's font; nothing in the file depends on when it was drawn.
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "", "font.size": 9, "font.family": "sans-serif"}
    settings |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY)
    columns = min(3, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    with mpl.rc_context(settings):
        # The legend lies above, and next to a single panel.
        width, height = (3.1 * columns, 2.5 * rows + 0.5) if columns > 1 else (6, 2.7)
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
        names = list(dict.fromkeys(name for lines in chart.panels.values() for name in lines))
        for axes, (title, lines) in zip(grid.flat, chart.panels.items(), strict=False):
            for name, points in lines.items():
                style = "--" if name == "the lower bound" or name == "NamedTuple" else "-"
                axes.loglog(
                    list(points),
                    list(points.values()),
                    style + "o",
                    color=COLOURS[names.index(name) % len(COLOURS)],
                    markersize=3,
                    linewidth=2 if name == names[0] else 1.2,
                    label=name,
                )
            axes.set_title(title, fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25, color=GREY)
            axes.tick_params(labelbottom=True)
            axes.minorticks_off()
            values = [y for points in lines.values() for y in points.values()]
            if max(values) < 10 * min(values):  # within a decade, where there are hardly any powers of ten
                axes.yaxis.set_major_locator(MaxNLocator(5))
                axes.yaxis.set_major_formatter(ScalarFormatter())
        for axes in grid.flat[len(chart.panels) :]:
            axes.set_axis_off()
        figure.supxlabel(chart.x)
        figure.supylabel(chart.y)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        place: Any = "outside right center" if columns == 1 else "outside upper center"
        figure.legend(handles, labels, loc=place, ncols=(1, 2, 4)[columns - 1], frameon=False)
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, transparent=True, metadata={"Date": None, "Creator": None})
