"""`summary`: show what the first step of an optimizer does to each leaf, and which state it has for it."""

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.describe import describe, describe_error, describe_function, short_dtype
from treekit._base.dtype import as_array, dtype_of, issubdtype, resolve_array
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.key_path import flatten_with_path, key_name, path_name, path_text
from treekit._base.predicates import can_be_trained, is_parameter
from treekit._base.table import ROWS, Table, in_colours, left_out
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._compare.prefix import flatten_updates
from treekit._select.trainable import declared_frozen
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.state_map import Entry, is_optimizer_state, map_state
from treekit.optax._kernel.transformation import GradientTransformation

_MOST_MINI_STEPS = 1000
_STEEP, _FLAT = 1e3, 1e-3  # curvatures for which any line search finds different steps
_LAST_LINE = (
    "leaves: {leaves:,}, unmoved: {unmoved:,}; numbers: {elements:,}, bytes: {bytes:,}; bytes of state: "
    "{state_bytes:,}, shared by all leaves: {shared_bytes:,}"
)


class Accumulator(NamedTuple):
    """An array in the state that belongs to one leaf: the name of its field, its key path, dtype and size in bytes."""

    name: str
    path: str
    dtype: str
    bytes: int


class Row(NamedTuple):
    """What the first step of an optimizer does to one leaf.

    Attributes:
        path: the key path, as a name: `layers.0.weight`; "" for the root.
        type: such as "f32[2,3]" for an array or a number; what another leaf is, such as "Config".
        shape: the shape of the leaf; () for a leaf that is not an array.
        dtype: its dtype; "" for a leaf that is not an array.
        step: the root mean square of what a gradient of ones adds to the first update: the learning rate, for most
            optimizers. It is negative if the update goes along the gradient instead of against it, and None if it is
            unknown: `note` then says why.
        decay: the root mean square of the first update without a gradient, for a leaf of ones: the fraction that weight
            decay subtracts. None if it is unknown.
        state: the arrays in the state that belong to the leaf.
        note: a remark, or "".
    """

    path: str
    type: str
    shape: tuple[int, ...]
    dtype: str
    step: float | None
    decay: float | None
    state: tuple[Accumulator, ...]
    note: str

    @property
    def bytes(self) -> int:
        """The size of the state for this leaf, in bytes."""
        return sum(x.bytes for x in self.state)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the first step of an optimizer does to each leaf. Its `str()` is a table of fifty rows at most.

    In the table, and in a notebook, a subtree whose leaves differ only in their shapes is one row.

    Attributes:
        rows: a row for each leaf that is not a function, in the order of the tree.
        totals: of the leaves that can be parameters, the counts "leaves", "unmoved" (the first step does not change
            them, with a gradient or without) and "elements"; the "bytes" of the params, the "state_bytes", and the
            "shared_bytes" of state that does not belong to one leaf (counts, hyperparameters).
    """

    rows: tuple[Row, ...]
    totals: dict[str, int]
    _keys: tuple[tuple[str, ...], ...] = dataclasses.field(repr=False)  # the parts of the path of each row

    def __str__(self) -> str:
        return self._table().text()

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set.

        >>> import jax.numpy as jnp
        >>> import optax
        >>> summary(optax.sgd(0.1), {"w": jnp.ones(2), "b": jnp.ones(3)}).show()
        leaf   array                     step  decay  state  bytes
        (all)  f32, 2 leaves, 5 numbers  0.1   0             0
        leaves: 2, unmoved: 0; numbers: 5, bytes: 20; bytes of state: 0, shared by all leaves: 0
        """
        print(self._table().text(in_colours()))

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        groups = list(_group(self.rows, self._keys, 0)) if self.rows else []
        return Table(
            ("leaf", "array", "step", "decay", "state", "bytes", "note"),
            [_cells(*group) for group in groups[:ROWS]],
            [*left_out(len(groups) - ROWS), _LAST_LINE.format(**self.totals)],
            optional=("note",),
            highlighted={i for i, (_, rows) in enumerate(groups) if _is_unmoved(rows[0])},
        )


