"""The laws of sharded params, on 8 virtual devices, of which JAX has to be told before it starts.

So pytest does not collect this file by its name; `test_sharding.py` runs it, or some of its cases, with a pytest in a
process of its own, or in two that have 4 devices each. By hand:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m pytest --noconftest tests.optax.kernel.sharding_laws.py
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

from tests.optax import cases
from tests.releases import HOST_MEMORY, P, needs, reshard, set_mesh, shard_map
from treekit import optax as tko
from treekit import training
from treekit.testing import tree_shared

K = 2

# Each takes a module with Optax's names. What is wrapped is Optax's on both sides.
WRAPPED: dict[str, Callable[[Any], Any]] = {
    "adam": lambda o: o.adam(0.1),
    "masked": lambda o: o.masked(optax.adam(0.1), {"w": True, "b": False}),
    "partition": lambda o: o.partition({"a": optax.adam(0.1), "s": optax.sgd(0.1, 0.9)}, {"w": "a", "b": "s"}),
    "inject_hyperparams": lambda o: o.inject_hyperparams(optax.adamw)(0.1),
    "apply_if_finite": lambda o: o.apply_if_finite(optax.adam(0.1), 3),
    "lbfgs": lambda o: o.lbfgs(0.1, linesearch=None),
    "multi_steps": lambda o: accumulating(o, optax.adam(0.1)),
    "skipping": lambda o: accumulating(o, optax.adam(0.1), should_skip_update_fn=optax.skip_not_finite),
    "of_clipped": lambda o: accumulating(o, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))),
    "of_printing": lambda o: accumulating(o, optax.chain(optax.adam(0.1), optax.stateless(printing))),
    "finite_of_multi_steps": lambda o: o.apply_if_finite(accumulating(o, optax.adam(0.1)), 3),
    # What Optax has no match for is held to the bare transformation.
    "dtype_preserving": lambda o: training.store_state(optax.adam(0.1)) if o is tko else optax.adam(0.1),
}


def accumulating(o: Any, tx: Any, **options: Any) -> Any:
    return o.MultiSteps(tx, K, **options).gradient_transformation()


def printing(updates: Any, params: Any) -> Any:
    jax.debug.callback(lambda: None)  # an effect, which only the form with cond can have
    return updates


# A weight sharded over both axes, and a bias sharded over one of them.
AUTO = (AxisType.Auto, AxisType.Auto)
EXPLICIT = (AxisType.Explicit, AxisType.Explicit)
MIXED = (AxisType.Explicit, AxisType.Auto)
AXES = {"auto": AUTO, "explicit": EXPLICIT, "mixed": MIXED}
SPECS = {"w": P("data", "model"), "b": P("model")}
PARAMS = {"w": np.linspace(-1, 1, 8 * 6, dtype=np.float32).reshape(8, 6), "b": np.ones(6, np.float32)}
GRADS = {"w": np.sin(PARAMS["w"] * 9), "b": np.linspace(-1, 1, 6, dtype=np.float32)}
BATCH = np.linspace(0, 1, 16 * 8, dtype=np.float32).reshape(16, 8)


class Sharded:
    """The params, gradients and a batch on a mesh of 8 devices, and what becomes of them there."""

    def __init__(self, axis_types: tuple[AxisType, AxisType]) -> None:
        self.mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=axis_types)
        self.is_explicit = AxisType.Explicit in axis_types
        self.shardings = {name: NamedSharding(self.mesh, spec) for name, spec in SPECS.items()}
        self.params, self.grads = ({k: place(x, self.shardings[k]) for k, x in t.items()} for t in (PARAMS, GRADS))
        self.batch = place(BATCH, NamedSharding(self.mesh, P("data")))

    def loss(self, params: Any, batch: Any) -> jax.Array:
        w = reshard(params["w"], P(None, "model")) if self.is_explicit else params["w"]
        return jnp.mean((batch @ w + params["b"][None]) ** 2)

    def wanted(self, tx: Any, state: Any) -> list[Any]:
        """The sharding of each leaf of a state: that of its param, behind the axis for what L-BFGS remembers."""

        def of_param(x: Any, sharding: Any) -> Any:
            missing = x.ndim - len(sharding.spec)
            return NamedSharding(self.mesh, P(*[None] * missing, *sharding.spec))

        replicated = NamedSharding(self.mesh, P())
        shardings = tko.tree_map_params(tx, of_param, state, self.shardings, transform_non_params=lambda _: replicated)
        return jax.tree.leaves(shardings)


def place(x: Any, sharding: Any) -> jax.Array:
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


COLLECTIVE = re.compile(r" = .*? (?:all-reduce|all-gather|collective-permute|all-to-all|reduce-scatter)(?:-start)?\(")


def collectives(compiled: Any, *, held: bool = False) -> int:
    """How many there are; `held`: outside of branches and loops, where a step that holds must pass."""
    text = compiled.as_text()
    return len(COLLECTIVE.findall(text[text.index("\nENTRY ") :] if held else text))


def check_shardings(tree: Any, wanted: list[Any], where: str) -> None:
    for (path, x), want in zip(jax.tree_util.tree_leaves_with_path(tree), wanted, strict=True):
        name = f"{where}, {jax.tree_util.keystr(path)}: {x.sharding}"
        assert x.sharding.is_equivalent_to(want, x.ndim), name


def check_values(tree: Any, want: Any, rtol: float = 2e-5) -> None:
    """Of the shards in this process."""
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(want), strict=True):
        for shard in x.addressable_shards:
            np.testing.assert_allclose(np.asarray(shard.data), np.asarray(y)[shard.index], rtol, atol=rtol / 20)


# Under Explicit axes, those that choose between branches, or make state of their own. (Optax's L-BFGS does not say how
# the products of what it remembers are sharded, which these axes ask for.)
HELD = ["multi_steps", "of_clipped", "of_printing"]
ON_EXPLICIT = [*HELD, "adam", "masked", "inject_hyperparams", "skipping", "finite_of_multi_steps"]
SOME = ["adam", "multi_steps"]
INIT = sorted(cases.OPTIMIZERS.keys() - {"sm3"})  # sm3 keeps a list of factors for each param
INIT_ON_EXPLICIT = sorted({*INIT} - {"flatten"})  # which concatenates params, so these have to be sharded alike


def table(**names: Iterable[str]) -> pytest.MarkDecorator:
    """Cases by the kind of the mesh's axes: each has the params on that mesh, `on`, and the name of an optimizer."""
    return pytest.mark.parametrize("axes, name", [(axes, name) for axes, each in names.items() for name in each])


