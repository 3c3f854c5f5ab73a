"""Write key paths as names, and match names against patterns."""

import difflib
import functools
import itertools
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

    They lack the key `value` below a variable of Flax, and below a box of Linen. Both have the names of their values,
    since `flax.nnx.Optimizer` shows variables to `init`, and their values to `update`, and Linen has params with boxes
    and without.
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
    todo = [(name, x)]
    while todo:  # not by recursion, since trees may be deeper than Python's limit for that
        name, x = todo.pop()
        yield name, x
        todo += reversed(named_children(x, name, is_leaf))


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


def has_keys(x: PyTree) -> bool:
    """Whether the class of a node is registered with key paths; without them, its children are called 0, 1, …."""
    level = _registry.flatten_one_level_with_keys(x)
    return level is None or not any(isinstance(key, jax.tree_util.FlattenedIndexKey) for key, _ in level[0])


def children_or_none(x: object) -> Any:
    """Return the children of a node, an iterable; None for a leaf."""
    level = _registry.flatten_one_level(x)
    return None if level is None else level[0]


_registry: Any = untyped.tree_util.default_registry


def is_variable(x: object) -> bool:
    """Whether `x` is a node of Flax whose only child is `value`: a variable, or Linen's box, `Partitioned`.

    The core does not import Flax.
    """
    cls: Any = type(x)
    return _is_variable_class(cls)


def is_rng_variable(x: object) -> bool:
    """Whether `x` is a variable of Flax that a random stream counts with, or its key."""
    return is_variable(x) and any(base.__name__ == "RngState" for base in type(x).__mro__)


@functools.lru_cache(1_000)  # asked of each node; classes that are not used any more are forgotten
def _is_variable_class(cls: Any) -> bool:
    return any(base.__name__ in _VARIABLES and base.__module__.startswith("flax.") for base in cls.__mro__)


_VARIABLES = ("Variable", "VariableState", "Partitioned")


Pattern: TypeAlias = str | re.Pattern[str]
_NEAREST = 5  # the number of paths that an error lists


def matches(pattern: Pattern, name: str) -> bool:
    """Whether a pattern matches the whole name of a path."""
    return PatternSet([pattern]).first(name) is not None


def pattern_text(pattern: Pattern) -> str:
    """Return a glob, or the source of a regular expression."""
    return pattern.pattern if isinstance(pattern, re.Pattern) else pattern


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


# The wildcards of globs, for whole parts or in one. The latter are written as no part and no character of a name is.
_PART, _PARTS, _CHARACTER, _TEXT = "*", "**", "[^.]", "[^.]*"
_IN_A_PART = {"*": _TEXT, "?": _CHARACTER}
_BEGIN = ""  # of a part that has wildcards and text


def _tokens(glob: str) -> Iterator[str]:
    """Split a glob into wildcards and text: whole parts with their dots, or, of a part with wildcards, characters."""
    for part in glob.split("."):
        if part in (_PART, _PARTS):
            yield part
        elif "*" in part or "?" in part:
            texts: list[str] = re.findall(r"\*+|[^*]", part)
            yield _BEGIN
            yield from (_IN_A_PART.get(text[0], text) for text in texts)
            yield "."
        else:
            yield f"{part}."


