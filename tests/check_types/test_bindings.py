"""What treekit uses of jaxtyping without being in its documentation: where it has changed, an error says so."""

import subprocess
import sys

import pytest

CODE = """
import jaxtyping, jaxtyping._storage as storage
{change}
import beartype, jax.numpy as jnp, treekit as tk
from jaxtyping import Array, Float, jaxtyped

@tk.node
class Linear:
    weight: Float[Array, "n"]

def check(node):
    @tk.node(check=True)
    class Checked:
        weight: Float[Array, "n"]
    Checked(node.weight)

def call(hint):
    @jaxtyped(typechecker=beartype.beartype)
    def f(x: hint): ...
    f(node)

node = Linear(jnp.ones(2))
print(tk.tree_summary(node).total.numbers)
for f in (tk.check_types, check, lambda _: call(tk.Typed[Linear]), lambda _: call(tk.Batched[Linear, "m"])):
    try:
        print(f(node))
    except Exception as error:  # beartype puts it into one of its own
        print(" ".join(str(error).split()))
"""
NAMED = "check_types, node(check=True), Typed and Batched read the sizes that jaxtyping stores"
# A later jaxtyping, and what the error says of it.
LATER = {
    "the functions are gone": ("del storage.get_shape_memo", "has no attribute 'get_shape_memo'"),
    "the module is gone": ("import sys; sys.modules['jaxtyping._storage'] = None", "jaxtyping._storage"),
    "a memo has another part": (
        "get = storage.get_shape_memo; storage.get_shape_memo = lambda: (*get(), {})",
        "'self': [7]}, {}), (<class 'int'>, 'T'))",
    ),
    "a memo is a copy": (
        "import copy; get = storage.get_shape_memo; storage.get_shape_memo = lambda: copy.deepcopy(get())",
        "found ([True, False], ({'n': 2, 'm': 3}, ",
    ),
    "sizes are not stored": ("storage.set_shape_memo = lambda *parts: None", "AnnotationError"),
}


@pytest.mark.parametrize("case", LATER)
def test_where_jaxtyping_has_changed_only_what_needs_it_raises_and_says_what_is_missing(case: str) -> None:
    change, said = LATER[case]
    done = subprocess.run([sys.executable, "-c", CODE.format(change=change)], capture_output=True, text=True)
    numbers, *errors = done.stdout.splitlines()
    assert (numbers, len(errors)) == ("2", 4), done.stdout + done.stderr
    assert all(NAMED in error and said in error for error in errors), done.stdout
