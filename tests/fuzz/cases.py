"""A random program: what it is made of, and how it is drawn."""

import dataclasses
import random

from .grammar import Expr, params, transformation
from .vocabulary import CHANGE_NOTHING


@dataclasses.dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
        tx: an expression for a transformation.
        params: an expression for the params.
        gradients: the further arguments of `prelude.gradients`.
        wrapper: a wrapper that must change nothing.
        place: a number that says what in `tx` it is put around.
        updated_with: the params that update is given: `params` or `None`.
        disable_jit: whether it runs under `jax.disable_jit`, where nothing is compiled as a whole.
        law: which law to ask about besides those of plain Optax and of the state.
    """

    tx: Expr
    params: Expr
    gradients: str
    wrapper: str
    place: int
    updated_with: str
    disable_jit: bool
    law: str


OTHER_LAWS = (
    "a raw model, filtered, equals its arrays",
    "a raw model equals its parameters",
    "a wrapper changes nothing",
)


def case_of(rng: random.Random) -> Case:
    """A program, drawn at random."""
    dtype = rng.choice(["None", "None", "None", "'float32'", "'bfloat16'"])
    missing = rng.choice(["'None'", "'None'", "'zeros'", "'zeros'", "'float0'"])
    special = rng.choice(["0.0"] * 6 + ["jnp.nan", "jnp.inf"])
    wrapper = rng.choice(CHANGE_NOTHING)
    return Case(
        transformation(rng, rng.choice([1, 2, 2, 3, 3, 4, 5])),
        params(rng),
        f"{dtype}, {missing}, {special}",
        wrapper,
        0 if "params)" in wrapper else rng.choice([0, rng.randrange(1000)]),  # inside, there may be other params
        "params" if rng.random() < 0.9 else "None",
        rng.random() < 0.8,
        rng.choice(OTHER_LAWS),
    )
