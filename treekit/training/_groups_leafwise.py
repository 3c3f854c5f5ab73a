"""Which factories compute each parameter alone, so that groups of them can have options of their own?"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax

from treekit._base.states import is_known_code
from treekit.optax._wrappers.call import Call, bind_original

# Optax's factories that compute the update of each leaf from that leaf alone, and whose state has groups: see
# `Known.of_all`. Of any other, it is not known, or it is known that they look at all of them together.
_LEAFWISE = """
    adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw
    novograd optimistic_adam optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd signum yogi
    acprop ademamix adopt cocob madgrad muon simplified_ademamix
    adaptive_grad_clip add_decayed_weights clip clip_by_block_rms ema scale scale_by_acprop scale_by_adadelta
    scale_by_adam scale_by_adamax scale_by_adan scale_by_ademamix scale_by_adopt scale_by_amsgrad scale_by_belief
    scale_by_cocob scale_by_factored_rms scale_by_learning_rate scale_by_lion scale_by_madgrad scale_by_muon
    scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm scale_by_param_block_rms scale_by_radam
    scale_by_rms scale_by_rprop scale_by_rss scale_by_simplified_ademamix scale_by_stddev scale_by_trust_ratio
    scale_by_yogi trace
""".split()


def call_of(factory: Callable[..., Any], args: Sequence[object], defaults: Mapping[str, object]) -> Call:
    """Return the call of a factory with the defaults; one of plain Optax is treated as treekit's of the same name."""
    call = bind_original(factory, args, defaults)
    name = _name_in_optax(call.factory)
    return call if name is None else dataclasses.replace(call, name=name, is_of_optax=True)


def _name_in_optax(factory: object) -> str | None:
    """Return the name of a factory of Optax that computes each leaf alone; nadamw is a partial, and has none itself."""
    names = [(name, module) for name in _LEAFWISE for module in (optax, optax.contrib)]
    return next((name for name, module in names if vars(module).get(name) is factory), None)


def check_leafwise(call: Call, leafwise: bool) -> None:
    """Raise a TypeError unless a factory is known, or said, to compute each leaf alone."""
    factory: Any = call.factory
    if _name_in_optax(factory):
        return
    if is_known_code(factory):
        raise TypeError(
            f"param_groups: {call.name} computes with all parameters together, or is not known to compute each alone, "
            "so the options of some cannot differ: a row can only be None. Use optax.partition, with an optimizer for "
            "each group"
        )
    if not leafwise:
        raise TypeError(
            f"param_groups: whether {call.name} computes each parameter alone is not known, and each group would run "
            "on its own: a clip by the global norm would see the norm of a group. Put what looks at all parameters "
            "together outside, optax.chain(optax.clip_by_global_norm(1.0), param_groups(optax.adamw, …)); if nothing "
            "in it does, pass leafwise=True"
        )
