"""Every name of `optax.second_order`, for whole models. Made by tests/optax_names.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optax.second_order import fisher_diag as fisher_diag
    from optax.second_order import hessian_diag as hessian_diag
    from optax.second_order import hvp as hvp

else:
    import optax.second_order as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
