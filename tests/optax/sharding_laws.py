"""The laws of sharded params, in a program of its own: JAX has to be told of its devices before it starts.

    python -m tests.optax.sharding_laws                       8 virtual devices in this process
    python -m tests.optax.sharding_laws quick                 the same, with a few cases
    python -m tests.optax.sharding_laws 127.0.0.1:1234 0      4 of them in this one, process 0 of 2

Prints, as JSON in its last line, what went wrong with each case: an empty string where nothing did.
`test_preserve_sharding.py` runs both.
"""

import contextlib
import json
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.optax import cases
from treekit import optax as tko

P: Any = PartitionSpec  # and reshard: these have no types
reshard: Any = jax.sharding.reshard
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
    "filtered": lambda o: tko.filtered(optax.adam(0.1)) if o is tko else optax.adam(0.1),
    "dtype_preserving": lambda o: tko.dtype_preserving(optax.adam(0.1)) if o is tko else optax.adam(0.1),
}


def accumulating(o: Any, tx: Any, **options: Any) -> Any:
    return o.MultiSteps(tx, K, **options).gradient_transformation()


def printing(updates: Any, params: Any) -> Any:
    jax.debug.callback(lambda: None)  # an effect, which only the form with cond can have
    return updates


# A weight sharded over both axes, and a bias sharded over one of them.
AxisTypes = tuple[AxisType, AxisType]
AUTO = (AxisType.Auto, AxisType.Auto)
EXPLICIT = (AxisType.Explicit, AxisType.Explicit)
MIXED = (AxisType.Explicit, AxisType.Auto)
SPECS = {"w": P("data", "model"), "b": P("model")}
PARAMS = {"w": np.linspace(-1, 1, 8 * 6, dtype=np.float32).reshape(8, 6), "b": np.ones(6, np.float32)}
GRADS = {"w": np.sin(PARAMS["w"] * 9), "b": np.linspace(-1, 1, 6, dtype=np.float32)}
BATCH = np.linspace(0, 1, 16 * 8, dtype=np.float32).reshape(16, 8)


class Sharded:
    """The params, gradients and a batch on a mesh of 8 devices, and what becomes of them there."""

    def __init__(self, axis_types: AxisTypes) -> None:
        self.mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=axis_types)
        self.is_explicit = AxisType.Explicit in axis_types
        self.shardings = {name: NamedSharding(self.mesh, spec) for name, spec in SPECS.items()}
        self.params, self.grads = ({k: place(x, self.shardings[k]) for k, x in t.items()} for t in (PARAMS, GRADS))
        self.batch = place(BATCH, NamedSharding(self.mesh, P("data")))

    def context(self) -> Any:
        """Explicit axes ask for it; under Auto axes the params' own shardings have to be enough."""
        return jax.set_mesh(self.mesh) if self.is_explicit else contextlib.nullcontext()

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


def check_transformation(make: Callable[[Any], Any], on: Sharded) -> None:
    ours, theirs = make(tko), make(optax)
    init = jax.jit(ours.init).lower(on.params).compile()
    state = init(on.params)
    wanted = on.wanted(ours, state)
    check_shardings(state, wanted, "after a jitted init")
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


def check_init(make: Callable[[Any], Any], on: Sharded) -> None:
    """What an optimizer keeps for a param, in its shape, is sharded as the param: jitted, and eager."""
    tx = make(tko)
    shardings = {(8, 6): on.shardings["w"], (14,): NamedSharding(on.mesh, P("model"))}
    params = {"w": on.params["w"], "b": place(np.ones(14, np.float32), shardings[14,])}

    for where, state in {"jitted": jax.jit(tx.init)(params), "eager": tx.init(params)}.items():
        for path, x in jax.tree_util.tree_leaves_with_path(state):
            for shape, sharding in shardings.items():
                if x.shape[-len(shape) :] == shape:
                    own_axes = x.ndim - len(shape)
                    wanted = NamedSharding(on.mesh, P(*[None] * own_axes, *sharding.spec))
                    name = f"{where}, {jax.tree_util.keystr(path)}: {x.sharding}"
                    assert x.sharding.is_equivalent_to(wanted, x.ndim), name


def check_chosen(make: Callable[[Any], Any], on: Sharded) -> None:
    """A sharding that a transformation has chosen for its state is kept, where JAX tells what it has chosen."""
    del make
    spec = P(None, "data")

    def init(params: Any) -> Any:
        return jax.tree.map(lambda x: reshard(jnp.zeros_like(x), spec), params)

    tx = tko.filtered(optax.GradientTransformation(init, optax.identity().update))
    assert jax.jit(tx.init)([on.params["w"].T])[0].sharding.spec == spec


