"""The same expressions and the same mistakes with treekit and with its peers: what mypy and pyright know of each.

`make types` runs it and writes the table of docs/versions.md. Each library gets the same lines in its own words; a line
that it has no words for is left out and not counted.
"""

import contextlib
import datetime
import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks._timing import markdown
from benchmarks.evidence.checkers import ROOT, STRICT, caught, check, environment, is_any

PAGE = ROOT / "docs" / "versions.md"
BEFORE, AFTER = "<!-- make types -->\n", "<!-- end of make types -->\n"
PACKAGES = ("mypy", "pyright", "jax", "equinox", "flax", "jax_dataclasses", "chex", "optax")


class Word(str):
    """A word of a library. In a line, `{replace:name="out"}` puts what follows the colon where its `{}` is."""

    def __format__(self, inside: str) -> str:
        return self.replace("{}", inside)


class Program(NamedTuple):
    """Lines that need the words in their braces.

    Attributes:
        libraries: the words of each.
        head: comes before; a library may leave words out that `DEFAULTS` has.
        arguments: of a function around each line.
        local: a line before each, in that function.
        expressions: a line each.
        mistakes: a line each.
    """

    libraries: Mapping[str, Mapping[str, str]]
    head: str
    arguments: str
    local: str
    expressions: str
    mistakes: str


DEFAULTS = {"node": "", "base": "", "name": 'name: str = "linear"'}
CLASSES = Program(
    {
        "treekit": {
            "import": "import treekit as tk",
            "node": "@tk.node",
            "options": "tk.node(kwonly=True)",
            "name": 'name: str = tk.field(static=True, default="linear")',
            "field": "tk.field(static=True, {})",
            "replace": "tk.replace(linear, {})",
            **{name: f"tk.{name}" for name in ("filter", "partition", "combine", "tree_at", "is_array")},
        },
        "Equinox": {
            "import": "import dataclasses, equinox as eqx",
            "base": "eqx.Module, ",
            "name": 'name: str = eqx.field(static=True, default="linear")',
            "field": "eqx.field(static=True, {})",
            "replace": "dataclasses.replace(linear, {})",
            **{name: f"eqx.{name}" for name in ("filter", "partition", "combine", "tree_at", "is_array")},
        },
        "flax.struct": {
            "import": "import flax.struct",
            "base": "flax.struct.PyTreeNode, ",
            "options": "flax.struct.dataclass(kwonly=True)",
            "name": 'name: str = flax.struct.field(pytree_node=False, default="linear")',
            "field": "flax.struct.field(pytree_node=False, {})",
            "replace": "linear.replace({})",
        },
        "jax_dataclasses": {
            "import": "import jax_dataclasses as jdc",
            "node": "@jdc.pytree_dataclass",
            "options": "jdc.pytree_dataclass(kwonly=True)",
            "name": 'name: jdc.Static[str] = "linear"',
            "replace": "jdc.replace(linear, {})",
        },
        "chex": {
            "import": "import chex",
            "node": "@chex.dataclass",
            "options": "chex.dataclass(kwonly=True)",
            "replace": "linear.replace({})",
        },
    },
    head="""\
from typing import Generic, TypeVar, reveal_type
import jax
{import}
T = TypeVar("T")
{node}
class Linear({base}object):
    weight: jax.Array
    bias: jax.Array | None = None
    {name}
{node}
class Deep(Linear):
    depth: int = 1
{node}
class Pair({base}Generic[T]):
    left: T
    right: T
""",
    arguments="linear: Linear, weight: jax.Array",
    local="pass",
    expressions="""\
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
{tree_at}(lambda x: x.weight, linear, weight)""",
    mistakes="""\
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
name: str = {field:defualt="a"}
{options}(Linear)""",
)