def summary(optimizer: TransformationLike, params: Params, state: OptState = None) -> Summary:
    """Show what the first step of an optimizer does to each leaf, and which state it keeps for that leaf.

    Use it to check that masks, labels and rates reach the leaves that they were meant for. It takes two steps, outside
    of jit and from params of ones: one with a gradient of ones, one with a gradient of zeros. So it works for any
    optimizer in any wrapper, and it shows what it saw: a leaf whose step is "0 in the first step" may move later, as
    with a warm-up. Pass a later `state` to see a later step.

    With `MultiSteps`, a step is a whole round of equal gradients: the sum of its updates. Clipping by the global norm
    clips the ones too, so that all steps are smaller than the rates by the same factor.

    Args:
        optimizer: a transformation of treekit, of plain Optax or your own, or a `MultiSteps`.
        params: the params, or the raw model. Leaves may be `jax.ShapeDtypeStruct`.
        state: the state to start from; by default that of `optimizer.init`. Momentum in it shows as `decay`.

    Returns:
        A `Summary`: print it, or read its `rows`. The notes of rows say what two steps do not show: a step depends on a
        loss, as in a line search, or on random numbers; it is not finite; the optimizer fails, or needs other
        arguments; the leaf is not a parameter, such as an object of a class that is not a pytree.

    Raises:
        TypeError: `optimizer` is not a transformation; or `params` has the state of an optimizer.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params = {"body": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "head": jnp.ones(3), "scale": jnp.ones(())}
    >>> optimizer = optax.partition(
    ...     {"adamw": optax.adamw(1e-3, weight_decay=0.1), "sgd": optax.sgd(0.1), "freeze": optax.set_to_zero()},
    ...     {"body": "adamw", "head": "sgd", "scale": "freeze"},
    ... )
    >>> print(summary(optimizer, params))
    leaf   array                     step   decay   state           bytes  note
    body   f32, 2 leaves, 9 numbers  0.001  0.0001  mu f32, nu f32  72
    head   f32[3]                    0.1    0                       0
    scale  f32[]                     0      0                       0      0 in the first step
    leaves: 4, unmoved: 1; numbers: 13, bytes: 52; bytes of state: 76, shared by all leaves: 4
    """
    tx = at_boundary(optimizer)
    for path, x in flatten_with_path(params, is_optimizer_state)[0]:
        if is_optimizer_state(x):
            raise TypeError(
                f"summary(optimizer, params, state): params must be the params, or a model, found {type(x).__name__} "
                f"at {path_text(path)}: the state of an optimizer"
            )
    params = jtu.tree_map(_concrete, params)
    ones = _filled(params, 1.0)
    leaves = flatten_with_path(params, is_none)[0]
    start = jtu.tree_map(as_array, tx.init(ones) if state is None else state)
    entries = map_state(start, ones)
    owned: dict[int | None, list[Accumulator]] = {}
    for x, entry in zip(jtu.tree_leaves(start), entries, strict=True):
        name = entry.field or path_name(entry.path[: entry.depth])
        array = Accumulator(name, path_name(entry.path), str(dtype_of(x)), int(getattr(x, "nbytes", 0)))
        owned.setdefault(entry.param, []).append(array)
    has_copies = state is not None and _copies_params(tx, params, entries)  # of params that are not ones
    rows: list[Row] = []
    keys: list[tuple[str, ...]] = []
    present = [(i, path, x) for i, (path, x) in enumerate(leaves) if x is not None]
    frozen = declared_frozen(params)
    for (i, path, x), effect in zip(present, _effects(tx, ones, start), strict=True):
        if describe_function(x):
            continue
        shape, dtype = (np.shape(x), str(dtype_of(x))) if is_parameter(x) else ((), "")
        kind = describe(untyped.ShapeDtypeStruct(shape, dtype) if dtype else x)
        decay = None if has_copies else effect.decay
        note = "trainable=False" if frozen[i] else effect.note
        rows.append(Row(path_name(path), kind, shape, dtype, effect.step, decay, tuple(owned.get(i, ())), note))
        keys.append(tuple(map(key_name, path)))
    state_bytes = sum(x.bytes for arrays in owned.values() for x in arrays)
    parameters = [row for row in rows if row.dtype]
    totals = {
        "leaves": len(parameters),
        "unmoved": sum(map(_is_unmoved, parameters)),
        "elements": sum(math.prod(row.shape) for row in parameters),
        "bytes": sum(math.prod(row.shape) * jnp.dtype(row.dtype).itemsize for row in parameters),
        "state_bytes": state_bytes,
        "shared_bytes": state_bytes - sum(row.bytes for row in rows),
    }
    return Summary(tuple(rows), totals, tuple(keys))


