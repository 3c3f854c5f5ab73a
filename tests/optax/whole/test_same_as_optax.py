"""Every function of Optax that is another one in treekit.optax, called in both with the same arguments."""

import inspect
import operator
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from tests.releases import has
from treekit import optax as tko

OF_TREES = ("tree", "tree_utils")  # whose functions are in tests/optax/mirror/test_tree_functions.py
SUBMODULES = {name for name, x in vars(tko).items() if isinstance(x, types.ModuleType) and hasattr(optax, name)}
MODULES = ("", *sorted(SUBMODULES.difference(OF_TREES)))


def names() -> dict[str, Any]:
    """The functions that are not Optax's own, under the first of their names."""
    found: dict[int, tuple[str, Any]] = {}
    for module in MODULES:
        for name in dir(getattr(optax, module) if module else optax):
            path = f"{module}.{name}".strip(".")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some are deprecated
                theirs, ours = (operator.attrgetter(path)(o) for o in (optax, tko))
            if not name.startswith("_") and callable(theirs) and theirs is not ours:
                found.setdefault(id(theirs), (path, theirs))
    return dict(found.values())


NAMES = names()
LEAVES: dict[str, Any] = {
    "f32": {"w": jnp.array([[0.5, -1.0], [2.0, 0.25]]), "b": jnp.array([1.0, -0.5])},
    "bf16": {"w": jnp.array([[0.5, -1.0], [2.0, 0.25]], jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16)},
    "NumPy": {"w": np.array([[0.5, -1.0], [2.0, 0.25]]), "b": np.array([1.0, -0.5])},
    "numbers": {"w": 0.5, "b": 2.0},
}
MASK = {"w": True, "b": False}


def halve(tree: Any, _: Any = None) -> Any:
    return jax.tree.map(lambda x: x / 2, tree)


# By the name of the parameter: a function of the library. Any other parameter is given the tree.
ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("base_optimizer", "inner", "opt", "optimizer", "tx"), lambda o: o.adam(0.1)),
    **dict.fromkeys(("clipping", "decay", "gamma", "learning_rate", "noise_multiplier"), lambda o: 0.1),
    **dict.fromkeys(("eps", "eta", "max_delta", "max_norm", "step_size", "threshold"), lambda o: 0.3),
    **dict.fromkeys(("global_l2_norm_clip", "l2_norm_clip"), lambda o: 0.5),
    **dict.fromkeys(("count", "every_k_schedule", "max_consecutive_errors", "order", "p", "seed"), lambda o: 2),
    **dict.fromkeys(("max_backtracking_steps", "max_linesearch_steps"), lambda o: 4),
    **dict.fromkeys(("freeze_mask", "mask", "param_labels"), lambda o: MASK),
    **dict.fromkeys(("cost_matrix", "matrix"), lambda o: jnp.array([[2.0, 1.0], [1.0, 3.0]])),
    **dict.fromkeys(("logits", "labels"), lambda o: jnp.array([0.25, 0.5])),
    "adv_optimizer": lambda o: o.sgd(0.1),
    "f": lambda o: halve,
    "inner_factory": lambda o: o.adam,
    "max_fun": lambda o: jax.scipy.special.logsumexp,
    "measure": lambda o: optax.tree.norm,
    "measure_name": lambda o: "norm",
    "measures": lambda o: {"norm": optax.tree.norm},
    "should_transform_fn": lambda o: lambda step, **_: step % 2 == 0,
    "step_size_fn": lambda o: lambda count: 1.0 / (1 + count),
    "transforms": lambda o: {True: o.sgd(0.1), False: o.adam(0.1)},
    "value_fn": lambda o: cases.loss,
}
POSITIONAL: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "apply_updates": lambda o, t: (t, halve(t)),
    "chain": lambda o, t: (o.clip(0.3), o.adam(0.1)),
    "contrib.schedule_free_eval_params": lambda o, t: (o.contrib.schedule_free_sgd(0.1).init(t), t),
    "incremental_update": lambda o, t: (t, halve(t), 0.25),
    "named_chain": lambda o, t: (("clip", o.clip(0.3)), ("adam", o.adam(0.1))),
    "periodic_update": lambda o, t: (t, jax.tree.map(lambda x: 2 * x, t), 4, 2),
    "tree_map_params": lambda o, t: (o.adam(0.1), lambda x: 2 * x, o.adam(0.1).init(t)),
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "add_noise": {"key": 0},
    "noisy_sgd": {"key": 0},
    "contrib.differentially_private_aggregate": {"key": 0},
}
if has("optax.contrib.MuonDimensionNumbers"):  # before, it takes only matrices
    KEYWORDS["contrib.scale_by_muon"] = {"weight_dimension_numbers": {"w": optax.contrib.MuonDimensionNumbers()}}
