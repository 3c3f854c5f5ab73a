"""Differences that are documented: why a law need not hold, and for which programs; and programs held to the rest."""

import collections
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import hypothesis
import jax
import numpy as np
from hypothesis import strategies as st

import treekit as tk
from tests.trees import untyped

from .cases import FILTERED, PARAMETERS, PLAIN, STATE, WRAPPER, Case, case_of
from .laws import Failure, described, evaluate, failures
from .prelude import is_inexact, value_of

jnp: Any = jax.numpy


def reason(case: Case, failure: Failure) -> str | None:
    """Why a law need not hold here, or None."""
    return next((why for why, rule in RULES.items() if applies(rule, case, failure)), None)


def leaves(case: Case) -> list[tuple[Any, Any]]:
    """The leaves that can be parameters, with what they stand for as a number."""
    pairs = [(leaf, value_of(leaf)) for leaf in jax.tree.leaves(evaluate(case.params, None, None))]
    return [(leaf, x) for leaf, x in pairs if x is not None and not jnp.issubdtype(x.dtype, jax.dtypes.extended)]


def not_arrays(case: Case) -> list[Any]:
    """Inexact numbers that Equinox does not take for inexact arrays."""
    return [leaf for leaf, x in leaves(case) if not eqx.is_inexact_array(leaf) and is_inexact(x)]


def has_untrained(case: Case) -> bool:
    """Whether there are numbers that are not floating-point or complex arrays."""
    return any(not is_inexact(x) or not tk.is_array(leaf) for leaf, x in leaves(case))


def has_refs_or_numbers_only(case: Case) -> bool:
    pairs = leaves(case)
    has_refs = any(isinstance(leaf, jax.Ref) for leaf, _ in pairs)
    return has_refs or not any(is_inexact(x) and tk.is_array(leaf) for leaf, x in pairs)


def kinds_of_numbers(case: Case) -> set[bool]:
    """Whether they are complex: both answers where some are and some are not."""
    return {bool(jnp.iscomplexobj(x)) for _, x in leaves(case)}


def has_narrow(case: Case) -> bool:
    return any(is_inexact(x) and jnp.finfo(x.dtype).bits < 32 for _, x in leaves(case))


def has_other_gradients(case: Case) -> bool:
    """Then numbers are rounded at other places."""
    dtype = case.gradients.split(",")[0].strip("'")
    return dtype != "None" and any(is_inexact(x) and x.dtype != dtype for _, x in leaves(case))


class Rule(NamedTuple):
    """The laws that need not hold, patterns for the transformation and for what was seen, and what else there is."""

    laws: tuple[str, ...]
    tx: str = ""
    seen: str = ""
    case: Callable[[Case], bool] = lambda _: True


def applies(rule: Rule, case: Case, failure: Failure) -> bool:
    is_asked = failure.law in rule.laws and re.search(rule.tx, case.tx) and re.search(rule.seen, failure.message)
    return bool(is_asked) and rule.case(case)


NUMBERS = "(?s:^(?!.*raises).*: at )"  # a path: the structures are the same
NOT_FINITE = "nan|inf"

