"""Write the report as an HTML page: the violations, a tree that can be folded, and leaves that can be searched."""

import html
import importlib
from collections.abc import Iterable
from typing import Any

from treekit._base.types import PyTree
from treekit.check._laws import Violation
from treekit.check._load import UsageError
from treekit.check._report import Report
from treekit.check._text import laws, size, summary_title, totals


def as_page(report: Report, tree: PyTree) -> str:
    """Return the report as one self-contained HTML file."""
    try:
        treescope: Any = importlib.import_module("treescope")
    except ImportError:
        raise UsageError('--html needs treescope: pip install "treekit-jax[html]"') from None
    rows = [(leaf.path or "(root)", leaf.what, size(leaf.bytes)) for leaf in report.leaves]
    rows += [(part.path or "(root)", part.value, "static") for part in report.static]
    return _PAGE.format(
        name=html.escape(report.name),
        cls=html.escape(report.cls),
        totals=html.escape(totals(report)),
        laws="".join(_section(title, violations) for title, violations in laws(report)),
        summary=_summary(report),
        tree=treescope.render_to_html(tree, ignore_exceptions=True),
        rows=_rows(rows),
        treatments=_rows(report.treatments),
    )


def _section(title: str, violations: list[Violation]) -> str:
    text = "".join(map(_violation, violations)) or '<p class="holds">All laws hold.</p>'
    return f"<h2>{html.escape(title)}</h2>{text}"


def _summary(report: Report) -> str:
    if report.optimizer is None:
        return ""
    return f'<h2>{html.escape(summary_title(report))}</h2><pre class="tree">{html.escape(report.summary)}</pre>'


def _violation(violation: Violation) -> str:
    parts = "".join(
        f"<dt>{part}</dt><dd>{html.escape(getattr(violation, part))}</dd>" for part in ("found", "effect", "fix")
    )
    return f'<section class="violation"><h3>{html.escape(violation.law)}</h3><dl>{parts}</dl></section>'


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}, {cls}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; color: #1f2328; }}
h1, h2 {{ line-height: 1.2; overflow-wrap: anywhere; }}
h1 small {{ font-weight: normal; color: #59636e; }}
h2 {{ font-size: 1.25rem; margin-top: 2.5rem; }}
h3 {{ font-size: 1rem; margin: 0 0 .5rem; }}
.holds {{ color: #1a7f37; }}
.violation {{ border-left: .25rem solid #d1242f; background: #fff5f5; padding: .75rem 1rem; margin: 1rem 0; }}
dl {{ display: grid; grid-template-columns: 4rem 1fr; gap: .25rem .5rem; margin: 0; }}
dt {{ color: #59636e; }}
dd {{ margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }}
.tree {{ overflow-x: auto; border: 1px solid #d1d9e0; border-radius: .375rem; padding: .75rem; }}
table {{ border-collapse: collapse; width: 100%; }}
tr {{ border-top: 1px solid #d1d9e0; }}
td {{ font: .875rem/1.5 ui-monospace, monospace; padding: .25rem 1rem .25rem 0; vertical-align: top;
  overflow-wrap: anywhere; }}
#rows td:last-child {{ text-align: right; white-space: nowrap; padding-right: 0; color: #59636e; }}
#treatments td:first-child {{ white-space: nowrap; }}
input {{ font: inherit; padding: .3rem .5rem; width: 24rem; max-width: 100%; box-sizing: border-box; }}
@media (max-width: 40rem) {{
  tr:not([hidden]) {{ display: flex; flex-wrap: wrap; justify-content: space-between; padding: .25rem 0; }}
  td {{ padding: 0; }}
  td:first-child {{ width: 100%; font-weight: bold; }}
  dl {{ display: block; }}
}}
</style>
<h1>{name} <small>{cls}</small></h1>
<p>{totals}</p>
{laws}
{summary}
<h2>Tree</h2>
<p>Click a triangle to fold or unfold.</p>
<div class="tree">{tree}</div>
<h2>Leaves and static parts</h2>
<p><input id="search" type="search" placeholder="Search key paths, dtypes, shapes"
  aria-label="Search leaves and static parts"> <span id="count"></span></p>
<table id="rows">{rows}</table>
<h2>What libraries do with it</h2>
<table id="treatments">{treatments}</table>
<script>
const search = document.getElementById("search");
const rows = [...document.getElementById("rows").rows];
function show() {{
  const words = search.value.toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(words);
  document.getElementById("count").textContent = rows.filter(row => !row.hidden).length + " of " + rows.length;
}}
search.addEventListener("input", show);
show();
</script>
</html>
"""
