"""Store an optimizer's state in given dtypes: one for all of it, or one for each accumulator."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax
from jax.typing import DTypeLike
from jaxtyping import Array

from treekit._base.describe import describe_value
from treekit._base.dtype import issubdtype
from treekit._base.jax import jnp, jtu, lax
from treekit._base.key_path import path_name, path_text
from treekit._base.patterns import matches
from treekit._base.predicates import is_array
from treekit._base.tree import is_mapping
from treekit._base.types import OptState, Params, PyTree, TransformationLike, Updates
from treekit._codes import encode, has_code_dtype, is_code_dtype
from treekit._round import is_inexact_dtype, widen
from treekit.optax._kernel.state_map import Entry, is_params_placeholder, map_state
from treekit.optax._kernel.transformation import Core, core_of
from treekit.optax._wrappers.nesting import is_nested

SMALLEST = 4096  # an array of fewer elements is not stored in codes: it has little to save, and often a large effect
EIGHT_BITS = "state_dtype={'mu': jnp.int8, 'nu': jnp.uint8}, rounding='stochastic'"
_SUMS = ("average", "accumulator")  # roles of arrays that change by small amounts, or by few
_NO_CODES = (*_SUMS, "params", "hyperparameter")


def check_state_dtype(state_dtype: Any, rounding: str) -> None:
    """Raise unless `state_dtype` is None, a floating-point dtype, or a mapping from names to dtypes and codes."""
    if state_dtype is None:
        return
    if not is_mapping(state_dtype):
        if is_code(state_dtype):
            raise TypeError(
                f"state_dtype={jnp.dtype(state_dtype)} does not say which accumulators are never negative. Name them: "
                f"{EIGHT_BITS}"
            )
        _check_dtype("state_dtype", state_dtype)
        return
    for name, dtype in state_dtype.items():
        if not isinstance(name, (str, re.Pattern)):
            raise TypeError(
                f"state_dtype must map names or compiled patterns to dtypes, found the key {describe_value(name)}"
            )
        if not is_code(dtype):
            _check_dtype(f"state_dtype[{name!r}]", dtype)
        elif rounding != "stochastic":
            raise ValueError(
                f"state_dtype[{name!r}] is {jnp.dtype(dtype)}, which needs rounding='stochastic': rounded to nearest, "
                "a moment in 8 bits does not follow the gradients"
            )


def _check_dtype(what: str, dtype: object) -> None:
    if not is_inexact_dtype(dtype, jnp.floating):
        is_integer = is_inexact_dtype(dtype, jnp.integer)
        cure = f". For 8 bits a number: {EIGHT_BITS}" if is_integer else ". jnp.bfloat16 is one"
        raise TypeError(f"{what} must be a floating dtype, found {dtype!r}{cure}")
    if jnp.finfo(dtype).bits < 16:
        raise TypeError(
            f"{what} is {jnp.dtype(dtype)}, in which most second moments are zero, so that updates are many times the "
            f"learning rate. What works in 8 bits: {EIGHT_BITS}"
        )


def has_codes(state_dtype: Any) -> bool:
    """Whether a state is stored in codes."""
    return is_mapping(state_dtype) and any(map(is_code, state_dtype.values()))


def is_code(dtype: object) -> bool:
    """Whether this is a dtype of codes."""
    return is_inexact_dtype(dtype, jnp.integer) and is_code_dtype(jnp.dtype(dtype))


def store(tx: TransformationLike, state_dtype: Any) -> Core:
    """Return a core that stores the state of `tx` in `state_dtype`, and computes in float32 at least."""
    inner_init, inner_update = core_of(tx)

    def wide(tree: PyTree) -> Any:
        return tree if is_mapping(state_dtype) else _widened(tree, state_dtype)

    def init(params: Params) -> Any:
        if is_params_placeholder(params):
            return inner_init(params)
        return cast_state(state_dtype, inner_init(wide(params)), params)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        check_state(state, state_dtype, updates if params is None else params)
        new_updates, new_state = inner_update(wide(updates), widen(state), wide(params), **extra)
        return new_updates, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def _widened(tree: PyTree, dtype: DTypeLike) -> Any:
    """Cast floating-point arrays of fewer bits to a dtype."""

    def wide(x: Any) -> Any:
        return lax.convert_element_type(x, jnp.result_type(x.dtype, _canonical(dtype))) if _is_float(x) else x

    return jtu.tree_map(wide, tree)


def cast_state(state_dtype: Any, state: OptState, params: Params) -> Any:
    """Cast a new state to the dtypes in which it is stored.

    Raises:
        ValueError: a name or a pattern matches nothing in the state; the message lists the names that do. Or an
            accumulator cannot be stored in the dtype that its name has.
    """
    if state_dtype is None:
        return state
    leaves, treedef = jtu.tree_flatten(state)
    entries = map_state(state, params)
    found = [_Decision.of(state_dtype, *pair) for pair in zip(entries, leaves, strict=True)]
    if is_mapping(state_dtype):
        _check_used(state_dtype, entries, leaves, found)
        if has_codes(state_dtype):
            _check_no_integers(entries, leaves)
    return treedef.unflatten(map(_cast, leaves, found))


def _cast(x: Any, decision: "_Decision") -> Any:
    if decision.dtype is None:
        return x
    return encode(x, decision.dtype) if is_code(decision.dtype) else lax.convert_element_type(x, decision.dtype)


def check_state(state: OptState, state_dtype: Any, params: Params) -> None:
    """Raise a TypeError where state was made without this `state_dtype`: its dtypes would be kept silently."""
    if state_dtype is None or is_nested():
        return
    for entry, x in zip(map_state(state, params), jtu.tree_leaves(state), strict=True):
        key, wanted = _Decision.of(state_dtype, entry, x)
        if wanted is not None and x.dtype != wanted:
            what = "state_dtype" if key is None else f"state_dtype[{key!r}]"
            few = key is not None and is_code(state_dtype[key]) and not is_code(wanted)
            cure = "Convert it with optax.encode_state" if has_codes(state_dtype) else "Cast it"
            raise TypeError(
                f"{what} is {jnp.dtype(wanted)}{f' below {SMALLEST:,} elements' if few else ''}, and this state has "
                f"{x.dtype} at {path_text(entry.path)}. {cure}, or make it again with init"
            )


class _Decision(NamedTuple):
    """What decides in which dtype a leaf is stored.

    Attributes:
        key: the name or the pattern; None if there is one dtype for all.
        dtype: that dtype; None if the leaf may have any.
    """

    key: Any
    dtype: Any

    @classmethod
    def of(cls, state_dtype: Any, entry: Entry, x: Any) -> "_Decision":
        if not (_is_float(x) or (has_codes(state_dtype) and has_code_dtype(x))):
            return cls(None, None)
        if not is_mapping(state_dtype):
            return cls(None, _held_dtype(_canonical(state_dtype), entry, x))
        key = key_of(state_dtype, entry)
        return cls(key, None if key is None else _dtype_by_name(_canonical(state_dtype[key]), entry, x))


def _held_dtype(wanted: Any, entry: Entry, x: Array) -> Any:
    """Return the dtype in which a float is stored: numbers of shape () are not narrowed, as b2 = 0.999 is 1 in bf16."""
    if entry.role in _SUMS and jnp.finfo(wanted).bits < 32:
        return _at_least_f32(x)
    is_narrowed = jnp.finfo(wanted).bits < jnp.finfo(x.dtype).bits
    return x.dtype if is_narrowed and x.shape == () else wanted


def _dtype_by_name(wanted: Any, entry: Entry, x: Array) -> Any:
    """Return the dtype in which an array is stored that an entry of the mapping matches; None if it may have any."""
    if not is_code(wanted):
        return None if entry.role in _SUMS and jnp.finfo(wanted).bits < 32 else wanted
    if entry.role in _NO_CODES:
        return None
    return wanted if x.size >= SMALLEST else _at_least_f32(x)


def _at_least_f32(x: Array) -> Any:
    return jnp.result_type(x.dtype, jnp.float32)


def _canonical(dtype: DTypeLike) -> Any:
    """Return the dtype that JAX uses for this one: f32 for f64, unless x64 is enabled when this is called."""
    return jax.dtypes.canonicalize_dtype(dtype)


def key_of(dtypes: Mapping[Any, Any], entry: Entry) -> Any:
    """Return the pattern or the name that decides about a leaf: the first pattern, else the outermost name."""
    parts = [path_name((key,)) for key in entry.path]
    whole = ".".join(parts)
    names = [part for part in parts[: entry.depth] if part in dtypes]

    def fits(key: str | re.Pattern[str]) -> bool:
        if isinstance(key, re.Pattern):
            return bool(key.search(whole))
        return key not in parts[: entry.depth] and matches(key, whole)

    return next(filter(fits, dtypes), names[0] if names else None)


def _check_used(dtypes: Mapping[Any, Any], entries: list[Entry], leaves: list[Any], found: list[_Decision]) -> None:
    """Raise a ValueError if an entry of the mapping decides nothing, or is the name of what it cannot be applied to."""
    floats = [entry for entry, x in zip(entries, leaves, strict=True) if _is_float(x)]
    occurring = {path_name((key,)) for entry in floats for key in entry.path[: entry.depth]}
    unused = set(dtypes) - {decision.key for decision in found} - occurring
    if unused and floats:
        fields = sorted({str(key.name) for x in floats for key in x.path[: x.depth] if hasattr(key, "name")})
        whole = f". A pattern matches a whole path of the state, such as {path_text(floats[0].path)!r}"
        hint = whole if any(isinstance(key, re.Pattern) or set(key) & set(".*?[") for key in unused) else ""
        raise ValueError(
            f"state_dtype names {', '.join(map(repr, unused))}, which matches nothing in the state; its fields "
            f"with floating-point arrays are {', '.join(fields)}{hint}"
        )
    for entry, (key, dtype) in zip(entries, found, strict=True):
        if key is not None and dtype is None and key == entry.field:
            raise ValueError(
                f"state_dtype[{key!r}] is {jnp.dtype(dtypes[key])}, and {path_text(entry.path)} is "
                f"{_what(entry)}, which needs float32 at least: leave {key!r} out"
            )


def _what(entry: Entry) -> str:
    kinds = {"average": "an average of the params", "accumulator": "an accumulator of gradients"}
    return kinds.get(entry.role, f"not a moment, but one of the {entry.role.removesuffix('s')}s")


def _check_no_integers(entries: list[Entry], leaves: list[Any]) -> None:
    for entry, x in zip(entries, leaves, strict=True):
        if has_code_dtype(x):
            raise ValueError(
                f"the state has an array of {x.dtype} of its own at {path_text(entry.path)}, which could be mistaken "
                "for codes. Wrap only the transformation with the moments in dtype_preserving"
            )


def _is_float(x: object) -> bool:
    return is_array(x) and issubdtype(x.dtype, jnp.floating)
