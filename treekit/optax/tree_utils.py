"""Every name of `optax.tree_utils`, for whole models. Made by tests/optax_names.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

    from optax.tree_utils import NamedTupleKey as NamedTupleKey
    from optax.tree_utils import tree_add as tree_add
    from optax.tree_utils import tree_add_scale as tree_add_scale
    from optax.tree_utils import tree_allclose as tree_allclose
    from optax.tree_utils import tree_batch_shape as tree_batch_shape
    from optax.tree_utils import tree_bias_correction as tree_bias_correction
    from optax.tree_utils import tree_cast as tree_cast
    from optax.tree_utils import tree_cast_like as tree_cast_like
    from optax.tree_utils import tree_clip as tree_clip
    from optax.tree_utils import tree_conj as tree_conj
    from optax.tree_utils import tree_div as tree_div
    from optax.tree_utils import tree_dtype as tree_dtype
    from optax.tree_utils import tree_full_like as tree_full_like
    from optax.tree_utils import tree_get as tree_get
    from optax.tree_utils import tree_get_all_with_path as tree_get_all_with_path
    from optax.tree_utils import tree_max as tree_max
    from optax.tree_utils import tree_min as tree_min
    from optax.tree_utils import tree_mul as tree_mul
    from optax.tree_utils import tree_norm as tree_norm
    from optax.tree_utils import tree_ones_like as tree_ones_like
    from optax.tree_utils import tree_random_like as tree_random_like
    from optax.tree_utils import tree_real as tree_real
    from optax.tree_utils import tree_scale as tree_scale
    from optax.tree_utils import tree_size as tree_size
    from optax.tree_utils import tree_split_key_like as tree_split_key_like
    from optax.tree_utils import tree_sub as tree_sub
    from optax.tree_utils import tree_sum as tree_sum
    from optax.tree_utils import tree_unwrap_random_key_data as tree_unwrap_random_key_data
    from optax.tree_utils import tree_update_infinity_moment as tree_update_infinity_moment
    from optax.tree_utils import tree_update_moment as tree_update_moment
    from optax.tree_utils import tree_update_moment_per_elem_norm as tree_update_moment_per_elem_norm
    from optax.tree_utils import tree_vdot as tree_vdot
    from optax.tree_utils import tree_where as tree_where
    from optax.tree_utils import tree_zeros_like as tree_zeros_like

    from treekit.optax import _hyperparams as _hyperparams
    from treekit.optax._functions import apply as _apply

    tree_map_params: Final = _apply.tree_map_params
    tree_set: Final = _hyperparams.tree_set

else:
    import optax.tree_utils as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
