"""Nodes under the transformations of JAX: jit, grad, vmap, scan, cond, custom_vjp, shard_map and donation."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding

from tests.node.ways import RUNS, WAYS, Law, Laws, Way, arrays, every_way, same, structure
from treekit import node, replace

shard_map: Any = jax.shard_map
spec: Any = jax.sharding.PartitionSpec
law = Laws()


def total(x: Any) -> jax.Array:
    out: jax.Array = (x.weight * x.bias).sum()
    return out


@law
def jit_grad_and_eval_shape(way: Way) -> None:
    x = arrays(way)
    runs = len(RUNS)
    assert jax.jit(total)(x) == 6
    out = jax.jit(lambda t: jax.tree.map(lambda leaf: leaf + 1, t))(x)
    assert type(out) is way.cls and (out.bias == 2).all() and out.name == "n"
    value, grad = jax.value_and_grad(total)(x)
    assert type(grad) is way.cls and (grad.bias == x.weight).all() and grad.name == "n" and value == 6
    shapes = jax.eval_shape(lambda t: t, x)
    assert type(shapes) is way.cls and isinstance(shapes.bias, jax.ShapeDtypeStruct)
    assert len(RUNS) == runs


@law
def vmap_with_a_node_of_in_axes(way: Way) -> None:
    x = arrays(way)
    runs = len(RUNS)
    in_axes = jax.tree.unflatten(structure(x), (0, None))
    batched = replace(x, weight=jnp.ones((4, 3)))
    assert jax.vmap(total, in_axes=(in_axes,))(batched).shape == (4,)
    out = jax.vmap(lambda t: t, in_axes=(in_axes,), out_axes=in_axes)(batched)
    assert type(out) is way.cls and out.weight.shape == (4, 3) and out.bias.shape == (3,)
    assert len(RUNS) == runs


@law
def scan_while_and_cond(way: Way) -> None:
    x = arrays(way)
    runs = len(RUNS)

    def more(t: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + 1, t)

    carry, rows = jax.lax.scan(lambda t, _: (more(t), t), x, length=3)
    assert type(carry) is way.cls and (carry.bias == 4).all() and rows.weight.shape == (3, 3)
    looped = jax.lax.while_loop(lambda t: t.bias[0] < 4, more, x)
    assert type(looped) is way.cls and (looped.bias == 4).all() and looped.name == "n"
    chosen = jax.lax.cond(x.bias[0] > 0, more, lambda t: t, x)
    assert type(chosen) is way.cls and (chosen.bias == 2).all()
    assert len(RUNS) == runs


@law
def cond_scan_and_while_reject_another_class(way: Way) -> None:
    other = way.local()(jnp.ones(()), jnp.ones(()), "n")
    x = way.make(jnp.ones(()), jnp.ones(()), "n")
    with pytest.raises(TypeError, match=r"(?s)cond.*Local"):
        jax.lax.cond(True, lambda: x, lambda: other)
    with pytest.raises(TypeError, match=r"(?s)scan.*Local"):
        jax.lax.scan(lambda carry, _: (other, None), x, length=2)
    with pytest.raises(TypeError, match=r"(?s)(while|body_fun).*Local"):
        jax.lax.while_loop(lambda carry: False, lambda carry: other, x)


@law
def custom_vjp_and_checkpoint(way: Way) -> None:
    @jax.custom_vjp
    def f(t: Any) -> Any:
        return total(t)

    f.defvjp(lambda t: (total(t), t), lambda t, g: (jax.tree.map(lambda leaf: 10 * g * leaf, t),))
    x = arrays(way)
    runs = len(RUNS)
    grad = jax.grad(f)(x)
    assert type(grad) is way.cls and (grad.weight == 10 * x.weight).all()
    grad = jax.grad(jax.checkpoint(total))(x)
    assert type(grad) is way.cls and (grad.bias == x.weight).all()
    assert len(RUNS) == runs


@law
def shard_map_device_put_and_shardings_with_a_node_of_specs(way: Way) -> None:
    count = jax.device_count()
    mesh: Any = jax.make_mesh((count,), ("d",), axis_types=(AxisType.Auto,))
    x = way.make(jnp.ones((4 * count, 2)), jnp.ones(2), "n")
    runs = len(RUNS)
    specs: Any = jax.tree.unflatten(structure(x), (spec("d"), spec()))

    out = shard_map(lambda t: t, mesh=mesh, in_specs=(specs,), out_specs=specs)(x)
    assert type(out) is way.cls and out.weight.shape == (4 * count, 2)

    shardings = jax.tree.map(lambda each: NamedSharding(mesh, each), specs)
    placed = jax.device_put(x, shardings)
    assert type(placed) is way.cls and placed.weight.sharding.is_equivalent_to(shardings.weight, 2)
    jitted = jax.jit(lambda t: t, in_shardings=(shardings,), out_shardings=shardings)(placed)
    assert type(jitted) is way.cls and jitted.weight.sharding.is_equivalent_to(shardings.weight, 2)
    assert len(RUNS) == runs


@law
def donation(way: Way) -> None:
    x = arrays(way)
    with jax.debug_nans(False):  # with it JAX donates nothing
        out = jax.jit(lambda t: jax.tree.map(lambda leaf: leaf + 1, t), donate_argnums=0)(x)
    assert x.weight.is_deleted() and x.bias.is_deleted()
    assert type(out) is way.cls and (out.bias == 2).all()


@pytest.mark.slow
def test_one_jitted_function_over_hundreds_of_classes_is_always_right() -> None:
    @jax.jit
    def f(x: Any) -> Any:
        return jnp.full((), x.factor)

    kinds = [way.local() for _ in range(43) for way in WAYS.values()]
    for i, cls in enumerate(kinds):
        cls.factor = i
    instances = [cls(1, 2, "n") for cls in kinds]
    assert len(instances) > 300
    for _ in range(2):
        assert [int(f(x)) for x in instances] == list(range(len(instances)))
    assert [int(f(x)) for x in reversed(same(instances))] == list(reversed(range(len(instances))))


@every_way
@pytest.mark.parametrize("check", law)
def test_law(check: Law, way: Way) -> None:
    check(way)


def test_a_function_of_the_class_is_traced_once_for_all_nodes() -> None:
    """The way out that docs/guides/node.md gives, since a bound method of a node is not a pytree."""
    traces: list[str] = []

    @node
    class Scale:
        by: Any

        def apply(self, x: Any) -> Any:
            traces.append("traced")
            return x * self.by

    step = jax.jit(Scale.apply)
    assert [float(step(Scale(jnp.float32(i)), jnp.float32(2))) for i in range(3)] == [0, 2, 4]
    assert traces == ["traced"]
