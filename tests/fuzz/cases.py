"""A random program: what it is made of, and how it is drawn."""

import random
import re
from typing import NamedTuple

from .grammar import BEGIN, END, params, transformation
from .vocabulary import CHANGE_NOTHING


class Case(NamedTuple):
    """A program.

    Attributes:
        tx: the text of a transformation.
        params: the text of the params.
        gradients: the further arguments of `prelude.gradients`.
        wrapper: a wrapper that must change nothing.
        wrapped: `tx` with this wrapper around it, or around something in it.
        updated_with: the params that update is given: `params` or `None`.
        disable_jit: whether it runs under `jax.disable_jit`, where nothing is compiled as a whole.
        law: which law to ask about besides those of plain Optax and of the state.
    """

    tx: str
    params: str
    gradients: str
    wrapper: str
    wrapped: str
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
    wrapper, depth = rng.choice(CHANGE_NOTHING), rng.choice([1, 2, 2, 3, 3, 4, 5])
    if "params)" in wrapper:  # inside, there may be other params
        before, tx, after = "", transformation(rng, depth), ""
    else:
        before, tx, after = re.split(f"[{BEGIN}{END}]", transformation(rng, depth, mark=True))
    return Case(
        before + tx + after,
        params(rng),
        f"{dtype}, {missing}, {special}",
        wrapper,
        before + wrapper.replace("...", tx) + after,
        "params" if rng.random() < 0.9 else "None",
        rng.random() < 0.8,
        rng.choice(OTHER_LAWS),
    )
