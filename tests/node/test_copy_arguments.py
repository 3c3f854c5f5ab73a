"""Containers among the arguments are copied, with their types, their sharing and their cycles."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given as for_all
from hypothesis import strategies as st

from tests.node.ways import Holder, Made, hold
from tests.trees import Point
from treekit import field, node, replace


@node
class HolderByInit:
    x: Any
    y: Any

    def __init__(self, x: Any, y: Any = None) -> None:
        self.x, self.y = x, y


CREATE: dict[str, Callable[..., Any]] = {
    "node": Holder,
    "kwargs": lambda x, y=None: Holder(x=x, y=y),
    "own init": HolderByInit,
    "factory": hold,
}


KINDS: tuple[Callable[[list[Any]], Any], ...] = (
    list,
    tuple,
    lambda items: deque(items, maxlen=9),
    lambda items: Point(items, items),
    lambda items: dict(enumerate(items)),
    lambda items: OrderedDict(enumerate(items)),
    lambda items: defaultdict(list, enumerate(items)),
    lambda items: {1, (2, 3)},
)


@st.composite
def containers_that_share(draw: st.DrawFn) -> list[Any]:
    """Two arguments, each of containers of numbers and of any of the containers made before."""
    made: list[Any] = [0]
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=8)):
        made.append(kind(draw(st.lists(st.sampled_from(made), max_size=3))))
    return made[-2:]


def numbered(x: Any, numbers: dict[int, int]) -> Any:
    """The types of nested containers, with a number for each mutable one, which tells where it occurs again."""
    if not isinstance(x, (dict, list, set, tuple, deque)):
        return x
    number = None if isinstance(x, tuple) else numbers.setdefault(id(x), len(numbers))
    options = getattr(x, "maxlen", None), getattr(x, "default_factory", None)
    items: Any = x.items() if isinstance(x, dict) else enumerate(x)
    return type(x), number, options, [(key, numbered(item, numbers)) for key, item in items]


@for_all(st.sampled_from([*CREATE]), containers_that_share())
def test_copies_share_what_their_originals_share(how: str, given: list[Any]) -> None:
    held = CREATE[how](*given)
    of_copies: dict[int, int] = {}
    of_given: dict[int, int] = {}
    assert numbered((held.x, held.y), of_copies) == numbered(tuple(given), of_given)
    assert not of_copies.keys() & of_given.keys()


def test_what_is_not_a_plain_container_is_passed_as_it_is() -> None:
    class MyList(list[int]): ...

    class MyTuple(tuple[Any, ...]): ...

    class MyPoint(Point): ...  # may have other attributes, unlike a named tuple

    arrays = (jnp.ones(2), np.ones(2))
    of_subclasses = (MyList([1]), MyTuple([[1]]), MyPoint([1], 2))
    for given in (*arrays, *of_subclasses, (1, (2, "a")), Made([1], 2, "a"), object(), "ab"):
        assert Holder(given).x is given


def test_containers_that_contain_themselves_are_copied_too() -> None:
    cycle: list[Any] = [1]
    cycle.append((cycle,))
    for held in (Holder(cycle).x, Holder(cycle[1]).x[0]):
        assert held is not cycle and held[0] == 1
        assert held[1][0] is held
    back: list[Any] = []
    pair = (back, [5])
    back.append(pair)
    copied = Holder(pair).x
    assert copied[0][0] is copied and copied[1] == [5] and copied[1] is not pair[1]


@node
class Keeping:
    kept: Any = field(copy=False)
    xs: Any = None


def test_copy_false_exempts_the_argument_of_that_field_alone() -> None:
    given = {"a": [1]}
    for made in (Keeping(given, given), Keeping(kept=given, xs=given), replace(Keeping(0), kept=given, xs=given)):
        assert made.kept is given
        assert made.xs == given and made.xs is not given and made.xs["a"] is not given["a"]


@node
class Gathering:
    items: Any
    kept: Any = field(copy=False)

    def __init__(self, *items: Any, kept: Any) -> None:
        self.items, self.kept = items, kept


def test_arguments_that_are_gathered_are_copied() -> None:
    given = [1]
    made = Gathering([0], given, kept=given)
    assert made.items[1] == given and made.items[1] is not given and made.kept is given
