"""The table of `param_groups`: its rows, and which of them decide about each leaf."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import optax
from jax.typing import ArrayLike

from treekit._base.jax import jtu
from treekit._base.predicates import is_real_number
from treekit._base.states import is_of_optax
from treekit._base.tree import is_mapping
from treekit._base.types import Params
from treekit._select.masks import Combined, Inverse, MaskSpec
from treekit._select.paths import PathMask, path_mask, select_leaves
from treekit._text.describe import describe_value
from treekit.optax._kernel.holes import is_hole
from treekit.optax._wrappers.call import Call, bind_original, check_numbers

# Optax's factories that compute the update of each leaf from that leaf alone, and whose state has groups: see
# `Known.of_all`. Of any other, it is not known, or it is known that they look at all of them together.
_LEAFWISE = """
    adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw
    novograd optimistic_adam optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd signum yogi
    acprop ademamix adopt cocob madgrad muon simplified_ademamix
    adaptive_grad_clip add_decayed_weights clip clip_by_block_rms ema scale scale_by_acprop scale_by_adadelta
    scale_by_adam scale_by_adamax scale_by_adan scale_by_ademamix scale_by_adopt scale_by_amsgrad scale_by_belief
    scale_by_cocob scale_by_factored_rms scale_by_learning_rate scale_by_lion scale_by_madgrad scale_by_muon
    scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm scale_by_param_block_rms scale_by_radam
    scale_by_rms scale_by_rprop scale_by_rss scale_by_simplified_ademamix scale_by_stddev scale_by_trust_ratio
    scale_by_yogi trace
""".split()

# For each option that a row sets for a leaf, the row: () if no row does. A leaf that is frozen has None instead.
Group: TypeAlias = tuple[tuple[str, int], ...]


class Times(NamedTuple):
    """An option of a row that is the default, times a factor."""

    factor: Any


def times(factor: ArrayLike | Callable[[Any], Any]) -> Times:
    """Return an option, for a row of `param_groups`, that is the default of the option times a factor.

    Args:
        factor: a number, or a schedule.

    Raises:
        TypeError: `factor` is neither.

    >>> times(0.1)
    Times(factor=0.1)
    """
    if not (is_real_number(factor) or callable(factor)):
        raise TypeError(f"times takes a number or a schedule, found {describe_value(factor)}")
    return Times(factor)


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        text: its key, for errors.
        name: the first part of the names of its hyperparameters.
        mask: what it selects.
        options: what it sets.
        is_frozen: whether it freezes.
    """

    text: str
    name: str
    mask: MaskSpec
    options: dict[str, Any]
    is_frozen: bool

    def hyperparam(self, option: str) -> str:
        """Return the name of the hyperparameter that an option is."""
        return f"{self.name}_{option}" + "_times" * isinstance(self.options[option], Times)


def call_of(factory: Callable[..., Any], args: Sequence[object], defaults: Mapping[str, object]) -> Call:
    """Return the call of a factory with the defaults; one of plain Optax is treated as treekit's of the same name."""
    call = bind_original(factory, args, defaults)
    name = _name_in_optax(call.factory)
    return call if name is None else dataclasses.replace(call, name=name, is_of_optax=True)


def _name_in_optax(factory: object) -> str | None:
    """Return the name of a factory of Optax that computes each leaf alone; nadamw is a partial, and has none itself."""
    names = [(name, module) for name in _LEAFWISE for module in (optax, optax.contrib)]
    return next((name for name, module in names if vars(module).get(name) is factory), None)


def check_leafwise(call: Call, leafwise: bool) -> None:
    """Raise a TypeError unless a factory is known, or said, to compute each leaf alone."""
    factory: Any = call.factory
    if _name_in_optax(factory):
        return
    if is_of_optax(factory):
        raise TypeError(
            f"param_groups: {call.name} computes with all parameters together, or is not known to compute each alone, "
            "so the options of some cannot differ: a row can only be None. Use optax.partition, with an optimizer for "
            "each group"
        )
    if not leafwise:
        raise TypeError(
            f"param_groups: whether {call.name} computes each parameter alone is not known, and each group would run "
            "on its own: a clip by the global norm would see the norm of a group. Put what looks at all parameters "
            "together outside, optax.chain(optax.clip_by_global_norm(1.0), param_groups(optax.adamw, …)); if nothing "
            "in it does, pass leafwise=True"
        )


def check_is_table(table: object) -> None:
    """Raise a TypeError unless a table is a dict."""
    if not is_mapping(table):
        raise TypeError(
            "the second argument of param_groups is the table, a dict of options by pattern, such as {'**.bias': "
            f"{{'weight_decay': 0.0}}, 'embed.**': None}}, found {describe_value(table)}"
        )


def rows_of(table: Mapping[Any, Any], call: Call) -> list[Row]:
    """Return the rows of a table; raise an error unless they set options of this factory, under names of their own."""
    rows = [_row(key, options, call) for key, options in table.items()]
    by_name: dict[str, Row] = {}
    for row in rows:
        other = by_name.setdefault(row.name, row) if row.options else row
        if other is not row:
            raise ValueError(
                f"the rows {other.text} and {row.text} have one name, {row.name!r}: add 'name': 'my_name' to the "
                "options of one"
            )
    return rows


