"""Every name of `optax.perturbations`, for whole models. Made by tests/optax_names.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optax.perturbations import Gumbel as Gumbel
    from optax.perturbations import Normal as Normal
    from optax.perturbations import make_perturbed_fun as make_perturbed_fun

else:
    import optax.perturbations as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
