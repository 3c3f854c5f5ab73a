"""graft is strict: each leaf of both trees is used, named in `fresh` or dropped; an error says what would accept it."""

import gc
import re
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import treekit as tk
from tests.saved import numbered
from tests.trees import untyped
from treekit import optax as tko
from treekit.testing import assert_trees_same

zeros, ones = jnp.zeros, jnp.ones


def layers(count: int, start: float = 0.0, *names: str) -> Any:
    return {"layers": [{name: jnp.full(2, start + i) for name in names or ("w", "b")} for i in range(count)]}


PARAMS: Any = {**layers(3), "head": {"w": ones((2, 3)), "b": ones(3)}}
GROUPS = tko.partition({"a": tko.adam(0.1), "b": tko.sgd(0.1)}, tk.path_labels({"head.**": "b"}, default="a"))
OTHERS = tko.partition({"a": tko.adam(0.1), "c": tko.adam(0.1)}, tk.path_labels({"head.**": "c"}, default="a"))
ADAM = numbered(tko.adam(0.1).init(PARAMS))

# Each has leaves that are left in the new tree, in the old tree, or in both: the trees, and other arguments.
PAIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "a scale in each layer": (layers(12, 0.0, "w", "scale"), layers(12, 5.0, "w"), {}),
    "the root": (zeros(3), ones(2), {}),
    "wildcards and quotes in keys": ({'it\'s "ä"[0]': zeros(1), "b": 0}, {"q?'": ones(1), "b\\": 1, "b": 0}, {}),
    "hundreds": ({"x": 0} | {f"w{i}": zeros(1) for i in range(120)}, {"x": 0} | {f"v{i}": 1 for i in range(120)}, {}),
    "a buffer is left, and others are fresh or dropped already": (
        {"a": {"w": zeros(2)}, "v": zeros(1)},
        {"m.a.w": ones(2), "m.a.mask": ones(3), "m.n": ones(1), "x": {"a": ones(1)}},
        {"rename": {"x.**": None, "m.**": "**"}, "fresh": [re.compile("v")]},
    ),
    "layers that cannot be stacked": (
        {"layers": {"w": zeros((3, 2)), "b": zeros((3, 2))}},
        {"layers.0.w": ones(2), "layers.2.w": ones(2)} | {f"layers.{i}.b": ones(2) for i in range(3)},
        {"rename": {"layers.*.**": "layers.**"}},
    ),
    "another wrapper": (tko.MultiSteps(tko.adam(0.1), 2).init(PARAMS), ADAM, {}),
    "a new label": (OTHERS.init(PARAMS), numbered(GROUPS.init(PARAMS)), {}),
    "a state and a layer": (
        {"params": layers(4), "opt": tko.adam(0.1).init(layers(4))},
        {"params": layers(3, 5.0), "opt": numbered(tko.adam(0.1).init(layers(3)))},
        {},
    ),
}
# What is suggested is short.
SUGGESTED: dict[str, dict[str, Any]] = {
    "a scale in each layer": {"fresh": ["layers.*.scale"]},
    "another wrapper": {"fresh": ["mini_step", "gradient_step", "acc_grads.**"]},
    "wildcards and quotes in keys": {"fresh": ['it\'s "ä"[0]'], "rename": {"b\\": None, "q?'": None}},
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_the_error_suggests_accepts_what_is_left_and_changes_nothing_else(name: str) -> None:
    new, old, arguments = PAIRS[name]
    with pytest.raises(ValueError, match="strict=False") as caught:
        tk.graft(new, old, **arguments)
    lines = re.findall(r"^  ((?:fresh|rename)=.*,)$", str(caught.value), re.MULTILINE)
    pasted = eval(f"dict({' '.join(lines)})", {"re": re})
    assert pasted and pasted == SUGGESTED.get(name, pasted)
    with warnings.catch_warnings():  # of the lengths of lists
        warnings.simplefilter("ignore")
        loose, before = tk.graft(new, old, **arguments, strict=False)
    got, after = tk.graft(new, old, **arguments | pasted)
    assert_trees_same(tk.filter_arrays(got), tk.filter_arrays(loose))
    assert [row.path for row in after.kept] == [row.path for row in before.kept]
    for rows in (before.fresh, before.refused, before.dropped):
        left = [f"\n  {row.path or 'the root'} (" for row in rows if row.strict]
        assert sum(start in str(caught.value) for start in left) == min(len(left), 100)
        assert len(left) <= 100 or f"  and {len(left) - 100} more" in str(caught.value)


MODEL = {"a": {"w": zeros(2)}, "b": zeros(1)}
FILLED = jax.tree.map(jnp.ones_like, MODEL)
SUMS, WEIGHED = (tko.MultiSteps(tko.sgd(0.1), 4, weighted=weighted) for weighted in (False, True))
CLIPPED = tko.chain(tko.clip(1.0), tko.adam(0.1))
# For each row of the table in load.md, with which words it begins, a new and an old tree.
SEEN: dict[str, tuple[Any, Any]] = {
    "`model.a.w` in": (MODEL, {"model": FILLED, "epoch": 3}),
    "`params.a.w` in": ({"params": MODEL}, FILLED),
    "`model.a.w`, `mu.a.w`": (MODEL, {"model": FILLED, "mu": FILLED, "nu": FILLED, "count": ones(())}),
    "`w.0`": ({"w": zeros(2)}, {"w": [1.0, 1.0]}),
    "names of a file": (CLIPPED.init(PARAMS), tk.to_state_dict(ADAM)),
    "`gen.0.mu.w`": ({"critic": tko.adam(0.1).init(PARAMS)}, {"gen": ADAM}),
    "`mu.w` in both": (tko.scale_by_amsgrad().init(PARAMS), numbered(tko.scale_by_adam().init(PARAMS))),
    "`weight_sum`": (WEIGHED.init(PARAMS), SUMS.update(PARAMS, SUMS.init(PARAMS), PARAMS)[1]),
}
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "load.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("| what you see | what to write |")[2].partition("\n\n")[0]
ROWS = {name: [row for row in TABLE.splitlines() if row.startswith(f"| {name}")] for name in SEEN}


@pytest.mark.parametrize("name", SEEN)
def test_each_line_of_the_table_helps(name: str) -> None:
    (row,) = ROWS[name]
    new, old = SEEN[name]
    with pytest.raises(ValueError, match=r"leaves are left|no leaf in common"):
        tk.graft(new, old)
    names = {"tk": tk, "jnp": jnp, "new": new, "old": old, "old_state": tko.adam(0.1).init(PARAMS)}
    lines = re.findall(r"`(tk\.graft\(.*?\))`", row)
    for line in lines:
        got, report = eval(line, names)
        assert report.kept and not report.missing
        assert untyped.tree.structure(got) == untyped.tree.structure(new)
        assert len(report.fresh) == (0 if "fresh" not in line else len(jax.tree.leaves(new)) - len(report.kept))
    assert lines and len(TABLE.splitlines()[2:]) == len(SEEN)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float32])
