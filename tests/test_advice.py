"""What a user reads after a mistake at the border of two functions: what was meant, and what to write."""

import dataclasses
import inspect
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import treekit as tk
from tests.trees import Twig
from treekit import optax as tko

MODEL = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
PARAMS = {"w": jnp.ones(100), "b": jnp.ones(3)}
PAIR: Any = (jnp.ones(2),)
JSON = json.loads('{"k": [[1.0, 2.0], [3.0, 4.0]]}')
ROUNDS = tko.MultiSteps(tko.sgd(1.0), 4)
# Without the checks of beartype, which come first in tests.
SCAN: Any = inspect.unwrap(tk.filter_scan)
MASK: Any = inspect.unwrap(tk.path_mask)
UPDATE: Any = inspect.unwrap(tko.incremental_update)


def deleted() -> Any:
    x = jnp.ones(2)
    x.delete()
    return {"a": x}


def in_mid_round() -> Any:
    weighted: Any = tko.MultiSteps(tko.sgd(1.0), 4, weighted=True)
    return tk.graft(weighted.init(PARAMS), ROUNDS.update(PARAMS, ROUNDS.init(PARAMS), PARAMS)[1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Root:
    """A class of somebody else, whose code runs whenever JAX rebuilds it."""

    square: Any

    def __post_init__(self) -> None:
        self.square = jnp.sqrt(self.square)


def undeclared() -> object:
    @tk.node
    class Empty:
        def __init__(self) -> None:
            self.scale = jnp.ones(2)

    return Empty()


def factory_above() -> object:
    make: Any = inspect.unwrap(tk.node_factory)
    return make(classmethod(lambda cls: Twig(1)))


SELECT = r"To select its instances, pass treekit\.path_"
# A mistake, and the words of the error.
ADVICE: dict[str, tuple[Callable[[], Any], str]] = {
    "a static field of a node": (
        lambda: tk.tree_at(lambda t: t.name, Twig(1, name="a"), "b"),
        r"static field Twig\.name\..*treekit\.replace\(node, name=\.\.\.\) makes a node",
    ),
    "a static field of a module": (
        lambda: tk.tree_at(lambda t: t.depth, MODEL, 1),
        r"static field MLP\.depth\..*Create the MLP again, with another value",
    ),
    "a predicate for where": (
        lambda: tk.tree_at(eqx.is_array, MODEL, 1),
        r"False is not a leaf of it\. If where is a predicate on leaves, pass a class",
    ),
    "a class that computes when it is rebuilt": (
        lambda: tk.tree_at("square", Root(jnp.full(2, 16.0)), jnp.full(2, 9.0)),
        r"cannot rebuild Root around other values: .* __post_init__, runs .*Register it with treekit\.register_node",
    ),
    "an array in a static tuple": (lambda: Twig(1, name=PAIR), r"Twig\.name is static, .* tuple, holds an array"),
    "an array that is not declared": (undeclared, r"in the class body: `scale: jax\.Array`"),
    "node_factory above classmethod": (factory_above, "write @classmethod above @node_factory"),
    "a pattern for a filter_spec": (
        lambda: tko.filtered(tko.sgd(0.1), "layers.2.**").init(MODEL),
        r"found 'layers\.2\.\*\*' at the root\. To select by key path, use treekit\.path_mask",
    ),
    "a list of patterns": (lambda: MASK(["**.bias"]), "found .*Pass each of them as an argument of its own"),
    "a class for a filter_spec": (
        lambda: tk.filter(MODEL, eqx.nn.Linear),
        r"filter_spec is the class Linear\..*path_mask\(Linear\)",
    ),
    "a class for a mask": (
        lambda: tko.adamw(1e-3, mask=eqx.nn.Linear).init(MODEL),
        rf"mask is the class Linear\. {SELECT}mask\(Linear\)",
    ),
    "a class for labels": (
        lambda: tko.partition({"a": tko.sgd(0.1)}, eqx.nn.Linear).init(MODEL),
        rf"param_labels is the class Linear\. {SELECT}labels\(\{{Linear: label\}}\)",
    ),
    "a class for rates": (
        lambda: tko.scale_by_tree(eqx.nn.Linear).init(MODEL),
        rf"rates is the class Linear\. {SELECT}labels\(\{{Linear: rate\}}, default=1\.0\)",
    ),
    "path_labels itself": (
        lambda: tko.partition({"a": tko.sgd(0.1)}, tk.path_labels).init(PARAMS),
        r"^Some parameters have no .*the label of all is [Pp]ath_?[Ll]abels\(.{,80}$",
    ),
    "an optimizer for its state": (lambda: tk.to_state_dict(tko.adam(1e-3)), r"pass optimizer\.init\(params\)"),
    "a string for a number": (
        partial(UPDATE, MODEL, MODEL, "0.1"),
        "step_size must be a real number",
    ),
    "lists of numbers": (
        lambda: tk.graft({"w": jnp.ones((2, 2))}, JSON),
        r"Old: k\.0\.0, .* New: w\. .*list of numbers, as JSON has them.*jnp\.asarray",
    ),
    "all names have changed": (
        lambda: tk.graft({"a": jnp.ones(2), "b": jnp.ones(3)}, {"x": jnp.ones(2), "y": jnp.ones(3)}),
        r"Old: x, y\. New: a, b\. Say which is which: rename=\{'x': …, …\}\.$",
    ),
    "a donated array": (lambda: tk.graft({"a": jnp.ones(2)}, deleted()), "a deleted array at a, which may"),
    "a round without weights": (in_mid_round, "at the end of a round, where mini_step is 0, or set it to mini_step"),
    "checkpoint that is neither": (
        partial(SCAN, lambda x, _: (x, None), jnp.ones(2), length=2, checkpoint="yes"),
        "checkpoint must be a bool or a policy",
    ),
}


def test_a_function_on_a_class_that_computes_gets_a_note() -> None:
    with pytest.raises(TypeError) as caught:
        tk.tree_at(lambda root: root.square, Root(jnp.ones(2)), 1.0)
    assert "Register it with treekit.register_node" in str(caught.value.__notes__)


@pytest.mark.parametrize("mistake", ADVICE)
def test_the_advice_is_what_to_write(mistake: str) -> None:
    call, words = ADVICE[mistake]
    with pytest.raises((TypeError, ValueError), match=f"(?s){words}" if "$" not in words else f"(?m){words}"):
        call()
