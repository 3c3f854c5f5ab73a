"""A random program: what it is made of, and how it is drawn, as text that Python evaluates."""

import random
import re
from typing import NamedTuple

from .vocabulary import (
    ATOMS,
    CHANGE_NOTHING,
    FLOATS,
    INEXACT,
    LABELS,
    MASKS,
    NOT_DRAWN,
    NOTHING,
    OTHERS,
    SEVERAL,
    WRAPPERS,
)

BEGIN, END = "⟦⟧"  # around the part of a transformation that is to be wrapped
# The laws: the first two for every program, and one of the other three.
PLAIN, STATE = "equals plain Optax", "keeps its state"
TRAINED = "a raw model equals what is trained"
WRAPPER = "a wrapper changes nothing"
KINDS = ("{%s}", "{%s}", "OrderedDict({%s})", "[%s]", "(%s,)", "Model(%s)", "Point(%s)", "Twig(%s)")


class Case(NamedTuple):
    """A program."""

    tx: str  # the text of a transformation
    params: str
    gradients: str  # the further arguments of `prelude.gradients`
    wrapper: str  # one that must change nothing
    wrapped: str  # `tx` with this wrapper around it, or around something in it
    updated_with: str  # the params that update is given: `params` or `None`
    disable_jit: bool  # whether nothing is compiled as a whole
    law: str  # which law to ask about besides those of plain Optax and of the state

    @property
    def program(self) -> str:
        """What is run, for patterns."""
        return f"{self.tx} on {self.params} with {self.gradients}"


def case_of(rng: random.Random) -> Case:
    """A program, drawn at random."""
    while True:
        case = drawn(rng)
        if not any(re.search(pattern, case.program) for pattern in NOT_DRAWN):
            return case


def drawn(rng: random.Random) -> Case:
    dtype = rng.choice(["None", "None", "None", "'float32'", "'bfloat16'"])
    missing = rng.choice(["'None'", "'float0'"])
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
        rng.choice([TRAINED, WRAPPER]),
    )


def params(rng: random.Random) -> str:
    """Params of one of three flavours: f32 arrays, inexact dtypes, anything."""
    leaves = rng.choice([FLOATS] * 4 + [INEXACT] * 3 + [INEXACT + OTHERS])

    def leaf() -> str:
        return rng.choice(NOTHING if rng.random() < 0.1 else leaves)

    def tree(depth: int) -> str:
        if depth == 0 or rng.random() < 0.35:
            return leaf()
        children = [tree(depth - 1) for _ in range(rng.randint(1, 3))]
        kind = rng.choice(KINDS)
        if "{" in kind:
            children = [f'"{name}": {child}' for name, child in zip("abc", children, strict=False)]
        elif kind[0].isalpha():
            children = [*children, leaf()][:2]
        return kind % ", ".join(children)

    whole = tree(rng.choice([0, 1, 1, 2, 2, 3]))
    others = rng.sample(OTHERS, rng.randint(1, 3)) if rng.random() < 0.5 else []
    return f"[{', '.join([whole, *others])}]" if others else whole


def transformation(rng: random.Random, depth: int, *, mark: bool = False) -> str:
    """A transformation that is nested so deeply; `o` in it is Optax or treekit.optax. One part of it can be marked."""
    text = rng.choice(WRAPPERS) if depth else f"o.{rng.choice(ATOMS)}"
    text = text.replace("$M", rng.choice(MASKS)).replace("$L", rng.choice(LABELS)).replace("$S", str(rng.randint(0, 9)))
    inside = False
    if depth:
        head, tail = text.split("...")
        count = 2 if head.startswith("o.partition") else rng.randint(1, 3) if head.startswith(SEVERAL) else 1
        depths = [depth - 1, *(rng.randint(0, min(depth - 1, 1)) for _ in range(count - 1))]
        rng.shuffle(depths)
        inside = mark and rng.random() < 0.6
        marked = rng.randrange(count) if inside else None
        parts = [transformation(rng, each, mark=i == marked) for i, each in enumerate(depths)]
        if head.startswith("o.partition"):
            parts = [f'"{name}": {part}' for name, part in zip("ab", parts, strict=True)]
        elif head.startswith("o.named_chain"):
            parts = [f'("n{i}", {part})' for i, part in enumerate(parts)]
        text = head + ", ".join(parts) + tail
    return f"{BEGIN}{text}{END}" if mark and not inside else text
