"""field: static fields, converters, defaults, and arguments that are not copied."""

import dataclasses
import typing
from typing import Any, assert_type

import flax.struct
import jax
import jax.numpy as jnp
import pytest

from treekit import field, node, register_node

flax_field: Any = flax.struct.field  # has no types


def test_a_field_that_is_static_in_flax_is_static() -> None:
    @node
    class Ported:
        x: Any
        n: int = flax_field(pytree_node=False, default=1)
        y: Any = flax_field(pytree_node=True, default=2)

    @register_node
    @dataclasses.dataclass
    class Registered:
        x: Any
        n: int = flax_field(pytree_node=False, default=1)

    assert jax.tree.leaves((Ported(1.0), Registered(1.0))) == [1.0, 2, 1.0]
    assert jax.tree.map(lambda x: 2 * x, Ported(1.0, n=3)).n == 3


def test_copy_false_exempts_the_argument_of_that_field_alone() -> None:
    @node
    class Aliasing:
        mine: Any = field(copy=False)
        yours: Any = None

    given: list[int] = [1]
    for made in (Aliasing(given, given), Aliasing(mine=given, yours=given)):
        assert made.mine is given
        assert made.yours == given and made.yours is not given


def test_converters_run_after_init_on_defaults_too_and_before_the_checks() -> None:
    @node
    class Converted:
        shape: tuple[int, ...] = field(static=True, converter=tuple)
        scale: Any = field(default=1, converter=float)

        def __check_init__(self) -> None:
            seen.append((self.shape, self.scale))

    seen: list[Any] = []
    made = Converted(typing.cast(Any, [1, 2]))
    assert (made.shape, made.scale) == ((1, 2), 1.0) and type(made.scale) is float
    assert seen == [((1, 2), 1.0)]
    assert jax.tree.map(lambda x: "a", made).scale == "a"
    with pytest.raises(ValueError, match="could not convert string to float") as caught:
        Converted((1,), "x")
    assert caught.value.__notes__[0].endswith("Converted.scale")


def test_defaults_that_are_arrays_go_through_default_factory() -> None:
    with pytest.raises(ValueError, match="use default_factory"):

        @node
        class Bad:
            x: jax.Array = jnp.zeros(2)

    @node
    class Good:
        x: jax.Array = field(default_factory=lambda: jnp.zeros(2))

    assert Good().x.shape == (2,)
    assert_type(field(default=3), int)
    assert_type(field(default_factory=lambda: "a"), str)