class _Globs:
    """Globs with the same beginning, as a tree of tokens.

    Attributes:
        token: the last token of that beginning.
        ends: the indices of the globs that end here.
        next: the others, by their next token.
        here: these, and those that go on with a wildcard that may match nothing.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self.ends: list[int] = []
        self.next: dict[str, _Globs] = {}
        self.here = [self]

    def add(self, glob: str, i: int) -> None:
        """Add a glob with the index `i`."""
        globs = self
        for token in _tokens(glob):
            if token == globs.token == _PARTS:  # of two `**`, the second one matches nothing new
                continue
            if token not in globs.next:
                globs.next[token] = _Globs(token)
                globs.here += [globs.next[token]] * (token in (_PARTS, _TEXT))
            globs = globs.next[token]
        globs.ends.append(i)


_Beginnings: TypeAlias = frozenset[_Globs]


def _after(globs: _Beginnings, token: str) -> _Beginnings:
    """Return the beginnings that are longer by a token."""
    return frozenset([x for each in globs if token in each.next for x in each.next[token].here])


def _at(globs: _Beginnings, wildcard: str) -> _Beginnings:
    """Return the beginnings that end in a wildcard, which may match more than it does so far."""
    return frozenset([each for each in globs if each.token == wildcard])


class Place:
    """Where the beginning of a name leads in a set of globs.

    It keeps all beginnings of globs that match there, so a name is read once, and no choice is taken back.

    Attributes:
        ends: the indices of the globs that match it, in order.
        goes_on: whether a glob may match a name that continues it.
    """

    def __init__(self, globs: _Beginnings, known: "dict[_Beginnings, Place]") -> None:
        self.ends = tuple(sorted([i for each in globs for i in each.ends]))
        self.goes_on = any([each.next or each.token == _PARTS for each in globs])
        self._globs, self._known = globs, known
        self._after_any = _at(globs, _PARTS) | _after(globs, _PART)
        self._begun = _after(globs, _BEGIN)
        self._next: dict[str, Place] = {}

    def after(self, text: str) -> "Place":
        """Return the place after more of a name: one part, or several joined by dots."""
        place = self._next.get(text)
        if place is None:
            place = functools.reduce(Place.after, text.split("."), self) if "." in text else self._after_part(text)
            self._next[text] = place
        return place

    def _after_part(self, part: str) -> "Place":
        globs = self._after_any | _after(self._globs, f"{part}.")
        if within := self._begun:
            for character in part:
                within = _at(within, _TEXT) | _after(within, _CHARACTER) | _after(within, character)
            globs |= _after(within, ".")
        return _place_of(globs, self._known)


def _place_of(globs: _Beginnings, known: dict[_Beginnings, Place]) -> Place:
    """Return the place of globs; one for all names that lead to the same, so that what comes after is known."""
    if globs not in known:
        known[globs] = Place(globs, known)
    return known[globs]


def wildcard_spans(glob: str, name: str) -> list[tuple[int, int]]:
    """Return where each `*` and `**` of a glob begins and ends in a name that it matches.

    The first ones match as much as they can. A `**` also matches the dot at its end; the name gets one.
    """
    text = f"{name}." if name else ""
    tokens = [x for token in _tokens(glob) for x in ((_TEXT, ".") if token == _PART else (token,)) if x]
    # Where the first tokens begin, and up to where the last of them matches. A place that is seen again has failed.
    todo: list[tuple[tuple[int, ...], int]] = [((0,), 0)]
    seen: set[tuple[int, int]] = set()
    while len(todo[-1][0]) <= len(tokens):
        begins, i = todo.pop()
        token = tokens[len(begins) - 1]
        if (len(begins), i) in seen:
            continue
        seen.add((len(begins), i))
        if token == _PARTS:
            end = text.find(".", i) + 1
        elif token in (_TEXT, _CHARACTER):
            end = 0 if text[i : i + 1] in ("", ".") else i + 1
        else:
            end = i + len(token) if text.startswith(token, i) else 0
        if token in (_TEXT, _PARTS):
            todo.append(((*begins, i), i))  # if it cannot match more
        if end:
            todo.append((begins if token in (_TEXT, _PARTS) else (*begins, end), end))
    spans = zip(tokens, itertools.pairwise(todo[-1][0]), strict=True)
    return [span for token, span in spans if token in (_TEXT, _PARTS)]


class PatternSet:
    """Several globs and regular expressions. Classes among them keep their indices, and match no name.

    Attributes:
        start: the place of the empty name.
        regexes: the index of each regular expression, and whether it matches a name.
    """

    def __init__(self, patterns: Sequence[Pattern | type[Any]]) -> None:
        globs = _Globs(_BEGIN)
        self.regexes: list[tuple[int, Callable[[str], object]]] = []
        for i, pattern in enumerate(patterns):
            if isinstance(pattern, re.Pattern):
                self.regexes.append((i, pattern.fullmatch))
            elif isinstance(pattern, str):
                globs.add(pattern, i)
        self.start = _place_of(frozenset(globs.here), {})

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
