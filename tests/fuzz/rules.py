"""Differences that are documented: each is told by a rule, and the rule's docstring is the reason."""

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
Rule = Callable[[Case, Failure], bool]
RULES: list[Rule] = []


def reason(case: Case, failure: Failure) -> str | None:
    """Why a law need not hold here, or None."""
    return next((rule.__doc__ for rule in RULES if rule(case, failure)), None)


def _rule(law: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        def applies(case: Case, failure: Failure) -> bool:
            return failure.law == law and rule(case, failure)

        applies.__doc__ = rule.__doc__
        RULES.append(applies)
        return rule

    return register


def _leaves(case: Case) -> list[Any]:
    """The leaves that can be parameters, with what they stand for as a number."""
    pairs = [(leaf, value_of(leaf)) for leaf in jax.tree.leaves(evaluate(case.params, None, None))]
    return [(leaf, x) for leaf, x in pairs if x is not None and not jnp.issubdtype(x.dtype, jax.dtypes.extended)]


def _is_about_numbers(failure: Failure) -> bool:
    return ": at " in failure.message and "raises" not in failure.message


@_rule("equals plain Optax")
def complex_multi_steps(case: Case, failure: Failure) -> bool:
    """MultiSteps accumulates complex gradients whole; Optax drops imaginary parts (benchmarks/results/upstream.md)."""
    return "MultiSteps" in case.tx and any(jnp.iscomplexobj(x) for _, x in _leaves(case))


@_rule("equals plain Optax")
def not_finite_multi_steps(case: Case, failure: Failure) -> bool:
    """In Optax's MultiSteps a NaN outlives its round, and leaks into steps that wait (docs/what_goes_wrong.md)."""
    return "MultiSteps" in case.tx and re.search("nan|inf", failure.message) is not None


@_rule("equals plain Optax")
def not_finite_complex(case: Case, failure: Failure) -> bool:
    """The update of a real param is real; Optax's is complex where it mixes the two, and then inf becomes NaN."""
    kinds = {jnp.iscomplexobj(x) for _, x in _leaves(case)}
    return len(kinds) > 1 and "complex64" in failure.message and re.search("nan|inf", failure.message) is not None


@_rule("equals plain Optax")
def joined_twice(case: Case, failure: Failure) -> bool:
    """Updates of another structure are an error; of two nested splits the inner one joins what the outer has split."""
    return case.tx.count("split_real_and_imaginary") > 1 and "SplitRealAndImaginaryArrays" in failure.message


@_rule("equals plain Optax")
def monitored_from_init(case: Case, failure: Failure) -> bool:
    """monitor has its measurements in the state from init on (docs/guides/from_optax.md)."""
    return "monitor(" in case.tx and ".measurements" in failure.message


@_rule("equals plain Optax")
def hyperparams_in_f32(case: Case, failure: Failure) -> bool:
    """inject_hyperparams holds numbers in f32 at least; Optax in the params' dtype (docs/guides/from_optax.md)."""
    narrow = any(is_inexact(x) and jnp.finfo(x.dtype).bits < 32 for _, x in _leaves(case))
    return "inject_hyperparams" in case.tx and narrow and _is_about_numbers(failure)


@_rule("equals plain Optax")
def mask_for_a_schedule(case: Case, failure: Failure) -> bool:
    """Optax's inject_hyperparams takes a mask function for a schedule (docs/what_goes_wrong.md)."""
    return "o.inject_hyperparams(o.adamw)(falling, mask=mask(" in case.tx and _is_about_hyperparams(failure)


def _is_about_hyperparams(failure: Failure) -> bool:
    return "hyperparams" in failure.message or _is_about_numbers(failure)


@_rule("equals plain Optax")
def mask_function_for_true(case: Case, failure: Failure) -> bool:
    """freeze and selective_transform take mask functions; Optax takes a function for True (from_optax.md)."""
    return re.search(r"freeze(_mask=|\()mask\(\d\)\)", case.tx) is not None and "raises" not in failure.message


@_rule("equals plain Optax")
def integers_as_floats(case: Case, failure: Failure) -> bool:
    """Integers among the params are shown to the inner transformation as floats (docs/guides/from_optax.md)."""
    return any(not is_inexact(x) for _, x in _leaves(case)) and _is_about_numbers(failure)


@_rule("equals plain Optax")
def gradients_of_another_dtype(case: Case, failure: Failure) -> bool:
    """State keeps the dtype of init, and an update is as wide as its param: Optax rounds elsewhere (from_optax.md)."""
    return _has_other_gradients(case) and _is_about_numbers(failure)


@_rule("a wrapper changes nothing")
def gradients_of_integers(case: Case, failure: Failure) -> bool:
    """Gradients of integers are none of treekit's business (docs/design.md): what an optimizer makes of them is."""
    return (
        "'zeros'" in case.gradients and any(not is_inexact(x) for _, x in _leaves(case)) and _is_about_numbers(failure)
    )


@_rule("a wrapper changes nothing")
def widened_updates(case: Case, failure: Failure) -> bool:
    """An update is as wide as its param, so what follows in a chain rounds less than by itself (from_optax.md)."""
    return _has_other_gradients(case) and "o.chain(" in case.wrapper and _is_about_numbers(failure)


def _has_other_gradients(case: Case) -> bool:
    """Whether gradients have another dtype than their params, so that numbers are rounded at other places."""
    dtype = case.gradients.split(",")[0].strip("'")
    return dtype != "None" and any(is_inexact(x) and x.dtype != dtype for _, x in _leaves(case))


@_rule("a raw model equals its parameters")
@_rule("a raw model, filtered, equals its arrays")
def arrays_that_were_numbers(case: Case, failure: Failure) -> bool:
    """A Python number that is given an update becomes an array, for which a filtered model's mask has no value."""
    is_no_array = any(is_inexact(x) for _, x in _not_arrays(case))
    return "arrays_of(params)" in case.tx and "'None'" not in case.gradients and is_no_array


@_rule("equals plain Optax")
def gradients_that_are_none(case: Case, failure: Failure) -> bool:
    """Where a gradient is None, some of Optax's states lose their array; treekit's keep it, for scan and jit."""
    is_lost = re.search(r"structure: .*array against None .*\| None$", failure.message, re.M) is not None
    return "'None'" in case.gradients and is_lost


@_rule("equals plain Optax")
def real_hyperparams(case: Case, failure: Failure) -> bool:
    """A rate that is real stays real; Optax's inject_hyperparams stores it in the dtype of complex params."""
    return ".hyperparams[" in failure.message and "dtypes float32 and complex64" in failure.message


@_rule("keeps its state")
def branches_of_another_dtype(case: Case, failure: Failure) -> bool:
    """galore and novograd raise inside Optax, under jit, where updates have another dtype than the params."""
    return any(name in case.tx for name in ("galore", "novograd")) and "cond branches" in failure.message


@_rule("keeps its state")
def narrow_numpy_arrays(case: Case, failure: Failure) -> bool:
    """A NumPy array in bf16 is not inexact to Equinox, so a filtered model has None there; a traced one is inexact."""
    is_hidden = any(isinstance(leaf, np.ndarray) and is_inexact(jnp.asarray(x)) for leaf, x in _not_arrays(case))
    return "arrays_of(params)" in case.tx and "traced, it raises" in failure.message and is_hidden


@_rule("a raw model, filtered, equals its arrays")
def losses_of_numbers(case: Case, failure: Failure) -> bool:
    """A number with a gradient is shown to value_fn as an array, and the loss of these programs counts arrays."""
    asks = any(name in case.tx for name in ("lbfgs", "linesearch"))
    return asks and "'None'" not in case.gradients and any(is_inexact(x) for _, x in _not_arrays(case))


@_rule("a raw model, filtered, equals its arrays")
def filters_without_params(case: Case, failure: Failure) -> bool:
    """Without params a filter is asked about the gradients (from_optax.md): arrays, also where params are none."""
    return case.updated_with == "None" and any(is_inexact(x) for _, x in _not_arrays(case))


def _not_arrays(case: Case) -> list[tuple[Any, Any]]:
    """The leaves that Equinox does not take for inexact arrays, with what they stand for as a number."""
    return [(leaf, x) for leaf, x in _leaves(case) if not eqx.is_inexact_array(leaf)]


@_rule("equals plain Optax")
def strong_numbers_beside_float8(case: Case, failure: Failure) -> bool:
    """A Python number in a state becomes a strong array (docs/design.md), which JAX does not promote with a float8."""
    return "counted()" in case.tx and "TypePromotionError" in failure.message and "float8" in failure.message


@_rule("a wrapper changes nothing")
def compiled_in_16_bits(case: Case, failure: Failure) -> bool:
    """Muon computes in the gradients' dtype; in 16 bits plain Optax's rounds otherwise, too, if it is compiled."""
    return "muon" in case.tx and _has_other_gradients(case) and _is_about_numbers(failure)


@_rule("a raw model, filtered, equals its arrays")
def filtered_numpy_bf16(case: Case, failure: Failure) -> bool:
    """To NumPy and Equinox an array in bf16 or float8 is not floating-point: `filtered` refuses it, and says so."""
    return "filtered would leave out the array" in failure.message


@_rule("a raw model equals its parameters")
@_rule("a raw model, filtered, equals its arrays")
def one_leaf_that_is_no_parameter(case: Case, failure: Failure) -> bool:
    """A key, a function or another single leaf in place of a model is a mistake, and `init` says so."""
    return "which has no parameters. Pass a pytree" in failure.message
