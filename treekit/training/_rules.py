"""In which dtype does `store_state` store each array of a state?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
from jax.typing import DTypeLike

from treekit._arrays.round import is_inexact_dtype
from treekit._base.dtype import issubdtype
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import can_be_trained
from treekit._base.tree import is_mapping
from treekit._base.types import OptState, Params
from treekit._names.key_path import path_name
from treekit._names.pattern_set import undecided
from treekit._names.patterns import is_match
from treekit._text.describe import describe_value
from treekit._text.lists import listed
from treekit.optax._kernel.state_map import Entry, map_state

# One dtype for all floating-point state, or one for each accumulator, by name or by pattern. To mypy, a dict with names
# and patterns has keys of type object.
if TYPE_CHECKING:
    StateDtype = DTypeLike | Mapping[Any, DTypeLike] | None
else:
    StateDtype = Any  # so that our own error, which names the entry, precedes that of a run-time checker

_Pair: TypeAlias = tuple[Any, Entry]  # an array of a state, and what is known of it


def with_entries(state: OptState, params: Params) -> list[_Pair]:
    """Return each array of a state, with what is known of it."""
    return list(zip(jtu.tree_leaves(state), map_state(state, params), strict=True))


class Rules:
    """In which dtype is each array of a state stored? `stored_dtype` says it, and `check_used` raises for keys.

    The first row that holds. Refused means that an array stays as it is, and that `check_used` raises if all arrays
    about which a key decides are.

    | an array | one dtype for all | its key has a dtype |
    |---|---|---|
    | of integers; a Python number | as it is | as it is |
    | without a key | | as it is |
    | complex | as it is | as it is; refused, if the dtype is narrower |
    | a copy or an average of params, or a sum of gradients, in less than f32 | in f32 at least | refused |
    | of shape (), or a hyperparameter | as it is, if the dtype is narrower | in the dtype |
    | any other | in the dtype | in the dtype |

    Attributes:
        for_all: one dtype for all floating-point state; None if the user named arrays.
        by_key: a dtype for each field or pattern, in the order of the user.
    """

    def __init__(self, dtype: StateDtype) -> None:
        given: Any = dtype
        self.for_all: Any = None if is_mapping(given) else given
        self.by_key: dict[Any, Any] = dict(given) if is_mapping(given) else {}
        if self.for_all is not None:
            _check_dtype(self.for_all, "dtype")
        for key, each in self.by_key.items():
            _check_dtype(each, f"dtype[{key!r}]")

    def stored_dtype(self, x: Any, entry: Entry) -> Any:
        """Return the dtype in which an array is stored; None for a Python number, as a user may put into a state."""
        own: Any = getattr(x, "dtype", None)
        if not can_be_trained(x) or issubdtype(own, jnp.complexfloating):
            return own
        if self.for_all is None:
            keys = self.keys_of(x, entry)
            is_refused = bool(keys) and self.why_refused(x, entry, self.by_key[keys[0]]) != ""
            return own if not keys or is_refused else _canonical(self.by_key[keys[0]])
        wanted = _canonical(self.for_all)
        if _is_too_narrow(entry, wanted):
            return jnp.promote_types(own, jnp.float32)
        is_number = x.shape == () or entry.of_no_param  # in bf16, b2 = 0.999 would be 1
        return own if is_number and wanted.itemsize < own.itemsize else wanted

    def why_refused(self, x: Any, entry: Entry, dtype: DTypeLike) -> str:
        """Say why an array is refused by the dtype of its key; "" if it is not."""
        wanted = _canonical(dtype)
        if issubdtype(x.dtype, jnp.complexfloating) and x.dtype.itemsize > 2 * wanted.itemsize:  # it is two floats
            return f"{x.dtype}, and complex numbers are not rounded"
        if _is_too_narrow(entry, wanted):
            return "a copy or an average of the params, or an accumulator of gradients, which needs float32 at least"
        return ""

    def keys_of(self, x: Any, entry: Entry) -> list[Any]:
        """Return the keys that match an array, of which the first decides: patterns, and after them its field."""
        if not can_be_trained(x):
            return []
        path = path_name(entry.path)
        patterns = [key for key in self.by_key if key != entry.field and is_match(key, path)]
        return patterns + [key for key in self.by_key if key == entry.field]

    def check_used(self, arrays: list[_Pair]) -> None:
        """Raise a ValueError for a key that matches nothing, decides about nothing, or asks for what cannot be."""
        matching = [self.keys_of(*pair) for pair in arrays]
        self._check_each_decides(arrays, matching)
        for key, dtype in self.by_key.items():
            decided = [pair for pair, keys in zip(arrays, matching, strict=True) if keys and keys[0] == key]
            reasons = [self.why_refused(*pair, dtype) for pair in decided]
            if all(reasons):
                raise ValueError(
                    f"dtype[{key!r}] is {jnp.dtype(dtype)}, and {path_name(decided[0][1].path)} is {reasons[0]}: leave "
                    f"{key!r} out"
                )

    def _check_each_decides(self, arrays: list[_Pair], matching: list[list[Any]]) -> None:
        """Raise a ValueError for a key that decides about no array; `matching` has the keys of each."""
        keys = list(self.by_key)
        for i, earlier in undecided(len(keys), [list(map(keys.index, each)) for each in matching]):
            inexact = [entry for x, entry in arrays if can_be_trained(x)]
            fields = listed(sorted({entry.field for entry in inexact} - {""})) or "none"
            if earlier:
                why = f"{', '.join(repr(keys[j]) for j in earlier)} decides about all that it matches"
            elif inexact:
                why = f"it matches no path, such as {path_name(inexact[0].path)!r}, and no field"
            else:
                why = "the state has none"
            raise ValueError(
                f"dtype[{keys[i]!r}] decides about no floating-point array of the state: {why}. The first pattern "
                f"decides, and without one, the field: {fields}"
            )


def _is_too_narrow(entry: Entry, dtype: Any) -> bool:
    """Whether an array would not move in this dtype: it is a copy or an average of params, or a sum of gradients."""
    return entry.field in entry.known.at_least_float32 and bool(dtype.itemsize < 4)


def _check_dtype(dtype: DTypeLike, what: str) -> None:
    if not is_inexact_dtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < 16:
        raise TypeError(
            f"{what} must be a floating dtype of 16 bits or more, such as jnp.bfloat16, found {describe_value(dtype)}"
        )


def _canonical(dtype: DTypeLike) -> Any:
    """Return a dtype as JAX has it now: f32 for f64, unless x64 is enabled."""
    return jax.dtypes.canonicalize_dtype(dtype)
