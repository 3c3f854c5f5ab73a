"""Functions traced once, to be run several times in one program."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
from jax.core import Tracer

from treekit._jax import jnp, jtu, untyped


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function traced at some arguments. Running it again runs none of the Python it was made of.

    It holds none of the arrays that the function closes over, since JAX keeps it: they are given when it is run.

    Attributes:
        jaxpr: what it computes.
        like: the result, with a shape and a dtype for each array.
    """

    jaxpr: Any
    like: Any

    def __call__(self, *args: Any, consts: Any) -> Any:
        """The result at other arguments, and other arrays in the place of those closed over."""
        closed = jax.extend.core.ClosedJaxpr(self.jaxpr, consts)
        leaves = untyped.extend.core.jaxpr_as_fun(closed)(*jtu.tree_leaves(args))
        return jtu.tree_structure(self.like).unflatten(leaves)


def trace(f: Callable[..., Any], *args: Any) -> tuple[Traced, Any]:
    """A function traced at some arguments, and the arrays that it closes over.

    Under jit, what is traced is one call of a jitted function. Each run then adds one equation, where running thousands
    of them again takes as long as tracing them; compilers inline it. Outside of jit, JAX would keep the arrays alive
    that a jitted function closes over.
    """
    is_traced = any(isinstance(x, Tracer) for x in jtu.tree_leaves(args))
    closed, like = untyped.make_jaxpr(untyped.jit(f) if is_traced else f, return_shape=True)(*args)
    return Traced(closed.jaxpr, like), closed.consts


def zeros(like: Any) -> Any:
    """Zeros for a tree of shapes, dtypes and, on a mesh with explicit axes, shardings."""
    return jtu.tree_map(jnp.zeros_like, like)
