"""Writes what treekit promises, tests/data/public_api.txt, from its sources: `make api`. A test compares the two.

Nothing is imported, so the file is the same for every Python, JAX and Optax.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FILE = ROOT / "tests" / "data" / "public_api.txt"
MODULES = ("treekit", "treekit.optax", "treekit.testing", "treekit.training", "treekit.typing")
SHOWN = ("classmethod", "overload", "property", "staticmethod")  # decorators that say how something is used
TEXTS = ("__repr__", "__str__")  # which may change
VERSION = "__version__"


class Defined(NamedTuple):
    """A name, and the statements that define it: several if it has overloads, or means something else to checkers."""

    module: str
    name: str
    statements: tuple[ast.stmt, ...]

    def lines(self) -> Iterator[str]:
        """A line for each signature, field and value, as the source has it."""
        for x in self.statements:
            if isinstance(x, ast.FunctionDef):
                yield _signature(x)
            elif isinstance(x, ast.ClassDef):
                yield f"class {x.name}({', '.join(map(ast.unparse, [*x.bases, *x.keywords]))})"
                yield from (f"    {line}" for line in _members(x))
            elif self.name == VERSION:  # whose value changes with each release
                yield f"{VERSION}: str"
            else:
                yield ast.unparse(x)

    def is_type(self) -> bool:
        """Whether it is a class or an alias; not a function, a type variable, or a value that is a default."""
        x = self.statements[0]
        return isinstance(x, ast.ClassDef) or (
            isinstance(x, ast.Assign | ast.AnnAssign) and not isinstance(x.value, ast.Call)
        )


def _signature(x: ast.FunctionDef) -> str:
    before = "".join(f"@{name} " for name in map(ast.unparse, x.decorator_list) if name in SHOWN)
    return f"{before}{x.name}({ast.unparse(x.args)})" + (f" -> {ast.unparse(x.returns)}" if x.returns else "")


def _members(cls: ast.ClassDef) -> Iterator[str]:
    """The fields of a class in their order, and its methods by name."""
    members = [x for x in _public(cls.body) if not isinstance(x, ast.FunctionDef)]
    methods = [x for x in _public(cls.body) if isinstance(x, ast.FunctionDef)]
    yield from map(ast.unparse, members)
    yield from map(_signature, sorted(methods, key=lambda x: x.name))


def _public(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The fields and methods in the body of a class that are not private."""
    for x in _flat(body):
        names = [x.target.id] if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name) else _defined(x)
        if any(not name.startswith("_") or (name.endswith("__") and name not in TEXTS) for name in names):
            yield x


@functools.cache
def statements(module: str) -> tuple[ast.stmt, ...]:
    """The statements of a module of treekit, and those inside its `if` and `try`."""
    base = ROOT / module.replace(".", "/")
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    if module == "treekit.optax":  # of whose names there is a stub
        path = base / "_names" / "__init__.pyi"
    return tuple(_flat(ast.parse(path.read_text(encoding="utf-8")).body))


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for x in body:
        yield x
        if isinstance(x, ast.If | ast.Try):
            yield from _flat([*x.body, *x.orelse])


def find(module: str, name: str) -> Defined | None:
    """Where treekit defines what a name means in a module; None for what it does not define."""
    found: list[ast.stmt] = []
    for x in statements(module):
        if isinstance(x, ast.ImportFrom) and x.module:
            for alias in x.names:
                if name == (alias.asname or alias.name) and x.module.startswith("treekit."):
                    return find(x.module, alias.name)
                if name == alias.asname:
                    found.append(x)
        if name in _defined(x):
            found.append(x)
    return Defined(module, name, tuple(found)) if found else None


def _defined(x: ast.stmt) -> list[str]:
    if isinstance(x, ast.FunctionDef | ast.ClassDef):
        return [x.name]
    targets = x.targets if isinstance(x, ast.Assign) else [x.target] if isinstance(x, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def public_names(module: str) -> list[str]:
    """What a module defines, and what it imports as a name of its own (`filter as filter`).

    Of `treekit.optax`, those that are not Optax's own functions.
    """
    from_imports = [x for x in statements(module) if isinstance(x, ast.ImportFrom)]
    if module == "treekit.optax":
        from_imports = [x for x in from_imports if str(x.module).startswith("treekit.optax._wrappers.")]
        return sorted(alias.name for x in from_imports for alias in x.names)
    names = {*(alias.asname or "_" for x in from_imports for alias in x.names)}
    names |= {name for x in statements(module) for name in _defined(x)}
    return sorted(name for name in names if not name.startswith("_") or name == VERSION)


def named_types(names: Iterable[Defined]) -> list[Defined]:
    """The types of treekit in the lines of these names, those in the lines of the types, and so on."""
    waiting = list(names)
    known = {x[:2]: x for x in waiting}
    found: list[Defined] = []
    for x in waiting:  # which grows
        words = set(re.findall(r"\b[A-Z]\w+", "\n".join(x.lines())))
        types = [y for y in (find(x.module, word) for word in sorted(words)) if y and y.is_type()]
        new = {y[:2]: y for y in types if y[:2] not in known}
        known |= new
        found += new.values()
        waiting += new.values()
    return sorted(found, key=lambda x: (x.name, x.module))


def text() -> str:
    """The file: the names of each module, and the types in them; the fields of states are in the types."""
    parts = {module: [x for name in public_names(module) if (x := find(module, name))] for module in MODULES}
    parts["Types that these name"] = named_types(x for names in parts.values() for x in names)
    written = ([f"# {part}", "", *(line for x in names for line in x.lines()), ""] for part, names in parts.items())
    return "\n".join(line for lines in written for line in lines)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
