"""Write key paths as names, and match names against patterns."""

import difflib
import functools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import jax

from treekit._base.describe import describe_value
from treekit._base.jax import jtu, untyped
from treekit._base.types import IsLeaf, KeyPath, PyTree, PyTreeDef


def path_text(path: KeyPath, tree: str = "") -> str:
    """Write a key path for an error by its name, after that of the tree, if it has one: `mask.layers.0.bias`."""
    return ".".join(filter(None, (tree, path_name(path)))) or "the root"


def leaf_path_text(tree: PyTree, i: int, is_leaf: IsLeaf = None) -> str:
    """Write the key path of the i-th leaf for an error; only then, since computing paths is slow."""
    return path_text(flatten_with_path(tree, is_leaf)[0][i][0])


def path_name(path: KeyPath) -> str:
    """Write a key path as patterns do, `layers.0.bias`; attributes, keys and indices look the same."""
    name: str = untyped.tree_util.keystr(path, simple=True, separator=".")
    return name


def key_name(key: Any) -> str:
    """Write one key of a path as `path_name` does."""
    attribute = _TEXT_OF_KEY.get(type(key))
    return path_name((key,)) if attribute is None else str(getattr(key, attribute))


# Of these, the text is known, and `path_name` takes ten times as long.
_TEXT_OF_KEY: dict[Any, str] = {
    jax.tree_util.SequenceKey: "idx",
    jax.tree_util.DictKey: "key",
    jax.tree_util.GetAttrKey: "name",
}


def flatten_with_names(tree: PyTree, is_leaf: IsLeaf = None) -> list[tuple[str, Any]]:
    """Flatten a tree, with the name of each leaf."""
    return [(path_name(path), x) for path, x in flatten_with_path(tree, is_leaf)[0]]


def flatten_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """Flatten a tree as `jax.tree_util.tree_flatten_with_path` does, with the paths that names are made of.

    They lack the key `value` below a variable of Flax: the variable and its value have one name, since
    `flax.nnx.Optimizer` shows variables to `init`, and their values to `update`.
    """
    leaves, treedef = jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)
    if not any(_VALUE in path for path, _ in leaves):  # as in most trees
        return leaves, treedef

    def stop(x: object) -> bool:
        return is_variable(x) or (is_leaf is not None and is_leaf(x))

    named: list[tuple[KeyPath, Any]] = []
    for path, x in jtu.tree_flatten_with_path(tree, is_leaf=stop)[0]:
        if is_variable(x) and not (is_leaf is not None and is_leaf(x)):
            inside = jtu.tree_flatten_with_path(x, is_leaf=is_leaf)[0]
            named += [((*path, *below[1:]), leaf) for below, leaf in inside]
        else:
            named.append((path, x))
    return named, treedef


_VALUE = jax.tree_util.GetAttrKey("value")


def named_children(x: PyTree, name: str, is_leaf: IsLeaf = None) -> list[tuple[str, Any]]:
    """Return the children of a node with their names, as `flatten_with_names` names leaves; nothing for a leaf.

    Args:
        x: a node or a leaf.
        name: the name of `x`.
        is_leaf: as in `jax.tree.flatten`.
    """
    return [(name_below(name, text), child) for text, child in keyed_children(x, is_leaf)]


def walk(x: PyTree, name: str = "", is_leaf: IsLeaf = None) -> Iterator[tuple[str, Any]]:
    """Yield each node of a tree with its name, before the nodes in it."""
    yield name, x
    for below, child in named_children(x, name, is_leaf):
        yield from walk(child, below, is_leaf)


def name_below(name: str, text: str | None) -> str:
    """Return the name of a child, given that of its parent and its key."""
    return name if text is None else f"{name}.{text}" if name else text