def check_in_shard_map(make: Callable[[Any], Any], on: Sharded) -> None:
    """Each device makes the state of its own shards."""
    init = make(tko).init
    specs = jax.tree.map(lambda x: {2: SPECS["w"], 1: SPECS["b"], 0: P()}[x.ndim], jax.eval_shape(init, PARAMS))
    state = jax.jit(jax.shard_map(init, mesh=on.mesh, in_specs=(SPECS,), out_specs=specs))(on.params)
    check_shardings(state, on.wanted(make(tko), state), "in a shard_map")


def check_rounded(make: Callable[[Any], Any], on: Sharded) -> None:
    """What is rounded stochastically has the bits that it has on one device."""
    tx = tko.dtype_preserving(make(tko), rounding="stochastic")

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(0), state.rounding_count)
        return tko.apply_gradients(tx, jax.tree.map(lambda x: 0.5 * x, params), state, params, key=key)

    one, eight = (jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree) for tree in (PARAMS, on.params))
    ours, theirs = (eight, tx.init(eight)), (one, tx.init(one))
    for _ in range(5):
        ours, theirs = step(*ours), step(*theirs)
    check_shardings(ours[0], list(jax.tree.leaves(on.shardings)), "in the params")
    check_values(ours, theirs, exact=True)


def check_codes(make: Callable[[Any], Any], on: Sharded) -> None:
    """State of 8 bits is sharded as its params: jitted, eager, and after steps, compiled for these shardings."""
    del make
    names = {"mu": jnp.int8, "nu": jnp.uint8}
    tx = tko.dtype_preserving(tko.adam(0.1), state_dtype=names, rounding="stochastic")
    w = place(np.ones((64, 64), np.float32), on.shardings["w"])
    for params, outer in (
        (w, tx),
        ({"layers": [{"w": w, "frozen": None}]}, tko.masked(tko.MultiSteps(tx, K), True)),
        ({"w": w}, tko.inject_hyperparams(lambda tx=tx: tx)()),
    ):
        step = None
        for init in (outer.init, jax.jit(outer.init)):
            state = init(params)
            step = step or jax.jit(outer.update, donate_argnums=1).lower(params, state, params).compile()
            for _ in range(3):
                codes = [x for x in jax.tree.leaves(state) if x.dtype in (jnp.int8, jnp.uint8)]
                assert [x.dtype for x in codes] == [jnp.int8, jnp.uint8]
                check_shardings(codes, [on.shardings["w"]] * 2, "in codes")
                _, state = step(params, state, params)


def check_closed_over(make: Callable[[Any], Any], on: Sharded) -> None:
    """A jitted function of no arguments."""
    state = jax.jit(lambda: make(tko).init(on.params))()
    check_shardings(state, on.wanted(make(tko), state), "with params closed over")


def check_offloaded(make: Callable[[Any], Any], on: Sharded) -> None:
    """Params in the memory of the host have their state where Optax puts it, and sharded."""
    init = make(tko).init
    shardings = {name: sharding.with_memory_kind("pinned_host") for name, sharding in on.shardings.items()}
    state = jax.jit(init)(jax.device_put(on.params, shardings))
    check_shardings(state, on.wanted(make(tko), state), "with params on the host")


def check_held(make: Callable[[Any], Any], on: Sharded) -> None:
    """A step that holds, in two calls or in one, has the collectives of the gradient, and no others."""
    tx = make(tko)
    state = jax.jit(tx.init)(on.params)

    def in_two(params: Any, state: Any, batch: Any) -> Any:
        updates, state = tx.update(jax.grad(on.loss)(params, batch), state, params)
        return tko.apply_updates(params, updates), state

    def whole(params: Any, state: Any, batch: Any) -> Any:
        return tko.apply_gradients(tx, jax.grad(on.loss)(params, batch), state, params)

    grad = jax.jit(jax.grad(on.loss), out_shardings=on.shardings).lower(on.params, on.batch).compile()
    assert 0 < collectives(grad), "the gradient needs some"
    for step in map(jax.jit, (in_two, whole)):
        compiled = step.lower(on.params, state, on.batch).compile()
        assert collectives(compiled, held=True) == collectives(grad)
        check_shardings(compiled(on.params, state, on.batch)[0], list(jax.tree.leaves(on.shardings)), "in the params")


