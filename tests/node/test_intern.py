"""Equal static parts share one object, which is freed with the last instance or treedef that has it."""

import dataclasses
import functools
import gc
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.node.ways import RUNS, Config, Law, Laws, Made, Way, every_way, same, structure
from treekit import field, node

law = Laws()


@law
def weakly_referable_and_freed_by_reference_count(way: Way) -> None:
    gc.disable()
    try:
        x = way.make(1, 2, Config(object()))
        y, z = same(x), pickle.loads(pickle.dumps(way.make(1, 2, "n")))
        held = weakref.ref(x), weakref.ref(y), weakref.ref(z), weakref.ref(x.name)
        structure((x, z))
        del x, y, z
        assert [r() for r in held] == [None] * 4
    finally:
        gc.enable()


@law.slow
def no_growth_over_instances_of_ever_new_static_values(way: Way) -> None:
    def make(start: int) -> None:
        for i in range(start, start + 1_000):
            same(way.make(1, 2, (i, str(i))))

    make(0)
    RUNS.clear()
    gc.collect()
    before = sys.getallocatedblocks()
    make(1_000)
    RUNS.clear()
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


@pytest.mark.parametrize("hold", [lambda self: lambda: self.x, lambda self: functools.partial(lambda: self.x)])
def test_an_instance_that_its_own_static_value_holds_is_freed(hold: Callable[[Any], Any]) -> None:
    @node
    class Held:
        x: Any
        loss: Any = field(static=True, init=False)

        def __post_init__(self) -> None:
            self.loss = hold(self)

    refs = [weakref.ref(each) for each in map(Held, range(3))]
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_treedefs_made_while_an_equal_one_is_freed_are_equal() -> None:
    """Another thread can make one at that moment; a callback does so reliably."""

    @dataclasses.dataclass(frozen=True)
    class Setting:
        value: int

    @node
    class Configured:
        setting: Setting = field(static=True)

    def treedef() -> Any:
        return structure(Configured(Setting(1)))

    made: list[Any] = []
    ref = weakref.ref(treedef().node_data()[1], lambda _: made.append(treedef()))
    assert ref() is None and made == [treedef()]


@pytest.mark.parametrize("name", ["__hash__", "__eq__"])
def test_a_static_value_that_raises_is_named(name: str) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("not now")

    methods = {"__hash__": lambda self: 1, "__eq__": lambda self, other: self is other, name: fail}
    bad = type("Bad", (), methods)
    kept = []
    with pytest.raises(TypeError, match=r"Made\b.*\bname\b") as caught:
        kept += [Made(1, 2, bad()), Made(1, 2, bad())]
    assert isinstance(caught.value.__cause__, RuntimeError)


@every_way
@pytest.mark.parametrize("check", law)
def test_law(check: Law, way: Way) -> None:
    check(way)