def test_a_cast_that_would_change_values_is_named(dtype: Any) -> None:
    old = {"a": jnp.full(2, 1000.5 if dtype == jnp.int8 else 1j)}
    with pytest.raises(ValueError, match="which a cast would change"):
        tk.graft({"a": jnp.ones(2, dtype)}, old, cast=True)


DEEP = ".".join(["layers", "0", "w"] * 1000)
HOSTILE = {
    "a name of many parts": {DEEP: zeros(1), "x": zeros(1)},
    "names of many parts": {f"{DEEP}.{i}": zeros(1) for i in range(3)} | {"x": zeros(1)},
    "an index of many digits": {f"w.{'9' * 5000}": zeros(1), "x": zeros(1)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_any_length_are_safe(name: str) -> None:
    """Advice that looks at each beginning of a name of 3,000 parts needs a thousand times the memory of the name."""
    new: dict[str, Any] = {"x": zeros(1), f"{DEEP}.new": zeros(1)}
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="strict=False") as caught:
            tk.graft(new, HOSTILE[name])
        arguments = re.findall(r"^  ((?:fresh|rename)=.*,)$", str(caught.value), re.MULTILINE)
        tk.graft(new, HOSTILE[name], **eval(f"dict({' '.join(arguments)})"))
        assert tracemalloc.get_traced_memory()[1] < 200 * len(DEEP)
    finally:
        tracemalloc.stop()


def test_a_graft_that_fails_keeps_no_names() -> None:
    """Python's `re` keeps its last 512 patterns itself."""

    def fail(number: int) -> None:
        zero = np.zeros(1)
        old = {f"file{number}.{i}.{'x' * 100}": zero for i in range(1000)}
        with pytest.raises(ValueError, match="leaves are left"):
            tk.graft({"w": zero, "v": zero}, {**old, "w": zero})

    fail(0)
    tracemalloc.start()
    try:
        for number in (1, 2):
            fail(number)
        re.purge()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 100_000  # of 5 MB
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------------------------------------------------------- fresh


# The patterns may overlap.
@pytest.mark.parametrize("fresh", ["head.**", ("head.w", "head.b", "**.w"), re.compile(r"head\..*")])
def test_fresh_keeps_new_values_and_uses_the_old_ones(fresh: Any) -> None:
    new: Any = {"body": zeros(1), "head": {"w": zeros(3), "b": zeros(2)}}
    for old in ({"body": ones(1), "head": {"w": ones(2), "b": ones(2)}}, {"body": ones(1)}):
        got, report = tk.graft(new, old, fresh=fresh)
        assert got["head"]["w"] is new["head"]["w"] and got["head"]["b"] is new["head"]["b"]
        assert float(got["body"][0]) == 1
        assert [row.path for row in report.fresh] == ["head.b", "head.w"] and report.dropped == report.refused == ()


def test_fresh_in_a_state() -> None:
    """The moments of a head begin anew, whatever wrappers there are, and old moments do not go anywhere else."""
    for tx in (tko.adam(0.1), tko.MultiSteps(tko.chain(tko.clip(1.0), tko.adam(0.1)), 2), OTHERS):
        got, report = tk.graft(tx.init(PARAMS), ADAM, fresh="**.head.**", strict=False)
        for name, x in tk.to_state_dict(got).items():
            is_old = ".layers." in name and "acc_grads" not in name
            assert bool(x.any()) is is_old or name.endswith("count")
        assert report.dropped == ()


def test_fresh_decides_which_of_two_states_is_the_old_one() -> None:
    params = {"w": zeros(2)}
    new = tko.chain(tko.ema(0.9), tko.ema(0.5)).init(params)
    both = numbered(new)
    for i in (0, 1):
        got, _ = tk.graft(new, both[:1], fresh=f"{i}.**")
        assert_trees_same((got[1 - i], got[i]), (both[0], new[i]))
        got, _ = tk.graft(new, both, fresh=f"{i}.ema.*")  # of two old ones, each keeps its name
        assert_trees_same((got[1 - i], got[i]), (both[1 - i], both[i]._replace(ema=new[i].ema)))


def test_what_is_exempt() -> None:
    """Numbers, keys and random streams of the new tree need no old values; those of the old tree need a place."""
    new = {"p": 3, "k": jax.random.key(0), "rngs": nnx.Rngs(0), "w": zeros(1), "f": jax.nn.relu}
    got, report = tk.graft(new, {"w": ones(1), "f": "relu"})
    assert got["p"] == 3 and [row.path for row in report.kept] == ["w"]
    for name in ("p", "k"):
        with pytest.raises(ValueError, match=rf"\n  {name} \("):
            tk.graft({"w": zeros(1)}, {"w": ones(1), name: new[name]})


def test_a_key_of_which_only_the_shape_is_known_needs_a_value() -> None:
    """Another key may stay: the new one."""
    new: Any = {"w": jnp.zeros(2), "key": jax.random.key(0)}
    old: Any = {"w": jnp.ones(2)}
    got, _ = tk.graft(new, old)
    assert got["key"] == new["key"]
    with pytest.raises(ValueError, match="key"):
        tk.graft(jax.eval_shape(lambda: new), old)
    data = jax.random.key_data(jax.random.key(5))
    got, _ = tk.graft(jax.eval_shape(lambda: new), {**old, "key": data})
    assert got["key"] == jax.random.key(5)