def keyed_children(x: PyTree, is_leaf: IsLeaf = None) -> list[tuple[str | None, Any]]:
    """Return the children of a node with their keys as text; None for the value of a Flax variable, which has none."""
    if is_leaf is not None and is_leaf(x):
        return []
    kind: type[object] = x.__class__
    if kind is not tuple and issubclass(kind, tuple):
        # In JAX 0.10.2, the faster function below gives all children of a named tuple the key of the first.
        leaves = jtu.tree_flatten_with_path(x, is_leaf=functools.partial(operator.is_not, x))[0]
        children: Any = [(path[0], child) for path, child in leaves if path]
    else:
        level = _registry.flatten_one_level_with_keys(x)
        children = [] if level is None else level[0]  # None for a leaf
    if is_variable(x):
        return [(None, child) for _, child in children]
    return [(key_name(key), child) for key, child in children]


def children_or_none(x: object) -> Any:
    """Return the children of a node, an iterable; None for a leaf."""
    level = _registry.flatten_one_level(x)
    return None if level is None else level[0]


_registry: Any = untyped.tree_util.default_registry


def is_variable(x: object) -> bool:
    """Whether `x` is a variable of Flax, a node whose only child is `value`; the core does not import Flax."""
    cls: Any = type(x)
    return _is_variable_class(cls)


def is_rng_variable(x: object) -> bool:
    """Whether `x` is a variable of Flax that a random stream counts with, or its key."""
    return is_variable(x) and any(base.__name__ == "RngState" for base in type(x).__mro__)


@functools.lru_cache(1_000)  # asked of each node; classes that are not used any more are forgotten
def _is_variable_class(cls: Any) -> bool:
    return any(base.__name__ in _VARIABLES and base.__module__.startswith("flax.") for base in cls.__mro__)


_VARIABLES = ("Variable", "VariableState")


Pattern: TypeAlias = str | re.Pattern[str]
_NEAREST = 5  # the number of paths that an error lists


def matches(pattern: Pattern, name: str) -> bool:
    """Whether a pattern matches the whole name of a path."""
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    return match_glob(pattern, name) is not None


def match_glob(glob: str, name: str) -> re.Match[str] | None:
    """Match a glob against the whole name of a path; the groups are what its wildcards match."""
    return glob_regex(glob).fullmatch(f"{name}." if name else "")


def pattern_text(pattern: Pattern) -> str:
    """Return a glob, or the source of a regular expression."""
    return pattern.pattern if isinstance(pattern, re.Pattern) else pattern


@functools.cache
def glob_regex(glob: str) -> re.Pattern[str]:
    """Convert a glob to a regular expression for names that end in a dot; `*` and `**` become groups."""

    def part_regex(part: str) -> str:
        if part == "**":
            return r"((?:[^.]*\.)*)"
        tokens: list[str] = re.findall(r"\*+|\?|[^*?]+", part)
        return "".join(_WILDCARDS.get(x[0], re.escape(x)) for x in tokens) + r"\."

    return re.compile("".join(map(part_regex, glob.split("."))))


_WILDCARDS = {"*": "([^.]*)", "?": "[^.]"}


def nearest(wanted: str, names: Sequence[str]) -> str:
    """List the names that are most similar to this one, for an error message."""
    return listed(difflib.get_close_matches(wanted, names, _NEAREST, cutoff=0.0)) or "there are none"


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NEAREST} more" if len(names) > _NEAREST else ""
    return ", ".join(name or "(the root)" for name in names[:_NEAREST]) + more


def check_pattern_or_class(x: object) -> Pattern | type[Any]:
    if isinstance(x, type):
        return x
    if isinstance(x, (str, re.Pattern)):
        return check_pattern(cast(object, x))
    hint = ". Pass each of them as an argument of its own" if type(x) in (list, tuple) else ""
    raise TypeError(f"{_MUST_BE}, or a class such as equinox.nn.Linear; found {describe_value(x)}{hint}")


_MUST_BE = "a pattern must be a string such as '**.bias', or a compiled regular expression over strings"


def check_pattern(pattern: object) -> Pattern:
    text: object = getattr(pattern, "pattern", pattern)
    if not isinstance(text, str) or not isinstance(pattern, (str, re.Pattern)):
        raise TypeError(f"{_MUST_BE}; found {describe_value(pattern)}")
    if pattern == "":
        raise ValueError("a pattern must not be empty; '**' matches every path")
    return cast("Pattern", pattern)


