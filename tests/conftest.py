"""How every test runs: treekit's own annotations checked, and what JAX would promote silently an error."""

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, runtime_checkable
from unittest import mock

import hypothesis
import jax
import optax
import pytest
from jaxtyping import install_import_hook

from benchmarks.compile_fast import COMPILE_FAST

# The programs of the tests are small and run a few times, so they are compiled fast rather than well. XLA reads its
# flags once, when the first device is asked for. Processes that a test starts do not inherit these, and
# tests/optax/test_cost.py, which reads compiled programs, overrides them.
with mock.patch.dict(os.environ, XLA_FLAGS=f"{COMPILE_FAST} {os.environ.get('XLA_FLAGS', '')}"):
    jax.devices()

# Before anything imports treekit: from here on beartype checks each call of its functions against their annotations.
install_import_hook("treekit", "beartype.beartype")

# Optax's protocols are for reading only; beartype can ask about one, "is it callable?", when it is marked so.
for protocol in (
    optax.ShouldSkipUpdateFunction,
    optax.TransformInitFn,
    optax.TransformUpdateExtraArgsFn,
    optax.TransformUpdateFn,
    optax.transforms.ConditionFn,
):
    runtime_checkable(protocol)

# A deadline would make the first, compiling, example fail. CI tries the same examples each time.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if "CI" in os.environ else "local")

# Tables of wrappers by optimizers by kinds of params, whose cells rarely fail alone: a third of them is not slow.
TABLES = set(
    """
    test_a_mask_made_from_the_filtered_model_fits_the_raw_one test_a_run_resumed_after_any_step_is_bit_equal
    test_any_real_number_can_replace_one_that_is_injected test_bf16_params_with_f32_gradients_keep_their_state
    test_derivatives_go_through test_each_leaf_has_its_rate test_every_factory_takes_every_mask
    test_every_floating_dtype test_it_has_no_state_and_no_update test_it_is_exact_wherever_it_is
    test_it_is_update_then_apply_updates test_k_of_one_is_the_bare_transformation test_law test_laws test_laws_in_x64
    test_multi_steps_counts_a_missing_gradient_as_zero test_multi_steps_needs_no_more_memory_than_optax
    test_no_array_is_written_as_text test_on_params_that_optax_takes_it_is_optax test_on_plain_params_it_is_optax
    test_seeded_faults_are_found test_sound_ones_pass
    test_specs_params_and_states_of_raw_and_filtered_models_go_together test_strict_promotion
    test_the_exceptions_are_those_of_optax test_the_loss_of_a_raw_model_falls_through_every_wrapper
    test_training_is_that_of_f32 test_training_is_that_of_f32_anywhere
    test_value_and_grad_come_from_the_state_on_raw_models test_weights_are_those_of_micro_batches
    test_with_a_key_it_rounds_as_apply_updates_does test_wrapped_in_whatever_way test_wrappers_inside_and_outside
    """.split()
)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark two of three cells of each table as slow."""
    tables: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.name.partition("[")[0]
        if name in TABLES:
            tables[item.path, name].append(item)
    for table in tables.values():
        for i, item in enumerate(table):
            # The digits of i to base 3, summed: with i alone, a parameter of three values would always have the first.
            if sum(i // 3**n for n in range(9)) % 3:
                item.add_marker(pytest.mark.slow)


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled programs in pytest's cache, since the processes and modules of a run need many of them again."""
    set_option: Any = jax.config.update  # has no types
    set_option("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    set_option("jax_persistent_cache_min_compile_time_secs", 0)
    set_option("jax_persistent_cache_min_entry_size_bytes", -1)
    set_option("jax_traceback_in_locations_limit", 0)  # of operations in compiled programs; errors keep their own


def pytest_collection_finish() -> None:
    """Let garbage collections pass over what is imported: a million objects that stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def strict_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """No implicit promotion of ranks, nor of dtypes outside of tests/optax: Optax's own arithmetic mixes dtypes."""
    tests = Path(__file__).parent
    of_optax = any(request.path.is_relative_to(tests / folder) for folder in ("accelerators", "optax"))
    core = request.path.is_relative_to(tests) and not of_optax
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict" if core else "standard"):
        yield


@pytest.fixture(autouse=True, scope="module")
def free_programs() -> Iterator[None]:
    """Forget the compiled programs of a module when it is done: hundreds of modest ones are gigabytes."""
    yield
    clear: Any = jax.clear_caches  # has no types
    clear()
    gc.collect()


@pytest.fixture
def nans() -> Iterator[None]:
    """For a test that has NaN on purpose, or in Optax's own arithmetic, jax_debug_nans is off."""
    with jax.debug_nans(False):
        yield


@pytest.fixture
def leaks() -> Iterator[None]:
    """For a test that keeps a tracer on purpose, or whose library does, jax_check_tracer_leaks is off."""
    with jax.check_tracer_leaks(False):
        yield
