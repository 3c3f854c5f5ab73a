"""The arguments with which the laws of a gradient transformation are checked, and a few steps with them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_inexact_array
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._compare.diff import tree_diff
from treekit._trained.leaves import which_are_trained
from treekit.testing._trees import all_finite, split

STEPS = 4  # all with the same arguments, so traced once
AFTER = 40  # steps within which a NaN must disappear from the state; longer than a round of accumulation


class Arrays(NamedTuple):
    """The leaves of params and gradients that jit traces."""

    params: list[Any]
    grads: list[Any]


class Case:
    """A transformation and its arguments; its `update` takes their arrays separately, so that they can be traced."""

    def __init__(self, tx: TransformationLike, params: Params, grads: Updates, extra: dict[str, Any]) -> None:
        self.tx, self.params, self.grads, self.extra = tx, params, grads, extra
        of_params, self._params_with = split(params)
        of_grads, self._grads_with = split(grads)
        self.arrays = Arrays(of_params, of_grads)
        self.traces = 0  # of `update`, which `scan` traces too: the law that counts them comes first
        self.jitted = untyped.jit(self.update)
        self._jitted_scan = untyped.jit(self._scan)

    def update(self, arrays: Arrays, state: OptState) -> tuple[Any, Any]:
        """Return the updates and the new state."""
        self.traces += 1
        grads, params = self._grads_with(arrays.grads), self._params_with(arrays.params)
        updates, state = self.tx.update(grads, state, params, **self.extra)
        return updates, state

    def arrays_with_grads(self, f: Callable[[Any], Any]) -> Arrays:
        """Return the arrays, with `f` applied to the inexact gradients."""
        return self.arrays._replace(grads=[f(x) if is_inexact_array(x) else x for x in self.arrays.grads])

    def scan(self, state: OptState, poisoned: bool) -> "Scanned":
        """Run steps in scan, all with finite gradients, or the second with NaN gradients."""
        with jax.debug_nans(False):  # this NaN is intended
            return Scanned(*self._jitted_scan(state, jnp.zeros(AFTER + 2, bool).at[1].set(poisoned)))

    def _scan(self, state: OptState, is_nan: Any) -> Any:
        def step(carry: tuple[Any, Any], is_nan: object) -> tuple[Any, None]:
            state, finite = carry
            arrays = self.arrays_with_grads(lambda g: jnp.where(is_nan, jnp.full_like(g, jnp.nan), g))
            updates, state = self.update(arrays, state)
            return (state, finite & all_finite(updates)), None

        return lax.scan(step, (state, jnp.array(True)), is_nan)[0]


class Scanned(NamedTuple):
    """The state after a scan, and whether all updates in it were finite."""

    state: Any
    finite: Any


class Run(NamedTuple):
    """The result of `STEPS` steps: the first state, the states after one step and after all, and the last updates."""

    state: Any
    second: Any
    last: Any
    updates: Any

    def keeps_types(self) -> bool:
        """Whether all states have the same structure, shapes, dtypes and weak types."""
        return all(d.kind == "sharding" for d in tree_diff(self.state, self.last, values=False))


def run_steps(case: Case, state: OptState) -> Run:
    """Take the first steps, under jit."""
    updates, second = case.jitted(case.arrays, state)
    last = second
    for _ in range(STEPS - 1):
        updates, last = case.jitted(case.arrays, last)
    return Run(state, second, last, updates)


def default_gradients(params: Params) -> Any:
    """Return gradients of one for what is trained, and None for other leaves."""
    leaves, treedef = jtu.tree_flatten(params)
    trained = which_are_trained(params)
    return treedef.unflatten(
        jnp.ones_like(x) if is_trained else None for x, is_trained in zip(leaves, trained, strict=True)
    )
