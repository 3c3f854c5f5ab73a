"""replace: other values for some fields, and none of the class's code runs."""

from typing import Any

import pytest

from tests.node.ways import RUNS, Made, Way, every_way, parts
from treekit import node, replace


@every_way
def test_replace_rebuilds(way: Way) -> None:
    x = way.make(1, 2, "n")
    runs = len(RUNS)
    assert parts(replace(x, bias=None, name="m")) == (2, None, "m")
    assert parts(replace(x, weight=5)) == (5, 2, "n")
    assert parts(replace(x)) == parts(x) == (2, 2, "n")
    assert len(RUNS) == runs
    with pytest.raises(TypeError, match=rf"{way.cls.__name__}\.name is static, .* list, is not hashable"):
        replace(x, name=[1])


@every_way
def test_replace_takes_fields_only(way: Way) -> None:
    with pytest.raises(TypeError, match=rf"{way.cls.__name__} has no field wieght; it has weight, bias, name"):
        replace(way.make(1, 2, "a"), wieght=3)
    with pytest.raises(TypeError, match="class made by node or register_node, not of dict"):
        replace({"a": 1}, a=2)


def test_copy_replace_of_python_3_13_rebuilds() -> None:
    x: Any = Made(1, 2, "a")
    runs = len(RUNS)
    assert parts(x.__replace__(bias=3)) == (2, 3, "a")
    assert len(RUNS) == runs

    @node
    class Own:
        def __replace__(self, **changes: Any) -> Any:
            return changes

    assert Own().__replace__(bias=3) == {"bias": 3}
