"""Programs compiled for TPUs and GPUs that this machine does not have: libtpu and JAX's CUDA plugin are enough."""

import functools
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from benchmarks.evidence.hlo import bytes_moved
from benchmarks.multi_steps import Step
from treekit._base.jax import untyped

ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second process that loads libtpu aborts
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

# What XLA asks a device for, in the text form of its GpuTargetConfigProto.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 1 patch: 1 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@functools.cache
def h100s(number: int) -> list[Any]:
    """So many NVIDIA H100s of one machine, for which JAX can compile."""
    untyped.config.update("jax_platforms", "cpu")
    find: Any = topologies.get_topology_desc
    return list(find("h100", "cuda", target_config=H100, topology=f"1x1x{number}").devices)


@functools.cache
def tpus(topology: str) -> list[Any]:
    """The devices of a topology, such as "v5e:2x4", for which JAX can compile."""
    untyped.config.update("jax_platforms", "cpu")  # with libtpu installed, JAX would look for a TPU to run on
    os.environ.update(ENVIRONMENT)
    return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)


def mesh_of(
    devices: list[Any], axis_types: tuple[AxisType, AxisType] = (AxisType.Auto, AxisType.Auto), along_model: int = 2
) -> Mesh:
    """A mesh of all devices, with the axes "data" and "model"; there are `along_model` along the latter."""
    return Mesh(np.array(devices).reshape(-1, along_model), ("data", "model"), axis_types=axis_types)


class Machine(NamedTuple):
    """What steps are compiled for.

    Attributes:
        name: as the page calls it.
        package: compiles for it; `make accelerators` installs that for TPUs, and with GPU=1 that for GPUs.
        device: returns one of its devices.
        mesh: returns eight of them.
    """

    name: str
    package: str
    device: Callable[[], Any]
    mesh: Callable[[], Mesh]

    @property
    def is_possible(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


TPU = Machine("TPU v5e", "libtpu", lambda: tpus("v5e:2x2")[0], lambda: mesh_of(tpus("v5e:2x4")))
GPU = Machine("H100", "jax_cuda12_plugin", lambda: h100s(1)[0], lambda: mesh_of(h100s(8)))


def shapes_on(sharding: Any, tree: Any) -> Any:
    """The shapes and dtypes of a tree of arrays, with a sharding or a tree of these, to compile for."""
    shardings = jax.tree.map(lambda _: sharding, tree) if isinstance(sharding, Sharding) else sharding
    return jax.tree.map(lambda x, s: untyped.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def compile_step(
    step: Step, init: Callable[[Any], Any], params: Any, *, donated: bool, state_first: bool = False, device: Any = None
) -> Any:
    """Compile a step on one device.

    Args:
        step: maps params, state and gradients to new params and a new state.
        init: maps params to a state.
        params: shapes and dtypes; those of the gradients too.
        donated: whether params and state may be overwritten.
        state_first: whether the state is the first of the arguments and the results, else the params are.
        device: where it would run. The default means one chip of a TPU v5e.
    """
    chip = SingleDeviceSharding(device or TPU.device())
    params, state = shapes_on(chip, (params, jax.eval_shape(init, params)))

    def state_first_step(state: Any, params: Any, grads: Any) -> tuple[Any, Any]:
        params, state = step(params, state, grads)
        return state, params

    whole, carry = (state_first_step, (state, params)) if state_first else (step, (params, state))
    return jax.jit(whole, donate_argnums=(0, 1) if donated else ()).lower(*carry, params).compile()


def compile_sharded(step: Step, init: Callable[[Any], Any], params: Any, mesh: Mesh | None = None) -> Any:
    """Compile a step, donated, on many devices, with params, gradients and state sharded over all of them.

    Args:
        step: as in `compile_step`.
        init: as in `compile_step`.
        params: shapes and dtypes of matrices, which may be stacked. State of their shapes is sharded as they are, the
            rest replicated.
        mesh: the devices. The default means eight chips of a TPU v5e.
    """
    mesh = mesh or TPU.mesh()
    shapes = {x.shape for x in jax.tree.leaves(params)}

    def sharding(x: Any) -> NamedSharding:
        return by_matrix(mesh, x) if x.shape in shapes else NamedSharding(mesh, _spec())

    carry = (params, jax.eval_shape(init, params))
    carry = shapes_on(jax.tree.map(sharding, carry), carry)
    out_shardings = jax.tree.map(lambda x: x.sharding, carry)
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=out_shardings)
    return jitted.lower(*carry, carry[0]).compile()


def by_matrix(mesh: Mesh, x: Any) -> NamedSharding:
    """Each matrix of an array sharded over both axes of a mesh."""
    return NamedSharding(mesh, _spec(*[None] * (x.ndim - 2), "data", "model"))


_spec: Any = PartitionSpec  # which has no types


def sharded_state(init: Callable[[Any], Any], params: Any, mesh: Mesh) -> tuple[int, int]:
    """How many arrays of a state a jitted init shards as the params, over both axes, and how many have their shape."""
    placed = jax.tree.map(lambda x: untyped.ShapeDtypeStruct(x.shape, x.dtype, sharding=by_matrix(mesh, x)), params)
    compiled: Any = jax.jit(init).lower(placed).compile()
    state = jax.tree.leaves(jax.eval_shape(init, params))
    shapes = {x.shape[-2:] for x in jax.tree.leaves(params)}
    like_params = [
        sharding.is_equivalent_to(by_matrix(mesh, x), x.ndim)
        for x, sharding in zip(state, jax.tree.leaves(compiled.output_shardings), strict=True)
        if x.shape[-2:] in shapes
    ]
    return sum(like_params), len(like_params)


def in_units(params: Any, compiled: Any) -> tuple[float, float]:
    """The bytes that a compiled step moves, and its temporary memory, in units of the bytes of the params."""
    unit = unit_of(params)
    return bytes_moved(compiled.as_text()) / unit, compiled.memory_analysis().temp_size_in_bytes / unit


def unit_of(params: Any) -> int:
    """The bytes of the params."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(params))
