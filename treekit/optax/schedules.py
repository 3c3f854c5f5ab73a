"""Every name of `optax.schedules`, for whole models and with dtypes preserved."""

from typing import TYPE_CHECKING

from treekit.optax._inject import inject_hyperparams as inject_hyperparams

if TYPE_CHECKING:
    from treekit.optax._lookup.names_schedules import *
else:
    import optax.schedules as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