@pytest.fixture(scope="session", autouse=True)
def devices() -> None:
    if place := os.environ.get("PROCESS"):
        address, process = place.split()
        jax.distributed.initialize(address, 2, int(process))
    assert jax.device_count() == 8, "set XLA_FLAGS=--xla_force_host_platform_device_count"


@pytest.fixture
def on(axes: str) -> Iterator[Sharded]:
    """Explicit axes ask for the context of a mesh; under Auto axes the params' own shardings have to be enough."""
    sharded = Sharded(AXES[axes])
    with set_mesh(sharded.mesh) if sharded.is_explicit else contextlib.nullcontext():
        yield sharded


# ------------------------------------------------------------------------------------------------------------ the laws


@table(auto=WRAPPED, explicit=ON_EXPLICIT)
def test_steps(name: str, on: Sharded) -> None:
    """Shardings stay, values are those of one device, and devices communicate no more than with Optax."""
    ours, theirs = (WRAPPED[name](o) for o in (tko, optax))
    init = jax.jit(ours.init).lower(on.params).compile()
    state = init(on.params)
    wanted = on.wanted(ours, state)
    check_shardings(state, wanted, "after a jitted init")
    check_shardings(jax.jit(lambda: ours.init(on.params))(), wanted, "after a jitted init of params closed over")
    # Counts are on the mesh too, as a jitted step returns them: it would be compiled again for its own result.
    eager = ours.init(on.params)
    check_shardings(eager, wanted, "after an eager init")
    jax.jit(ours.update, donate_argnums=1)(on.grads, eager, on.params)  # raises if two arrays share a buffer

    step = jax.jit(ours.update).lower(on.grads, state, on.params).compile()
    optaxs = jax.jit(theirs.update).lower(on.grads, state, on.params).compile()
    assert collectives(init) <= collectives(optaxs), "a skip function has some, and is asked in init"
    assert collectives(step) <= collectives(optaxs), f"{collectives(step)} collectives, Optax {collectives(optaxs)}"
    alone, alone_state = jax.jit(ours.update), ours.init(PARAMS)
    for number in range(K + 1):
        # A compiled step takes no state but of the shardings that it was compiled for, so they have to stay.
        updates, state = step(on.grads, state, on.params)
        check_shardings(updates, list(jax.tree.leaves(on.shardings)), f"in the updates of step {number}")
        want, alone_state = alone(GRADS, alone_state, PARAMS)
        check_values((updates, state), (want, alone_state))