# The extra arguments of an update, where they are not `value`, `grad` and `value_fn`.
EXTRA: dict[str, dict[str, Any]] = {
    "contrib.sam": {},
    "contrib.hutchinson_estimator_diag_hessian": {"obj_fn": cases.loss},
    "contrib.sophia": {"obj_fn": cases.loss},
}
BY_EXAMPLE = ("contrib.differentially_private_aggregate", "contrib.dpsgd")  # whose gradients have one more axis

# What is meant to differ, with the reason.
DIFFERENT: dict[tuple[str, str], str] = {
    **{("monitor", leaves): "the measurements are in the state from init on" for leaves in LEAVES},
    ("inject_hyperparams", "bf16"): "hyperparameters are stored in f32 at least",
    ("inject_stateful_hyperparams", "bf16"): "hyperparameters are stored in f32 at least",
    ("scale_by_distance_over_gradients", "bf16"): "the state keeps the dtype of init, where Optax's becomes f32",
}


def call(o: Any, name: str, leaves: str) -> Any:
    """The result of a function; of a transformation, two updates and the states before, between and after them."""
    function, tree = operator.attrgetter(name)(o), LEAVES[leaves]
    if name == "contrib.scale_by_muon":  # takes only matrices
        tree = {"w": tree["w"]}
    parameters = inspect.signature(NAMES[name]).parameters.values()
    required = [x.name for x in parameters if x.default is x.empty and "VAR" not in x.kind.name]
    if name in POSITIONAL:
        out: Any = function(*POSITIONAL[name](o, tree), **KEYWORDS.get(name, {}))
    else:
        out = function(**{x: ARGUMENTS[x](o) if x in ARGUMENTS else tree for x in required}, **KEYWORDS.get(name, {}))
    if name.endswith(("inject_hyperparams", "inject_stateful_hyperparams")):
        out = out(0.1)
    if isinstance(out, optax.MultiSteps):
        out = out.gradient_transformation()
    return steps(name, out, tree) if isinstance(out, optax.GradientTransformation) else out


def steps(name: str, tx: Any, params: Any) -> list[Any]:
    """Two updates with the states before them, and the last state."""
    tx, found, state = optax.with_extra_args_support(tx), [], tx.init(params)
    extra = EXTRA.get(name, cases.extra_for(params, params))
    grads = jax.tree.map(lambda x: jnp.asarray(x)[None], params) if name in BY_EXAMPLE else params
    for _ in range(2):
        updates, new_state = tx.update(grads, state, params, **extra)
        found.append((updates, state))
        state = new_state
    return [*found, state]


@pytest.mark.parametrize("leaves", [pytest.param(x, marks=[pytest.mark.slow] if x != "f32" else []) for x in LEAVES])
@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.filterwarnings("ignore")
def test_where_optax_works_the_result_is_the_same(name: str, leaves: str) -> None:
    with jax.numpy_rank_promotion("allow"):
        try:
            theirs = call(optax, name, leaves)
        except Exception as error:
            if leaves == "f32":
                raise AssertionError(f"add arguments with which {name} works") from error
            return
        ours = call(tko, name, leaves)
    if (name, leaves) in DIFFERENT:
        with pytest.raises(AssertionError):
            assert_same(ours, theirs)
    else:
        assert_same(ours, theirs)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if not callable(theirs):  # of functions, only that both are made
        cases.assert_close(*(jax.tree.map(jnp.asarray, x) for x in (ours, theirs)))