class _Globs:
    """Globs with the same beginning.

    Attributes:
        ends: the indices of those that end here.
        literal: the rest of the others, by their next part, if that has no wildcard.
        wild: the rest of those whose next part has one.
        is_deep: whether the part before this was a `**`, which any number of parts match.
    """

    def __init__(self, is_deep: bool = False) -> None:
        self.ends: list[int] = []
        self.literal: dict[str, _Globs] = {}
        self.wild: dict[str, _Globs] = {}
        self.is_deep = is_deep

    def add(self, glob: str, i: int) -> None:
        """Add a glob with the index `i`."""
        globs = self
        for part in glob.split("."):
            kind = globs.wild if set(part) & set("*?") else globs.literal
            globs = kind.setdefault(part, _Globs(part == "**"))
        globs.ends.append(i)


class Place:
    """Where the beginning of a name leads in a set of globs.

    Attributes:
        ends: the indices of the globs that match it, in order.
        goes_on: whether a glob may match a name that continues it.
    """

    def __init__(self, globs: list[_Globs], known: "dict[frozenset[_Globs], Place]") -> None:
        self._globs, self._known = globs, known
        self.ends = tuple(sorted(i for each in globs for i in each.ends))
        self.goes_on = any(each.is_deep or each.literal or each.wild for each in globs)
        self._next: dict[str, Place] = {}

    def after(self, text: str) -> "Place":
        """Return the place after more of a name: one part, or several joined by dots."""
        place = self._next.get(text)
        if place is None:
            part, dot, rest = text.partition(".")
            place = self.after(part).after(rest) if dot else self._after_part(part)
            self._next[text] = place
        return place

    def _after_part(self, part: str) -> "Place":
        globs = [each for each in self._globs if each.is_deep]
        for each in self._globs:
            if part in each.literal:
                globs.append(each.literal[part])
            globs += [after for wild, after in each.wild.items() if wild in ("*", "**") or match_glob(wild, part)]
        return _place_of(globs, self._known)


def _place_of(globs: list[_Globs], known: dict[frozenset[_Globs], Place]) -> Place:
    """Return the place of globs; one for all names that lead to the same, so that what comes after is known."""
    for each in globs:  # those that are added are looked at too
        deep = each.wild.get("**")  # which also matches nothing
        if deep is not None and deep not in globs:
            globs.append(deep)
    key = frozenset(globs)
    if key not in known:
        known[key] = Place(list(key), known)
    return known[key]


class PatternSet:
    """Several globs and regular expressions. Classes among them keep their indices, and match no name.

    Attributes:
        start: the place of the empty name.
        regexes: the index of each regular expression, and whether it matches a name.
    """

    def __init__(self, patterns: Sequence[Pattern | type[Any]]) -> None:
        globs = _Globs()
        self.regexes: list[tuple[int, Callable[[str], object]]] = []
        for i, pattern in enumerate(patterns):
            if isinstance(pattern, re.Pattern):
                self.regexes.append((i, pattern.fullmatch))
            elif isinstance(pattern, str):
                globs.add(pattern, i)
        self.start = _place_of([globs], {})

    def place(self, name: str) -> Place:
        """Return the place of a name in the globs."""
        return self.start.after(name) if name else self.start

    def matching(self, place: Place, name: str) -> tuple[int, ...]:
        """Return the indices of the patterns that match the name that leads to a place."""
        regexes = [i for i, matches in self.regexes if matches(name)] if self.regexes else ()
        return (*place.ends, *regexes) if regexes else place.ends

    def first(self, name: str) -> int | None:
        """Return the index of the first pattern that matches a name, or None."""
        return min(self.matching(self.place(name), name), default=None)


def may_match_below(pattern: Pattern, name: str) -> bool:
    """Whether a pattern may match a name that continues this one; of a regular expression, this is unknown."""
    return isinstance(pattern, re.Pattern) or PatternSet([pattern]).place(name).goes_on
