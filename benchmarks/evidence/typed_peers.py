"""The same expressions and the same mistakes with treekit and with its peers: what mypy and pyright know of each.

`make types` runs it and writes the table of docs/versions.md. Each library gets the same lines in its own words; a line
that it has no words for is left out and not counted.
"""

import datetime
import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from textwrap import indent

from benchmarks.evidence.checkers import ROOT, STRICT, caught, check, environment, is_any

PAGE = ROOT / "docs" / "versions.md"
BEFORE, AFTER = "<!-- make types -->\n", "<!-- end of make types -->\n"
PACKAGES = ("mypy", "pyright", "jax", "equinox", "flax", "jax_dataclasses", "chex", "optax")
Words = Mapping[str, str]

# How each library says it.
NODES: Mapping[str, Words] = {
    "treekit": {
        "import": "import treekit as tk",
        "node": "@tk.node",
        "options": "@tk.node(kwonly=True)",
        "static": "tk.field(static=True, default={})",
        "replace": "tk.replace(linear, {})",
        "filter": "tk.filter",
        "partition": "tk.partition",
        "combine": "tk.combine",
        "tree_at": "tk.tree_at",
        "is_array": "tk.is_array",
    },
    "Equinox": {
        "import": "import dataclasses\nimport equinox as eqx",
        "base": "eqx.Module",
        "static": "eqx.field(static=True, default={})",
        "replace": "dataclasses.replace(linear, {})",
        "filter": "eqx.filter",
        "partition": "eqx.partition",
        "combine": "eqx.combine",
        "tree_at": "eqx.tree_at",
        "is_array": "eqx.is_array",
    },
    "flax.struct": {
        "import": "import flax.struct",
        "base": "flax.struct.PyTreeNode",
        "options": "@flax.struct.dataclass(kwonly=True)",
        "static": "flax.struct.field(pytree_node=False, default={})",
        "replace": "linear.replace({})",
    },
    "jax_dataclasses": {
        "import": "import jax_dataclasses as jdc",
        "node": "@jdc.pytree_dataclass",
        "options": "@jdc.pytree_dataclass(kwonly=True)",
        "static_type": "jdc.Static[str]",
        "replace": "jdc.replace(linear, {})",
    },
    "chex": {
        "import": "import chex",
        "node": "@chex.dataclass",
        "options": "@chex.dataclass(kwonly=True)",
        "replace": "linear.replace({})",
    },
}
# Classes, then expressions, then mistakes; a line needs the words that are in its braces.
CLASSES = """\
from typing import Generic, TypeVar, reveal_type
import jax
{import}
T = TypeVar("T")
{node}
class Linear{of_base}:
    weight: jax.Array
    bias: jax.Array | None = None
    name: {type} = {name}
{node}
class Deep(Linear):
    depth: int = 1
{node}
class Pair({base_and}Generic[T]):
    left: T
    right: T
"""
EXPRESSIONS = """\
Linear(weight=weight)
linear.weight
linear.bias
linear.name
Deep(weight=weight).weight
Pair(left=weight, right=weight)
Pair(left=weight, right=weight).right
{replace:name="out"}
{filter}(linear, {is_array})
{partition}(linear, {is_array})
{combine}(linear, linear)
{tree_at}(lambda x: x.weight, linear, weight)"""
MISTAKES = """\
Linear()
Linear(weight="w")
Linear(wieght=weight)
Linear(weight=weight, name=1)
Deep(weight=weight, depth="2")
linear.wieght
linear.bias.shape
pair: Pair[int] = Pair(left="a", right="b")
layers: list[Linear] = [linear, Pair(left=1, right=2)]
{replace:wieght=weight}
replaced: int = {replace:name="out"}
{replace:name="out"}.wieght
filtered: int = {filter}(linear, {is_array})
{filter}(linear)
{filter}(linear, {is_array}).wieght
partitioned: Linear = {partition}(linear, {is_array})
{combine}(linear, linear).wieght
{tree_at}(lambda x: x.wieght, linear, weight)
{tree_at}(linear, lambda x: x.weight, weight)
{tree_at}(lambda x: x.weight, linear, weight).wieght
{static_option}
{options} class Options: x: int"""

