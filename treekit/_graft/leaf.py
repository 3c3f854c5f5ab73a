"""The leaves that `graft` matches: those of a tree, and those that `rename` makes by stacking and unstacking."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from treekit._base.describe import describe
from treekit._base.dtype import dtype_of
from treekit._base.jax import jnp
from treekit._base.predicates import is_traced
from treekit._base.types import KeyPath

if TYPE_CHECKING:
    from treekit._graft.states import State

    # An array, a number or a `jax.ShapeDtypeStruct`; type checkers do not know what these have in common.
    Value: TypeAlias = Any
else:
    Value = object

_HOLES = 5  # that a report lists
Convert = Callable[[Any], Any]


@dataclasses.dataclass(eq=False)
class Leaf:
    """An array or a number in a tree.

    Attributes:
        name: its key path, as patterns write it.
        value: the array or number; or what represents it, for a leaf that `rename` makes.
        state: the innermost optimizer state that it belongs to.
        below: its key path below that state.
        path: its key path, as JAX writes it.
        pattern: the pattern that renamed it, if any.
    """

    name: str
    value: Any
    state: "State"
    below: str
    path: KeyPath = ()
    pattern: str | None = None

    @property
    def origins(self) -> "list[Leaf]":
        """The leaves of the old tree that this one is made of."""
        return [self]

    @property
    def source_name(self) -> str:
        """Its name in the old tree; with a `*`, that of several leaves."""
        return self.origins[0].name

    def read(self, convert: Convert) -> Any:
        """Return its value, with each array of the old tree converted."""
        if isinstance(self.value, jax.ShapeDtypeStruct):
            raise TypeError(f"at {self.name}: the old tree has a shape and dtype, but no value")
        return convert(self.value)

    def __str__(self) -> str:
        return describe(self.value)


@dataclasses.dataclass(eq=False)
class Renamed(Leaf):
    """An old leaf under the name that `rename` gives it; `value` is that leaf."""

    @property
    def origins(self) -> list[Leaf]:
        return [self.value]

    def read(self, convert: Convert) -> Any:
        return self.value.read(convert)

    def __str__(self) -> str:
        return str(self.value)


@dataclasses.dataclass(eq=False)
class Stack(Leaf):
    """Old leaves that become one, with a leading axis; `value` maps the index of each to the leaf.

    Attributes:
        source: their name, with a `*` in place of the index.
    """

    source: str = ""

    @property
    def origins(self) -> list[Leaf]:
        return [self.value[i] for i in sorted(self.value)]

    @property
    def source_name(self) -> str:
        return self.source

    @property
    def holes(self) -> list[int]:
        """The indices from 0 to the last that no leaf has; the first few of them."""
        return list(itertools.islice((i for i in range(max(self.value)) if i not in self.value), _HOLES))

    def read(self, convert: Convert) -> Any:
        arrays = [leaf.read(convert) for leaf in self.origins]
        if self.holes or len({(np.shape(x), dtype_of(x)) for x in arrays}) > 1:
            return None
        # NumPy unless all are JAX's, which would round numbers of 64 bits before they are checked.
        in_jax = all(isinstance(x, jax.Array) for x in arrays) or any(map(is_traced, arrays))
        return (jnp if in_jax else np).stack(arrays)

    def __str__(self) -> str:
        shapes = " and ".join(dict.fromkeys(describe(leaf.value) for leaf in self.origins))
        missing = f", without {', '.join(map(str, self.holes))}" if self.holes else ""
        return f"{len(self.value)} stacked {shapes}{missing}"


@dataclasses.dataclass(eq=False)
class Slice(Leaf):
    """One entry of the leading axis of an old leaf, which is `value`.

    Attributes:
        index: which entry.
        target: the target of `rename` that it belongs to.
        fits: whether the new tree has a leaf for each entry, and no more.
    """

    index: int = 0
    target: str = ""
    fits: bool = True

    @property
    def origins(self) -> list[Leaf]:
        return [self.value]

    def read(self, convert: Convert) -> Any:
        def entry(x: Value) -> Any:
            return convert(x[self.index])

        return self.value.read(entry) if self.fits else None

    def __str__(self) -> str:
        count = "" if self.fits else ", which are not as many as in the new tree"
        return f"entry {self.index} of {describe(self.value.value)}{count}"
