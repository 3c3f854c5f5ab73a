"""Imports point one way: the core never imports Optax, nothing imports `testing`, and no modules import each other."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "treekit"
pytestmark = pytest.mark.skipif(not PACKAGE.exists(), reason="needs the source")


def read() -> dict[str, ast.Module]:
    """Each module of treekit, by name."""
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(x[: -(x[-1] == "__init__") or None]): ast.parse(path.read_text()) for path, x in parts.items()}


def imports(module: ast.AST) -> Iterator[str]:
    """What a module imports, wherever the import is: `package.name` for each name."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def at_import(node: ast.AST) -> Iterator[str]:
    """What a module imports when it is imported itself: neither in functions nor for type checkers."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from imports(node)
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        yield from (name for statement in node.orelse for name in at_import(statement))
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from at_import(child)


def is_below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def circle(needs: Mapping[str, set[str]]) -> list[str]:
    """The modules that import each other, perhaps through others, or are between such modules; none in good order."""
    left = dict(needs)
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    while idle := left.keys() - {other for others in left.values() for other in others}:  # no module needs these
        left = {name: others for name, others in left.items() if name not in idle}
    return sorted(left)


@pytest.mark.parametrize(
    ("forbidden", "users"),
    [
        # `treekit.typing` has the types of transformations: to checkers, and at run time once it is asked for them.
        (("optax", "treekit.optax"), ("treekit.optax", "treekit.testing", "treekit.typing")),
        (("treekit.testing",), ("treekit.testing",)),
    ],
)
def test_imports_point_one_way(forbidden: tuple[str, ...], users: tuple[str, ...]) -> None:
    found = [
        f"{name} imports {each}"
        for name, module in read().items()
        if not any(is_below(name, user) for user in users)
        for each in imports(module)
        if any(is_below(each, x) for x in forbidden)
    ]
    assert found == []


def test_no_modules_import_each_other() -> None:
    modules = read()
    packages = {name.rpartition(".")[0] for name in modules}  # left out: each imports what is in it
    needs: dict[str, set[str]] = {}
    for name in modules.keys() - packages:
        found = {each if each in modules else each.rpartition(".")[0] for each in at_import(modules[name])}
        needs[name] = (found & modules.keys()) - packages - {name}
    assert "treekit._base.dtype" in needs["treekit._base.predicates"]
    assert circle(needs) == []


def test_a_circle_is_named() -> None:
    assert circle({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": set()}) == ["a", "b"]
    assert circle({"a": {"b"}, "b": set()}) == []
