"""What Python cannot decide while `jax.jit` traces: notes on JAX's errors, which name the argument."""

from collections.abc import Callable
from typing import Any

import jax

# What JAX raises where Python asks for the value of an array that has none, since it is traced.
HAS_NO_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def named_schedule(schedule: Callable[..., Any], where: str) -> Callable[..., Any]:
    """Return a function of a count whose error, if it needs the value of a traced count, names the argument it is."""

    def value(count: Any, **extra: Any) -> Any:
        try:
            return schedule(count, **extra)
        except HAS_NO_VALUE as error:
            error.add_note(
                f"{where} is called with a count, which under jax.jit has no value in Python. To choose by the count, "
                "write jnp.where(count < 10, 0.1, 0.01) in place of `if`, or use optax.join_schedules"
            )
            raise

    return value
