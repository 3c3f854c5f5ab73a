"""Every function of Optax that is another one in treekit.optax, with arguments to call it with."""

import inspect
import operator
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.optax import cases
from tests.releases import has
from treekit import optax as tko

OF_TREES = ("tree", "tree_utils")  # whose functions are in tests/optax/mirror/test_tree_functions.py
SUBMODULES = {name for name, x in vars(optax).items() if isinstance(x, types.ModuleType) and name[0] != "_"}
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
# Those that make transformations. Of these, Optax does not say so.
UNANNOTATED = {"MultiSteps", "contrib.dog", "contrib.dowg", "contrib.hutchinson_estimator_diag_hessian", "monitor"}
UNANNOTATED.add("scale_by_factored_rms")
TRANSFORMATIONS = sorted(
    name
    for name, value in NAMES.items()
    if name != "lookahead"  # whose params are a pair: tests/optax/wrappers/test_lookahead.py
    if name in UNANNOTATED or "GradientTransformation" in str(inspect.signature(value).return_annotation)
)


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
    **dict.fromkeys(("freeze_mask", "mask", "param_labels"), lambda o: {"w": True, "b": False}),
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
KEYWORDS: dict[str, Callable[[Any], dict[str, Any]]] = dict.fromkeys(
    ("add_noise", "noisy_sgd", "contrib.differentially_private_aggregate"), lambda t: {"key": 0}
)
if has("optax.contrib.MuonDimensionNumbers"):  # before, it takes only matrices
    KEYWORDS["contrib.scale_by_muon"] = lambda t: {
        "weight_dimension_numbers": jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), t)
    }
# The extra arguments of an update, where they are not `value`, `grad` and `value_fn`.
EXTRA: dict[str, dict[str, Any]] = {
    "contrib.sam": {},
    "contrib.hutchinson_estimator_diag_hessian": {"obj_fn": cases.loss},
    "contrib.sophia": {"obj_fn": cases.loss},
}
BY_EXAMPLE = ("contrib.differentially_private_aggregate", "contrib.dpsgd")  # whose gradients have one more axis


def call(
    o: Any,
    name: str,
    tree: Any,
    arguments: dict[str, Callable[[Any], Any]] = ARGUMENTS,
    around: Callable[[Any], Any] = lambda function: function,
) -> Any:
    """The result of a function; of what makes a factory or a `MultiSteps`, a transformation.

    Args:
        o: Optax or treekit.optax.
        name: one of `NAMES`.
        tree: what stands for params, and for what `arguments` do not have.
        arguments: by the name of the parameter, a function of `o`.
        around: makes another function of it, such as `inject_hyperparams`.
    """
    function = around(operator.attrgetter(name)(o))
    parameters = inspect.signature(NAMES[name]).parameters.values()
    required = [x.name for x in parameters if x.default is x.empty and "VAR" not in x.kind.name]
    keywords = KEYWORDS[name](tree) if name in KEYWORDS else {}
    if name in POSITIONAL:
        out: Any = function(*POSITIONAL[name](o, tree), **keywords)
    else:
        out = function(**{x: arguments[x](o) if x in arguments else tree for x in required}, **keywords)
    if name.endswith(("inject_hyperparams", "inject_stateful_hyperparams")):
        out = out(0.1)
    return out.gradient_transformation() if isinstance(out, optax.MultiSteps) else out
