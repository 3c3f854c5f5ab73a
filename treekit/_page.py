"""The report on a tree as a page."""

import html
import importlib
from typing import Any

from treekit._report import Report, Wrong, as_text, size


def as_page(report: Report, tree: Any) -> str:
    """For a browser: the tree to fold, its leaves to search, and the report."""
    try:
        treescope: Any = importlib.import_module("treescope")
    except ImportError:
        raise Wrong('--html needs treescope: pip install "treekit-jax[html]"') from None
    rows = [(leaf.path or "(root)", leaf.what, size(leaf.bytes)) for leaf in report.leaves]
    rows += [(part.path or "(root)", f"static {part.value}", "") for part in report.static]
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return _PAGE.format(
        title=html.escape(f"{report.name}, {report.cls}"),
        totals=html.escape(", ".join(f"{count:,} {what}" for what, count in report.totals.items())),
        rows=body,
        tree=treescope.render_to_html(tree, ignore_exceptions=True),
        report=html.escape(as_text(report, False)),
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
