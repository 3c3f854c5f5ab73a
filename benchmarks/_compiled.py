"""Programs compiled for a TPU that this machine does not have: libtpu is enough."""

import collections
import functools
import math
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from treekit._jax import untyped

Step = Callable[[Any, Any, Any], tuple[Any, Any]]  # from params, state and gradients to new params and a new state

ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second process that loads libtpu aborts
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@functools.cache
def tpus(topology: str) -> list[Any]:
    """The devices of a topology such as "v5e:2x4", for which JAX can compile.

    Args:
        topology: the kind of TPU, and how many of them along each axis.
    """
    untyped.config.update("jax_platforms", "cpu")  # with libtpu installed, JAX would look for a TPU to run on
    os.environ.update(ENVIRONMENT)
    return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)


def mesh_of(devices: list[Any], axis_types: tuple[AxisType, AxisType] = (AxisType.Auto, AxisType.Auto)) -> Mesh:
    """A mesh of all devices, with the axes "data" and "model"; there are two along the latter."""
    return Mesh(np.array(devices).reshape(-1, 2), ("data", "model"), axis_types=axis_types)


def shapes_on(sharding: Any, tree: Any) -> Any:
    """The shapes and dtypes of a tree of arrays, for arrays of one sharding, to compile for.

    Args:
        sharding: a sharding, or a tree of them.
        tree: a tree of arrays, or of shapes and dtypes.
    """
    shardings = jax.tree.map(lambda _: sharding, tree) if isinstance(sharding, Sharding) else sharding
    return jax.tree.map(lambda x, s: untyped.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def compile_step(step: Step, init: Callable[[Any], Any], params: Any, *, donated: bool, state_first: bool) -> Any:
    """Compile a step on one chip of a TPU.

    Args:
        step: maps params, state and gradients to new params and a new state.
        init: maps params to a state.
        params: shapes and dtypes; those of the gradients too.
        donated: whether params and state may be overwritten.
        state_first: whether the state is the first of the arguments and the results, else the params are.
    """
    chip = SingleDeviceSharding(tpus("v5e:2x2")[0])
    params, state = shapes_on(chip, (params, jax.eval_shape(init, params)))

    def state_first_step(state: Any, params: Any, grads: Any) -> tuple[Any, Any]:
        params, state = step(params, state, grads)
        return state, params

    whole, carry = (state_first_step, (state, params)) if state_first else (step, (params, state))
    return jax.jit(whole, donate_argnums=(0, 1) if donated else ()).lower(*carry, params).compile()


def compile_sharded(step: Step, init: Callable[[Any], Any], params: Any) -> Any:
    """Compile a step, donated, on eight chips of a TPU, with params, gradients and state sharded over all of them.

    Args:
        step: as in `compile_step`.
        init: as in `compile_step`.
        params: shapes and dtypes of matrices. State of their shapes is sharded as they are, the rest replicated.
    """
    mesh = mesh_of(tpus("v5e:2x4"))
    spec: Any = PartitionSpec  # which has no types
    shapes = {x.shape for x in jax.tree.leaves(params)}

    def sharding(x: Any) -> NamedSharding:
        return NamedSharding(mesh, spec("data", "model") if x.shape in shapes else spec())

    carry = (params, jax.eval_shape(init, params))
    carry = shapes_on(jax.tree.map(sharding, carry), carry)
    out_shardings = jax.tree.map(lambda x: x.sharding, carry)
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=out_shardings)
    return jitted.lower(*carry, carry[0]).compile()


def collectives(text: str) -> dict[str, int]:
    """How often a program communicates between chips, by the kind of communication.

    Args:
        text: the optimized HLO, as `compiled.as_text()` returns it.
    """
    return dict(sorted(collections.Counter(COLLECTIVE.findall(text)).items()))


COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)"
    r"(?:-start)?\("
)


def in_units(params: Any, compiled: Any) -> tuple[float, float]:
    """The bytes that a compiled step moves, and its temporary memory, in units of the bytes of the params."""
    unit = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(params))
    return bytes_moved(compiled.as_text()) / unit, compiled.memory_analysis().temp_size_in_bytes / unit


COMPUTATION = re.compile(r"^(ENTRY )?%?[\w.\-]+ \(.*?\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", re.MULTILINE)
ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
NAME = re.compile(r"%([\w.\-]+)")
# These move nothing, or what they move is counted elsewhere.
SILENT = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "iota", "after-all"}


def bytes_moved(text: str) -> int:
    """The bytes that a program reads from memory and writes to it, outside of its loops and branches.

    Args:
        text: the optimized HLO, as `compiled.as_text()` returns it.
    """
    (entry,) = (body for is_entry, body in COMPUTATION.findall(text) if is_entry)
    shapes: dict[str, str] = {}
    total = 0
    for name, shape, kind, rest in OPERATION.findall(entry):
        shapes[name] = shape
        if kind in SILENT or kind.endswith("-done"):  # the start of an asynchronous operation is counted
            continue
        result = shape.partition("}")[0] + "}" if kind.endswith("-start") else shape  # it repeats its operand
        operands = NAME.findall(rest.partition("), ")[0])
        total += sum(map(_bytes, [result, *(shapes[x] for x in operands)]))
    return total


def _bytes(shape: str) -> int:
    """Of all arrays in a shape; those in the memory of the chip itself, S(1) and others, move nothing."""
    return sum(
        math.prod(map(int, filter(None, lengths.split(",")))) * _bits(dtype) // 8
        for dtype, lengths, layout in ARRAY.findall(shape)
        if "S(" not in layout
    )


def _bits(dtype: str) -> int:
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 8  # pred
