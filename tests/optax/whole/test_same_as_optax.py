"""Every function of Optax that is another one in treekit.optax, called in both with the same arguments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases, factories
from treekit import optax as tko


@jax.tree_util.register_pytree_node_class
class Checked:
    """A class that checks what it is made with, as the documentation of JAX advises: `object()` passes."""

    def __init__(self, x: Any) -> None:
        if not (x is None or type(x) is object):
            assert isinstance(x, (jax.Array, np.ndarray, jax.ShapeDtypeStruct, optax.MaskedNode)), type(x)
        self.x = x

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Any:
        return cls(*children)


LEAVES: dict[str, Any] = {
    "f32": {"w": jnp.array([[0.5, -1.0], [2.0, 0.25]]), "b": jnp.array([1.0, -0.5])},
    "bf16": {"w": jnp.array([[0.5, -1.0], [2.0, 0.25]], jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16)},
    "NumPy": {"w": np.array([[0.5, -1.0], [2.0, 0.25]]), "b": np.array([1.0, -0.5])},
    "numbers": {"w": 0.5, "b": 2.0},
    "checked": {"w": Checked(jnp.array([[0.5, -1.0], [2.0, 0.25]])), "b": Checked(jnp.array([1.0, -0.5]))},
}

# What is meant to differ, with the reason.
DIFFERENT: dict[tuple[str, str], str] = {
    **{("monitor", leaves): "the measurements are in the state from init on" for leaves in LEAVES},
    ("inject_hyperparams", "bf16"): "hyperparameters are stored in f32 at least",
    ("inject_stateful_hyperparams", "bf16"): "hyperparameters are stored in f32 at least",
    ("scale_by_distance_over_gradients", "bf16"): "the state keeps the dtype of init, where Optax's becomes f32",
}


def call(o: Any, name: str, leaves: str) -> Any:
    """The result of a function; of a transformation, two updates and the states before, between and after them."""
    tree = LEAVES[leaves]
    if name == "contrib.scale_by_muon":  # takes only matrices
        tree = {"w": tree["w"]}
    out = factories.call(o, name, tree)
    return steps(name, out, tree) if isinstance(out, optax.GradientTransformation) else out


def steps(name: str, tx: Any, params: Any) -> list[Any]:
    """Two updates with the states before them, and the last state."""
    tx, found, state = optax.with_extra_args_support(tx), [], tx.init(params)
    extra = factories.EXTRA.get(name, cases.extra_for(params, params))
    grads = jax.tree.map(lambda x: jnp.asarray(x)[None], params) if name in factories.BY_EXAMPLE else params
    for _ in range(2):
        updates, new_state = tx.update(grads, state, params, **extra)
        found.append((updates, state))
        state = new_state
    return [*found, state]


@pytest.mark.parametrize("leaves", [pytest.param(x, marks=[pytest.mark.slow] if x != "f32" else []) for x in LEAVES])
@pytest.mark.parametrize("name", sorted(factories.NAMES.keys() - {"lookahead"}))  # it is in test_lookahead.py
@pytest.mark.filterwarnings("ignore")
def test_where_optax_works_the_result_is_the_same(name: str, leaves: str) -> None:
    with jax.numpy_rank_promotion("allow"):
        try:
            theirs = call(optax, name, leaves)
        except Exception as error:
            if leaves == "f32":
                raise AssertionError(f"add arguments with which {name} works") from error
            return
        ours = call(tko, name, leaves)
    if (name, leaves) in DIFFERENT:
        with pytest.raises(AssertionError):
            assert_same(ours, theirs)
    else:
        assert_same(ours, theirs)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if not callable(theirs):  # of functions, only that both are made
        cases.assert_close(*(jax.tree.map(jnp.asarray, x) for x in (ours, theirs)))
