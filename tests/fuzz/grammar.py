"""Random programs: expressions for params and for transformations, as text that Python evaluates."""

import dataclasses
import random
from collections.abc import Iterator

from .vocabulary import ATOMS, FLOATS, INEXACT, LABELS, MASKS, NOTHING, OTHERS, SEVERAL, WRAPPERS


@dataclasses.dataclass(frozen=True)
class Expr:
    """Text around parts, which stand between its head and its tail with commas.

    Attributes:
        head: the text before the parts.
        parts: expressions.
        tail: the text after them.
        sort: "tx", "params", or "item" for a named part of one of these.
    """

    head: str
    parts: tuple["Expr", ...] = ()
    tail: str = ""
    sort: str = "tx"

    def __str__(self) -> str:
        return self.head + ", ".join(map(str, self.parts)) + self.tail

    def wrapped(self, wrapper: str, place: int) -> "Expr":
        """The expression with a wrapper around one of the transformations in it; around all of it at place 0."""
        inside = [part for part in self.descendants() if part.sort == "tx"]
        i = place % (len(inside) + 1)
        if i == 0:
            head, tail = wrapper.split("...")
            return Expr(head, (self,), tail)

        def rebuilt(x: Expr) -> Expr:
            parts = tuple(
                part.wrapped(wrapper, place // (len(inside) + 1)) if part is inside[i - 1] else rebuilt(part)
                for part in x.parts
            )
            return dataclasses.replace(x, parts=parts)

        return rebuilt(self)

    def descendants(self) -> Iterator["Expr"]:
        """The parts, and what is in items among them."""
        for part in self.parts:
            yield from (part,) if part.sort != "item" else part.descendants()


def _item(head: str, part: Expr, tail: str = "") -> Expr:
    return Expr(head, (part,), tail, "item")


def params(rng: random.Random) -> Expr:
    """An expression for params of one of three flavours: f32 arrays, inexact dtypes, anything."""
    leaves = rng.choice([FLOATS] * 4 + [INEXACT] * 3 + [INEXACT + OTHERS])

    def leaf() -> Expr:
        return Expr(rng.choice(NOTHING if rng.random() < 0.1 else leaves), sort="params")

    def tree(depth: int) -> Expr:
        if depth == 0 or rng.random() < 0.35:
            return leaf()
        children = [tree(depth - 1) for _ in range(rng.randint(1, 3))]
        kind = rng.choice(["dict", "dict", "list", "tuple", "ordered", "Pair", "Model", "Dense"])
        if kind in ("dict", "ordered"):
            items = tuple(_item(f'"{name}": ', child) for name, child in zip("abc", children, strict=False))
            return Expr("{", items, "}", "params") if kind == "dict" else Expr("OrderedDict({", items, "})", "params")
        if kind == "list":
            return Expr("[", tuple(children), "]", "params")
        if kind == "tuple":
            return Expr("(", tuple(children), ",)", "params")
        return Expr(f"{kind}(", (children[0], children[1] if len(children) > 1 else leaf()), ")", "params")

    whole = tree(rng.choice([0, 1, 1, 2, 2, 3]))
    if rng.random() < 0.7:
        return whole
    others = tuple(Expr(leaf, sort="params") for leaf in rng.sample(OTHERS, rng.randint(1, 3)))
    return Expr("[", (whole, *others), "]", "params")


def transformation(rng: random.Random, depth: int) -> Expr:
    """An expression for a transformation, nested as deep as `depth` says; `o` in it is Optax or treekit.optax."""
    if depth == 0:
        return Expr(_filled(rng.choice(ATOMS), rng))
    head, tail = _filled(rng.choice(WRAPPERS), rng).split("...")
    if head.startswith("o.partition"):
        return Expr(head, tuple(_item(f'"{x}": ', transformation(rng, _less(depth, rng))) for x in "ab"), tail)
    count = rng.randint(1, 3) if head.startswith(SEVERAL) else 1
    parts = [transformation(rng, depth - 1), *(transformation(rng, _less(depth, rng)) for _ in range(count - 1))]
    rng.shuffle(parts)
    if head.startswith("o.named_chain"):
        return Expr(head, tuple(_item(f'("n{i}", ', part, ")") for i, part in enumerate(parts)), tail)
    return Expr(head, tuple(parts), tail)


def _less(depth: int, rng: random.Random) -> int:
    return rng.randint(0, max(0, min(depth - 1, 1)))


def _filled(text: str, rng: random.Random) -> str:
    text = text.replace("$M", rng.choice(MASKS)).replace("$L", rng.choice(LABELS))
    return text.replace("$S", str(rng.randint(0, 9)))
