"""An error of one of Optax's transformations names it and the leaf; other errors are as they were raised."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from treekit import optax as tko

PARAMS = {"layer": {"w": jnp.ones((2, 2)), "scale": jnp.ones(())}}


def of_user(updates: Any) -> Any:
    raise IndexError("of the user's own")


def with_optax(updates: Any) -> Any:
    return optax.tree.add(updates, {"layer": ()})


def notes(tx: Any, step: Any) -> str:
    """What is noted on the error of a step."""
    with pytest.raises((IndexError, ValueError), match=r"index|own|structure|Expected") as raised:
        step(tx.update)(PARAMS, tx.init(PARAMS), PARAMS)
    return "\n".join(x for x in getattr(raised.value, "__notes__", []) if "Optax" in x)


SM3 = "scale_by_sm3 of Optax (optax._src.transform) for the leaf layer.scale, which is f32[]. Its arguments: b1=0.9"
# In each wrapper, the note is that of the innermost transformation. What earlier links computed are not its leaves.
NOTED: dict[str, tuple[Any, str]] = {
    "alone": (tko.sm3(0.1), SM3),
    "in a chain": (tko.chain(tko.identity(), tko.sm3(0.1)), SM3),
    "injected": (tko.inject_hyperparams(tko.sm3, only="learning_rate")(0.1), SM3),
    "behind a link": (tko.chain(tko.scale(2.0), tko.sm3(0.1)), "scale_by_sm3 of Optax (optax._src.transform). "),
}


@pytest.mark.parametrize("step", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("tx, note", NOTED.values(), ids=NOTED)
def test_an_error_of_optax_names_the_transformation_and_the_leaf(tx: Any, note: str, step: Any) -> None:
    found = notes(tx, step)
    assert note in found and found.count("of Optax") == 1


@pytest.mark.parametrize("function", [of_user, with_optax])
def test_an_error_of_a_function_of_the_user_gets_no_note(function: Any) -> None:
    """Also where Optax has called it, and where it calls Optax."""
    tx = optax.GradientTransformation(
        optax.identity().init, lambda updates, state, params=None: (function(updates), state)
    )
    for own in (tko.chain(tx), tko.stateless(lambda updates, params: function(updates))):
        assert not notes(own, lambda f: f)
