"""What the source of treekit says of itself: how much is typed, and how long its modules and functions are."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks._figure import Figure

FOLDER = Path(__file__).parent.parent / "treekit"
LINES = 250  # of a module, at most
ANY = {"Any", "typing.Any"}
# Names of trees: a checker has no type for "any pytree", so to checkers these may be aliases of Any.
EXEMPT = {"Params", "Updates", "OptState", "Mask", "Labels", "PyTree"}


def figures(folder: Path = FOLDER) -> Iterator[Figure]:
    """Those of the Python files in a folder."""
    sources = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.py"))}
    modules = {name: ast.parse(source) for name, source in sources.items()}
    annotations = {name: list(parameter_annotations(module)) for name, module in modules.items()}
    bare_names = ANY | aliases_of_any(modules.values()) - EXEMPT
    bare = Counter({name: sum(each in bare_names for each in found) for name, found in annotations.items()})
    percent = round(100 * bare.total() / max(1, sum(map(len, annotations.values()))), 1)
    most = f"{bare.total()} of {sum(map(len, annotations.values()))}; most in {shown(bare, 3)}"
    yield Figure("annotated parameters that are a bare Any, in percent", percent, goal=8, note=most)

    long = Counter({name: n for name, source in sources.items() if (n := len(source.splitlines())) > LINES})
    yield Figure(f"modules above {LINES} lines", len(long), goal=0, note=shown(long, 8))

    lengths = Counter(dict(function_lengths(modules)))
    yield Figure("lines of the longest function", max(lengths.values(), default=0), note=shown(lengths, 3))


def parameter_annotations(module: ast.Module) -> Iterator[str]:
    """Of every parameter that has one, in functions, methods and overloads alike."""
    for node in ast.walk(module):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield ast.unparse(node.annotation).strip("'\"")


def aliases_of_any(modules: Iterable[ast.Module]) -> set[str]:
    """The names that are Any to checkers, such as `Name = Any`, `Name: TypeAlias = Any` and `type Name = Any`."""
    names: set[str] = set()
    for node in (node for module in modules for node in ast.walk(module)):
        value = getattr(node, "value", None)
        if isinstance(value, ast.expr) and ast.unparse(value).strip("'\"") in ANY:
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", getattr(node, "name", None))]
            )
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def function_lengths(modules: Mapping[str, ast.Module]) -> Iterator[tuple[str, int]]:
    """By where it is defined, the lines of each function, its docstring included."""
    for name, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def shown(counts: Counter[str], most: int) -> str:
    """The largest of them, in one line."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(most))
