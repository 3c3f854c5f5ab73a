"""`check_transformation`: init and update run, then the laws of the state and of the steps."""

from collections.abc import Collection, Iterator
from typing import Any

from treekit._base.tree import rebuilt
from treekit._base.types import Params, TransformationLike, Updates
from treekit._compare.diff import tree_diff
from treekit._text.describe import describe_error, describe_value
from treekit.testing._case import Case, default_gradients, run_steps
from treekit.testing._transformation_laws import LAWS, update_raises
from treekit.testing._violations import REGISTER, WRAP, Violation, raise_violations


def check_transformation(
    tx: TransformationLike, params: Params, grads: Updates = None, *, without: Collection[str] = (), **extra: object
) -> None:
    """Check that a gradient transformation works under every JAX transform, and preserves the types of its state.

    - `init` and `update` accept the params and the gradients; `init` can be jitted.
    - `update` preserves structure, shapes, dtypes and weak types of the state, and returns updates like the gradients,
      or None for leaves that it does not train.
    - `update` is traced once, and runs in `scan` and under `vmap`.
    - Finite gradients give no NaN. A NaN gradient that is removed from the updates leaves no NaN in the state.
    - Params and state do not share buffers, so that both can be donated; the state can be pickled.
    - State of less than 32 bits decays when the gradients do.

    Args:
        tx: a transformation, with `init` and `update`.
        params: the params, or the raw model, to check it on.
        grads: gradients; by default, ones for the inexact arrays of `params` and None for the other leaves.
        without: the names of laws to leave out, which the error prints in front of them, such as "moment": a wrapper
            of Adam has Adam's moments, which do not decay in 16 bits.
        **extra: extra arguments for `update`, such as `value_fn`. Functions among them are called about 100 times.

    Raises:
        AssertionError: lists each broken law, what goes wrong because of it, and how to fix it.
        ValueError: `without` has another name.
        TypeError: `tx` has no `init` and `update`, such as `optax.adam` without its call.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> check_transformation(optax.adam(1e-3), {"w": jnp.ones(2)})
    """
    if isinstance(tx, type) or not (hasattr(tx, "init") and hasattr(tx, "update")):
        name = getattr(tx, "__name__", "")
        way_out = f": call it, check_transformation({name}(...), params)" if callable(tx) and name else ""
        raise TypeError(f"check_transformation takes a gradient transformation, found {describe_value(tx)}{way_out}")
    names = {without} if isinstance(without, str) else {*without}
    if unknown := sorted(names - LAWS.keys()):
        known = ", ".join(LAWS)
        raise ValueError(f"without must name laws, found {', '.join(map(repr, unknown))}. The laws are {known}")
    raise_violations("the transformation", transformation_laws(tx, params, grads, extra, LAWS.keys() - names))


def transformation_laws(
    tx: TransformationLike, params: Params, grads: Updates, extra: dict[str, Any], laws: Collection[str] | None = None
) -> Iterator[Violation]:
    """Yield the violations of the laws of a gradient transformation.

    Args:
        tx: the transformation.
        params: its params.
        grads: gradients; if None, gradients of one, as in `check_transformation`.
        extra: extra arguments of update.
        laws: the laws of `LAWS` to check; by default all of them. Init and update must run in any case.
    """
    try:
        grads = default_gradients(params) if grads is None else grads
    except Exception as error:  # the user's code may raise anything
        yield Violation(
            "the params can be rebuilt as gradients, with None for leaves that are not trained",
            found=describe_error(error),
            effect="gradients, updates and state cannot have the structure of the params",
            fix=REGISTER,
        )
        return
    try:
        given = rebuilt(params)
        state = tx.init(given)
    except Exception as error:
        yield Violation(
            "init takes the params",
            found=describe_error(error),
            effect="the optimizer cannot be used with these params",
            fix=f"{WRAP}, which passes only the inexact arrays to it",
        )
        return
    if diff := tree_diff(params, given):
        yield Violation(
            "init does not change the params",
            found=f"(params | after init)\n{diff}",
            effect="the model changes silently, and update gets other params than init did",
            fix="let init put what it adds into the state",
        )
    case = Case(tx, params, grads, extra)
    try:
        run = run_steps(case, state)
    except Exception as error:
        yield update_raises(error)
        return
    for name, law in LAWS.items():
        if laws is None or name in laws:
            yield from law.violations(name, case, run)
