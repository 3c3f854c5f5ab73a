"""No printed table is wider than a terminal of 80 columns, and nothing of it is left out."""

import html
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array, Float

import treekit as tk
from tests.releases import P
from tests.test_docs import PAGES, outputs, pieces
from tests.trees import untyped
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same, check_donation, check_transformation

pytestmark = pytest.mark.usefixtures("nans")


@pytest.fixture(autouse=True)
def promotes_as_for_users() -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


NAMES = [f"text_model.encoder.layers.{i}.self_attention.{part}" for i in (0, 11) for part in ("query", "out_proj")]
LONG: dict[str, Any] = {f"{name}.kernel": jnp.ones((4, i + 1), jnp.float32) for i, name in enumerate(NAMES)}
LONGEST: dict[str, Any] = {".".join(NAMES): jnp.ones(3, jnp.float32), "w": jnp.ones(2, jnp.float32)}
DEEP: Any = jnp.ones(2, jnp.float32)
for i in range(7):
    DEEP = {f"block_of_attention_{i}": DEEP, "norm": jnp.ones(i + 1, jnp.bfloat16)}
MLP: Any = eqx.nn.MLP(3, 2, 4, 2, key=jax.random.key(0))
FLAX: Any = nnx.state(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
LARGE = {"embedding": untyped.ShapeDtypeStruct((250_000, 2**20), jnp.float32), "head": jnp.ones(2)}
SHARDED = NamedSharding(
    untyped.sharding.AbstractMesh((2,) * 3, ("data", "model", "expert")), P(("data", "expert"), None)
)
MODELS = {"long names": LONG, "the longest name": LONGEST, "deep": DEEP, "Equinox": MLP, "Flax": FLAX}


def failing(updates: Any, state: Any, params: Any = None) -> Any:
    raise ValueError("a message of the user's own, " * 9)


def labels(params: Any) -> Any:
    return jax.tree.map(lambda x: f"rate_of_{x.size % 9}", params)


OPTIMIZERS: dict[str, Any] = {
    "adamw": tko.adamw(1e-3),
    "many accumulators": tko.MultiSteps(
        tko.chain(tko.adamw(1.2345e-5, mu_dtype=jnp.bfloat16), tko.trace(0.9), training.params_ema(0.999)), 4
    ),
    "labels": tko.partition({f"rate_of_{i}": tko.adam(10.0 ** (-i)) for i in range(9)}, labels),
    "fails": tko.GradientTransformation(lambda params: {"of_the_user": params}, failing),
}


@tk.node
class Wrong:
    weight_of_the_layer: Float[Array, "features_that_go_in features_that_come_out"]
    bias_of_the_layer: Float[Array, "features_that_come_out"]


def graft_of_long_names(new: Any, old: Any, **arguments: Any) -> Any:
    rename = {f"{name}.kernel": f"body.{name.replace('text_model', 'vision_tower')}.weight" for name in NAMES}
    new = {rename.get(name, name): jnp.zeros_like(x.T) for name, x in new.items()}
    return tk.graft(new, old, rename=rename, convert={"body.**": lambda x: x.T}, **arguments)[1]


TREES = MODELS | {
    "bytes": LARGE,
    "long values": {"x" * 9: "a b " * 50, "y": np.ones((1,) * 20)},
    "one array twice": [LONG, LONG],
    "sharded": {name: untyped.ShapeDtypeStruct((4, 4), jnp.float32, sharding=SHARDED) for name in LONG},
    "empty": {},
}
TABLES: dict[str, Callable[[], Any]] = {
    **{
        f"summary: {of_optimizer}, {name}": partial(training.summary, optimizer, model)
        for of_optimizer, optimizer in OPTIMIZERS.items()
        for name, model in MODELS.items()
        if of_optimizer == "many accumulators" or model is LONG
    },
    "summary: a later state": lambda: training.summary(tko.sgd(0.1), LONG, tko.sgd(0.1).init(LONG)),
    **{
        f"tree_summary: {name}{', stats' * stats}": partial(tk.tree_summary, tree, stats=stats)
        for name, tree in TREES.items()
        for stats in (False, True)
    },
    "tree_diff": lambda: tk.tree_diff(LONG, {x: LONG[x] + 1 for x in LONG} | {NAMES[0]: 0}),
    "tree_diff: long values": lambda: tk.tree_diff({"x": "a " * 99, "w": 1}, {"x": "b" * 99, "w": LONG}),
    "tree_diff: many kinds": lambda: tk.tree_diff([1] * 60 + [LONG], [2.0] * 50 + list(LONG) * 5),
    "graft": lambda: graft_of_long_names(LONG, LONG),
    "graft: left": lambda: graft_of_long_names(LONG | LONGEST, LONG | {"s": np.ones(3)}, strict=False),
    "graft: missing": lambda: tk.graft(
        LONG, {"w": LONG[f"{NAMES[0]}.kernel"]}, rename={"w": [*LONG, "missing"]}, strict=False
    )[1],
}
ERRORS: dict[str, Callable[[], object]] = {
    "assert_trees_same": lambda: assert_trees_same(LONG, {x: LONG[x] + 1 for x in LONG}),
    "check_types": lambda: tk.check_types({"layer": [Wrong(jnp.ones(3), jnp.ones((2, 3)))]}),
    "check_donation": lambda: check_donation(lambda x: jax.tree.reduce(lambda y, z: y + z.sum(), x, 0.0), LONG),
    "check_transformation": lambda: check_transformation(
        tko.GradientTransformation(lambda _: (), of_wrong_shape), LONG
    ),
}


def of_wrong_shape(updates: Any, state: Any, params: Any = None) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), updates), (*state, LONG)


