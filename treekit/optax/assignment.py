"""Every name of `optax.assignment`, for whole models. Made by tests/optax_names.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optax.assignment import base_hungarian_algorithm as base_hungarian_algorithm
    from optax.assignment import hungarian_algorithm as hungarian_algorithm

else:
    import optax.assignment as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
