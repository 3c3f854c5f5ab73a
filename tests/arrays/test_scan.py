"""filter_scan: lax.scan where carry, inputs and outputs are any trees."""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import treekit as tk
from treekit.testing import assert_trees_same

EQX: Any = eqx  # of its functions, not all are typed
KEY = jax.random.key(0)


MLP: Any = eqx.nn.MLP(2, 2, 4, depth=1, key=KEY)


@tk.node
class Counter:
    count: Any
    f: Any = jnp.tanh
    name: str = tk.field(default="a", static=True)


def count_up(carry: Any, x: Any) -> Any:
    return tk.replace(carry, count=carry.f(carry.count + (1 if x is None else x))), {"y": carry.count, "f": carry.f}


def through_key(key: Any, x: Any) -> Any:
    key, sub = jax.random.split(key)
    return key, {"x": jax.random.normal(sub), "of": x}


def layer(x: Any, model: Any) -> Any:
    return model["f"](model["linear"](x)) * model["rate"], jnp.sum(x)


def grow(model: Any, scale: Any) -> Any:
    return jax.tree.map(lambda x: x * scale if eqx.is_array(x) else x, model), model


STACKED = tk.tree_stack(
    [{"linear": eqx.nn.Linear(2, 2, key=jax.random.key(i)), "f": jax.nn.relu, "rate": 2.0} for i in range(3)]
)
# f, the first carry, xs and the options
CASES: dict[str, tuple[Callable[..., Any], Any, Any, dict[str, Any]]] = {
    "a node": (count_up, Counter(jnp.ones(2)), None, {"length": 3}),
    "layers": (layer, jnp.ones(2), STACKED, {}),
    "reversed and unrolled": (layer, jnp.ones(2), STACKED, {"reverse": True, "unroll": 2}),
    "an Equinox model, as an output too": (grow, MLP, jnp.arange(1.0, 4.0), {}),
    "keys": (through_key, KEY, {"keys": jax.random.split(KEY, 3), "name": "x"}, {}),
    "None": (lambda carry, x: (None, None), None, None, {"length": 3}),
    "other leaves": (lambda carry, x: (carry, x), {"a": "b", "c": 1, "d": jnp.ones(2)}, [jnp.ones(3), 2.5, len], {}),
}


def by_hand(f: Any, carry: Any, xs: Any, length: Any = None, reverse: bool = False, unroll: int = 1) -> Any:
    """A loop in Python."""
    arrays, rest = tk.partition(xs)
    number = length or len(jax.tree.leaves(arrays)[0])
    ys: list[Any] = []
    for i in reversed(range(number)) if reverse else range(number):
        carry, y = f(carry, tk.combine(jax.tree.map(lambda x, i=i: x[i], arrays), rest))
        ys.append(jax.tree.map(lambda x: jnp.asarray(x) if tk.is_array(x) else x, y))
    return carry, tk.tree_stack(ys[::-1] if reverse else ys)