OPTIMIZERS: Mapping[str, Words] = {
    "treekit": {"import": "from treekit import optax", "params": "Params = dict[str, jax.Array]"},
    "Optax": {"import": "import optax", "params": "Params = dict[str, jax.Array]"},
    "treekit, a class": {"import": "from treekit import optax", "params": "class Params: weight: jax.Array"},
    "Optax, a class": {"import": "import optax", "params": "class Params: weight: jax.Array"},
}
OPTIMIZER_CLASSES = """\
from typing import reveal_type
import jax
{import}
{params}
"""
OPTIMIZER_EXPRESSIONS = """\
optax.adam(1e-3)
adam.init(params)
adam.init(params)[0]
adam.update(params, adam.init(params), params)
adam.update(params, adam.init(params), params)[0]
optax.apply_updates(params, params)
optax.chain(optax.clip(1.0), adam).init(params)
optax.masked(adam, True)
masked.init(params)
optax.partition({"a": adam}, "a").init(params)
optax.MultiSteps(adam, 2).init(params)
optax.inject_hyperparams(optax.adam)(1e-3).init(params)
optax.inject_hyperparams(optax.adam)(1e-3)
optax.apply_if_finite(adam, 3).init(params)
optax.incremental_update(params, params, 0.5)
optax.cosine_decay_schedule(1e-3, 10)"""
OPTIMIZER_MISTAKES = """\
optax.adamm(1e-3)
optax.adamw(1e-3, wieght_decay=0.1)
optax.adamw("1e-3")
optax.chain([optax.clip(1.0), adam])
optax.chain(optax.clip(1.0), optax.adam)
optax.masked(adam)
optax.masked(optax.adam, True)
optax.masked(True, adam)
optax.partition([adam], "a")
optax.partition({"a": optax.adam}, "a")
optax.MultiSteps(4, adam)
optax.MultiSteps(optax.adam, 4)
optax.inject_hyperparams(adam)
optax.apply_if_finite(adam)
adam.initialise(params)
adam.init()
masked.update(params)
masked.update(masked.init(params), params, params)
adam.update(params, masked.init(params), params)
masked.init(params).inner_states
adam.init(params)[0].muu
updates: Params = masked.update(params, masked.init(params), params)
optax.apply_updates(params)
other: list[int] = optax.apply_updates(params, params)
optax.losses.l2_los(1.0)"""


class _Missing(Exception):
    """A library has no word for it."""


def lines_of(text: str, words: Words) -> Iterator[str]:
    """The lines of a text in a library's words, but for those that it has no words for."""
    for line in text.splitlines():
        try:
            yield _in_words(line, words)
        except _Missing:
            continue


def _in_words(line: str, words: Words) -> str:
    out = line
    for name in ("filter", "partition", "combine", "tree_at", "is_array", "options", "static_option", "replace"):
        while (start := out.find("{" + name)) >= 0 and out[start + 1 + len(name)] in ":}":
            end = out.index("}", start)
            if name not in words:
                raise _Missing
            argument = out[start + 2 + len(name) : end]
            out = out[:start] + words[name].replace("{}", argument) + out[end + 1 :]
    return out


def program(words: Words) -> tuple[str, str, str]:
    """The head, the expressions and the mistakes of classes of nodes."""
    base = words.get("base", "")
    static = words.get("static", "{}").replace
    said = {
        **words,
        **({"static_option": "x: str = " + static("default={}", 'defualt="a"')} if "static" in words else {}),
    }
    head = CLASSES.replace("{import}", words["import"]).replace("{node}", words.get("node", ""))
    head = head.replace("{of_base}", f"({base})" if base else "").replace("{base_and}", f"{base}, " if base else "")
    head = head.replace("{name}", static("{}", '"linear"')).replace("{type}", words.get("static_type", "str"))
    return head, "\n".join(lines_of(EXPRESSIONS, said)), "\n".join(lines_of(MISTAKES, said))


