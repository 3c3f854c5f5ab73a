"""Differences that are documented: why a law need not hold, and for which programs; and programs held to the rest."""

import collections
import random
import re
from typing import NamedTuple

import hypothesis
from hypothesis import strategies as st

from tests.trees import untyped

from .cases import PLAIN, STATE, WRAPPER, Case, case_of
from .laws import Failure, described, failures


class Rule(NamedTuple):
    """A law that need not hold, and patterns for the program and for what was seen."""

    law: str
    program: str
    seen: str = ""


RULES = {
    "MultiSteps accumulates complex gradients whole; Optax drops imaginary parts (benchmarks/results/upstream.md).": (
        Rule(PLAIN, "MultiSteps.* on .*complex")
    ),
    "In Optax's MultiSteps a NaN outlives its round, and leaks into steps that wait (docs/guides/from_optax.md).": (
        Rule(PLAIN, "MultiSteps", r"(?s)^the .*: at .*\) and .*(nan|inf)")  # which Optax has
    ),
    "inject_hyperparams holds numbers in f32 at least; Optax in the params' dtype (docs/guides/from_optax.md).": (
        Rule(PLAIN, "inject_hyperparams.* on .*(float16|float8)", "(?s)^(?!.*raises).*: at |lax.clamp requires")
    ),
    "inject_hyperparams computes with float8 in f32, since JAX does not mix it; in float8, Optax's adam is NaN.": (
        Rule(WRAPPER, "float8", "(?s)^o.inject_hyperparams.*: at ")
    ),
    "Optax's prodigy mixes float8 with f32 if it is traced, which JAX rejects.": (
        Rule(STATE, "prodigy.*float8", "^traced, it raises TypePromotionError")
    ),
    "A function of the params inside of flatten is refused, since its arrays are others (docs/guides/from_optax.md).": (
        Rule(PLAIN, "flatten|split_real_and_imaginary", "is asked about the params, and optax.flatten")
    ),
    "A rate that is real stays real; Optax's inject_hyperparams stores it in the dtype of complex params.": (
        Rule(PLAIN, "inject_hyperparams", r"(?s)\.hyperparams\[.*dtypes float32 and complex64")
    ),
}


def reason(case: Case, failure: Failure) -> str | None:
    """Why a law need not hold here, or None."""
    for why, rule in RULES.items():
        if failure.law == rule.law and re.search(rule.program, case.program) and re.search(rule.seen, failure.message):
            return why
    return None


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