@table(auto=INIT, explicit=INIT_ON_EXPLICIT, mixed=["adamw", "muon", "noise"])
def test_init(name: str, on: Sharded) -> None:
    """What an optimizer keeps for a param, in its shape, is sharded as the param: jitted, and eager."""
    tx = cases.OPTIMIZERS[name](tko)
    shardings = {(8, 6): on.shardings["w"], (14,): NamedSharding(on.mesh, P("model"))}
    replicated = {shape: NamedSharding(on.mesh, P()) for shape in [(5,), ()]}
    params = [place(np.ones(shape, np.float32), sharding) for shape, sharding in (shardings | replicated).items()]

    for where, state in {"jitted": jax.jit(tx.init)(params), "eager": tx.init(params)}.items():
        for path, x in jax.tree_util.tree_leaves_with_path(state):
            for shape, sharding in shardings.items():
                if x.shape[-len(shape) :] == shape:
                    own_axes = x.ndim - len(shape)
                    wanted = NamedSharding(on.mesh, P(*[None] * own_axes, *sharding.spec))
                    found = f"{where}, {jax.tree_util.keystr(path)}: {x.sharding}"
                    assert x.sharding.is_equivalent_to(wanted, x.ndim), found


NESTED: dict[str, Callable[[Any], Any]] = {
    "chain": lambda o: o.chain(o.clip(1.0), o.chain(o.adam(0.1))),
    "multi_steps": lambda o: accumulating(o, o.adam(0.1)),
    "conditionally_mask": lambda o: o.conditionally_mask(o.adam(0.1), lambda step: step > 0),
}


@pytest.mark.parametrize("name", NESTED)
def test_one_select_for_each_array(name: str) -> None:
    """A jitted init adds one for each array like a param, however often it is wrapped."""
    ours, theirs = (jax.make_jaxpr(NESTED[name](o).init)(PARAMS) for o in (tko, optax))
    selects = [sum(equation.primitive.name == "select_n" for equation in each.eqns) for each in (ours, theirs)]
    assert selects[0] - selects[1] == sum(x.shape != () for x in ours.out_avals)


def test_derivatives_of_init() -> None:
    """With respect to the params, on which zeros do not depend, and a copy in the state does."""
    for tx, slope in ((tko.adam(0.1), 0.0), (tko.contrib.schedule_free_sgd(0.1), 1.0)):
        for jacobian in (jax.jacfwd, jax.jacrev):
            found = jacobian(lambda p, tx=tx: sum(x.sum() for x in jax.tree.leaves(tx.init(p)) if x.shape == (2,)))
            assert found(jnp.ones(2)).tolist() == [slope] * 2


@pytest.mark.parametrize("axes", ["explicit"])
def test_chosen_sharding(on: Sharded) -> None:
    """A sharding that a transformation has chosen for its state is kept, where JAX tells what it has chosen."""
    spec = P(None, "data")

    def init(params: Any) -> Any:
        return jax.tree.map(lambda x: reshard(jnp.zeros_like(x), spec), params)

    tx = tko.chain(optax.GradientTransformation(init, optax.identity().update))
    assert jax.jit(tx.init)([on.params["w"].T])[0][0].sharding.spec == spec


@needs("jax>=0.10")  # with which Optax does so too
@pytest.mark.parametrize("axes", ["auto"])
def test_steps_in_shard_map_that_some_devices_skip(on: Sharded) -> None:
    """One param is sharded, another is replicated: whether a step is skipped, and so the state, differs by device."""
    specs = {"s": P("data"), "r": P()}
    params = {"s": jnp.ones(8), "r": jnp.ones(3)}
    grads = {"s": jnp.arange(32.0).reshape(4, 8).at[1, 0].set(jnp.nan), "r": jnp.ones((4, 3))}

    def updates_of(o: Any) -> Any:
        tx = o.MultiSteps(o.adam(0.1), 2, should_skip_update_fn=optax.skip_not_finite)

        def steps(params: Any, grads: Any) -> Any:
            state, found = tx.init(params), []
            for i in range(4):
                updates, state = tx.update(jax.tree.map(lambda x, i=i: x[i], grads), state, params)
                found.append(updates)
            return jax.tree.map(lambda *x: jnp.stack(x)[None], *found)

        each = {name: P(None, *spec) for name, spec in specs.items()}
        return jax.jit(shard_map(steps, mesh=on.mesh, in_specs=(specs, each), out_specs=P("data")))(params, grads)

    for x, y in zip(*map(jax.tree.leaves, map(updates_of, (tko, optax))), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5)


