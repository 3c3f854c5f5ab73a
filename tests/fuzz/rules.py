"""Differences that are documented: why a law need not hold, and for which programs."""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .cases import Case
from .laws import Failure, evaluate
from .prelude import is_inexact, value_of

jnp: Any = jax.numpy


def reason(case: Case, failure: Failure) -> str | None:
    """Why a law need not hold here, or None."""
    return next((why for why, (laws, applies) in RULES.items() if failure.law in laws and applies(case, failure)), None)


def leaves(case: Case) -> list[tuple[Any, Any]]:
    """The leaves that can be parameters, with what they stand for as a number."""
    pairs = [(leaf, value_of(leaf)) for leaf in jax.tree.leaves(evaluate(case.params, None, None))]
    return [(leaf, x) for leaf, x in pairs if x is not None and not jnp.issubdtype(x.dtype, jax.dtypes.extended)]


def not_arrays(case: Case) -> list[tuple[Any, Any]]:
    """Those of them that Equinox does not take for inexact arrays, and which are inexact numbers."""
    return [(leaf, x) for leaf, x in leaves(case) if not eqx.is_inexact_array(leaf) and is_inexact(x)]


def has_integers(case: Case) -> bool:
    return any(not is_inexact(x) for _, x in leaves(case))


def kinds_of_numbers(case: Case) -> set[bool]:
    """Whether the numbers among the leaves are complex: both answers where some are and some are not."""
    return {bool(jnp.iscomplexobj(x)) for _, x in leaves(case)}


def has_narrow(case: Case) -> bool:
    return any(is_inexact(x) and jnp.finfo(x.dtype).bits < 32 for _, x in leaves(case))


def has_other_gradients(case: Case) -> bool:
    """Whether gradients have another dtype than their params, so that numbers are rounded at other places."""
    dtype = case.gradients.split(",")[0].strip("'")
    return dtype != "None" and any(is_inexact(x) and x.dtype != dtype for _, x in leaves(case))


def of_numbers(failure: Failure) -> bool:
    return ": at " in failure.message and "raises" not in failure.message


def not_finite(failure: Failure) -> bool:
    return re.search("nan|inf", failure.message) is not None


PLAIN, STATE, WRAPPER = ("equals plain Optax",), ("keeps its state",), ("a wrapper changes nothing",)
FILTERED, PARAMETERS = ("a raw model, filtered, equals its arrays",), ("a raw model equals its parameters",)