OURS, THEIRS = "from treekit import optax", "import optax"
DICT, CLASS = "Params = dict[str, jax.Array]", "class Params: weight: jax.Array"
OPTIMIZERS = Program(
    {
        "treekit": {"import": OURS, "params": DICT},
        "Optax": {"import": THEIRS, "params": DICT},
        "treekit, a class": {"import": OURS, "params": CLASS},
        "Optax, a class": {"import": THEIRS, "params": CLASS},
    },
    head="""\
from typing import reveal_type
import jax
{import}
{params}
""",
    arguments="params: Params",
    local="adam = optax.adam(1e-3); masked = optax.masked(adam, True)",
    expressions="""\
optax.adam(1e-3)
adam.init(params)
adam.init(params)[0]
adam.update(params, adam.init(params), params)
adam.update(params, adam.init(params), params)[0]
optax.apply_updates(params, params)
optax.chain(optax.clip(1.0), adam).init(params)
optax.masked(adam, True)
masked.init(params)
optax.partition({{"a": adam}}, "a").init(params)
optax.MultiSteps(adam, 2).init(params)
optax.inject_hyperparams(optax.adam)(1e-3).init(params)
optax.inject_hyperparams(optax.adam)(1e-3)
optax.apply_if_finite(adam, 3).init(params)
optax.incremental_update(params, params, 0.5)
optax.cosine_decay_schedule(1e-3, 10)""",
    mistakes="""\
optax.adamm(1e-3)
optax.adamw(1e-3, wieght_decay=0.1)
optax.adamw("1e-3")
optax.chain([optax.clip(1.0), adam])
optax.chain(optax.clip(1.0), optax.adam)
optax.masked(adam)
optax.masked(optax.adam, True)
optax.masked(True, adam)
optax.partition([adam], "a")
optax.partition({{"a": optax.adam}}, "a")
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
optax.losses.l2_los(1.0)""",
)
PROGRAMS = {"Classes": CLASSES, "Optimizers": OPTIMIZERS}


def write(folder: Path, library: str, program: Program) -> tuple[Path, Path]:
    """Two files of a library; each line has a function of its own, so that none hides another."""
    words = {name: Word(word) for name, word in {**DEFAULTS, **program.libraries[library]}.items()}

    def functions(text: str, around: str) -> Iterator[str]:
        for i, line in enumerate(text.splitlines()):
            with contextlib.suppress(KeyError):  # the library has no word for it
                said = around.format(line.format_map(words))
                yield f"def f{i}({program.arguments}) -> None:\n    {program.local}\n    {said}\n"

    name = re.sub(r"\W+", "_", library).lower()
    files = folder / f"{name}_expressions.py", folder / f"{name}_mistakes.py"
    texts = functions(program.expressions, "reveal_type({})"), functions(program.mistakes, "{}  # mistake")
    for file, text in zip(files, texts, strict=True):
        file.write_text(program.head.format_map(words) + "".join(text))
    return files


def rows(title: str, python: Path, folder: Path) -> Iterator[list[str]]:
    """For each library, what is Any, what is refused and what is caught, by mypy and by pyright."""
    program = PROGRAMS[title]
    folder.mkdir()
    files = {library: write(folder, library, program) for library in program.libraries}
    found = {setting: check(python, folder, setting) for setting in STRICT}
    for library, (expressions, mistakes) in files.items():
        number = expressions.read_text().count("reveal_type(")
        lines = enumerate(mistakes.read_text().splitlines(), 1)
        places = {(mistakes.name, i) for i, line in lines if line.endswith("# mistake")}
        cells: list[str] = []
        for setting in STRICT:
            known = [x for x in found[setting] if x.file == expressions.name and not x.rule and not is_any(x)]
            errors = caught(found[setting])
            refused = [line for file, line in errors if file == expressions.name]
            cells += [
                f"{number - len(known)} of {number}",
                str(len(refused)),
                f"{len(errors & places)} of {len(places)}",
            ]
        yield [f"{title}: {library}", *cells]


def main() -> None:
    titles = ["", "mypy: Any", "refused", "caught", "pyright: Any", "refused", "caught"]
    with tempfile.TemporaryDirectory() as name:
        python = environment(Path(name))
        table = markdown(titles, [row for title in PROGRAMS for row in rows(title, python, Path(name, title))])
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    found = f"{table}\n\nWith {versions}, on {datetime.date.today()}.\n"
    print(found)
    text = PAGE.read_text()
    start, end = text.index(BEFORE) + len(BEFORE), text.index(AFTER)
    PAGE.write_text(text[:start] + found + text[end:])


if __name__ == "__main__":
    main()