def check_shardings(tree: Any, wanted: list[Any], where: str) -> None:
    for (path, x), want in zip(jax.tree_util.tree_leaves_with_path(tree), wanted, strict=True):
        name = f"{where}, {jax.tree_util.keystr(path)}: {x.sharding}"
        assert x.sharding.is_equivalent_to(want, x.ndim), name


def check_values(tree: Any, want: Any, *, exact: bool = False) -> None:
    """Of the shards in this process."""
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(want), strict=True):
        for shard in x.addressable_shards:
            own, wanted = np.asarray(shard.data), np.asarray(y)[shard.index]
            if exact:
                assert own.tobytes() == wanted.tobytes()
            else:
                np.testing.assert_allclose(own, wanted, rtol=2e-5, atol=1e-6)


# Under Explicit axes, those that choose between branches, or make state of their own. (Optax's L-BFGS does not say how
# the products of what it remembers are sharded, which these axes ask for.)
ON_EXPLICIT = ["masked", "inject_hyperparams", "multi_steps", "skipping", "of_printing", "finite_of_multi_steps"]
HELD = ["multi_steps", "of_clipped", "of_printing"]
Law = Callable[[Callable[[Any], Any], Sharded], None]
INIT = sorted(cases.OPTIMIZERS.keys() - {"sm3"})  # sm3 keeps a list of factors for each param
INIT_ON_EXPLICIT = sorted({*INIT} - {"flatten"})  # which concatenates params, so these have to be sharded alike
ROUNDED: list[tuple[AxisTypes, Law, list[str]]] = [
    (AUTO, check_rounded, ["adam"]),
    (AUTO, check_codes, ["adam"]),
    (EXPLICIT, check_codes, ["adam"]),
]
TABLE: list[tuple[AxisTypes, Law, list[str]]] = [
    (AUTO, check_transformation, list(WRAPPED)),
    (EXPLICIT, check_transformation, ON_EXPLICIT),
    (AUTO, check_held, HELD),
    (EXPLICIT, check_held, HELD),
    (AUTO, check_init, INIT),
    (EXPLICIT, check_init, INIT_ON_EXPLICIT),
    (MIXED, check_init, ["adamw", "muon", "noise"]),
    (EXPLICIT, check_chosen, ["adam"]),
    (AUTO, check_in_shard_map, ["adam", "multi_steps"]),
    (AUTO, check_closed_over, ["adam", "multi_steps"]),
    (EXPLICIT, check_closed_over, ["adam", "multi_steps"]),
    (AUTO, check_offloaded, ["adam", "multi_steps"]),
    *ROUNDED,
]
QUICK: list[tuple[AxisTypes, Law, list[str]]] = [
    (AUTO, check_transformation, ["multi_steps"]),
    (AUTO, check_init, ["adamw"]),
    (EXPLICIT, check_init, ["adamw"]),
    (EXPLICIT, check_chosen, ["adam"]),
    (AUTO, check_closed_over, ["adam"]),
    (EXPLICIT, check_closed_over, ["adam"]),
    (EXPLICIT, check_held, ["multi_steps"]),
    *ROUNDED,
]
ON_TWO_PROCESSES: list[tuple[AxisTypes, Law, list[str]]] = [
    (AUTO, check_transformation, ["finite_of_multi_steps"]),
    (EXPLICIT, check_transformation, ["of_clipped"]),
    (AUTO, check_held, ["of_clipped"]),
    (AUTO, check_init, ["adamw", "noise", "muon"]),
]


def what_fails(axis_types: AxisTypes, law: Law, name: str) -> str:
    on = Sharded(axis_types)
    make = cases.OPTIMIZERS[name] if law is check_init else WRAPPED[name]
    try:
        with on.context():
            law(make, on)
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> None:
    table = TABLE
    if sys.argv[1:] == ["quick"]:
        table = QUICK
    elif sys.argv[1:]:
        address, process = sys.argv[1:]
        jax.distributed.initialize(address, 2, int(process))
        table = ON_TWO_PROCESSES
    assert jax.device_count() == 8, "set XLA_FLAGS=--xla_force_host_platform_device_count"
    done = {
        f"{axis_types[0].name} {axis_types[1].name} {law.__name__} {name}": what_fails(axis_types, law, name)
        for axis_types, law, names in table
        for name in names
    }
    print(json.dumps(done))


if __name__ == "__main__":
    main()