def letters(shown: str) -> Counter[str]:
    """What is written, wherever lines end."""
    return Counter("".join(re.sub(r"\033\[\d+m", "", shown).split()))


def names_of(table: Any) -> list[str]:
    """The names of its rows, all of which are shown: of `summary`, those of the subtrees that share a row."""
    if hasattr(table, "totals"):
        return []
    rows = (*table.rows, *table.subtrees) if hasattr(table, "subtrees") else table[:50]
    return [getattr(row, "name", "") or getattr(row, "path", "") or "(root)" for row in rows]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_80_columns_and_has_all_that_it_has_in_a_notebook(name: str) -> None:
    table = TABLES[name]()
    lines = str(table).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() and line for line in lines)
    names = names_of(table)
    assert not letters("".join(names)) - letters(str(table))
    assert [name for name in names if len(name) <= 76 and name not in str(table)] == []
    page = html.unescape(re.sub(r"<[^>]+>", " ", table._repr_html_()))
    headings = "" if str(table).startswith(("name", "leaf")) else "name kind left right new old"
    assert letters(page) - letters(str(table) + headings) == letters("")


@pytest.mark.parametrize("name", ERRORS)
def test_so_do_the_tables_of_errors(name: str) -> None:
    with pytest.raises((AssertionError, TypeError)) as error:
        ERRORS[name]()
    table = [line for line in str(error.value).splitlines() if "  " in line.strip()]
    assert table and max(map(len, table)) <= 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["summary: adamw, long names", "tree_summary: Flax", "tree_diff", "graft"])
def test_it_is_shown_with_colours_in_terminals_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES[name]()
    plain, coloured, asked_not_to = io.StringIO(), Terminal(), Terminal()
    for file, no_colour in ((plain, ""), (coloured, ""), (asked_not_to, "1")):
        monkeypatch.setenv("NO_COLOR", no_colour)
        monkeypatch.setattr("sys.stdout", file)
        table.show()
    assert plain.getvalue() == asked_not_to.getvalue() == f"{table}\n"
    assert "\033[" in coloured.getvalue()
    assert re.sub(r"\033\[\d+m", "", coloured.getvalue()) == plain.getvalue()


def test_what_fits_is_on_one_line_and_what_does_not_is_unbroken_where_it_can_be() -> None:
    tree = {"layers": {"0": LONG, "1": {"w": jnp.ones(2, jnp.float32)}}}
    assert str(tk.tree_summary(tree)).splitlines()[3:8] == [
        f"layers.0.{NAMES[1]}.kernel",
        "            f32[4,2]  8        32",
        f"layers.0.{NAMES[0]}.kernel",
        "            f32[4,1]  4        16",
        f"layers.0.{NAMES[3]}.kernel",
    ]


BYTES = {
    0: "0",
    999: "999",
    1000: "1.0 KB",
    9949: "9.9 KB",
    9950: "10 KB",
    33280: "33 KB",
    10**7: "10 MB",
    10**15: "1.0 PB",
}


def test_bytes_are_written_as_a_person_reads_them() -> None:
    shapes = [untyped.ShapeDtypeStruct((size,), jnp.int8) for size in BYTES]
    lines = str(tk.tree_summary(shapes)).splitlines()[1:-1]
    assert [re.split(r"\s{2,}", line)[3:] for line in lines] == [
        [text] if text != "0" else [] for text in BYTES.values()
    ]


RAISED = re.compile(r"# raises ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_as_printed_fits_80_columns(page: Path) -> None:
    """Messages of errors are prose, and wrap."""
    code = {line: code for line, code in pieces(page)}
    printed = [text for line, text in outputs(page).items() if not RAISED.search(code[line])]
    assert [line for text in printed for line in text.splitlines() if len(line) > 80] == []