@needs("jax>=0.7")  # before, Optax fails too
def test_a_replicated_param_in_shard_map_beside_one_that_decides() -> None:
    """Around `MultiSteps` too: with one bad shard on all devices, a step is skipped on all, as in Optax."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    specs = {"s": P("d"), "r": P()}
    params = {"s": jnp.ones(8), "r": jnp.ones(3)}
    grads = {"s": jnp.ones((4, 8)).at[1].set(jnp.nan), "r": jnp.ones((4, 3))}

    def trained(o: Any) -> Any:
        tx = o.apply_if_finite(accumulating(o, o.adam(0.1)), 3)

        def steps(params: Any, grads: Any) -> Any:
            state = tx.init(params)
            for i in range(4):
                updates, state = tx.update(jax.tree.map(lambda x, i=i: x[i], grads), state, params)
                params = o.apply_updates(params, updates)
            return params

        each = {name: P(None, *spec) for name, spec in specs.items()}
        return jax.jit(shard_map(steps, mesh=mesh, in_specs=(specs, each), out_specs=specs))(params, grads)

    for x, y in zip(*map(jax.tree.leaves, map(trained, (tko, optax))), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5)


@table(auto=SOME)
def test_init_in_shard_map(name: str, on: Sharded) -> None:
    """Each device makes the state of its own shards."""
    tx = WRAPPED[name](tko)
    specs = jax.tree.map(lambda x: {2: SPECS["w"], 1: SPECS["b"], 0: P()}[x.ndim], jax.eval_shape(tx.init, PARAMS))
    state = jax.jit(shard_map(tx.init, mesh=on.mesh, in_specs=(SPECS,), out_specs=specs))(on.params)
    check_shardings(state, on.wanted(tx, state), "in a shard_map")


@pytest.mark.parametrize("axes", ["auto"])
def test_rounding(on: Sharded) -> None:
    """What is rounded stochastically has the bits that it has on one device, and is sharded as its params."""
    tx = training.store_state(tko.adam(0.1), rounding="stochastic")

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(0), state.rounding_count)
        return training.apply_gradients(tx, jax.tree.map(lambda x: 0.5 * x, params), state, params, key=key)

    one, eight = (jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree) for tree in (PARAMS, on.params))
    ours, theirs = (eight, tx.init(eight)), (one, tx.init(one))
    for _ in range(5):
        ours, theirs = step(*ours), step(*theirs)
    wanted = list(jax.tree.leaves(on.shardings))
    for tree, where in ((ours[0], "in the params"), *((optax.tree.get(ours[1], name), name) for name in ("mu", "nu"))):
        check_shardings(tree, wanted, where)
    check_values(ours, theirs, rtol=0)


@needs(HOST_MEMORY)
@table(auto=SOME)
def test_params_on_the_host(name: str, on: Sharded) -> None:
    """Params in the memory of the host have their state where Optax puts it, and sharded."""
    tx = WRAPPED[name](tko)
    shardings = {key: sharding.with_memory_kind("pinned_host") for key, sharding in on.shardings.items()}
    state = jax.jit(tx.init)(jax.device_put(on.params, shardings))
    check_shardings(state, on.wanted(tx, state), "with params on the host")


@table(auto=HELD, explicit=HELD)
def test_step_that_only_accumulates(name: str, on: Sharded) -> None:
    """It has the collectives of the gradient, and no others."""
    tx = WRAPPED[name](tko)
    state = jax.jit(tx.init)(on.params)

    def step(params: Any, state: Any, batch: Any) -> Any:
        return training.apply_gradients(tx, jax.grad(on.loss)(params, batch), state, params)

    grad = jax.jit(jax.grad(on.loss), out_shardings=on.shardings).lower(on.params, on.batch).compile()
    assert 0 < collectives(grad), "the gradient needs some"
    compiled = jax.jit(step).lower(on.params, state, on.batch).compile()
    assert collectives(compiled, held=True) == collectives(grad)
    check_shardings(compiled(on.params, state, on.batch)[0], list(jax.tree.leaves(on.shardings)), "in the params")


@pytest.mark.parametrize("axes", ["auto"])
def test_shared_memory(on: Sharded) -> None:
    """A shard of an array, and an array with the same shards, share its memory."""
    w = on.params["w"]
    same = jax.device_put(w, w.sharding)
    assert tree_shared([w, w.addressable_shards[-1].data, same, jnp.ones(2)]) == {"0": ["1", "2"]}
