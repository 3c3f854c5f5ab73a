"""Which folder of treekit imports which, as floors: `python -m tests.folders` draws docs/drawings/folders.svg."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "treekit"
DRAWING = ROOT / "docs" / "drawings" / "folders.svg"
TITLE = "The folders and files of treekit on floors: each imports only from the floors below it"
ENTRANCES = ("__init__", "__main__", "testing", "typing")  # what users import, over all floors
WIDTH, HEIGHT, GAP = 712, 26, 8  # of the drawing, of a box, between two


def room(module: str) -> str:
    """The folder or file that a module belongs to: `_node`, `optax/_kernel`, or `optax` for public modules."""
    _, first, *rest = (*module.split("."), "__init__")
    return f"{first}/{rest[0]}" if first == "optax" and rest[0].startswith("_") and rest[0] != "__init__" else first


def imports(path: Path) -> Iterator[str]:
    """The modules of treekit that a file imports, wherever the import is."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.module in ("treekit", "treekit.optax"):
            yield from (f"{node.module}.{name}" for name in names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
        else:
            yield from names


def arrows() -> dict[str, set[str]]:
    """For each room, the other rooms that it imports from."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        here = room(module)
        found[here] |= {room(name) for name in imports(path) if name.startswith("treekit.")} - {here, *ENTRANCES}
    return {name: below for name, below in found.items() if name not in ENTRANCES}


def floors(below: Mapping[str, set[str]]) -> list[list[str]]:
    """The rooms by floor, from the lowest: each is above all that it imports from.

    Raises:
        ValueError: two rooms import from each other, perhaps through others; the message names those that do.
    """
    out: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(below):
        floor = sorted(name for name, rooms in below.items() if name not in placed and rooms <= placed)
        if not floor:
            raise ValueError(f"these import from each other: {', '.join(sorted(below.keys() - placed))}")
        out.append(floor)
        placed |= set(floor)
    return out


def drawing(rows: list[list[str]]) -> str:
    """The floors as an SVG, with the lowest at the bottom."""
    lines: list[str] = []
    for i, row in enumerate(reversed(rows)):
        width, y = (WIDTH + GAP) // len(row) - GAP, i * (HEIGHT + GAP)
        for j, name in enumerate(row):
            x, kind = 4 + j * (width + GAP), "ours" if name.startswith("optax") else "box"
            lines += [
                f'<rect class="{kind}" x="{x}" y="{y + 4}" width="{width}" height="{HEIGHT}" rx="4"/>',
                f'<text class="code" x="{x + width // 2}" y="{y + 21}" text-anchor="middle">{name}</text>',
            ]
    box = f'viewBox="0 0 {WIDTH + 8} {len(rows) * (HEIGHT + GAP) + 4}"'
    head = f'<svg class="drawing" {box} role="img" aria-labelledby="folders-title" xmlns="http://www.w3.org/2000/svg">'
    return "\n".join([head, f'<title id="folders-title">{TITLE}</title>', *lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    DRAWING.write_text(drawing(floors(arrows())))
