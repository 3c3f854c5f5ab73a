"""Programs compiled for a TPU that this machine does not have: libtpu is enough."""

import functools
import os
from typing import Any

import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from treekit._jax import untyped

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
