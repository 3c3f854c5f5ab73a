"""The rows of the table of `param_groups`: what each selects, and which options it sets."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.typing import ArrayLike

from treekit._base.predicates import is_real_number
from treekit._base.tree import is_mapping
from treekit._select.masks import MaskSpec
from treekit._select.paths import PathMask, path_mask
from treekit._text.describe import describe_value
from treekit.optax._wrappers.call import Call
from treekit.optax._wrappers.numbers import check_numbers


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
    keys: list[Any] = list(key if key.__class__ is tuple else [key])
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
            check_numbers(alone, call.parameters, call.name, schedules=True)
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
