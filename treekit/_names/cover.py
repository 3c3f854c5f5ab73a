"""Which few globs match some names, and none of the others?"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from treekit._names.pattern_set import PatternSet

_DEPTH = 32  # the parts of a name for which shorter globs are tried; those of a hostile file may have thousands
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")


def cover(names: Sequence[str], others: Iterable[str]) -> list[str]:
    """Return globs that match all of these names and none of the others: for each name, the one that matches the most.

    >>> cover(["head.w", "head.b", "layers.0.scale", "layers.1.scale"], others=["layers.0.w", "layers.1.w"])
    ['head.**', 'layers.*.scale']
    """
    globs = list({glob for name in names for glob in _globs(name)})
    patterns = PatternSet(globs)
    forbidden = {globs[i] for name in others for i in patterns.matching(name)}
    matched = Counter(globs[i] for name in names for i in patterns.matching(name))

    def best(name: str) -> str:
        allowed = [glob for glob in _globs(name) if glob not in forbidden]
        return max(allowed, key=matched.__getitem__, default=name)

    return list(dict.fromkeys(map(best, names)))


def _globs(name: str) -> list[str]:
    """Return the name itself, and globs that match it and others; a `*` stands for an index.

    >>> _globs("layers.0.w")
    ['layers.0.w', 'layers.*.w', 'layers.0.**', 'layers.*.**', 'layers.**', '**']
    """
    parts = name.split(".", _DEPTH)
    if len(parts) > _DEPTH:
        return [name]
    above = [".".join((*parts[:i], "**")) for i in reversed(range(len(parts)))]
    return list(dict.fromkeys(each for glob in (name or "**", *above) for each in (glob, _INDEX.sub("*", glob))))
