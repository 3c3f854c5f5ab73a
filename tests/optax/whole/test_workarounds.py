"""The README's table of what works: each row with plain Optax, with what it needs to work, and with treekit."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.optax import cases
from tests.releases import has
from treekit import optax as tko

README = Path(__file__).parents[3] / "README.md"


class Doubles:
    """A class whose `__init__` computes."""

    def __init__(self, scale: Any) -> None:
        self.scale = 2 * scale


class FromChildren(Doubles):
    pass


class FromObject(Doubles):
    pass


class Registered(Doubles):
    pass


class OfEquinox(eqx.Module):
    scale: Any

    def __init__(self, scale: Any) -> None:
        self.scale = 2 * scale


def rebuild(_: None, children: tuple[Any]) -> FromObject:
    made = object.__new__(FromObject)
    (made.scale,) = children
    return made


register: Any = jax.tree_util.register_pytree_node
register(FromChildren, lambda x: ((x.scale,), None), lambda _, children: FromChildren(*children))
register(FromObject, lambda x: ((x.scale,), None), rebuild)
tk.register_node(Registered, ["scale"], [])


def edits(tree_at: Callable[..., Any], cls: Callable[..., Any]) -> None:
    assert tree_at(lambda x: x.scale, cls(1.0), 3.0).scale == 3.0


def update(tx: Any, params: Any, grads: Any, **extra: Any) -> Any:
    return optax.with_extra_args_support(tx).update(grads, tx.init(params), params, **extra)[0]


def filtered(model: Any) -> Any:
    return eqx.filter(model, eqx.is_inexact_array)


def decays(tx: Any, params: Any) -> None:
    """Matrices decay, and nothing else."""
    updates = update(tx, params, jax.tree.map(jnp.zeros_like, filtered(params)))
    assert all(bool(jnp.any(x)) == (x.ndim > 1) for x in jax.tree.leaves(updates))


def injected(o: Any, mask: Any, **static: Any) -> Any:
    return o.inject_hyperparams(o.adamw, **static)(0.1, weight_decay=0.5, mask=mask)


def forgets(tx: Any) -> None:
    """One NaN gradient, then seven of ones: each of the two params moves."""
    params = jnp.zeros(2)
    state = tx.init(params)
    for gradient in (jnp.array([1.0, jnp.nan]), *[jnp.ones(2)] * 7):
        updates, state = tx.update(gradient, state, params)
        params += updates
    assert bool((params < -1).all())


def runs_once(o: Any) -> None:
    """In a round of three, run eagerly."""
    ran: list[None] = []
    wait: Any = jax.effects_barrier  # has no types

    def count(updates: Any, params: Any) -> Any:
        jax.debug.callback(lambda: ran.append(None))
        return updates

    tx, params = o.MultiSteps(o.stateless(count), 3), jnp.zeros(2)
    state = tx.init(params)
    for _ in range(3):
        _, state = tx.update(params, state, params)
    wait()
    assert len(ran) == 1


def gradient_of_a_loop(x: Any, loss: Callable[..., Any], params: Any) -> Any:
    def add(total: Any, batch: Any) -> tuple[Any, None]:
        return total + jax.grad(loss)(params, batch) / 3, None

    return jax.lax.scan(add, jnp.zeros_like(params), x.reshape(3, 4, 2))[0]


def microbatched(x: Any, loss: Callable[..., Any], params: Any) -> Any:
    microbatching: Any = optax.microbatching
    mean = microbatching.AccumulationType.MEAN
    return microbatching.microbatch(jax.grad(loss), 1, 4, mean)(params, x)


def is_that_of_the_whole_batch(gradient: Callable[..., Any]) -> None:
    """Then one step of the inner transformation is enough."""
    x: Any = jax.random.normal(jax.random.key(0), (12, 2))
    params = jnp.ones(2)

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((x @ params - 1) ** 2)

    np.testing.assert_allclose(gradient(x, loss, params), jax.grad(loss)(params, x), rtol=1e-5)


def polishes(tx: Any, params: Any, loss: Callable[[Any], Any]) -> None:
    value_and_grad: Any = eqx.filter_value_and_grad(loss)
    value, grads = value_and_grad(params)
    updates = update(tx, params, grads, value=value, grad=grads, value_fn=loss)
    assert loss(eqx.apply_updates(params, updates)) < value


def polishes_a_part(o: Any, fill: bool = False, **options: Any) -> None:
    """In which the loss falls, too, for what the line search tries."""
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}

    def loss(params: Any) -> Any:
        return jnp.sum(params["w"] ** 2) + jnp.sum(params["b"] ** 2)

    def filled(part: Any) -> Any:
        return loss({**params, "w": part["w"]})

    value, grads = jax.value_and_grad(loss)(params)
    extra = {"value": value, "grad": grads, "value_fn": filled if fill else loss}
    updates = update(o.masked(o.lbfgs(), {"w": True, "b": False}, **options), params, grads, **extra)
    assert loss({**params, "w": params["w"] + updates["w"]}) < value


def steps_in_half(o: Any, **options: Any) -> None:
    params = cases.arrays(jnp.bfloat16)
    updates = update(o.inject_hyperparams(o.adamw, **options)(1e-3), params, params)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(updates))


def scans(o: Any, start: Any = jnp.bfloat16, grads: Any = jnp.float32) -> None:
    """With params in bf16, a state made from params of one dtype and gradients of another."""
    params, tx = cases.arrays(jnp.bfloat16), o.adamw(1e-3)
    given = cases.cast(params, jnp.float32)

    def body(state: Any, _: None) -> tuple[Any, None]:
        return tx.update(cases.cast(given, grads), state, params)[1], None

    jax.lax.scan(body, tx.init(cases.cast(params, start)), length=3)


def multi_steps(o: Any, **options: Any) -> Any:
    return o.MultiSteps(o.chain(o.zero_nans(), o.sgd(1.0)), 2, **options)


def cleaned(o: Any) -> Any:
    return o.chain(o.zero_nans(), o.MultiSteps(o.sgd(1.0), 2).gradient_transformation())


def masked_decay(o: Any) -> Any:
    return o.masked(o.add_decayed_weights(1.0), MASK)


def loss_of_arrays(arrays: Any) -> Any:
    return cases.loss(eqx.combine(arrays, REST))


Call = Callable[[], None]
MODEL = cases.model()
ARRAYS, REST = eqx.partition(MODEL, eqx.is_inexact_array)
MASK = cases.mask_of(MODEL)
AT_ONCE = [gradient_of_a_loop, microbatched] if has("optax>=0.2.7") else [gradient_of_a_loop]


class Row(NamedTuple):
    """One row of the table.

    Attributes:
        needs: the cell that says what plain Optax, or Equinox, needs.
        fails: without that, with one of the errors in `raises`; an AssertionError where nothing is raised.
        helped: each thing that the cell names.
        ours: with treekit.
    """

    needs: str
    fails: Call
    raises: tuple[type[Exception], ...]
    helped: tuple[Call, ...]
    ours: tuple[Call, ...]


ROWS = [
    Row(
        "if all micro-batches are available at once, `optax.microbatching` (Optax 0.2.7) or a scan; "
        "if they arrive one by one, nothing in Optax",
        partial(runs_once, optax),
        (AssertionError,),
        tuple(partial(is_that_of_the_whole_batch, way) for way in AT_ONCE),
        (partial(runs_once, tko),),
    ),
    Row(
        "`chain(zero_nans(), MultiSteps(…))`, or `should_skip_update_fn=skip_not_finite`",
        partial(forgets, multi_steps(optax)),
        (AssertionError,),
        (
            partial(forgets, cleaned(optax)),
            partial(forgets, multi_steps(optax, should_skip_update_fn=optax.skip_not_finite)),
        ),
        (partial(forgets, multi_steps(tko)), partial(forgets, cleaned(tko))),
    ),
    Row(
        '`static_args="mask"`',
        partial(decays, injected(optax, cases.mask_of), cases.arrays()),
        (AssertionError,),
        (partial(decays, injected(optax, cases.mask_of, static_args="mask"), cases.arrays()),),
        (partial(decays, injected(tko, cases.mask_of), cases.arrays()),),
    ),
    Row(
        "`hyperparam_dtype=jnp.float32`",
        partial(steps_in_half, optax),
        (AssertionError,),
        (partial(steps_in_half, optax, hyperparam_dtype=jnp.float32),),
        (partial(steps_in_half, tko),),
    ),
    Row(
        "`init` with the params in f32 (twice the state), or gradients cast to bf16",
        partial(scans, optax),
        (TypeError,),
        (partial(scans, optax, start=jnp.float32), partial(scans, optax, grads=jnp.bfloat16)),
        (partial(scans, tko),),
    ),
    Row(
        "`mask_compatible_extra_args=True`, and a loss that puts back the params that are masked",
        partial(polishes_a_part, optax),
        (ValueError,),
        (partial(polishes_a_part, optax, fill=True, mask_compatible_extra_args=True),),
        (partial(polishes_a_part, tko),),
    ),
    Row(
        '`static_args="mask"`',
        partial(decays, injected(optax, MASK), ARRAYS),
        (TypeError, ValueError),
        (partial(decays, injected(optax, MASK, static_args="mask"), ARRAYS),),
        (partial(decays, injected(tko, MASK), ARRAYS), partial(decays, injected(tko, MASK), MODEL)),
    ),
    Row(
        "the filtered model, in `init` and in `update`",
        partial(decays, masked_decay(optax), MODEL),
        (ValueError,),
        (partial(decays, masked_decay(optax), ARRAYS),),
        (partial(decays, masked_decay(tko), ARRAYS), partial(decays, masked_decay(tko), MODEL)),
    ),
    Row(
        "`eqx.partition` before, and `eqx.combine` in the loss",
        partial(polishes, optax.lbfgs(), MODEL, cases.loss),
        (AttributeError,),
        (partial(polishes, optax.lbfgs(), ARRAYS, loss_of_arrays),),
        (partial(polishes, tko.lbfgs(), ARRAYS, loss_of_arrays), partial(polishes, tko.lbfgs(), MODEL, cases.loss)),
    ),
    Row(
        "an `eqx.Module` instead, or `object.__new__` in the function that rebuilds it",
        partial(edits, eqx.tree_at, FromChildren),
        (Exception,),
        (partial(edits, eqx.tree_at, OfEquinox), partial(edits, eqx.tree_at, FromObject)),
        (partial(edits, tk.tree_at, Registered),),
    ),
]


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.needs)
def test_plain_optax_fails_works_with_what_it_needs_and_treekit_works(row: Row) -> None:
    with pytest.raises(row.raises):
        row.fails()
    for works in (*row.helped, *row.ours):
        works()


def test_the_readme_has_these_rows() -> None:
    tables = README.read_text(encoding="utf-8").partition("## What fails")[2].partition("\n## ")[0]
    rows = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in tables.splitlines() if line.startswith("| ")]
    assert [row[2] for row in rows if row[0]] == [row.needs for row in ROWS]