# For each reason: the laws, and the programs for which they need not hold.
RULES: dict[str, tuple[tuple[str, ...], Callable[[Case, Failure], bool]]] = {
    "MultiSteps accumulates complex gradients whole; Optax drops imaginary parts (benchmarks/results/upstream.md).": (
        PLAIN,
        lambda case, _: "MultiSteps" in case.tx and True in kinds_of_numbers(case),
    ),
    "In Optax's MultiSteps a NaN outlives its round, and leaks into steps that wait (docs/what_goes_wrong.md).": (
        PLAIN,
        lambda case, failure: "MultiSteps" in case.tx and not_finite(failure),
    ),
    "The update of a real param is real; Optax's is complex where it mixes the two, and then inf becomes NaN.": (
        PLAIN,
        lambda case, failure: (
            len(kinds_of_numbers(case)) > 1 and "complex64" in failure.message and not_finite(failure)
        ),
    ),
    "Updates of another structure are an error; of two nested splits the inner one joins what the outer has split.": (
        PLAIN,
        lambda case, failure: (
            case.tx.count("split_real_and_imaginary") > 1 and "SplitRealAndImaginaryArrays" in failure.message
        ),
    ),
    "monitor has its measurements in the state from init on (docs/guides/from_optax.md).": (
        PLAIN,
        lambda case, failure: "monitor(" in case.tx and ".measurements" in failure.message,
    ),
    "inject_hyperparams holds numbers in f32 at least; Optax in the params' dtype (docs/guides/from_optax.md).": (
        PLAIN,
        lambda case, failure: "inject_hyperparams" in case.tx and has_narrow(case) and of_numbers(failure),
    ),
    "Optax's inject_hyperparams takes a mask function for a schedule (docs/what_goes_wrong.md).": (
        PLAIN,
        lambda case, failure: (
            "o.inject_hyperparams(o.adamw)(falling, mask=mask(" in case.tx
            and ("hyperparams" in failure.message or of_numbers(failure))
        ),
    ),
    "freeze and selective_transform take mask functions; Optax takes a function for True (from_optax.md).": (
        PLAIN,
        lambda case, failure: (
            re.search(r"freeze(_mask=|\()mask\(\d\)\)", case.tx) is not None and "raises" not in failure.message
        ),
    ),
    "Integers among the params are shown to the inner transformation as floats (docs/guides/from_optax.md).": (
        PLAIN,
        lambda case, failure: has_integers(case) and of_numbers(failure),
    ),
    "State keeps the dtype of init, and an update is as wide as its param: Optax rounds elsewhere (from_optax.md).": (
        PLAIN,
        lambda case, failure: has_other_gradients(case) and of_numbers(failure),
    ),
    "Where a gradient is None, some of Optax's states lose their array; treekit's keep it, for scan and jit.": (
        PLAIN,
        lambda case, failure: (
            "'None'" in case.gradients
            and re.search(r"structure: .*array against None .*\| None$", failure.message, re.M) is not None
        ),
    ),
    "A rate that is real stays real; Optax's inject_hyperparams stores it in the dtype of complex params.": (
        PLAIN,
        lambda _, failure: ".hyperparams[" in failure.message and "dtypes float32 and complex64" in failure.message,
    ),
    "A Python number in a state becomes a strong array (docs/design.md), which JAX does not promote with a float8.": (
        PLAIN,
        lambda case, failure: (
            "counted()" in case.tx and "TypePromotionError" in failure.message and "float8" in failure.message
        ),
    ),
    "Gradients of integers are none of treekit's business (docs/design.md): what an optimizer makes of them is.": (
        WRAPPER,
        lambda case, failure: "'zeros'" in case.gradients and has_integers(case) and of_numbers(failure),
    ),
    "An update is as wide as its param, so what follows in a chain rounds less than by itself (from_optax.md).": (
        WRAPPER,
        lambda case, failure: has_other_gradients(case) and "o.chain(" in case.wrapper and of_numbers(failure),
    ),
    "Muon computes in the gradients' dtype; in 16 bits plain Optax's rounds otherwise, too, if it is compiled.": (
        WRAPPER,
        lambda case, failure: "muon" in case.tx and has_other_gradients(case) and of_numbers(failure),
    ),
    "galore and novograd raise inside Optax, under jit, where updates have another dtype than the params.": (
        STATE,
        lambda case, failure: ("galore" in case.tx or "novograd" in case.tx) and "cond branches" in failure.message,
    ),
    "A NumPy array in bf16 is not inexact to Equinox, so a filtered model has None there; a traced one is inexact.": (
        STATE,
        lambda case, failure: (
            "arrays_of(params)" in case.tx
            and "traced, it raises" in failure.message
            and any(isinstance(leaf, np.ndarray) for leaf, _ in not_arrays(case))
        ),
    ),
    "A Python number that is given an update becomes an array, for which a filtered model's mask has no value.": (
        FILTERED + PARAMETERS,
        lambda case, _: "arrays_of(params)" in case.tx and "'None'" not in case.gradients and bool(not_arrays(case)),
    ),
    "A number with a gradient is shown to value_fn as an array, and the loss of these programs counts arrays.": (
        FILTERED,
        lambda case, _: (
            ("lbfgs" in case.tx or "linesearch" in case.tx)
            and "'None'" not in case.gradients
            and bool(not_arrays(case))
        ),
    ),
    "Without params a filter is asked about the gradients (from_optax.md): arrays, also where params are none.": (
        FILTERED,
        lambda case, _: case.updated_with == "None" and bool(not_arrays(case)),
    ),
    "To NumPy and Equinox an array in bf16 or float8 is not floating-point: `filtered` refuses it, and says so.": (
        FILTERED,
        lambda _, failure: "filtered would leave out the array" in failure.message,
    ),
    "A key, a function or another single leaf in place of a model is a mistake, and `init` says so.": (
        FILTERED + PARAMETERS,
        lambda _, failure: "which has no parameters. Pass a pytree" in failure.message,
    ),
}
