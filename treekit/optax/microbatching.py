"""Every name of `optax.microbatching`, for whole models. Made by tests/optax_names.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optax.microbatching import AccumulationType as AccumulationType
    from optax.microbatching import Accumulator as Accumulator
    from optax.microbatching import micro_grad as micro_grad
    from optax.microbatching import micro_vmap as micro_vmap
    from optax.microbatching import microbatch as microbatch
    from optax.microbatching import reshape_batch_axis as reshape_batch_axis

else:
    import optax.microbatching as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