def _row(key: Any, options: Any, call: Call) -> Row:
    keys: list[Any] = list(key) if type(key) in (tuple,) else [key]
    mask = _mask(keys)
    text = ", ".join(x.__qualname__ if isinstance(x, type) else describe_value(x) for x in keys)
    if not (options is None or is_mapping(options)):
        raise TypeError(f"the row {text} must be None, or a dict of options, found {describe_value(options)}")
    own = dict(options or {})
    name = own.pop("name", None) or "_".join(filter(None, map(_name, keys)))
    if own and not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(
            f"the row {text} needs a name that is an identifier, found {name!r}: add 'name': 'my_name' to its options"
        )
    _check_options(own, call, text)
    return Row(text, name, mask, own, options is None)


def _mask(keys: Sequence[Any]) -> MaskSpec:
    """Return the mask of what one of these keys selects."""
    masks = [x for x in keys if isinstance(x, MaskSpec)]
    plain = [x for x in keys if not isinstance(x, MaskSpec)]
    for x in plain:
        if not isinstance(x, (str, re.Pattern, type)):
            raise TypeError(
                "param_groups: a key must be a pattern, a class, a mask of path_mask, leaf_mask or trainable, which &, "
                f"| and ~ combine, or a tuple of these, found {describe_value(x)}"
            )
    if plain or not masks:
        masks.insert(0, path_mask(*plain))
    return functools.reduce(lambda mask, other: mask | other, masks)


def _check_options(own: Mapping[str, Any], call: Call, text: str) -> None:
    """Raise an error unless a factory has the options of a row, and takes their values."""
    known = call.signature.parameters
    if not any(x.kind is inspect.Parameter.VAR_KEYWORD for x in known.values()):
        for option in own.keys() - known.keys():
            raise ValueError(
                f"{call.name} has no option {option!r}, which the row {text} sets. It has {', '.join(known)}. To "
                "freeze, write None for the whole row"
            )
    if call.is_of_optax:
        alone = {option: x for option, x in own.items() if not isinstance(x, Times)}
        try:
            check_numbers(dataclasses.replace(call, arguments=alone), schedules=True)
        except TypeError as error:
            advice = ". To switch it off, write 0.0; to freeze, None for the whole row" * str(error).endswith("None")
            raise TypeError(f"the row {text}: {error}{advice}") from None


def _name(key: Any) -> str:
    """Make the name of a row from a pattern, a class, or a `path_mask` of these; "" for any other mask."""
    if isinstance(key, PathMask):
        return "_".join(filter(None, map(_name, key.patterns)))
    if isinstance(key, MaskSpec):
        return ""
    text: str = key.__name__ if isinstance(key, type) else getattr(key, "pattern", key)
    return "_".join(re.findall(r"\w+", text)) or "rest"  # "**" is for what other rows leave


def groups_of(rows: Sequence[Row], params: Params, *, whole: bool) -> list[Group | None]:
    """Return the group of each leaf; raise a ValueError if a row, or an option of one, decides about none.

    Args:
        rows: the rows.
        params: the params as the user passed them.
        whole: whether a mask must select some of them, unless they are only a part, with a MaskedNode for the rest.
    """
    selected = select_leaves("param_groups", [row.mask for row in rows], params)
    if whole and not any(isinstance(x, optax.MaskedNode) for x in jtu.tree_leaves(params, is_leaf=is_hole)):
        for row, flags in zip(rows, selected, strict=True):
            # Patterns alone raise themselves, except for what may match None.
            if not isinstance(row.mask, PathMask) and _is_strict(row.mask) and not any(flags):
                raise ValueError(
                    f"param_groups: the row {row.text} selects no parameter that can be trained. Correct or delete it"
                )
    flags_of_leaves = list(zip(*selected, strict=True)) if rows else [()] * len(jtu.tree_leaves(params))
    group_of = {flags: _group(rows, flags) for flags in dict.fromkeys(flags_of_leaves)}
    decided = {pair for group in group_of.values() for pair in group or ()}
    for i, row in enumerate(rows):
        selects = any(flags[i] for flags in group_of)
        idle = [option for option in row.options if (option, i) not in decided]
        if selects and idle:
            raise ValueError(
                f"param_groups: {idle[0]} of the row {row.text} decides about no parameter: earlier rows do, or freeze "
                "them. Put narrow rows first, and leave out what has no effect"
            )
    same = {group: group for group in group_of.values()}  # so that equal groups are one object
    return [same[group_of[flags]] for flags in flags_of_leaves]


def _is_strict(mask: MaskSpec) -> bool:
    """Whether all patterns in a mask have to match something."""
    if isinstance(mask, Combined):
        return all(map(_is_strict, mask.masks))
    if isinstance(mask, Inverse):
        return _is_strict(mask.mask)
    return mask.strict if isinstance(mask, PathMask) else True


def _group(rows: Sequence[Row], flags: Sequence[bool]) -> Group | None:
    selecting = [(i, row) for i, (row, is_selected) in enumerate(zip(rows, flags, strict=True)) if is_selected]
    if any(row.is_frozen for _, row in selecting):
        return None
    deciding: dict[str, int] = {}
    for i, row in selecting:
        deciding = dict.fromkeys(row.options, i) | deciding
    return tuple(sorted(deciding.items()))