assert_close = functools.partial(assert_trees_same, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_loop_of_which_one_step_is_traced(case: str) -> None:
    f, init, xs, options = CASES[case]
    calls: list[None] = []

    def step(carry: Any, x: Any) -> Any:
        calls.append(None)
        return f(carry, x)

    found = tk.filter_scan(step, init, xs, **options)
    assert len(calls) == 1
    expected = by_hand(f, init, xs, **options)
    assert_close(found, expected)
    assert_close(EQX.filter_jit(tk.filter_scan)(f, init, xs, **options), expected)


def other(**fields: Any) -> Callable[..., Any]:
    return lambda carry, _: (tk.replace(carry, **fields), None)


START = Counter(jnp.ones(2))
# f, and the first carry
CHANGES: dict[str, tuple[Callable[..., Any], Any]] = {
    "a function": (other(f=jnp.sin), START),
    "a static field": (other(name="b"), START),
    "an array for None": (other(count=None), START),
    "a number that becomes an array": (lambda n, _: (n + jnp.ones(()), None), 0.0),
    "a bool that becomes an array": (
        lambda c, _: ({**c, "done": c["x"] > 0}, None),
        {"done": False, "x": jnp.ones(())},
    ),
    "an array of bools that becomes a bool": (lambda c, _: ([True], None), [jnp.array(False)]),
    "a dtype": (lambda c, _: ([c[0].astype("bfloat16")], None), [jnp.ones(2)]),
    "a shape": (lambda x, _: (jnp.ones(3), None), jnp.ones(2)),
    "the shape of a weak array": (lambda x, _: (jnp.ones(3), None), jnp.asarray(1.0)),
    "no output": (lambda x, _: (x,), START),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_carry_that_changes_raises(case: str) -> None:
    f, init = CHANGES[case]
    with pytest.raises(TypeError, match=r"^filter_scan"):
        tk.filter_scan(f, init, length=2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_weak_dtype_of_the_first_carry_is_promoted_as_by_lax_scan(dtype: Any) -> None:
    def f(x: Any, _: Any) -> Any:
        return x + jnp.ones((), dtype), None

    found, expected = (scan(f, jnp.asarray(1.0), length=2)[0] for scan in (tk.filter_scan, jax.lax.scan))
    assert found == expected == 3 and found.dtype == expected.dtype == dtype


@pytest.mark.parametrize("checkpoint", [False, True, jax.checkpoint_policies.dots_saveable])
def test_derivatives_of_steps_that_are_stored_or_computed_again(checkpoint: Any) -> None:
    """`jax.checkpoint` itself refuses layers with functions in them."""
    arrays, rest = eqx.partition(STACKED, eqx.is_array)

    def gradient(scan: Any) -> Any:
        return jax.grad(lambda arrays: jnp.sum(scan(layer, jnp.ones(2), eqx.combine(arrays, rest))[0]))

    scanned = gradient(functools.partial(tk.filter_scan, checkpoint=checkpoint))
    assert_close(scanned(arrays), gradient(by_hand)(arrays))
    make_jaxpr: Any = jax.make_jaxpr  # has no types
    jaxpr = str(make_jaxpr(scanned)(arrays))
    assert ("remat" in jaxpr or "checkpoint" in jaxpr) is bool(checkpoint)


def compiled() -> int:
    """The number of programs that are kept."""
    client: Any = jax.devices()[0].client
    return len(client.live_executables())


@pytest.mark.parametrize("checkpoint", [False, True, jax.checkpoint_policies.dots_saveable])
def test_the_loop_of_one_function_is_compiled_once(checkpoint: Any) -> None:
    def f(carry: Any, x: Any) -> Any:
        return tk.replace(carry, count=carry.f(carry.count) * x["scale"]), x["scale"]

    def loop(f: Any, start: Counter, scale: Any) -> Any:
        return tk.filter_scan(f, start, {"scale": scale}, length=2, checkpoint=checkpoint)

    def other_arrays() -> None:
        last, scale = loop(f, Counter(START.count + 1, jnp.tanh, "a"), 1)
        assert_close((last.count, scale), (jnp.tanh(jnp.tanh(START.count + 1)), 1))

    loop(f, START, 1)
    other_arrays()
    before = compiled()
    for _ in range(3):
        other_arrays()
    assert compiled() == before
    # What is not an array is compared with its type.
    for start, scale in (
        (Counter(START.count, jnp.sin), 1),
        (tk.replace(START, name="b"), 1),
        (START, 1.0),
        (START, 2),
    ):
        (last, scales), expected = loop(f, start, scale), by_hand(f, start, {"scale": scale}, length=2)
        assert_close((last, scales), expected)
        assert (last.f, last.name, type(scales)) == (start.f, start.name, type(scale))
    assert_close(loop(f, START, 1), by_hand(f, START, {"scale": 1}, length=2))


def test_what_an_output_has_besides_arrays_is_that_of_its_own_shapes() -> None:
    def f(carry: Any, x: Any) -> Any:
        return carry, {"of": str(carry.shape)}

    for shape in ((2,), (3,), (2,)):
        assert tk.filter_scan(f, jnp.ones(shape), length=2)[1] == {"of": str(shape)}


def test_a_function_and_its_loop_are_freed_together() -> None:
    def f(carry: Any, x: Any) -> Any:
        return carry + 1, None

    kept = weakref.ref(f)
    assert tk.filter_scan(f, jnp.zeros(()), length=3)[0] == 3
    del f
    gc.collect()
    assert kept() is None


class Steps:
    def __init__(self, by: float) -> None:
        self.by = by

    def step(self, carry: Any, x: Any) -> Any:
        return carry + self.by, None


def test_a_bound_method_is_called_in_each_loop() -> None:
    steps = Steps(1)
    assert tk.filter_scan(steps.step, jnp.zeros(()), length=3)[0] == 3
    steps.by = 2
    assert tk.filter_scan(steps.step, jnp.zeros(()), length=3)[0] == 6
