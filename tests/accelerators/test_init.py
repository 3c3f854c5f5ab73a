"""A jitted init, compiled for TPUs: state is sharded as its params are."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding

from benchmarks.evidence.compiled import mesh_of, tpus
from tests.optax import cases
from tests.optax.kernel.sharding_laws import AUTO, EXPLICIT, INIT, INIT_ON_EXPLICIT, MIXED, WRAPPED
from tests.releases import P
from treekit import optax as tko
from treekit._base.jax import untyped

SPECS = {(1024, 512): P("data", "model"), (256,): P("model")}
CASES = {
    **{(AUTO, name): cases.OPTIMIZERS[name] for name in INIT},
    **{(EXPLICIT, name): cases.OPTIMIZERS[name] for name in INIT_ON_EXPLICIT},
    **{(MIXED, name): cases.OPTIMIZERS[name] for name in ("adamw", "muon")},
    **{(AUTO, f"wrapped {name}"): make for name, make in WRAPPED.items()},
}


@pytest.mark.parametrize("axis_types, name", CASES, ids=lambda x: x if isinstance(x, str) else x[0].name)
def test_state_is_sharded_as_its_params(axis_types: tuple[AxisType, AxisType], name: str) -> None:
    mesh = mesh_of(tpus("v5e:2x4"), axis_types)
    params = {
        key: untyped.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for key, (shape, spec) in zip(("w", "b"), SPECS.items(), strict=True)
    }
    init = CASES[axis_types, name](tko).init
    compiled: Any = jax.jit(init).lower(params).compile()
    state = jax.tree_util.tree_leaves_with_path(jax.eval_shape(init, params))
    for (path, x), sharding in zip(state, jax.tree.leaves(compiled.output_shardings), strict=True):
        for shape, spec in SPECS.items():
            if x.shape[-len(shape) :] == shape:
                wanted = NamedSharding(mesh, P(*[None] * (x.ndim - len(shape)), *spec))
                assert sharding.is_equivalent_to(wanted, x.ndim), f"{jax.tree_util.keystr(path)}: {sharding}"