def optimizer_program(words: Words) -> tuple[str, str, str]:
    """The same of optimizers."""
    head = OPTIMIZER_CLASSES.replace("{import}", words["import"]).replace("{params}", words["params"])
    return head, OPTIMIZER_EXPRESSIONS, OPTIMIZER_MISTAKES


def file_name(library: str) -> str:
    """What its files are called."""
    return re.sub(r"\W+", "_", library).lower()


def write(folder: Path, library: str, parts: tuple[str, str, str], arguments: str, local: str) -> None:
    """Two files of a library; each line has a function or a class of its own, so that none hides another."""
    head, expressions, mistakes = parts
    name = file_name(library)
    revealed = [f"reveal_type({line})" for line in expressions.splitlines()]
    functions = [f"def f{i}({arguments}) -> None:\n{indent(local + line, '    ')}\n" for i, line in enumerate(revealed)]
    (folder / f"{name}_expressions.py").write_text(head + "".join(functions))
    text = head
    for i, line in enumerate(mistakes.splitlines()):
        if line.startswith("@"):
            decorator, _, rest = line.partition(" class ")
            text += f"{decorator}  # mistake\nclass {rest}\n"
        elif line.startswith("x: str"):
            text += f"class C{i}:\n    {line}  # mistake\n"
        else:
            text += f"def f{i}({arguments}) -> None:\n{indent(local, '    ')}    {line}  # mistake\n"
    (folder / f"{name}_mistakes.py").write_text(text)


def rows(libraries: Mapping[str, Words], of_nodes: bool, python: Path, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """For each library, what is Any and what is caught, by mypy and by pyright."""
    folder.mkdir()
    for library, words in libraries.items():
        if of_nodes:
            write(folder, library, program(words), "linear: Linear, weight: jax.Array", "")
        else:
            local = "adam = optax.adam(1e-3)\nmasked = optax.masked(adam, True)\n"
            write(folder, library, optimizer_program(words), "params: Params", local)
    found = {setting: check(python, folder, setting) for setting in STRICT}
    for library in libraries:
        name = file_name(library)
        cells: list[str] = []
        for setting in STRICT:
            revealed = [x for x in found[setting] if x.file == f"{name}_expressions.py" and not x.rule]
            text = (folder / f"{name}_mistakes.py").read_text().splitlines()
            places = {(f"{name}_mistakes.py", i) for i, line in enumerate(text, 1) if line.endswith("# mistake")}
            errors = caught(found[setting])
            refused = {line for file, line in errors if file == f"{name}_expressions.py"}
            number = (folder / f"{name}_expressions.py").read_text().count("reveal_type(")
            cells += [
                f"{number - sum(not is_any(x) for x in revealed)} of {number}",
                str(len(refused)),
                f"{len(errors & places)} of {len(places)}",
            ]
        yield library, cells


def table() -> str:
    """As Markdown."""
    lines = [
        "| | mypy: Any | refused | caught | pyright: Any | refused | caught |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as name:
        python = environment(Path(name))
        for title, libraries in (("Classes", NODES), ("Optimizers", OPTIMIZERS)):
            for library, cells in rows(libraries, libraries is NODES, python, Path(name, title)):
                lines.append(f"| {title}: {library} | {' | '.join(cells)} |")
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return "\n".join([*lines, "", f"With {versions}, on {datetime.date.today()}."]) + "\n"


def main() -> None:
    text = PAGE.read_text()
    start, end = text.index(BEFORE) + len(BEFORE), text.index(AFTER)
    found = table()
    print(found)
    PAGE.write_text(text[:start] + found + text[end:])


if __name__ == "__main__":
    main()
