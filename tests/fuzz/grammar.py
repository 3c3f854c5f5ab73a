"""Random programs: the text of params and of transformations, which Python evaluates."""

import random

from .vocabulary import ATOMS, FLOATS, INEXACT, LABELS, MASKS, NOTHING, OTHERS, SEVERAL, WRAPPERS

BEGIN, END = "⟦⟧"  # around the part of a transformation that is to be wrapped


def params(rng: random.Random) -> str:
    """Params of one of three flavours: f32 arrays, inexact dtypes, anything."""
    leaves = rng.choice([FLOATS] * 4 + [INEXACT] * 3 + [INEXACT + OTHERS])

    def leaf() -> str:
        return rng.choice(NOTHING if rng.random() < 0.1 else leaves)

    def tree(depth: int) -> str:
        if depth == 0 or rng.random() < 0.35:
            return leaf()
        children = [tree(depth - 1) for _ in range(rng.randint(1, 3))]
        kind = rng.choice(["dict", "dict", "list", "tuple", "ordered", "Pair", "Model", "Dense"])
        if kind in ("dict", "ordered"):
            items = ", ".join(f'"{name}": {child}' for name, child in zip("abc", children, strict=False))
            return f"{{{items}}}" if kind == "dict" else f"OrderedDict({{{items}}})"
        if kind in ("list", "tuple"):
            return f"[{', '.join(children)}]" if kind == "list" else f"({', '.join(children)},)"
        return f"{kind}({children[0]}, {children[1] if len(children) > 1 else leaf()})"

    whole = tree(rng.choice([0, 1, 1, 2, 2, 3]))
    others = rng.sample(OTHERS, rng.randint(1, 3)) if rng.random() > 0.7 else []
    return f"[{', '.join([whole, *others])}]" if others else whole


def transformation(rng: random.Random, depth: int, *, mark: bool = False) -> str:
    """A transformation that is nested so deeply; `o` in it is Optax or treekit.optax. One part of it can be marked."""
    if depth == 0:
        text, inside = _filled(rng.choice(ATOMS), rng), False
    else:
        head, tail = _filled(rng.choice(WRAPPERS), rng).split("...")
        depths = [depth - 1, *(_less(depth, rng) for _ in range(_count(head, rng) - 1))]
        rng.shuffle(depths)
        inside = mark and rng.random() < 0.6
        marked = rng.randrange(len(depths)) if inside else None
        parts = [transformation(rng, each, mark=i == marked) for i, each in enumerate(depths)]
        if head.startswith("o.partition"):
            parts = [f'"{name}": {part}' for name, part in zip("ab", parts, strict=True)]
        elif head.startswith("o.named_chain"):
            parts = [f'("n{i}", {part})' for i, part in enumerate(parts)]
        text = head + ", ".join(parts) + tail
    return f"{BEGIN}{text}{END}" if mark and not inside else text


def _count(head: str, rng: random.Random) -> int:
    return 2 if head.startswith("o.partition") else rng.randint(1, 3) if head.startswith(SEVERAL) else 1


def _less(depth: int, rng: random.Random) -> int:
    return rng.randint(0, max(0, min(depth - 1, 1)))


def _filled(text: str, rng: random.Random) -> str:
    text = text.replace("$M", rng.choice(MASKS)).replace("$L", rng.choice(LABELS))
    return text.replace("$S", str(rng.randint(0, 9)))
