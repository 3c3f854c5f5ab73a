"""Errors of what was saved: graft, state dicts, checkpoints and weights of torch."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import treekit as tk
from tests.errors.mistake import Mistake, unchecked
from tests.trees import deleted
from treekit import optax as tko

NEW = {"a": jnp.zeros(()), "w": jnp.zeros((3, 2))}
OLD = {"a": jnp.ones(()), "w": jnp.ones((2, 3))}
ADAM = tko.adam(0.1).init(OLD)
TWO_NAMES = {"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)}


class Tensor:
    """A tensor of another library, of a dtype that NumPy does not have."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")


def graft_with(**arguments: Any) -> Callable[[], object]:
    """Mistakes in arguments are errors whatever `strict` says."""
    return lambda: unchecked(tk.graft)(NEW, OLD, **arguments, strict=False)


MISTAKES: dict[str, Mistake] = {
    # The trees.
    "a name of a file for the old tree": Mistake(lambda: tk.graft(NEW, "model.npz"), ValueError, "numpy.load"),
    "a path for the new tree": Mistake(lambda: tk.graft(Path("model.npz"), OLD), ValueError, "numpy.load"),
    "an open file for the old tree": Mistake(lambda: tk.graft(NEW, io.BytesIO()), ValueError, "numpy.load"),
    "twelve leaves that are new": Mistake(
        lambda: tk.graft({name: NEW["a"] for name in ["a", *"bcdefghijklm"]}, OLD), ValueError, "m (f32[])\n"
    ),
    "a new tree without arrays": Mistake(lambda: tk.graft(tko.sgd(0.1).init({}), OLD), ValueError, "(EmptyState"),
    "shapes for the old tree": Mistake(lambda: tk.graft(NEW, jax.eval_shape(lambda: OLD)), TypeError, "at a"),
    "two old leaves of one name": Mistake(lambda: tk.graft(NEW, TWO_NAMES), ValueError, "a.b"),
    "a donated array": Mistake(lambda: tk.graft({"a": jnp.zeros(2)}, {"a": deleted()}), ValueError, "at a"),
    "a tensor without a dtype of NumPy": Mistake(
        lambda: tk.graft({"a": NEW}, {"a": {"w": Tensor()}}), TypeError, "Tensor at a.w"
    ),
    "bf16 from a file of NumPy": Mistake(
        lambda: tk.graft(NEW, {"w": np.ones(2, jnp.bfloat16).view("V2")}), TypeError, "at w"
    ),
    # What is left.
    "a misspelt name": Mistake(
        lambda: tk.graft({"weight": NEW["w"], "a": 0}, {"weihgt": OLD["w"], "a": 1, "n": 2}), ValueError, "weihgt, n"
    ),
    "a layer more": Mistake(lambda: tk.graft([NEW["a"]] * 3, [OLD["a"]] * 2), ValueError, "new 3, old 2"),
    "no name in common": Mistake(lambda: tk.graft({"w": 0}, {"p": 1}), ValueError, "rename={'p': …, …}"),
    "an array of Python objects": Mistake(
        lambda: tk.graft({"w": jnp.zeros(1), "v": jnp.zeros(1)}, {"w": np.array([1.0], object), "v": jnp.ones(1)}),
        TypeError,
        "w of the old tree",
    ),
    "two old states for one": Mistake(lambda: tk.graft((ADAM[0],), (ADAM[0], ADAM[0])), ValueError, "0.mu.a\n  1.mu.a"),
    # The arguments.
    "a dict for fresh": Mistake(graft_with(fresh={"w": None}), TypeError, "{'w': None}"),
    "a list for rename": Mistake(graft_with(rename=["w"]), TypeError, "['w']"),
    "a function for convert": Mistake(graft_with(convert=np.transpose), TypeError, "transpose"),
    "a number for resize": Mistake(graft_with(resize=2), TypeError, "resize"),
    "fresh of no leaf": Mistake(graft_with(fresh=["w", re.compile("w.x")]), ValueError, "'w.x'"),
    "fresh of a part of a name": Mistake(
        lambda: tk.graft({"w": {"x": 0}}, {"w": {"x": 1}}, fresh=re.compile("x")), ValueError, "part of w.x"
    ),
    "rename after a pattern that matches as much": Mistake(
        graft_with(rename={"**": "**", "a": "w"}), ValueError, "'a'"
    ),
    "rename to no leaf": Mistake(graft_with(rename={"w": ["v", "nowhere"]}), ValueError, "'w'"),
    "rename of two leaves to one name": Mistake(graft_with(rename={"a": "w", "w": "w"}), ValueError, "w and a"),
    "rename with other wildcards": Mistake(graft_with(rename={"*": "**"}), ValueError, "'*' and '**'"),
    "a number to unstack": Mistake(graft_with(rename={"a": "*"}), ValueError, "'a'"),
    "a name to stack": Mistake(graft_with(rename={"*": "b"}), ValueError, "'b'"),
    "an index of 5,000 digits to stack": Mistake(
        lambda: tk.graft({"w": jnp.zeros((1, 2))}, {"9" * 5000: jnp.ones(2)}, rename={"*": "w"}), ValueError, "9…"
    ),
    "convert that fails": Mistake(graft_with(convert={"w": lambda x: x.no}), AttributeError, "at w"),
    "convert to another shape": Mistake(
        lambda: tk.graft(NEW, OLD, convert={"w": np.ravel}), ValueError, "w (f32[3,2] | f32[2,3], converted to f32[6]"
    ),
    "convert to None": Mistake(graft_with(convert={"w": lambda x: None}), TypeError, "at w"),
    "resize to another shape": Mistake(graft_with(resize=lambda new, old: old), ValueError, "(3, 2)"),
    # State dicts.
    "the state dict of an optimizer": Mistake(
        lambda: tk.to_state_dict(tko.adam(0.1)), TypeError, "optimizer.init(params)"
    ),
    "the state dict of a traced array": Mistake(lambda: jax.jit(tk.to_state_dict)({"a": OLD}), TypeError, "a.a"),
    "the state dict of a tensor without a dtype of NumPy": Mistake(
        lambda: tk.to_state_dict({"a": {"w": Tensor()}}), TypeError, "Tensor at a.w"
    ),
    "the state dict of a donated array": Mistake(lambda: tk.to_state_dict({"a": deleted()}), ValueError, "at a "),
    "the state dict of two arrays of one name": Mistake(lambda: tk.to_state_dict(TWO_NAMES), ValueError, "a.b"),
    # Options
    "a dtype for cast": Mistake(graft_with(cast=jnp.bfloat16), TypeError, "cast must be True or False"),
    "a word for strict": Mistake(lambda: unchecked(tk.graft)(NEW, OLD, strict="no"), TypeError, "strict must be"),
}
