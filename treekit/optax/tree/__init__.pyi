"""The names of `optax.tree`, for type checkers. Made by `make stubs`."""

from typing import Final

from optax.tree import add as add
from optax.tree import add_scale as add_scale
from optax.tree import allclose as allclose
from optax.tree import batch_shape as batch_shape
from optax.tree import bias_correction as bias_correction
from optax.tree import cast as cast
from optax.tree import cast_like as cast_like
from optax.tree import clip as clip
from optax.tree import conj as conj
from optax.tree import div as div
from optax.tree import dtype as dtype
from optax.tree import full_like as full_like
from optax.tree import get as get
from optax.tree import get_all_with_path as get_all_with_path
from optax.tree import max as max
from optax.tree import min as min
from optax.tree import mul as mul
from optax.tree import norm as norm
from optax.tree import ones_like as ones_like
from optax.tree import random_like as random_like
from optax.tree import real as real
from optax.tree import scale as scale
from optax.tree import size as size
from optax.tree import split_key_like as split_key_like
from optax.tree import sub as sub
from optax.tree import sum as sum
from optax.tree import unwrap_random_key_data as unwrap_random_key_data
from optax.tree import update_infinity_moment as update_infinity_moment
from optax.tree import update_moment as update_moment
from optax.tree import update_moment_per_elem_norm as update_moment_per_elem_norm
from optax.tree import vdot as vdot
from optax.tree import where as where
from optax.tree import zeros_like as zeros_like

from treekit.optax._wrappers import map_params as _map_params
from treekit.optax._wrappers import tree_set as _tree_set

map_params: Final = _map_params.tree_map_params
set: Final = _tree_set.tree_set