RULES = {
    "MultiSteps accumulates complex gradients whole; Optax drops imaginary parts (benchmarks/results/upstream.md).": (
        Rule((PLAIN,), "MultiSteps", case=lambda case: True in kinds_of_numbers(case))
    ),
    "In Optax's MultiSteps a NaN outlives its round, and leaks into steps that wait (docs/what_goes_wrong.md).": (
        Rule((PLAIN,), "MultiSteps", NOT_FINITE)
    ),
    "The update of a real param is real; Optax's is complex where it mixes the two, and then inf becomes NaN.": (
        Rule((PLAIN,), "", rf"(?s)(?=.*complex64).*({NOT_FINITE})", lambda case: len(kinds_of_numbers(case)) > 1)
    ),
    "Updates of another structure are an error; of two nested splits the inner one joins what the outer has split.": (
        Rule((PLAIN,), "split_real_and_imaginary.*split_real_and_imaginary", "SplitRealAndImaginaryArrays")
    ),
    "monitor has its measurements in the state from init on (docs/guides/from_optax.md).": (
        Rule((PLAIN,), r"monitor\(", r"\.measurements")
    ),
    "inject_hyperparams holds numbers in f32 at least; Optax in the params' dtype (docs/guides/from_optax.md).": (
        Rule((PLAIN,), "inject_hyperparams", f"{NUMBERS}|lax.clamp requires", has_narrow)
    ),
    "Optax's inject_hyperparams takes a mask function for a schedule (docs/what_goes_wrong.md).": (
        Rule((PLAIN,), r"o\.inject_hyperparams\(o\.adamw\)\(schedule, mask=mask\(", f"hyperparams|{NUMBERS}")
    ),
    "selective_transform takes a mask function; Optax takes it for True (docs/guides/from_optax.md).": (
        Rule((PLAIN,), r"freeze_mask=mask\(\d\)\)", "(?s)^(?!.*raises)")
    ),
    "Integers, Python numbers and objects are not trained; Optax trains them (docs/guides/from_optax.md).": (
        Rule((PLAIN,), case=has_untrained)
    ),
    "A gradient for what is not trained raises (docs/guides/from_optax.md), and a filtered model has none for it.": (
        Rule((FILTERED, PARAMETERS), "", "raises TypeError: there is a gradient .* is not trained")
    ),
    "References are trained, and Python floats if nothing else is (from_optax.md); a filter leaves both out.": (
        Rule((FILTERED, PARAMETERS), case=has_refs_or_numbers_only)
    ),
    "State keeps the dtype of init, and an update is as wide as its param: Optax rounds elsewhere (from_optax.md).": (
        Rule((PLAIN,), "", NUMBERS, has_other_gradients)
    ),
    "Where a gradient is None, some of Optax's states lose their array; treekit's keep it, for scan and jit.": (
        Rule((PLAIN,), "", r"(?m)structure: .*array against None .*\| None$", lambda case: "'None'" in case.gradients)
    ),
    "A rate that is real stays real; Optax's inject_hyperparams stores it in the dtype of complex params.": (
        Rule((PLAIN,), "", r"(?s)\.hyperparams\[.*dtypes float32 and complex64")
    ),
    "A Python number in a state becomes a strong array (docs/design.md), which JAX does not promote with a float8.": (
        Rule((PLAIN,), r"of_numbers\(\)", "(?s)TypePromotionError.*float8")
    ),
    "An update is as wide as its param, so what follows in a chain rounds less than by itself (from_optax.md).": (
        Rule((WRAPPER,), "", NUMBERS, lambda case: "o.chain(" in case.wrapper and has_other_gradients(case))
    ),
    "Muon computes in the gradients' dtype; in 16 bits plain Optax's rounds otherwise, too, if it is compiled.": (
        Rule((WRAPPER,), "muon", NUMBERS, has_other_gradients)
    ),
    "galore and novograd raise inside Optax, under jit, where updates have another dtype than the params.": (
        Rule((STATE,), "galore|novograd", "cond branches")
    ),
    "A NumPy array in bf16 is not inexact to Equinox, so a filtered model has None there; a traced one is inexact.": (
        Rule(
            (STATE,),
            r"arrays_of\(params\)",
            "traced, it raises",
            lambda case: any(isinstance(leaf, np.ndarray) for leaf in not_arrays(case)),
        )
    ),
    "Without params a filter is asked about the gradients (from_optax.md): arrays, also where params are none.": (
        Rule((FILTERED,), "", "", lambda case: case.updated_with == "None" and bool(not_arrays(case)))
    ),
    "To NumPy and Equinox an array in bf16 or float8 is not floating-point: `filtered` refuses it, and says so.": (
        Rule((FILTERED,), "", "filtered would leave out the array")
    ),
    "A key, a function or another single leaf in place of a model is a mistake, and `init` says so.": (
        Rule((FILTERED, PARAMETERS), "", r"which has no parameters\. Pass a pytree")
    ),
}


def check_programs(seed: int, count: int, seen: collections.Counter[str]) -> None:
    """Check random programs, which Hypothesis draws and, if one fails, makes smaller; count laws, and reasons."""

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=count, database=None, deadline=None)
    @hypothesis.given(st.randoms(use_true_random=False))
    def check(rng: random.Random) -> None:
        case = case_of(rng)
        found, laws = failures(case)
        seen.update(["programs", *laws])
        for failure in found:
            why = reason(case, failure)
            seen.update([why or failure.law])
            assert why is not None, f"seed {seed}: {described(case, failure)}"

    check()
    untyped.clear_caches()
