"""Every name of `optax`, for whole models and with dtypes preserved: `from treekit import optax`.

A treekit transformation is an ordinary Optax transformation whose `init` and `update` accept any tree. Around Optax's
function it replaces what cannot be a parameter by None, runs it, casts back and puts back. What the arguments do not
decide raises an error: nothing is found out by trying. docs/design.md says which file answers which question.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

try:
    import optax as _optax
except ModuleNotFoundError as _error:
    if _error.name != "optax":
        raise
    raise ModuleNotFoundError(
        "treekit.optax needs optax; install it with: pip install 'treekit-jax[optax]'"
    ) from _error

from treekit.optax._kernel.releases import existing as _existing
from treekit.optax._mirror.lookup import replace as _replace
from treekit.optax._mirror.lookup import wrap_attribute as _wrap_attribute
from treekit.optax._mirror.lookup import wrap_module as _wrap_module
from treekit.optax._wrappers.apply import apply_gradients as apply_gradients
from treekit.optax._wrappers.apply import apply_updates as apply_updates
from treekit.optax._wrappers.apply import tree_map_params as tree_map_params
from treekit.optax._wrappers.conditional import apply_if_finite as apply_if_finite
from treekit.optax._wrappers.conditional import conditionally_mask as conditionally_mask
from treekit.optax._wrappers.conditional import conditionally_transform as conditionally_transform
from treekit.optax._wrappers.dtype_preserving import dtype_preserving as dtype_preserving
from treekit.optax._wrappers.inject import inject_hyperparams as inject_hyperparams
from treekit.optax._wrappers.lbfgs import lbfgs as lbfgs
from treekit.optax._wrappers.lbfgs import value_and_grad_from_state as value_and_grad_from_state
from treekit.optax._wrappers.monitor import monitor as monitor
from treekit.optax._wrappers.multi_steps import MultiSteps as MultiSteps
from treekit.optax._wrappers.multi_steps import WeightedMultiStepsState as WeightedMultiStepsState
from treekit.optax._wrappers.schedule_free import schedule_free_eval_params as _schedule_free_eval_params
from treekit.optax._wrappers.select import filtered as filtered
from treekit.optax._wrappers.select import freeze as freeze
from treekit.optax._wrappers.select import masked as masked
from treekit.optax._wrappers.select import partition as partition
from treekit.optax._wrappers.select import selective_transform as selective_transform
from treekit.optax._wrappers.tree_set import tree_set as _tree_set
from treekit.optax._wrappers.update import incremental_update as incremental_update
from treekit.optax._wrappers.update import periodic_update as periodic_update

multi_transform = partition
_replace(
    globals(),
    {
        _optax.inject_stateful_hyperparams: inject_hyperparams,
        _optax.tree.set: _tree_set,
        _optax.contrib.schedule_free_eval_params: _schedule_free_eval_params,
    },
)

if TYPE_CHECKING:
    from treekit.optax._names import *
else:  # so that type checkers report misspelt names
    if not _existing(_optax, "monitor"):
        del monitor
    # Optax's submodules, and those of later releases. In the folders here are only their stubs.
    for _name, _module in vars(_optax).items():
        _is_submodule = isinstance(_module, ModuleType) and _module.__name__ == f"optax.{_name}"
        if _is_submodule and _name not in globals():  # a name of treekit's own is not given up to a later Optax
            _path = f"{__name__}.{_name}"
            globals()[_name] = sys.modules.setdefault(_path, _wrap_module(_module, _path))
    # Python would import the folders of those that this release of Optax does not have, as modules without names.
    for _folder in Path(__file__).parent.glob("[a-z]*/"):
        sys.modules.setdefault(f"{__name__}.{_folder.name}", None)

    def __getattr__(name: str) -> object:
        """Return a name of Optax; one that neither has may be a name of `treekit`."""
        try:
            return _wrap_attribute(_optax, name)
        except AttributeError as error:
            if name not in sys.modules["treekit"].__all__:
                raise
            hint = f"{error}. It is in the other module: treekit.{name}"
            raise AttributeError(hint, name=name, obj=sys.modules[__name__]) from None

    def __dir__() -> list[str]:
        return sorted({*globals(), *dir(_optax)} - _OF_PYTHON)

    _OF_PYTHON = {"ModuleType", "Path", "TYPE_CHECKING", "sys"}  # imported by this module, and not of Optax
    __all__ = [name for name in __dir__() if not name.startswith("_")]