def _copies_params(tx: GradientTransformation[Any], params: Params, entries: Sequence[Entry]) -> bool:
    """Whether `init` puts values of the params into the state."""
    states = [jtu.tree_leaves(tx.init(_filled(params, value))) for value in (1.0, 2.0)]
    return any(x.param is not None and bool((a != b).any()) for x, a, b in zip(entries, *states, strict=True))


def _concrete(x: Any) -> Any:
    return jnp.ones(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else resolve_array(x)


def _is_unmoved(row: Row) -> bool:
    return row.step == 0 and row.decay == 0


class _Effect(NamedTuple):
    """What the first step does to one leaf, as in `Row`."""

    step: float | None
    decay: float | None
    note: str = ""


def _effects(tx: GradientTransformation[Any], params: Params, state: OptState) -> list[_Effect]:
    """Return what the first step does to each leaf of the params.

    An optimizer that fails with a gradient alone may need a loss. Then it gets two, of different curvatures, and where
    the state has PRNG keys, others in a second measurement: what differs depends on the loss, or is random.
    """
    leaves, other_state = jtu.tree_leaves(params), _with_other_keys(state)
    try:
        effects, why = _measure(tx, params, state, None), "random"
        others = effects if other_state is None else _measure(tx, params, other_state, None)
    except Exception as problem:  # an optimizer that needs more than gradients may raise anything
        try:
            effects, why = _measure(tx, params, state, _STEEP), "depends on the loss"
            others = _measure(tx, params, state if other_state is None else other_state, _FLAT)
        except Exception:
            note = f"fails: {describe_error(problem)}"
            return [_Effect(None, None, note) if can_be_trained(x) else _no_effect(x) for x in leaves]

    def effect(x: object, one: _Effect, other: _Effect) -> _Effect:
        if not can_be_trained(x):
            return _no_effect(x)
        if one != other:
            return _Effect(_if_same(one.step, other.step), _if_same(one.decay, other.decay), why)
        if one.step is None or one.decay is None:
            return one._replace(note="is not finite" if one.step is None else "is not finite without a gradient")
        note = "along the gradient, not against it: masked out?" if one.step < 0 else ""
        return one._replace(note="0 in the first step" if one.step == 0 else note)

    return list(map(effect, leaves, effects, others))


def _no_effect(x: object) -> _Effect:
    return _Effect(None, None, "has no gradient" if is_parameter(x) else "not a parameter")


def _if_same(first: float | None, second: float | None) -> float | None:
    """Return a number if another one is about the same."""
    is_same = first is not None and second is not None and math.isclose(first, second, rel_tol=1e-3)
    return first if is_same else None


def _measure(
    tx: GradientTransformation[Any], params: Params, state: OptState, curvature: float | None
) -> list[_Effect]:
    treedef = jtu.tree_structure(params)
    taken = (_take_round(tx, params, state, slope, curvature) for slope in (1.0, 0.0))
    moved, still = (flatten_updates(treedef, updates) for updates in taken)
    measured: list[Any] = jax.device_get([_sizes(*pair) for pair in zip(moved, still, strict=True)])
    return [_Effect(*map(_if_finite, pair)) for pair in measured]


def _if_finite(x: Any) -> Any:
    return float(x) if np.isfinite(x) else None


def _measure_sizes(update: Any, rest: Any) -> tuple[Any, Any]:
    """Return the root mean squares of `update - rest`, negative if it goes along a gradient of ones, and of `rest`.

    Without a gradient, some optimizers divide 0 by 0, so NaN in `rest` counts as 0 in the difference.
    """
    if update is None or rest is None:
        return 0.0, 0.0
    wide = jnp.complex64 if jnp.iscomplexobj(update) else jnp.float32
    update, rest = update.astype(wide), rest.astype(wide)
    step = update - jnp.nan_to_num(rest, nan=0, posinf=0, neginf=0)
    size, rest_size = (jnp.sqrt(jnp.sum(jnp.abs(x) ** 2) / max(x.size, 1)) for x in (step, rest))
    return jnp.where(jnp.sum(step.real) > 0, -size, size), rest_size


_sizes: Any = untyped.jit(_measure_sizes)


def _take_round(
    tx: GradientTransformation[Any], params: Params, state: OptState, slope: float, curvature: float | None
) -> Updates:
    """Return the updates of one step for gradients of `slope`; with MultiSteps, the sum of the updates of a round."""
    grads = _filled(params, slope, others=False)
    extra = {} if curvature is None else _made_up_arguments(params, grads, curvature)
    rounds, total = _rounds(state), None
    for _ in range(_MOST_MINI_STEPS):
        updates, state = tx.update(grads, state, params, **extra)
        total = updates if total is None else jtu.tree_map(operator.add, total, updates)
        if all(new > old for new, old in zip(_rounds(state), rounds, strict=True)):
            return total
    raise ValueError(f"MultiSteps took no step in {_MOST_MINI_STEPS:,} mini-steps")


def _rounds(state: OptState) -> list[int]:
    """Return the number of rounds that each MultiSteps in a state has finished."""

    def stop(x: object) -> bool:
        return hasattr(x, "gradient_step")

    return [int(x.gradient_step) for x in jtu.tree_leaves(state, is_leaf=stop) if stop(x)]


def _filled(tree: Params, value: float, *, others: bool = True) -> Any:
    """Fill arrays that can have a gradient; those that are alike become one array. Other leaves are kept, or None."""
    made: dict[Any, Any] = {}

    def fill(x: Any) -> Any:
        if not can_be_trained(x):
            return x if others else None
        key = x.shape, dtype_of(x), getattr(x, "sharding", None)
        if key not in made:
            made[key] = jnp.full_like(x, value)
        return made[key]

    return jtu.tree_map(fill, tree)


def _made_up_arguments(params: Params, grads: Updates, curvature: float) -> dict[str, Any]:
    """Return the extra arguments for a quadratic loss with these gradients, and the weight of a micro-batch."""

    def value_fn(candidate: object, weight: float = 1.0) -> Any:  # line searches pass on what it has a parameter for
        total: Any = jnp.float32(curvature)
        trees = (jtu.tree_leaves(tree, is_leaf=is_none) for tree in (candidate, params, grads))
        for x, param, grad in zip(*trees, strict=True):
            if can_be_trained(param):
                away, slope = (jnp.ravel(y).real.astype(jnp.float32) for y in (x - param, grad))
                total += jnp.sum(slope * away + curvature / 2 * away * away)
        return total

    return {"value": jnp.float32(curvature), "grad": grads, "value_fn": value_fn, "weight": 1.0}


def _with_other_keys(state: OptState) -> Any:
    """Return a state with other PRNG keys, of the new style or, as in Optax's noise, of the old; None without keys."""

    def is_key(x: Any) -> bool:
        dtype = dtype_of(x)
        is_old = dtype == jnp.uint32 and np.shape(x) in ((2,), (4,))
        return is_old or (dtype is not None and issubdtype(dtype, jax.dtypes.prng_key))

    def other(x: Any) -> Any:
        if not is_key(x):
            return x
        if dtype_of(x) == jnp.uint32:
            return x ^ 1
        return untyped.random.wrap_key_data(jax.random.key_data(x) ^ 1, impl=jax.random.key_impl(x))

    return jtu.tree_map(other, state) if any(map(is_key, jtu.tree_leaves(state))) else None


def _group(rows: Sequence[Row], keys: Sequence[tuple[str, ...]], depth: int) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows that are printed as one row, with the path of their subtree."""
    if len(set(map(_look, rows))) == 1:
        shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*keys, strict=False))
        yield ".".join(parts[0] for parts in shared), list(rows)
        return
    below: dict[str, list[int]] = {}
    for i, path in enumerate(keys):
        below.setdefault(path[depth], []).append(i)
    for places in below.values():
        yield from _group([rows[i] for i in places], [keys[i] for i in places], depth + 1)


def _look(row: Row) -> tuple[str, ...]:
    """Return what is printed for a row, without its path, shape and bytes."""
    state = ", ".join(f"{x.name} {short_dtype(x.dtype)}" for x in row.state)
    kind = short_dtype(row.dtype) if row.dtype else row.type
    return kind, *("-" if x is None else f"{x:.3g}" for x in (row.step, row.decay)), state, row.note


def _cells(path: str, rows: Sequence[Row]) -> tuple[str, ...]:
    kind, step, decay, state, note = _look(rows[0])
    numbers = f", {sum(math.prod(row.shape) for row in rows):,} numbers" if rows[0].dtype else ""
    array = rows[0].type if len(rows) == 1 else f"{kind}, {len(rows)} leaves{numbers}"
    return path or "(all)", array, step, decay, state, f"{sum(row.bytes for row in rows):,}", note
