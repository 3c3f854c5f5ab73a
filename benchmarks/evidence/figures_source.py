"""What the source of treekit says of itself: how much is typed, how long it is, and how wide its folders are."""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.evidence.figure import Figure

FOLDER = Path(__file__).parents[2] / "treekit"
LINES = 250  # of a module, at most
MADE = "Made by tests/optax_names.py"  # what a script has written
NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
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

    by_hand = Counter({k: code_lines(v) for k, v in sources.items() if k.startswith("optax/") and MADE not in v})
    yield Figure("lines of code by hand in treekit/optax", by_hand.total(), goal=2600, note=shown(by_hand, 3))

    widths = Counter(str(Path(name).parent) for name in sources if Path(name).name != "__init__.py")
    widths.pop("optax", None)  # its modules are public, since Optax has them
    yield Figure(
        "private files in one folder, at most", max(widths.values(), default=0), goal=16, note=shown(widths, 3)
    )

    lengths = Counter(dict(function_lengths(modules)))
    yield Figure("lines of the longest function", max(lengths.values(), default=0), note=shown(lengths, 3))


def code_lines(source: str) -> int:
    """The lines that are neither empty nor in a comment or a docstring."""
    documented = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in NOT_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - documented)


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
