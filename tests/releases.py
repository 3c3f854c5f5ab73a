"""What not every release has of those that treekit runs with: names for the tests, and the mark of tests that need one.

`make versions` counts what the mark skips.
"""

import functools
import pkgutil
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

import jax
import pytest
from packaging.version import Version

from treekit._base.flax import values_of_variables


@functools.cache
def has(need: str) -> bool:
    """Whether a name can be imported, such as `jax.new_ref`, or a release is recent enough, such as `jax>=0.7`."""
    package, _, floor = need.partition(">=")
    if floor:
        return Version(metadata.version(package)) >= Version(floor)
    try:
        pkgutil.resolve_name(need)
    except (AttributeError, ImportError):
        return False
    return True


def needs(*what: str) -> pytest.MarkDecorator:
    """The mark of a test that cannot run without these."""
    missing = [need for need in what if not has(need)]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def keys(table: Iterable[Any], need: Mapping[Any, str]) -> list[Any]:
    """The keys of a table of cases, those marked that need something."""
    return [pytest.param(key, marks=needs(need[key])) if key in need else key for key in table]


def _first(*names: str) -> Any:
    return next(map(pkgutil.resolve_name, filter(has, names)), None)


# The arguments of `nnx.var_defaults`: variables of Flax are nodes of arrays or of references, or leaves themselves.
VARIABLES = [
    {"hijax": False},
    {"ref": True},
    *(
        pytest.param(kind, marks=needs("jax.experimental.hijax.instantiate_zeros"))
        for kind in ({"hijax": True}, {"hijax": True, "ref": True})
    ),
]

# CPUs have a second kind of memory from this release on.
HOST_MEMORY = "jax>=0.7.1"

# None has no attribute and cannot be called: a test without the mark that it should have fails.
enable_x64: Any = _first("jax.enable_x64", "jax.experimental.enable_x64")
new_ref: Any = _first("jax.new_ref")
reshard: Any = _first("jax.sharding.reshard", "jax.experimental.shard.reshard")
set_mesh: Any = _first("jax.set_mesh", "jax.sharding.use_mesh")
shard_map: Any = _first("jax.shard_map", "jax.experimental.shard_map.shard_map")
as_pure: Any = _first("flax.nnx.as_pure") or values_of_variables
nnx_list: Any = _first("flax.nnx.List") or list  # before Flax 0.12, a list may contain layers
P: Any = jax.sharding.PartitionSpec
