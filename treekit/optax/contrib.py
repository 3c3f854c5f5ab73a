"""Every name of `optax.contrib`, for whole models and with dtypes preserved."""

from typing import TYPE_CHECKING

from treekit.optax._average import schedule_free_eval_params as schedule_free_eval_params

if TYPE_CHECKING:
    from treekit.optax._lookup.names_contrib import *
else:
    import optax.contrib as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
