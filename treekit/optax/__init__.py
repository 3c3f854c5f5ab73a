"""Every name of `optax`, and no other, for whole models and with dtypes preserved: `from treekit import optax`.

A treekit transformation is an ordinary Optax transformation whose `init` and `update` accept any tree. On the way in,
None takes the place of what is not trained; then Optax's own function runs; on the way out, the dtypes and the
structure are those that came in. What the arguments do not decide raises an error.

- `_kernel`: what crosses the boundary of a transformation?
- `_wrappers`: Optax's wrappers, for whole models
- `_mirror`: which function does each name give? `_names`, and the folders of submodules, are its stubs

What Optax does not have is in `treekit.training`.
"""

import typing as _typing

try:
    import optax as _optax
except ModuleNotFoundError as _error:
    if _error.name != "optax":
        raise
    raise ModuleNotFoundError(
        "treekit.optax needs optax; install it with: pip install 'treekit-jax[optax]'"
    ) from _error

if _typing.TYPE_CHECKING:
    from treekit.optax._names import *
else:
    from treekit.optax._mirror.modules import add_submodules as _add_submodules
    from treekit.optax._mirror.modules import names_of as _names_of

    _add_submodules()
    __getattr__, __dir__, __all__ = _names_of(_optax)
